"""The only place that starts processes: `run` for a short answer, `piped` for a stream through a filter.

A child must not outlive its parent. Every child here reads from a pipe whose only writer is this process, and writes
to one whose only reader is: when this process dies, however it dies, the child finds the end of its input or SIGPIPE
and ends. PR_SET_PDEATHSIG is not used: it is tied to the *thread* that forked and not to the process, and setting it
between fork and exec is not safe in a process that has threads.

`piped` has no thread of its own either. Who reads the output also moves the input, whenever the child would take some,
so an error of the source surfaces in the reader as it is, and leaving early has nothing to wait for.
"""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Protocol

from shim.errors import FormatError, Refused, printable
from shim.image.digest import CHUNK

_PACKAGES = {"gpg": "gnupg", "mount": "mount", "xz": "xz-utils"}  # Debian's, where named otherwise than the tool
_KEPT = ("HOME", "PATH", "TMPDIR")  # so that XZ_OPT, XZ_DEFAULTS, TAR_OPTIONS, GZIP and their like never arrive
_STDERR_KEPT = 4096  # bytes of a child's messages; the rest is read and dropped
_PATIENCE = 100  # milliseconds between looks at a filter that has closed its output and is silent
_PIPE_SIZE = 1 << 20  # bytes; what an unprivileged process may ask for


class Reader(Protocol):
    """What a stream is read from. It may return less than was asked for, and returns ``b""`` only at its end."""

    def read(self, amount: int, /) -> bytes: ...


def run(argv: Sequence[str], *, data: bytes = b"", what: str) -> bytes:
    """Run `argv` to its end with `data` as its input, and return what it wrote to its standard output.

    `what` says in messages what is being done, such as ``listing the archive``. The environment is a clean one: HOME,
    PATH and TMPDIR as here, LC_ALL=C. Raises `Refused` when the tool is missing, or exits with anything but 0.
    """
    with _start(argv, subprocess.PIPE, what) as child:
        try:
            output, messages = child.communicate(data)
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise Refused(_failure(argv, child.returncode, messages, what))
    return output


@contextmanager
def piped(argv: Sequence[str], source: Reader, what: str, *, inherit: Sequence[int] = ()) -> Iterator[Reader]:
    """Run the filter `argv` with `source` as its input, and give its output as a reader.

    The filter also gets the descriptors `inherit`, such as that of a lock which must last as long as it runs.

    The reader fills what it was asked for, and returns ``b""`` only after the filter ended with 0 and the source was
    read to its end, so that a source which verifies itself at its end has done so. Leaving the block earlier kills the
    filter. The environment is the one of `run`.

    The reader raises what the source raises, as it is; and `FormatError` when the filter fails, or ends before its
    input does (something follows what it understood). `piped` raises `Refused` when the tool is missing.
    """
    with ExitStack() as stack:
        # The reading end stays open here too: what the filter left in the pipe can be counted after it has ended.
        reading, writing = os.pipe()
        stdin = stack.enter_context(os.fdopen(reading, "rb", 0))
        feed = stack.enter_context(os.fdopen(writing, "wb", 0))
        child = _start(argv, stdin, what, inherit)
        stack.callback(_reap, child)
        yield _Filter(child, source, stdin, feed, argv, what)


class _Filter:
    """The reader that `piped` gives."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        source: Reader,
        stdin: IO[bytes],
        feed: IO[bytes],
        argv: Sequence[str],
        what: str,
    ) -> None:
        assert child.stdout and child.stderr  # noqa: S101 - both were asked for as pipes
        self._child, self._stdout, self._stderr = child, child.stdout.fileno(), child.stderr.fileno()
        self._source, self._stdin, self._feed = source, stdin, feed
        self._argv, self._what = argv, what
        self._pending = memoryview(b"")  # read from the source, not yet taken by the filter
        self._messages = b""
        self._listening = True
        self._ended = False
        self._error: BaseException | None = None
        for pipe in (self._feed.fileno(), self._stdout):
            with suppress(OSError):  # over the user's limit: slower, not wrong
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        os.set_blocking(self._feed.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._poll.register(self._stderr, select.POLLIN)
        self._poll.register(self._feed.fileno(), select.POLLOUT)

    def read(self, amount: int = CHUNK, /) -> bytes:
        if self._error:  # what follows an error must not look like the end
            raise self._error
        try:
            return self._read(amount)
        except BaseException as error:
            self._error = error
            raise

    def _read(self, amount: int) -> bytes:
        pieces: list[bytes] = []
        missing = amount
        while missing > 0 and not self._ended:
            ready = dict(self._poll.poll())
            if self._stderr in ready:
                self._listen()
            if self._stdout in ready:
                piece = os.read(self._stdout, missing)
                if not piece:
                    self._finish()
                pieces.append(piece)
                missing -= len(piece)
            # Output first: the filter may be stuck on it, and reading from the source may take its time.
            elif not self._feed.closed and self._feed.fileno() in ready:
                self._move()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _move(self) -> None:
        """Hand some input on; at the end of the source, close the pipe."""
        self._pending = self._pending or memoryview(self._source.read(CHUNK))
        if self._pending:
            self._pending = self._pending[os.write(self._feed.fileno(), self._pending) :]
        else:
            self._close_feed()

    def _close_feed(self) -> None:
        if not self._feed.closed:
            self._poll.unregister(self._feed.fileno())
            self._feed.close()

    def _listen(self) -> None:
        message = os.read(self._stderr, CHUNK)
        if not message:
            self._listening = False
            self._poll.unregister(self._stderr)
        self._messages += message[: _STDERR_KEPT - len(self._messages)]

    def _finish(self) -> None:
        exhausted = self._feed.closed
        self._close_feed()  # a filter that closed its output and still waits for input sees the end of it
        self._poll.unregister(self._stdout)
        while self._listening and self._child.poll() is None:  # its messages must not fill their pipe
            if self._poll.poll(_PATIENCE):
                self._listen()
        code = self._child.wait()
        while self._listening and self._poll.poll(0):
            self._listen()
        if code:
            raise FormatError(_failure(self._argv, code, self._messages, self._what))
        left = len(self._pending) + _unread(self._stdin)
        if left or (not exhausted and self._source.read(1)):
            raise FormatError(
                f"{self._what}: {self._argv[0]} ended before its input did; what follows is not understood"
            )
        self._ended = True


def _start(
    argv: Sequence[str], stdin: int | IO[bytes], what: str, inherit: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"LC_ALL": "C"}
    try:
        return subprocess.Popen(  # noqa: S603 - never through a shell
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
            pass_fds=inherit,
        )
    except FileNotFoundError as error:
        package = _PACKAGES.get(argv[0], argv[0])
        raise Refused(
            f"{what} needs {argv[0]}, which is not installed; on Debian: apt-get install {package}"
        ) from error
    except PermissionError as error:
        raise Refused(f"{what} needs {argv[0]}, which cannot be executed: {error.strerror}") from error


def _reap(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe:
            pipe.close()


def _unread(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _failure(argv: Sequence[str], code: int, messages: bytes, what: str) -> str:
    ending = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
    said = printable(messages.strip().replace(b"\n", b"; "), limit=1000) or "(it said nothing)"
    return f"{what} failed: {printable(shlex.join(argv), limit=500)} {ending}: {said}"
