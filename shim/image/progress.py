"""How long work reports how far it is: through a callback, because a library does not print."""

from __future__ import annotations

from collections.abc import Callable

#: Called with what is being done, the bytes done so far, and the bytes there are (None: not known).
Progress = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """A `Progress` that nobody looks at."""
