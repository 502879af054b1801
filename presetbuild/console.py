"""Standard error: sentences, and how far a transfer is; a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_LINE_EVERY = 5.0  # seconds between two plain lines about one transfer
_MEBIBYTE = 1 << 20


class Console:
    """Where a command says what it is doing. Use it as a context manager: it leaves the terminal as it was."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._next_line: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._stream and self._stream.isatty():
            from rich import console, progress  # noqa: PLC0415 - costs 0.1 s, which a pipe need not pay

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.DownloadColumn(binary_units=True),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=console.Console(file=self._stream, highlight=False, markup=False, soft_wrap=True),
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the live display away; what is said after that is plain lines."""
        if self._bars:
            self._bars.stop()
            self._bars = None
            self._tasks.clear()

    def tell(self, sentence: str) -> None:
        """Say one sentence, if there is anywhere to say it: a full or closed standard error ends no build."""
        with suppress(OSError):
            if self._bars:
                self._bars.console.print(sentence)
            elif self._stream:
                print(sentence, file=self._stream, flush=True)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Show how far a transfer is (a `shim.image.progress.Progress`; sizes in bytes)."""
        if self._bars:
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._tasks[what], completed=done, total=total)
            if total is not None and done >= total:
                self._bars.remove_task(self._tasks.pop(what))
            return
        now = time.monotonic()
        # The first line is due only after the interval, so that what is quick stays silent.
        if now >= self._next_line.setdefault(what, now + _LINE_EVERY):
            self._next_line[what] = now + _LINE_EVERY
            of = "" if total is None else f" of {total / _MEBIBYTE:.1f}"
            self.tell(f"{what}: {done / _MEBIBYTE:.1f}{of} MiB")
