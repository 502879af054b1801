"""An HTTP session that takes credentials from nowhere, keeps nothing, follows nothing, and never waits without end.

The proxies and the authorities that the environment names are honoured: HTTPS_PROXY, HTTP_PROXY, NO_PROXY,
REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE, SSL_CERT_DIR.
"""

from __future__ import annotations

import http.client
import io
import os
from typing import Any

import requests
import urllib3

from shim.image import urls
from shim.image.retry import seconds_left, time_limit

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0  # without a byte in either direction
COMMIT_SECONDS = 300.0  # for the answer to an upload: a registry may hash or copy the whole blob before it answers

_TARGET = "X-Exact-Target"  # never sent: it carries the request target past two normalisations


class Session(requests.Session):
    """A `requests.Session` for one far end. Not for several threads at once.

    Errors are those of requests, `InvalidHeader` for whatever it cannot make sense of, and `OSError` for a bundle of
    authorities that cannot be read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auth = _unchanged  # a session without one takes credentials from ~/.netrc, and from URLs
        self.headers.update({"User-Agent": "stateful-pods", "Accept-Encoding": "identity"})
        for prefix in ("https://", "http://"):
            self.mount(prefix, _Adapter())

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        """Send one request; a redirect is an answer like any other."""
        options["allow_redirects"] = False
        return super().request(method, url, *args, **options)

    def send(self, request: Any, **options: Any) -> requests.Response:
        """Send a prepared request; what the libraries stumble over in an answer is one kind of error."""
        try:
            return super().send(request, **options)
        except (requests.RequestException, urllib3.exceptions.HTTPError):
            raise
        except (http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
            raise requests.exceptions.InvalidHeader(f"malformed answer: {error}") from error

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Find none: requests would read a redirect's body, whole and decoded, even where it follows none."""

    def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
        """Prepare `request`, and note its target as it was given."""
        prepared = super().prepare_request(request)
        prepared.headers[_TARGET] = urls.target(str(request.url))
        return prepared

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Return what the environment says about proxies and authorities for `url`."""
        settings = super().merge_environment_settings(url, proxies, stream, verify, cert)
        if urls.is_loopback(urls.origin(url).host):
            settings["proxies"] = {}  # as Go does: a proxy would take 127.0.0.1 for itself
        if settings["verify"] is True:
            settings["verify"] = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR") or True
        return settings


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


class _Incoming(io.RawIOBase):
    """The receiving side of a socket, whose waits end with the `time_limit` of whoever reads."""

    def __init__(self, sock: Any, raw: io.RawIOBase) -> None:
        self._sock = sock
        self._raw = raw
        self._most = sock.gettimeout() or READ_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(min(seconds_left(), self._most))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Incoming(sock, self.fp.detach()))

    def begin(self) -> None:
        """Read the head, without the cookies: http.cookiejar prints a traceback where one is malformed."""
        super().begin()
        for name in ("Set-Cookie", "Set-Cookie2"):
            del self.headers[name]


class _Connection(urllib3.connection.HTTPConnection):
    """Sends the request target as it was given, and limits the time for a head and for each piece of a body.

    requests and urllib3 rewrite percent-encodings on the way, but a Location may be signed as it stands. And urllib3
    would hold each piece of a body to the connect timeout, which a slow line may need for one piece.
    """

    response_class = _Response

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **options: Any) -> None:
        exact = headers.pop(_TARGET, None)
        if self.sock is not None:
            self.timeout = READ_SECONDS
        super().request(method, exact if exact and url.startswith("/") else url, body, headers, **options)

    def connect(self) -> None:
        with time_limit(READ_SECONDS):  # a proxy answers before the server does
            super().connect()
        self.sock.settimeout(READ_SECONDS)

    def getresponse(self) -> Any:
        with time_limit(float(self.timeout or READ_SECONDS)):
            return super().getresponse()


class _TLSConnection(_Connection, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class _Adapter(requests.adapters.HTTPAdapter):
    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}
        return manager

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        uploads = request.body is not None and not isinstance(request.body, bytes | str)
        options["timeout"] = (CONNECT_SECONDS, COMMIT_SECONDS if uploads else READ_SECONDS)
        return super().send(request, *args, **options)
