"""What a command says: sentences, and how far a transfer is, in plain lines or as JSON.

These lines end in pod logs, so there is no live display: a line about a transfer when it begins and ends, and every few
seconds between. Foreign text cannot forge a line or move a cursor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from shim.errors import printable

FORMATS = ("plain", "json")

_EVERY = 5.0  # seconds between two lines about one transfer
_LONGEST = 4000  # characters
_MEGABYTE = 1_000_000


class Console:
    """Writes lines to `stream`, in one of FORMATS; `clock` is monotonic, in seconds."""

    def __init__(self, stream: TextIO, form: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._form, self._clock = stream, form, clock
        self._what = ""
        self._began = self._next = 0.0

    def tell(self, sentence: str) -> None:
        """Say one sentence."""
        self._write("info", sentence)

    def fail(self, sentence: str) -> None:
        """Say why it did not work."""
        self._write("error", sentence)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Show how far a transfer is (a `shim.image.progress.Progress`; sizes in bytes)."""
        now = self._clock()
        if what != self._what:
            self._what, self._began, self._next = what, now, now
        if now < self._next and done != total:
            return
        self._next = now + _EVERY
        speed = done / max(now - self._began, 0.001)
        known = f" of {_size(total)} ({100 * done // max(total, 1)} %)" if total is not None else ""
        at = f", {_size(round(speed))}/s" if now > self._began else ""
        numbers = {"done": done, "total": total, "bytesPerSecond": round(speed) if at else None}
        self._write("info", f"fetching {what}: {_size(done)}{known}{at}", numbers)

    def _write(self, level: str, text: str, more: dict[str, int | None] | None = None) -> None:
        line = printable(text, _LONGEST)
        if self._form == "json":
            moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = json.dumps({"time": moment, "level": level, "message": line} | (more or {}))
        self._stream.write(f"{line}\n")
        self._stream.flush()


def _size(size: int) -> str:
    return f"{size / _MEGABYTE:.1f} MB"
