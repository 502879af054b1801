"""How often, how fast and how long a network operation is tried again, and when a wait within it ends.

A socket's own timeout is for one packet, and a far end that sends a byte now and then never meets it. `time_limit` is
for everything that happens within a block, such as reading one head of an answer; `shim.image.session` heeds it.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from shim.errors import Unavailable

T = TypeVar("T")

_FIRST_PAUSE = 0.5  # seconds; doubled each time, so that three retries wait 3.5 s at most when nobody answers
_LONGEST_PAUSE = 30.0  # seconds; what a server's Retry-After may ask for
SLOWEST = 32 << 10  # bytes a second; a transfer below that on the average is given up
WORTH_A_RESET = 1 << 20  # bytes; who delivers this much between two failures is tried again from the start
MOST_FAILURES = 20  # of one operation, whatever was delivered between them

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)  # by the monotonic clock


class Interrupted(Unavailable):
    """An attempt failed in a way that another one may cure; `retry_after` is how many seconds the server asked for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Retry:
    """The rule: `tries` attempts in a row, and `seconds` for a whole operation, with more for what it moves.

    `sleep` and `clock` (monotonic, in seconds) exist so that tests need no time.
    """

    tries: int = 4
    seconds: float = 300.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def start(self, size: int = 0) -> Patience:
        """Return the patience for one operation that sends `size` bytes. What is received earns its time by itself."""
        return Patience(self, size)


class Patience:
    """What is left of a `Retry` rule for one operation."""

    def __init__(self, rule: Retry, size: int) -> None:
        self._rule = rule
        self._seconds = rule.seconds + size / SLOWEST
        self._end = rule.clock() + self._seconds
        self._failures = 0  # in a row
        self._failures_in_all = 0
        self._moved = 0

    def run(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`, called until it is not `Interrupted`; raises `Unavailable` at the end."""
        while True:
            try:
                with self.limit():
                    return attempt()
            except Interrupted as error:
                self.pause(error)

    def limit(self) -> AbstractContextManager[None]:
        """Return a context in which no wait lasts beyond the operation's end."""
        return time_limit(self._end - self._rule.clock())

    def pause(self, error: Interrupted) -> None:
        """Wait before the next attempt, or raise `Unavailable` when `error` was one too many."""
        self._failures += 1
        self._failures_in_all += 1
        self._moved = 0
        wait = error.retry_after
        if wait is None:
            # Jitter, so that many pods that failed together do not come back together.
            wait = _FIRST_PAUSE * 2 ** (self._failures - 1) * random.uniform(0.5, 1.0)  # noqa: S311
        if self._failures >= self._rule.tries or self._failures_in_all >= MOST_FAILURES:
            raise Unavailable(f"{error} (tried {self._failures_in_all} times); try again later") from error
        if wait > _LONGEST_PAUSE:
            raise Unavailable(f"{error}; the server asks to wait {wait:.0f} s, so try again after that") from error
        if self._rule.clock() + wait > self._end:
            raise Unavailable(f"{error}; gave up, because {self._seconds:.0f} s are over") from error
        self._rule.sleep(wait)

    def moved(self, count: int, what: str) -> None:
        """Note that `count` bytes arrived; raises `Unavailable` when the operation as a whole is too slow.

        They earn time as they come: a size that somebody states would buy them as much as they like.
        """
        self._moved += count
        self._seconds += count / SLOWEST
        self._end += count / SLOWEST
        if self._moved >= WORTH_A_RESET:
            self._failures = 0
        if self._rule.clock() > self._end:
            raise Unavailable(f"{what} did not finish in {self._seconds:.0f} s; try again on a better connection")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let whatever waits for a socket within the block do so for `seconds` in all, or less within another limit."""
    token = _deadline.set(min(_deadline.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float:
    """Return how many seconds the present `time_limit` leaves; raises `TimeoutError` when there are none."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError("the answer came too slowly")
    return left


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds Retry-After asks for, None for none or a malformed one (RFC 9110, section 10.2.3).

    A date is measured by the server's own clock, where it tells it.
    """
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    try:
        now = _date(headers["Date"]) if "Date" in headers else datetime.now(UTC)
        return max((_date(value) - now).total_seconds(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


def _date(text: str) -> datetime:
    date = parsedate_to_datetime(text)
    return date if date.tzinfo else date.replace(tzinfo=UTC)
