"""This process's own streams and signals, while it is the console of a machine that runs here."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that ask for an end: from the terminal's keys, from a supervisor, and when the terminal goes away."""

_PIECE = select.PIPE_BUF  # bytes; a pipe that can be written takes so many without blocking


@dataclass(slots=True)
class Wish:
    """What the signals have asked for so far."""

    stop: bool = False
    at_once: bool = False


@contextmanager
def stop_wishes() -> Iterator[Wish]:
    """Take note of the signals of STOPPING, none of which interrupts anything: the first asks, Ctrl-C again insists.

    Only a second Ctrl-C insists: a shell that ends may send SIGHUP twice. For the main thread.
    """
    wish = Wish()

    def note(number: int, _: FrameType | None) -> None:
        wish.at_once |= wish.stop and number == signal.SIGINT
        wish.stop = True

    before = [(number, signal.signal(number, note)) for number in STOPPING]
    try:
        yield wish
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def keys_at_once(console: int) -> Iterator[None]:
    """Hand keys on as they are typed; the guest's own terminal echoes and edits. Ctrl-C stays this process's."""
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    attributes = termios.tcgetattr(0)
    attributes[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(0, termios.TCSADRAIN, attributes)
    fcntl.ioctl(console, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
    try:
        yield
    finally:
        with suppress(termios.error):  # it may have gone away
            termios.tcsetattr(0, termios.TCSADRAIN, before)


class Relay:
    """Passes bytes between this process's standard streams and a guest's console, and never waits for either.

    `output` reads the console, as `LocalGuest.output` does.
    """

    def __init__(self, console: int, output: Callable[[float], bytes]) -> None:
        self._console, self._output = console, output
        self._keys = self._shown = b""
        self._has_keys = True
        self.hung_up = False
        """Whether standard output has gone away; what the guest prints is dropped then."""

    def step(self, seconds: float) -> bool:
        """Pass on what there is, after waiting for that for at most so many seconds; tell whether there may be more."""
        reads = [0] * (self._has_keys and not self._keys) + [self._console] * (not self._shown)
        writes = [1] * bool(self._shown) + [self._console] * bool(self._keys)
        readable, writable, _ = select.select(reads, writes, [], seconds)
        if 0 in readable:
            self._read_keys()
        printed = self._console in readable and self._output(0.05)  # nothing where a getty has hung the console up
        self._shown = printed or self._shown
        if self._keys and self._console in writable:
            try:
                self._keys = self._keys[os.write(self._console, self._keys) :]
            except BlockingIOError:
                pass
            except OSError:  # nobody has it open
                self._keys = b""
        if 1 in writable:
            try:
                self._shown = self._shown[os.write(1, self._shown[:_PIECE]) :]
            except OSError:
                self.hung_up = True
        if self.hung_up:
            self._shown = b""
        return bool(printed or self._shown)

    def _read_keys(self) -> None:
        with suppress(OSError):  # a terminal that has gone away
            self._keys = os.read(0, 4096)
        self._has_keys = bool(self._keys)
