"""One file over HTTP, whole or not at all, as far as that can be told without a checksum.

What is handed out is what was served: nothing is decoded, and there is no end before the announced length.

A connection that breaks is taken up where it stopped, provided that the file is still the same. The rest comes from a
206 whose Content-Range starts at that byte and whose validator is unchanged, or from a 200 with the same validator,
of which the bytes that were handed out already are skipped. Otherwise the read ends in `Unavailable`: bytes cannot be
taken back, and whoever starts again starts with none. An answer that neither announces its length nor is chunked may
end early unseen; what is read that way rests on its checksum. Source: RFC 9110, sections 8.8, 10.2.3, 13.1.5, 14, 15.

No credentials are sent: none are taken from a URL or a netrc file, and cookies are not kept. Proxies and certificate
authorities are the environment's, see `shim.image.session`.
"""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from shim.errors import FormatError, NotFound, Refused, Unavailable, printable
from shim.image.retry import MOST_FAILURES, SLOWEST, WORTH_A_RESET, retry_after, time_limit
from shim.image.session import READ_SECONDS, Session

_MAX_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a far end is waited for; times are in seconds.

    A file may cost `stall` seconds of waiting, and one more for each 32 KiB that arrive; what the reader does between
    two reads is not counted. There are at most `retries` retries without progress, and a bounded number in all. A
    Retry-After beyond these is not waited for. `clock`, `sleep` and `jitter` (which is given two bounds) are there for
    tests to replace.
    """

    retries: int = 3
    stall: float = 120
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[float, float], float] = random.uniform


class Download:
    """The file at a URL, open and being read. `size` is in bytes, None where it was not announced.

    Opening and reading raise `NotFound`, `Refused` where access is denied or the answer is no such file, and
    `Unavailable` for what a later try may cure.
    """

    def __init__(self, session: Session, url: str, patience: Patience) -> None:
        self.name = _shown(url)
        self.size: int | None = None
        self._session = session
        self._url = url
        self._patience = patience
        self._budget = _Budget(patience, self.name)
        self._count = 0  # bytes handed out
        self._skip = 0  # bytes of the present answer that were handed out before
        self._begin()

    def read(self, amount: int, /) -> bytes:
        """Return up to `amount` bytes, as soon as there are any; ``b""`` at the end."""
        clock = self._patience.clock
        while True:
            started = clock()
            try:
                data = self._receive(min(self._skip, 1 << 20) or amount)
            except _Trouble as error:
                trouble = error
            else:
                self._budget.arrived(len(data), clock() - started)
                if not self._skip:
                    self._count += len(data)
                    return data
                self._skip -= len(data)
                continue
            self._response.close()
            self._resume(trouble, clock() - started)

    def close(self) -> None:
        """Let go of the connection, wherever it stands."""
        self._response.close()

    def _receive(self, amount: int) -> bytes:
        """Return what the next packet brings; raises `_Trouble` where the answer breaks off."""
        try:
            with time_limit(min(READ_SECONDS, self._budget.left())):
                data: bytes = self._response.raw.read1(amount, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason = _reason(error)
            detail = f": {_words(reason)}" if isinstance(reason, OSError) else ""
            raise _Trouble(f"the connection broke after {self._progressed()}{detail}") from error
        if not data and (self._skip or self.size not in (None, self._count)):
            raise _Trouble(f"the answer ended after {self._progressed()}")
        html = self._response.headers.get("Content-Type", "").lower().startswith("text/html")
        if self._count == 0 and html and data.lstrip().startswith(b"<"):
            raise Refused(
                f"{self.name} answered an HTML page in place of the file; check that the URL is that of the upstream's "
                "own tree, and that no login page or proxy stands before it"
            )
        return data

    def _begin(self) -> None:
        self._response = self._send({}, 200)
        self.size = self._announced(self._response)

    def _resume(self, trouble: _Trouble, seconds: float) -> None:
        """Ask for what is missing, and accept it only as the rest of the same file."""
        kind, validator = _validator(self._response.headers)
        again = "; what was read is of no use, so start again"
        if self._count and not validator:
            raise Unavailable(f"cannot read {self.name}: {trouble}, and there is no validator to resume by{again}")
        self._budget.pause(trouble, seconds)
        if self._count == 0:
            self._begin()
            return
        wanted = {"Range": f"bytes={self._count}-", "If-Range": validator}
        response = self._response = self._send(wanted, 200, 206, 416)
        unchanged = response.headers.get(kind) == validator
        if unchanged and response.status_code == 200 and self._announced(response) == self.size:
            self._skip = self._count
        elif unchanged and response.status_code == 206 and self._continues(response.headers):
            self._skip = 0
        else:
            response.close()
            raise Unavailable(f"{self.name} changed while it was read, or cannot be resumed ({trouble}){again}")

    def _continues(self, headers: Mapping[str, str]) -> bool:
        match = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", headers.get("Content-Range", ""))
        if not match:
            return False
        first, last, total = map(int, match.groups())
        if self.size is None:
            self.size = total
        return first == self._count and last + 1 == total == self.size

    def _announced(self, response: requests.Response) -> int | None:
        length = response.headers.get("Content-Length")
        if length is None or "Transfer-Encoding" in response.headers:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", length):
            response.close()
            raise Refused(
                f"{self.name} announces a Content-Length of {printable(length)!r}; expected a number of bytes"
            )
        return int(length)

    def _progressed(self) -> str:
        return f"{self._count} bytes" if self.size is None else f"{self._count} of {self.size} bytes"

    def _send(self, headers: Mapping[str, str], *expected: int) -> requests.Response:
        """Return an answer of an `expected` status to a GET, which is sent as often as patience allows."""
        while True:
            started = self._patience.clock()
            try:
                with time_limit(self._budget.left()):
                    return self._judge(self._follow(headers), expected)
            except _Trouble as error:
                trouble = error
            self._budget.pause(trouble, self._patience.clock() - started)

    def _follow(self, headers: Mapping[str, str]) -> requests.Response:
        url = self._url
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._get(url, headers)
            if response.status_code not in (301, 302, 303, 307, 308):
                return response
            response.close()
            url = self._target(url, response.headers.get("Location", ""))
        raise Refused(f"{self.name} redirects more than {_MAX_REDIRECTS} times, lastly to {_shown(url)}")

    def _target(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            check_url(target)
        except (ValueError, FormatError) as error:
            raise Refused(f"{self.name} redirects where nobody may follow: {printable(str(error), 500)}") from error
        if urlsplit(url).scheme == "https" != urlsplit(target).scheme:
            raise Refused(f"{self.name} redirects from https to {_shown(target)}, which is not followed")
        return target

    def _get(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        try:
            return self._session.get(url, headers=dict(headers), stream=True)
        except (requests.ConnectionError, requests.Timeout) as error:
            reason = _reason(error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise Refused(f"cannot read {self.name}: its certificate is refused: {_words(reason)}") from error
            raise _Trouble(_words(reason)) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise Refused(f"cannot read {self.name}: {_words(error)}") from error

    def _judge(self, response: requests.Response, expected: tuple[int, ...]) -> requests.Response:
        status = response.status_code
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        if status in expected and encoding == "identity":
            return response
        response.close()
        answered = f"the server answered {status} {printable(response.reason or '')}".rstrip()
        if status in (408, 429) or status >= 500:
            raise _Trouble(answered, retry_after(response.headers) or 0)
        if status in (404, 410):
            raise NotFound(f"there is no {self.name}: {answered}")
        if status in expected:
            answered += f" with Content-Encoding {printable(encoding)}, which was not asked for"
        elif status in (401, 403, 407):
            answered += "; access is denied, and an upstream is sent no credentials"
        else:
            answered += f", expected {' or '.join(map(str, expected))}"
        raise Refused(f"cannot read {self.name}: {answered}")


class _Trouble(Exception):
    """A failure that another try may cure, no earlier than after `wait` seconds, where the server named a time."""

    def __init__(self, message: str, wait: float = 0) -> None:
        super().__init__(message)
        self.wait = wait


class _Budget:
    """What was used up of the patience with one file."""

    def __init__(self, patience: Patience, name: str) -> None:
        self._patience = patience
        self._name = name
        self._failures = self._failures_in_all = 0
        self._waited = 0.0  # seconds
        self._arrived = self._arrived_since = 0  # bytes in all, and since the last failure

    def left(self) -> float:
        """Return how many seconds may be waited still."""
        return self._patience.stall + self._arrived / SLOWEST - self._waited

    def arrived(self, count: int, seconds: float) -> None:
        """Note `count` bytes that took `seconds`; raises `Unavailable` when they trickle."""
        self._waited += seconds
        self._arrived += count
        self._arrived_since += count
        if self._arrived_since >= WORTH_A_RESET:
            self._failures = 0
        if self.left() < 0:
            raise Unavailable(
                f"{self._name} has stalled: {self._arrived} bytes came in {self._waited:.0f} seconds; "
                "try again later, or another mirror"
            )

    def pause(self, trouble: _Trouble, seconds: float) -> None:
        """Note a failure that took `seconds`, and sleep before the next try; raises `Unavailable` if there is none."""
        wait = max(trouble.wait, self._patience.jitter(0.5, 1) * 2**self._failures)
        self._failures += 1
        self._failures_in_all += 1
        self._arrived_since = 0
        self._waited += seconds + wait
        if self._failures > self._patience.retries or self._failures_in_all >= MOST_FAILURES or self.left() < 0:
            asked = f" and asks to wait {trouble.wait:.0f} seconds" if trouble.wait else ""
            tries = f"{self._failures_in_all} time{'s' * (self._failures_in_all > 1)}"
            raise Unavailable(
                f"cannot read {self._name}: {trouble}{asked}; tried {tries}; try again later, or another mirror"
            )
        self._patience.sleep(wait)


def check_url(url: str) -> None:
    """Raise `FormatError` unless `url` is https or http, in plain characters, and names a host and no user."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise FormatError(f"malformed URL '{_shown(url)}': {printable(str(error))}") from error
    if "@" in parts.netloc:  # the URL is not shown, because it may hold a password
        raise FormatError(f"a URL of {printable(host or '')} holds a user name; an upstream is sent no credentials")
    if parts.scheme not in ("http", "https"):
        raise FormatError(f"'{_shown(url)}' is refused: expected https:// or http://")
    if not host or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise FormatError(f"malformed URL '{_shown(url)}': expected https://HOST[:PORT]/PATH in ASCII")


def _shown(url: str) -> str:
    """Return `url` for a message, without user, query and fragment: they may hold a password, a signature, a token."""
    return printable(re.sub(r"(?<=//)[^/]*@", "", re.split(r"[?#]", url, maxsplit=1)[0]), 500)


def _words(error: BaseException) -> str:
    """Return what `error` says, for a message; the libraries' errors quote URLs, of which the end is left out."""
    return printable(re.sub(r"[?#]\S*", "…", str(error)))


def _validator(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the header that tells one version of a file from another, and its value (empty: there is none)."""
    tag = headers.get("ETag", "")
    return ("ETag", tag) if tag.startswith('"') else ("Last-Modified", headers.get("Last-Modified", ""))


def _reason(error: BaseException) -> BaseException:
    """Return the operating system's own words beneath `error`, where there are some: the layers above add noise."""
    found, cause = error, error.__cause__ or error.__context__
    while cause is not None:
        if isinstance(cause, OSError) and not isinstance(cause, requests.RequestException):
            found = cause
        cause = cause.__cause__ or cause.__context__
    return found
