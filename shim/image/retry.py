"""How often, how fast and how long a network operation is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from shim.errors import Unavailable

T = TypeVar("T")

_FIRST_PAUSE = 0.5  # seconds; doubled each time, so that three retries wait 3.5 s at most when nobody answers
_LONGEST_PAUSE = 30.0  # seconds; what a server's Retry-After may ask for
_SLOWEST = 32 << 10  # bytes a second; a transfer below that on the average is given up
_WORTH_A_RESET = 1 << 20  # bytes; who delivers this much between two failures is tried again from the start


class Interrupted(Unavailable):
    """An attempt failed in a way that another one may cure; `retry_after` is how many seconds the server asked for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Retry:
    """The rule: `tries` attempts in a row, and `seconds` for a whole operation, more for large contents.

    `sleep` and `clock` (monotonic, in seconds) exist so that tests need no time.
    """

    tries: int = 4
    seconds: float = 300.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def start(self, size: int = 0) -> Patience:
        """Return the patience for one operation that moves `size` bytes."""
        return Patience(self, size)


class Patience:
    """What is left of a `Retry` rule for one operation."""

    def __init__(self, rule: Retry, size: int) -> None:
        self._rule = rule
        self._seconds = rule.seconds + size / _SLOWEST
        self._end = rule.clock() + self._seconds
        self._failures = 0
        self._moved = 0

    def run(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`, called until it is not `Interrupted`; raises `Unavailable` at the end."""
        while True:
            try:
                return attempt()
            except Interrupted as error:
                self.pause(error)

    def pause(self, error: Interrupted) -> None:
        """Wait before the next attempt, or raise `Unavailable` when `error` was one too many."""
        self._failures += 1
        self._moved = 0
        wait = error.retry_after
        if wait is None:
            # Jitter, so that many pods that failed together do not come back together.
            wait = _FIRST_PAUSE * 2 ** (self._failures - 1) * random.uniform(0.5, 1.0)  # noqa: S311
        if self._failures >= self._rule.tries:
            raise Unavailable(f"{error} (tried {self._failures} times); try again later") from error
        if wait > _LONGEST_PAUSE:
            raise Unavailable(f"{error}; the server asks to wait {wait:.0f} s, so try again after that") from error
        if self._rule.clock() + wait > self._end:
            raise Unavailable(f"{error}; gave up, because {self._seconds:.0f} s are over") from error
        self._rule.sleep(wait)

    def moved(self, count: int, what: str) -> None:
        """Note that `count` bytes arrived; raises `Unavailable` when the operation as a whole is too slow."""
        self._moved += count
        if self._moved >= _WORTH_A_RESET:
            self._failures = 0
        if self._rule.clock() > self._end:
            raise Unavailable(f"{what} did not finish in {self._seconds:.0f} s; try again on a better connection")
