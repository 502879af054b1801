"""Authenticated HTTP to one repository of one registry; the only module that imports oras.

Of oras-py only the authenticated request is used, `Registry.do_request` below its retry decorator, which sleeps for
minutes. Everything that decides where bytes and credentials go is here:

1. One token for one scope, asked for from the start: ``repository:NAME:pull``, or ``pull,push``.
2. Credentials and tokens go to the registry's own origin. An answer that leads elsewhere is followed without them.
3. The one exception is the token server. A registry names it (the realm), on whatever host; as with Docker, credentials
   are sent there if it is https. A registry that means harm gains nothing by that: whoever is given credentials for it
   over TLS can ask for them by Basic authentication as well. http is only for a registry and a realm on loopback.
4. Over plain http to another host than this one no credentials are sent at all.
5. ``~/.netrc`` is never read, cookies are never kept, redirects never leave https.

Sources: OCI distribution specification v1.1; distribution's "Token Authentication Specification" and "OAuth2 Token
Authentication"; RFC 9110 (challenges, Retry-After).
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlencode

import oras.auth.base
import oras.provider
import requests
import urllib3

from shim.errors import FormatError, Refused, StatefulPodsError, printable
from shim.image import urls
from shim.image.credentials import Credentials
from shim.image.digest import CHUNK
from shim.image.retry import Interrupted, retry_after, time_limit
from shim.image.session import READ_SECONDS, Session

_MAX_REDIRECTS = 5
_MAX_TOKEN_ANSWER = 1 << 20  # bytes
_MAX_ERROR_BODY = 64 << 10  # bytes
_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (429, 500, 502, 503, 504)


class Body(Protocol):
    """What is uploaded: a size, and an iterator that begins at the first byte each time."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes | memoryview]: ...


