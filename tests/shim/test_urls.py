"""Where a Location leads, and who may be spoken to without TLS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shim.errors import FormatError, Refused
from shim.image import urls


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://R.example.org/x", ("https", "r.example.org", 443)),
        ("https://r.example.org:443", ("https", "r.example.org", 443)),
        ("HTTPS://r.example.org:8443/?a@b", ("https", "r.example.org", 8443)),
        ("http://[::1]:5000/x", ("http", "::1", 5000)),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: tuple[str, str, int]) -> None:
    assert urls.origin(url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/x",
        "r.example.org",
        "ftp://r.example.org/",
        "file:///etc/passwd",
        "https://",
        "https:///x",
        "https://user@r.example.org/",
        "https://user:pw@r.example.org/",
        "https://r.example.org:x/",
        "https://r.example.org:99999/",
        "https://[::1/",
        "https://r.example.org/a b",
        "https://r.example.org/\r\nX: y",
        "https://r.exämple.org/",
    ],
)
def test_what_is_no_plain_url_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(FormatError, match="malformed URL"):
        urls.origin(url)


BASE = "https://r.example.org:8443/v2/a/blobs/uploads/?x=/y"


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("https://o.example.org/%2f?a=%2F/..//b#c", "https://o.example.org/%2f?a=%2F/..//b#c"),
        ("/a/../%7e?b=c+d", "https://r.example.org:8443/a/../%7e?b=c+d"),
        ("id?b", "https://r.example.org:8443/v2/a/blobs/uploads/id?b"),
        ("?b", "https://r.example.org:8443/v2/a/blobs/uploads/?b"),
        ("//o.example.org/x", "https://o.example.org/x"),
    ],
)
def test_a_location_is_followed_byte_for_byte(location: str, url: str) -> None:
    assert urls.follow(BASE, location) == url


@pytest.mark.parametrize(
    ("base", "location"),
    [
        (BASE, "http://r.example.org:8443/x"),
        (BASE, "HTTP://127.0.0.1/x"),
        ("http://127.0.0.1/", "http://r.example.org/x"),
        ("http://127.0.0.1/", "//10.0.0.1/x"),
        ("http://127.0.0.1/", "http://127.0.0.1.example.org/"),
    ],
)
def test_nothing_leads_away_from_https(base: str, location: str) -> None:
    with pytest.raises(Refused, match="which is not https; nothing was sent there"):
        urls.follow(base, location)


def test_http_may_lead_to_https_and_to_this_machine() -> None:
    assert urls.follow("http://127.0.0.1:1/", "https://o.example.org/x") == "https://o.example.org/x"
    assert urls.follow("http://127.0.0.1:1/", "http://localhost:2/x") == "http://localhost:2/x"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://a", "/"),
        ("https://a?b", "/?b"),
        ("https://a/?", "/?"),
        ("https://a/b%2fc?d=e/f?g#h", "/b%2fc?d=e/f?g"),
        ("http://[::1]:5/x", "/x"),
    ],
)
def test_the_target_is_the_rest_of_the_url(url: str, target: str) -> None:
    assert urls.target(url) == target


@pytest.mark.parametrize(
    ("name", "loopback", "plain"),
    [
        ("localhost", True, True),
        ("127.0.0.1", True, True),
        ("127.255.255.254", True, True),
        ("::1", True, True),
        ("a.localhost", False, True),
        ("registry.local", False, True),
        ("local", False, False),
        ("localhost.example.org", False, False),
        ("127.0.0.1.example.org", False, False),
        ("x.local.example.org", False, False),
        ("xlocalhost", False, False),
        ("localhost.", False, False),
        ("127.1", False, False),
        ("0x7f000001", False, False),
        ("2130706433", False, False),
        ("0.0.0.0", False, False),
        ("10.0.0.1", False, False),
        ("::ffff:127.0.0.1", False, False),
        ("::", False, False),
        ("", False, False),
    ],
)
def test_names_are_matched_exactly(name: str, loopback: bool, plain: bool) -> None:
    assert (urls.is_loopback(name), urls.may_be_plain(name)) == (loopback, plain)


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server on loopback that answers whatever it gets with `answer`; None: it hangs up."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer or b"")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "scheme"),
    [
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "http"),
        (b"\0" * 100, "http"),
        (None, "http"),
        (b"\x15\x03\x03\0\x02\x02\x28", "https"),  # a TLS alert: handshake failure
    ],
)
def test_a_server_that_speaks_no_tls_is_told_by_its_answer(answer: bytes | None, scheme: str) -> None:
    with answering(answer) as host:
        assert urls.scheme(host) == scheme


def test_a_name_that_cannot_be_resolved_is_left_to_the_request() -> None:
    assert urls.scheme("x" * 70 + ".local:5000") == "https"