class Answer:
    """A response whose body is read raw: never decoded, never beyond a limit."""

    def __init__(self, response: requests.Response, what: str) -> None:
        self._response = response
        self.what = what
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.url = response.url

    def read(self, amount: int = CHUNK) -> bytes:
        """Return up to `amount` bytes, ``b""`` at the end; raises `Interrupted` when the connection breaks."""
        try:
            # read1 returns what has arrived: read would wait for all of `amount`, however slowly it trickles in.
            with time_limit(READ_SECONDS):
                data: bytes = self._response.raw.read1(amount, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self.close()
            raise Interrupted(f"{self.what}: the answer broke off: {_reason(error)}") from error
        return data

    def whole(self, limit: int) -> bytes:
        """Return the whole of a small body; raises `FormatError` if it has more than `limit` bytes."""
        body = bytearray()
        with time_limit(READ_SECONDS):
            while data := self.read():
                body += data
                if len(body) > limit:
                    self.close()
                    raise FormatError(f"{self.what}: the answer is longer than {limit} bytes")
        return bytes(body)

    def drain(self) -> None:
        """Read away what is left of a small body, so that the connection serves the next request too."""
        with suppress(StatefulPodsError):
            self.whole(_MAX_ERROR_BODY)
        self.close()

    def close(self) -> None:
        """Drop what is left of the body, and the connection if there is any."""
        self._response.close()

    def said(self) -> str:
        """Return the server's own words about an error, in one line, and drop the rest."""
        try:
            body = self.whole(_MAX_ERROR_BODY)
        except StatefulPodsError:
            return ""
        finally:
            self.close()
        try:
            errors = [f"{error.get('code')}: {error.get('message')}" for error in json.loads(body)["errors"]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return ""
        return printable("; ".join(errors))


class Transport(oras.provider.Registry):  # type: ignore[misc]  # oras ships no types
    """Requests to one registry, with the authentication that one repository needs."""

    def __init__(self, host: str, repository: str, actions: str, credentials: Credentials) -> None:
        super().__init__(hostname=host)
        self.base = f"{urls.scheme(host)}://{host}"
        self._origin = urls.origin(self.base)
        self.session.close()  # the one that oras made
        self.session: Session = Session()
        self.auth = _Authenticator(self.session, self._origin, host, f"repository:{repository}:{actions}", credentials)

    def attempt(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: Body | bytes = b""
    ) -> Answer:
        """Return the answer to one request, after redirects and at most one authentication.

        `url` is absolute, or a path of the registry. Raises `Interrupted` for what another attempt may cure, and
        `Refused` where authentication or access is refused; every other status is the caller's to judge.
        """
        url = self.base + url if url.startswith("/") else url
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._send(method, url, dict(headers or {}), body)
            location = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not location:
                return answer
            answer.drain()
            if method not in ("GET", "HEAD") and answer.status not in (307, 308):
                raise Refused(f"{answer.what}: HTTP {answer.status} would turn it into another request")
            url = urls.follow(url, location)
        raise Refused(f"{method} {urls.shown(url)}: more than {_MAX_REDIRECTS} redirects")

    def _send(self, method: str, url: str, headers: dict[str, str], body: Body | bytes) -> Answer:
        what = f"{method} {urls.shown(url)}"
        ours = urls.origin(url) == self._origin
        try:
            if ours:
                once = oras.provider.Registry.do_request.__wrapped__
                response = once(self, url, method, data=body, headers=headers | self.auth.header(), stream=True)
            else:
                response = self.session.request(method, url, data=body, headers=headers, stream=True)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _failure(error, what) from error
        answer = Answer(response, what)
        if answer.status in _PASSING:
            raise _passing(answer)
        if ours and answer.status in (401, 403):
            raise self.auth.refusal(answer)
        return answer


class _Authenticator(oras.auth.base.AuthBackend):  # type: ignore[misc]  # oras ships no types
    """Answers the challenges of one registry, for one scope."""

    def __init__(
        self, session: requests.Session, origin: urls.Origin, host: str, scope: str, credentials: Credentials
    ) -> None:
        super().__init__()
        self.session = session
        self._origin = origin
        self._host = host
        self._scope = scope
        self._header: dict[str, str] = {}
        self._credentials = credentials
        if origin.scheme == "http" and not urls.is_loopback(origin.host):
            self._credentials = Credentials(note="over plain http none are sent to another machine")

    def header(self) -> dict[str, str]:
        """Return the Authorization header of the last challenge, if there was one."""
        return dict(self._header)

    def authenticate_request(
        self, original: requests.Response, headers: dict[str, str], refresh: bool = False
    ) -> tuple[dict[str, str], bool]:
        """Answer a 401: what oras calls, once for each request."""
        answer = Answer(original, f"{original.request.method} {urls.shown(original.url)}")
        if answer.status != 401:
            raise self.refusal(answer)
        challenges = _challenges(answer.headers.get("WWW-Authenticate", ""))
        if "bearer" in challenges:
            answer.drain()
            value = "Bearer " + self._token(challenges["bearer"])
        elif "basic" in challenges and self._credentials.basic not in (None, self._header.get("Authorization")):
            answer.drain()
            value = str(self._credentials.basic)
        else:
            raise self.refusal(answer)
        self._header = {"Authorization": value}
        return headers | self._header, True

    def refusal(self, answer: Answer) -> Refused:
        """Return the error for a 401 or 403 that nothing more can be done about."""
        note = self._credentials.note
        used = f"with {note}" if self._credentials else f"without credentials ({note})"
        said = answer.said()
        self._header = {}
        return Refused(
            f"{answer.what}: {self._host} refuses access ({self._scope}) with HTTP {answer.status}"
            f"{': ' + said if said else ''}. It was asked {used}; "
            f"run: docker login {self._host}, with an account that may do this"
        )

    def _token(self, challenge: Mapping[str, str]) -> str:
        # Only our own scope is asked for: a registry must not be able to name a wider one, and take the token for it.
        realm = challenge.get("realm", "")
        there = urls.origin(realm)
        local = urls.is_loopback(there.host) and urls.is_loopback(self._origin.host)
        if there.scheme != "https" and not (local or (self._origin.scheme == "http" and there == self._origin)):
            raise Refused(
                f"{self._host} names the token server {urls.shown(realm)}, which is not https; nothing was sent there"
            )
        asked = {"service": challenge.get("service", ""), "scope": self._scope}
        headers: dict[str, str] = {}
        method, url, form = "GET", realm + ("&" if "?" in realm else "?") + urlencode(asked), b""
        if self._credentials.identity_token:
            method, url = "POST", realm
            asked |= {"grant_type": "refresh_token", "client_id": "stateful-pods"}
            form = urlencode(asked | {"refresh_token": self._credentials.identity_token}).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        elif self._credentials.basic:
            headers["Authorization"] = self._credentials.basic
        what = f"{method} {urls.shown(realm)} (a token of {self._host} for {self._scope})"
        try:
            answer = Answer(self.session.request(method, url, data=form, headers=headers, stream=True), what)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _failure(error, what) from error
        if answer.status in _PASSING:
            raise _passing(answer)
        if answer.status != 200:
            raise self.refusal(answer)
        try:
            document = json.loads(answer.whole(_MAX_TOKEN_ANSWER))
            token = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError, RecursionError) as error:
            raise FormatError(f"{what}: the answer is no JSON object") from error
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token, re.ASCII):
            raise FormatError(f"{what}: the answer holds no token")
        return token


def _challenges(header: str) -> dict[str, dict[str, str]]:
    """Return the parameters of each challenge by its lower-case scheme (RFC 9110, section 11.6.1)."""
    found: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    for name, quoted, plain in re.findall(r'([^\s,="]+)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+)))?', header[:8192]):
        if quoted or plain:
            parameters.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain)
        else:
            parameters = found.setdefault(name.lower(), {})
    return found


def _passing(answer: Answer) -> Interrupted:
    said = answer.said()
    return Interrupted(f"{answer.what}: HTTP {answer.status}{': ' + said if said else ''}", retry_after(answer.headers))


def _failure(error: Exception, what: str) -> StatefulPodsError:
    """Return what a failed request means: a wrong certificate or setting stays wrong, a network may recover."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, ssl.SSLCertVerificationError):
            return Refused(
                f"{what}: the server's certificate is not trusted: {printable(chain.verify_message)}. "
                "If it is signed by a private authority, name its bundle in REQUESTS_CA_BUNDLE or SSL_CERT_FILE"
            )
        chain = chain.__cause__ or chain.__context__
    if isinstance(error, ValueError):  # a URL or a header that libraries refuse
        return FormatError(f"{what}: {_reason(error)}")
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        return Refused(f"{what}: {_reason(error)}")  # a CA bundle that does not exist
    return Interrupted(f"{what}: no answer: {_reason(error)}")


def _reason(error: BaseException) -> str:
    """Return the innermost words of an error that libraries wrapped several times."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return printable(str(error) or type(error).__name__)
