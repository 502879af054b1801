"""Reading an upstream: what is handed out is what was served, whole, bounded, and without credentials."""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import pytest
import requests

from presetbuild.fetch import Source, open_source, url_of
from shim.errors import FormatError, NotFound, Refused, StatefulPodsError, Unavailable
from shim.image.download import Download, Patience, check_url
from shim.image.session import Session
from tests.presetbuild.servers import Fault, Server, self_signed
from tests.raw_server import ENDLESS, SENSELESS, endless, raw_server

DATA = bytes(range(256)) * 4
LIMIT = 1 << 20
BUILD = "images/debian/trixie/amd64/cloud/20260829_05:24"


@dataclass
class Time:
    """A clock that moves only when somebody sleeps, or by `step` whenever it is read."""

    now: float = 0
    step: float = 0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    @property
    def patience(self) -> Patience:
        return Patience(clock=self.clock, sleep=self.sleep, jitter=lambda low, high: high)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "mirror"
    root.mkdir()
    (root / "file").write_bytes(DATA)
    (root / "other").write_bytes(DATA[::-1])
    return root


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    with Server(root) as server:
        yield server


@pytest.fixture
def source(server: Server, time: Time) -> Source:
    return open_source(server.url, patience=time.patience)


def reads(source: Source, amount: int) -> bytes:
    with source.open("file", LIMIT) as reader:
        return b"".join(iter(lambda: reader.read(amount), b""))


# -- every kind of source


@pytest.fixture(params=["http", "directory", "file URL", "file URL, localhost", "escaped file URL"])
def any_source(request: pytest.FixtureRequest, root: Path, time: Time) -> Iterator[Source]:
    if request.param == "http":
        with Server(root) as server:
            yield open_source(server.url + "/", patience=time.patience)
        return
    urls = {
        "directory": f"{root}/",
        "file URL": root.as_uri(),
        "file URL, localhost": root.as_uri().replace("//", "//localhost", 1),
        "escaped file URL": root.as_uri().replace("mirror", "%6Dirror"),
    }
    yield open_source(urls[request.param])


def test_a_file_is_read_whole(any_source: Source) -> None:
    assert any_source.read("file", LIMIT) == DATA
    assert not any_source.url.endswith("/")


@pytest.mark.parametrize("amount", [1, 100, len(DATA), LIMIT, -1])
def test_a_file_is_read_in_pieces_of_any_size(any_source: Source, amount: int) -> None:
    with any_source.open("file", LIMIT) as reader:
        pieces = list(iter(lambda: reader.read(amount), b""))
        assert reader.read(amount) == b""
    assert b"".join(pieces) == DATA
    assert amount < 0 or max(map(len, pieces)) <= amount


@pytest.mark.parametrize("scheme", ["http", "directory"])
def test_the_size_is_known_and_progress_is_told_in_bytes(root: Path, server: Server, scheme: str) -> None:
    told: list[tuple[str, int, int | None]] = []
    source = open_source(
        server.url if scheme == "http" else str(root),
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    with source.open("file", LIMIT, "the file") as reader:
        assert reader.size == len(DATA)
        while reader.read(1000):
            pass
    assert told[-1] == ("the file", len(DATA), len(DATA))
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})


def test_an_empty_file_is_empty(any_source: Source, root: Path) -> None:
    (root / "file").write_bytes(b"")
    assert any_source.read("file", LIMIT) == b""


def test_a_build_directory_keeps_its_colon(any_source: Source, root: Path) -> None:
    (root / BUILD).mkdir(parents=True)
    (root / BUILD / "SHA256SUMS").write_bytes(b"list")
    assert any_source.read(f"{BUILD}/SHA256SUMS", LIMIT) == b"list"
    assert url_of("https://example.org/", f"{BUILD}/") == f"https://example.org/{BUILD}/"


def test_a_name_is_escaped_for_the_url_and_never_decoded(any_source: Source, root: Path) -> None:
    for name in ("a?b#c", "a%2e%2eb", 'a"b\\c', "a b"):
        (root / name).write_text(name)
        assert any_source.read(name, LIMIT) == name.encode()


def test_a_file_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(any_source: Source) -> None:
    assert any_source.read("file", len(DATA)) == DATA
    with pytest.raises(Refused, match=rf"file is longer than the {len(DATA) - 1} bytes"):
        any_source.read("file", len(DATA) - 1)


@pytest.mark.parametrize("path", ["missing", "file/below", "a/b/c"])
def test_a_missing_file_is_named(any_source: Source, path: str) -> None:
    with pytest.raises(NotFound, match=path) as caught:
        any_source.read(path, LIMIT)
    assert any_source.url.removeprefix("file://") in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["", "/", "/file", "../file", "a/../file", "a/..", ".", "./file", "a//b", "//host/file", "http://host/file"],
)
def test_a_path_that_could_leave_the_tree_is_refused(any_source: Source, path: str) -> None:
    with pytest.raises(FormatError, match="is refused: expected plain names"):
        any_source.open(path, LIMIT)


@pytest.mark.parametrize("path", ["file\n", "fi\x00le", "fi\x1b[2Jle", "fi\u202ele", "é", "a/\r\nHost: x"])
def test_a_path_of_odd_characters_is_refused_and_shown_escaped(any_source: Source, path: str) -> None:
    with pytest.raises(FormatError, match="is refused: expected plain names") as caught:
        any_source.open(path, LIMIT)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.org/x", r"expected https://, http://, file://, or a directory"),
        ("https://", "malformed URL"),
        ("http:example.org", "malformed URL"),
        ("https:///path", "malformed URL"),
        ("https://example.org:port/", "malformed URL"),
        ("https://[::1/", "malformed URL"),
        ("https://example.org/a b", "malformed URL"),
        ("https://example.org/\r\nX: y", "malformed URL"),
        ("https://exämple.org/", "malformed URL"),
        ("https://example.org\\@evil.example.org/", "user name"),
        ("https://example.org/?a=b", "query or a fragment"),
        ("https://example.org/#a", "query or a fragment"),
        ("file://example.org/srv", r"expected file:///DIRECTORY"),
        ("file:srv", r"expected file:///DIRECTORY"),
        ("file://[::1/srv", "malformed URL"),
        ("file:///srv\n", r"expected file:///DIRECTORY"),
        ("n" * 5000, "cannot read an upstream from 'n.*: File name too long"),
        ("", "there is no directory"),
        ("no/such/directory", "there is no directory 'no/such/directory'"),
        ("a\x00b", "there is no directory"),
        ("file:///a%00b", "there is no directory"),
    ],
)
def test_what_is_no_source_is_refused_at_once(url: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        open_source(url)
    assert str(caught.value).isprintable()


def test_a_url_with_a_password_is_refused_and_the_password_is_not_shown() -> None:
    with pytest.raises(FormatError, match=r"example\.org holds a user name") as caught:
        open_source("https://me:secret@example.org/")
    assert "secret" not in str(caught.value)


# -- directories


def test_a_symlink_of_the_operators_own_directory_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"linked")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    assert open_source(str(root)).read("link", LIMIT) == b"linked"


def test_a_directory_in_place_of_a_file_is_refused(root: Path) -> None:
    with pytest.raises(Refused, match="is no regular file"):
        open_source(str(root.parent)).read("mirror", LIMIT)


def test_a_fifo_in_place_of_a_file_is_refused_and_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with pytest.raises(Refused, match="is no regular file"):
        open_source(str(root)).read("fifo", LIMIT)


def test_a_socket_or_a_loop_of_links_in_place_of_a_file_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)  # a socket's path must be short
    (root / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("socket", "loop", "n" * 300):
            with pytest.raises(Refused, match=f"cannot read .*{name[:10]}"):
                open_source(".").read(name, LIMIT)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(root: Path) -> None:
    with open_source(str(root)).open("file", LIMIT) as reader:
        reader.read(10)
        os.truncate(root / "file", 20)
        with pytest.raises(Unavailable, match=f"became shorter while it was read; {len(DATA) - 20} bytes are missing"):
            reader.read(-1)


def test_a_file_that_grows_while_it_is_read_ends_where_it_ended(root: Path) -> None:
    with open_source(str(root)).open("file", LIMIT) as reader:
        (root / "file").write_bytes(DATA + b"more")
        assert reader.read(-1) == DATA


# -- what a server may answer


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault(404), NotFound, r"there is no http://\S+/file: the server answered 404 Not Found"),
        (Fault(410), NotFound, "410 Gone"),
        (Fault(401), Refused, "answered 401 Unauthorized; access is denied, and an upstream is sent no credentials"),
        (Fault(403), Refused, "answered 403 Forbidden; access is denied"),
        (Fault(400), Refused, "answered 400 Bad Request, expected 200"),
        (Fault(451), Refused, "answered 451 .*, expected 200"),
        (Fault(204, {"Content-Length": None}, b""), Refused, "answered 204 No Content, expected 200"),
        (Fault(206), Refused, "answered 206 Partial Content, expected 200"),
        (Fault(304), Refused, "answered 304 Not Modified, expected 200"),
        (Fault(headers={"Content-Encoding": "gzip"}, body=gzip.compress(DATA)), Refused, "with Content-Encoding gzip"),
        (Fault(headers={"Content-Encoding": "br"}), Refused, "with Content-Encoding br, which was not asked for"),
        (Fault(headers={"Content-Length": "-5"}), Refused, "announces a Content-Length of '-5'"),
        (Fault(headers={"Content-Length": "1_000"}), Refused, "announces a Content-Length of '1_000'"),
        (Fault(headers={"Content-Length": str(LIMIT + 1)}), Refused, f"is longer than the {LIMIT} bytes"),
        (Fault(body=b"x" * (LIMIT + 1), chunked=True), Refused, f"is longer than the {LIMIT} bytes"),
        (Fault(body=b"x" * (LIMIT + 1), headers={"Content-Length": None}), Refused, "is longer than the"),
        (Fault(headers={"Content-Type": "text/html; charset=utf-8"}, body=b"\n<!doctype html>"), Refused, "HTML page"),
    ],
)
def test_an_answer_that_is_no_such_file_is_refused_without_a_retry(
    server: Server, source: Source, time: Time, fault: Fault, error: type[StatefulPodsError], message: str
) -> None:
    server.always["/file"] = fault
    with pytest.raises(error, match=message) as caught:
        source.read("file", LIMIT)
    assert type(caught.value) is error
    assert len(server.requests) == 1
    assert time.slept == []


def test_text_that_is_served_as_html_but_is_none_is_read(server: Server, source: Source) -> None:
    server.always["/file"] = Fault(headers={"Content-Type": "text/html"})
    assert source.read("file", LIMIT) == DATA


def test_a_hostile_reason_phrase_is_escaped(root: Path, time: Time) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        source = open_source(f"http://127.0.0.1:{listener.getsockname()[1]}", patience=time.patience)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 \x1b[2J\x9b31mgone\r\nContent-Length: 0\r\n\r\n")

        thread = Thread(target=answer)
        thread.start()
        with pytest.raises(Refused, match=r"answered 400 \\x1b\[2J") as caught:
            source.read("file", LIMIT)
        thread.join()
    assert str(caught.value).isprintable()


def test_nothing_is_decoded_and_nothing_else_is_asked_for(server: Server, source: Source) -> None:
    source.read("file", LIMIT)
    headers = server.requests[0].headers
    assert headers["Accept-Encoding"] == "identity"
    assert headers["Range"] is None


def test_netrc_and_cookies_are_not_used(
    server: Server, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.faults["/file"] = [Fault(302, {"Location": "/other", "Set-Cookie": "session=1"})]
    source.read("file", LIMIT)
    source.read("file", LIMIT)
    assert server.paths == ["/file", "/other", "/file"]
    assert all(request.headers["Authorization"] is None for request in server.requests)
    assert all(request.headers["Cookie"] is None for request in server.requests)


# -- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed(server: Server, source: Source, status: int) -> None:
    server.always["/file"] = Fault(status, {"Location": "other"})
    assert source.read("file", LIMIT) == DATA[::-1]


def test_five_redirects_are_followed_and_six_are_not(server: Server, source: Source) -> None:
    server.faults["/file"] = [Fault(302, {"Location": "/file"})] * 5
    assert source.read("file", LIMIT) == DATA
    server.always["/file"] = Fault(302, {"Location": "/file"})
    with pytest.raises(Refused, match="redirects more than 5 times"):
        source.read("file", LIMIT)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("file:///etc/passwd", "expected https:// or http://"),
        ("ftp://example.org/", "expected https:// or http://"),
        ("http://me:secret@127.0.0.1/", "holds a user name"),
        ("http://[", "redirects where nobody may follow"),
        ("http://127.0.0.1:port/", "malformed URL"),
        ("//exa\x1bmple.org/", "malformed URL"),
    ],
)
def test_a_redirect_to_what_is_no_plain_url_is_refused(
    server: Server, source: Source, location: str, message: str
) -> None:
    server.always["/file"] = Fault(302, {"Location": location})
    with pytest.raises(Refused, match=message) as caught:
        source.read("file", LIMIT)
    assert "secret" not in str(caught.value)
    assert len(server.requests) == 1


SECRETIVE = {
    "missing": Fault(404),
    "denied": Fault(403),
    "unexpected": Fault(204),
    "encoded": Fault(headers={"Content-Encoding": "gzip"}),
    "malformed length": Fault(headers={"Content-Length": "x"}),
    "a page": Fault(headers={"Content-Type": "text/html"}, body=b"<html>"),
    "unavailable": Fault(503),
    "hung up": Fault(hang_up=True),
    "cut at once": Fault(cut=0),
    "cut and not resumed": Fault(cut=9, headers={"ETag": None, "Last-Modified": None}),
    "cut again and again": Fault(cut=9, ranges=False),
    "redirected for ever": Fault(302, {"Location": "/file?sig=S3CRET#S3CRET"}),
    "redirected to another scheme": Fault(302, {"Location": "ftp://example.org/x?sig=S3CRET"}),
    "redirected to no host": Fault(302, {"Location": "http:///x?sig=S3CRET"}),
    "redirected to a malformed host": Fault(302, {"Location": "http://me:S3CRET@[/x?sig=S3CRET"}),
    "redirected to odd characters": Fault(302, {"Location": "/x?sig=S3CRET S3CRET"}),
    "redirected to a name that cannot be": Fault(302, {"Location": "http://a..b/x?sig=S3CRET"}),
    "redirected to nobody": Fault(302, {"Location": "http://127.0.0.1:1/x?sig=S3CRET#S3CRET"}),
}


@pytest.mark.parametrize("fault", SECRETIVE.values(), ids=SECRETIVE)
def test_no_error_shows_a_query_or_a_fragment(server: Server, time: Time, fault: Fault) -> None:
    server.always["/file?sig=S3CRET"] = fault
    with pytest.raises(StatefulPodsError) as caught:
        download = Download(Session(), f"{server.url}/file?sig=S3CRET#S3CRET", time.patience)
        while download.read(LIMIT):
            pass
    assert f"{server.url}/file" in str(caught.value)
    assert "S3CRET" not in str(caught.value)
    assert server.paths[0] == "/file?sig=S3CRET"


@pytest.mark.parametrize("error", [requests.ConnectionError, requests.exceptions.InvalidURL])
def test_what_a_library_says_is_shown_without_the_query_that_it_quotes(
    time: Time, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def get(*_: object, **__: object) -> None:
        raise error("Max retries exceeded with url: /file?sig=S3CRET&a='S3CRET' (Caused by an example)")

    monkeypatch.setattr(Session, "get", get)
    with pytest.raises(StatefulPodsError, match=r"url: /file… \(Caused by an example\)") as caught:
        Download(Session(), "https://example.org/file?sig=S3CRET", time.patience)
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://example.org/x?S3CRET", "https:///x#S3CRET", "https://[/?S3CRET", "a?S3CRET b"])
def test_a_malformed_url_is_shown_without_its_query(url: str) -> None:
    with pytest.raises(FormatError) as caught:
        check_url(url)
    assert "S3CRET" not in str(caught.value)


def test_a_redirect_without_a_location_ends(server: Server, source: Source) -> None:
    server.always["/file"] = Fault(302)
    with pytest.raises(Refused, match="redirects more than 5 times"):
        source.read("file", LIMIT)


def test_the_body_of_a_redirect_is_not_read(server: Server, source: Source) -> None:
    bomb = gzip.compress(bytes(1 << 20))
    server.faults["/file"] = [
        Fault(302, {"Location": "/other", "Content-Encoding": "gzip", "Content-Length": str(1 << 40)}, bomb)
    ]
    assert source.read("file", LIMIT) == DATA[::-1]


# -- TLS


@pytest.fixture
def secure(root: Path, tmp_path: Path) -> Iterator[Server]:
    with Server(root, tls=self_signed(tmp_path)) as server:
        yield server


@pytest.fixture
def trusted(secure: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "certificate.pem"))
    return secure


def test_https_is_read_when_the_environment_trusts_its_certificate(trusted: Server, time: Time) -> None:
    assert open_source(trusted.url, patience=time.patience).read("file", LIMIT) == DATA


def test_an_unknown_certificate_is_refused_without_a_retry(secure: Server, time: Time) -> None:
    with pytest.raises(Refused, match=r"its certificate is refused: .*self-signed certificate"):
        open_source(secure.url, patience=time.patience).read("file", LIMIT)
    assert time.slept == []
    assert secure.requests == []


def test_a_redirect_from_https_to_http_is_refused(trusted: Server, server: Server, time: Time) -> None:
    trusted.always["/file"] = Fault(302, {"Location": f"{server.url}/file?sig=secret"})
    with pytest.raises(Refused, match=rf"redirects from https to {server.url}/file, which is not followed"):
        open_source(trusted.url, patience=time.patience).read("file", LIMIT)
    assert server.requests == []


def test_a_detour_over_https_does_not_hide_the_downgrade(trusted: Server, server: Server, time: Time) -> None:
    server.always["/file"] = Fault(302, {"Location": f"{trusted.url}/file"})
    trusted.always["/file"] = Fault(302, {"Location": f"{server.url}/other"})
    with pytest.raises(Refused, match="from https to"):
        open_source(server.url, patience=time.patience).read("file", LIMIT)


# -- retries


@pytest.mark.parametrize(
    "fault",
    [Fault(500), Fault(502), Fault(503), Fault(504), Fault(429), Fault(408), Fault(hang_up=True), Fault(cut=0)],
)
def test_what_may_pass_is_tried_again_and_cured(server: Server, source: Source, time: Time, fault: Fault) -> None:
    server.faults["/file"] = [fault, fault]
    assert source.read("file", LIMIT) == DATA
    assert time.slept == [1, 2]


def test_what_does_not_pass_is_unavailable_after_a_few_tries(server: Server, source: Source, time: Time) -> None:
    server.always["/file"] = Fault(503)
    with pytest.raises(Unavailable, match=r"answered 503 Service Unavailable; tried 4 times; try again later"):
        source.read("file", LIMIT)
    assert len(server.requests) == 4
    assert time.slept == [1, 2, 4]


def test_a_refused_connection_is_unavailable_within_seconds(time: Time) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    source = open_source(f"http://127.0.0.1:{port}", patience=time.patience)
    with pytest.raises(Unavailable, match=r"cannot read http://\S+/file: .*Connection refused; tried 4 times"):
        source.read("file", LIMIT)
    assert sum(time.slept) < 10


def test_a_name_that_does_not_resolve_is_unavailable(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(Unavailable, match=r"Name or service not known; tried 4 times"):
        open_source("http://mirror.example.org", patience=time.patience).read("file", LIMIT)


@pytest.mark.parametrize("host", ["a..example.org", ".example.org", "a" * 70 + ".example.org"])
def test_a_host_that_can_be_no_name_is_refused(host: str, time: Time) -> None:
    with pytest.raises((Refused, Unavailable), match="cannot read"):
        open_source(f"http://{host}", patience=time.patience).read("file", LIMIT)


def test_a_server_that_answers_nothing_is_unavailable_when_time_is_up(root: Path) -> None:
    time = Time(step=31)  # each try seems to take so many seconds
    with Server(root) as server:
        server.always["/file"] = Fault(hang_up=True)
        with pytest.raises(Unavailable, match="tried 4 times"):
            open_source(server.url, patience=time.patience).read("file", LIMIT)
        time.step = 61
        with pytest.raises(Unavailable, match="tried 2 times"):
            open_source(server.url, patience=time.patience).read("file", LIMIT)


@pytest.mark.parametrize(
    ("header", "slept"),
    [
        ("7", [7]),
        ("0", [1]),
        ("Mon, 30 Nov 2026 12:00:30 GMT", [30]),
        ("Mon, 30 Nov 2026 11:00:00 GMT", [1]),
        ("soon", [1]),
        ("-5", [1]),
        ("1e2", [1]),
        ("Mon, 30 Nov 2026 12:00:30 -0000", [30]),
        ("Mon, 30 Nov 99999999999999999 12:00:00 GMT", [1]),
    ],
)
def test_retry_after_is_respected(server: Server, source: Source, time: Time, header: str, slept: list[float]) -> None:
    answered = {"Retry-After": header, "Date": "Mon, 30 Nov 2026 12:00:00 GMT"}
    server.faults["/file"] = [Fault(429, answered)]
    assert source.read("file", LIMIT) == DATA
    assert time.slept == slept


@pytest.mark.parametrize("header", ["3600", "Fri, 31 Dec 2100 23:59:59 GMT"])
def test_a_retry_after_beyond_patience_is_not_waited_for(
    server: Server, source: Source, time: Time, header: str
) -> None:
    server.always["/file"] = Fault(503, {"Retry-After": header})
    with pytest.raises(Unavailable, match=r"and asks to wait \d+ seconds; tried 1 time;"):
        source.read("file", LIMIT)
    assert time.slept == []


def test_a_trickle_is_no_progress(server: Server, root: Path) -> None:
    time = Time(step=30)  # each packet seems to take so many seconds
    source = open_source(server.url, patience=time.patience)
    with source.open("file", LIMIT) as reader, pytest.raises(Unavailable, match="has stalled: 5 bytes came in 150 s"):
        while reader.read(1):
            pass


@pytest.mark.parametrize("pause", [0.02, 0.0])
@pytest.mark.parametrize("name", [name for name in ENDLESS if name != "body"])
def test_an_answer_that_never_ends_is_given_up(name: str, pause: float) -> None:
    with raw_server(endless(name, pause)) as host, pytest.raises((Unavailable, Refused)):
        open_source(f"http://{host}", patience=Patience(stall=0.3)).read("file", LIMIT)


def test_a_body_that_is_slow_on_the_average_is_given_up(root: Path, server: Server) -> None:
    (root / "file").write_bytes(bytes(10 << 20))
    time = Time(step=30)  # each packet, of 64 KiB, seems to take so many seconds
    source = open_source(server.url, patience=time.patience)
    with source.open("file", 20 << 20) as reader, pytest.raises(Unavailable, match="has stalled"):
        while reader.read(64 << 10):
            pass


@pytest.mark.parametrize("answer", SENSELESS.values(), ids=SENSELESS)
def test_an_answer_that_makes_no_sense_is_one_of_our_errors(answer: bytes, time: Time) -> None:
    with raw_server(lambda send: send(answer)) as host, suppress(StatefulPodsError):
        data = open_source(f"http://{host}", patience=time.patience).read("file", LIMIT)
        assert data in answer


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_ca_bundle_that_does_not_exist_is_refused(
    time: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "absent"))
    with pytest.raises(Refused, match=r"CA certificate bundle, invalid path: .*absent"):
        open_source("https://127.0.0.1:1", patience=time.patience).read("file", LIMIT)
    assert time.slept == []


@pytest.mark.parametrize(("cut", "tries"), [(70_000, 4), ((1 << 20) + 1, 20)])
def test_a_connection_that_breaks_again_and_again_is_given_up_whatever_it_delivered(
    root: Path, server: Server, source: Source, cut: int, tries: int
) -> None:
    (root / "file").write_bytes(bytes(25 << 20))
    server.always["/file"] = Fault(cut=cut)
    with pytest.raises(Unavailable, match=f"the connection broke after .* tried {tries} times"):
        source.read("file", 30 << 20)


def test_a_slow_reader_is_not_taken_for_a_slow_server(server: Server, source: Source, time: Time) -> None:
    with source.open("file", LIMIT) as reader:
        data = reader.read(10)
        time.now += 3600
        assert data + reader.read(-1) == DATA


# -- a connection that breaks

CUT = Fault(cut=300)
CUT_CHUNKED = Fault(cut=300, chunked=True)
ETAG: dict[str, str | None] = {"ETag": None}


@pytest.mark.parametrize("amount", [100, LIMIT])
@pytest.mark.parametrize(
    "then",
    [
        [Fault()],
        [Fault(cut=200), Fault()],
        [Fault(503), Fault(hang_up=True), Fault()],
        [Fault(ranges=False)],
        [Fault(ranges=False, cut=100), Fault(ranges=False)],
        [Fault(ranges=False, cut=500), Fault()],
        [Fault(302, {"Location": "/file"}), Fault()],
    ],
)
def test_a_broken_answer_is_taken_up_where_it_stopped(
    server: Server, source: Source, amount: int, then: list[Fault]
) -> None:
    server.faults["/file"] = [CUT, *then]
    assert reads(source, amount) == DATA
    resumed = server.requests[-1].headers
    assert resumed["Range"].startswith("bytes=")
    assert resumed["If-Range"].startswith('"')


def test_a_chunked_answer_that_is_cut_short_is_taken_up_too(server: Server, source: Source) -> None:
    server.faults["/file"] = [CUT_CHUNKED]
    assert reads(source, 100) == DATA
    assert len(server.requests) == 2
    server.faults["/file"] = [CUT_CHUNKED, Fault(chunked=True, ranges=False)]
    assert reads(source, 100) == DATA


def test_last_modified_serves_where_there_is_no_strong_etag(server: Server, source: Source) -> None:
    for tag in (None, 'W/"weak"'):
        server.requests.clear()
        server.faults["/file"] = [Fault(cut=300, headers={"ETag": tag}), Fault(headers={"ETag": tag})]
        assert reads(source, 100) == DATA
        assert server.requests[1].headers["If-Range"].endswith("GMT")


@pytest.mark.parametrize(
    "then",
    [
        Fault(body=DATA[::-1]),  # heeds If-Range: all of another file
        Fault(body=DATA[::-1], if_range=False),  # does not: the rest of another file
        Fault(body=DATA + b"more", if_range=False, headers={"ETag": '"kept"'}),
        Fault(body=DATA[:200]),
        Fault(body=DATA[:200], if_range=False),  # 416
        Fault(headers=ETAG),
        Fault(headers={"Content-Range": "bytes 0-1023/1024"}),
        Fault(headers={"Content-Range": "bytes 301-1023/1024"}),
        Fault(headers={"Content-Range": "bytes 300-1022/1024"}),
        Fault(headers={"Content-Range": "bytes 300-1023/*"}),
        Fault(headers={"Content-Range": "bytes 300-1023/2048"}),
        Fault(headers={"Content-Range": None}),
        Fault(ranges=False, headers={"Content-Length": "2048"}),
        Fault(ranges=False, headers=ETAG),
    ],
)
def test_two_files_are_never_glued_together(server: Server, source: Source, then: Fault) -> None:
    server.faults["/file"] = [CUT, then]
    with source.open("file", LIMIT) as reader, pytest.raises(Unavailable, match="start again") as caught:
        while reader.read(100):
            pass
    assert "changed while it was read, or cannot be resumed (the connection broke after 300 of 1024 bytes" in str(
        caught.value
    )
    assert source.read("file", LIMIT) == DATA


def test_without_a_validator_nothing_is_appended(server: Server, source: Source) -> None:
    server.faults["/file"] = [Fault(cut=300, headers={"ETag": None, "Last-Modified": None})]
    with pytest.raises(Unavailable, match=r"broke after 300 of 1024 bytes.*no validator to resume by; .*start again"):
        source.read("file", LIMIT)
    assert len(server.requests) == 1


def test_an_answer_that_breaks_before_its_first_byte_may_be_another_file(server: Server, source: Source) -> None:
    server.faults["/file"] = [Fault(cut=0), Fault(body=b"new")]
    with source.open("file", LIMIT) as reader:
        assert reader.read(-1) == b"new"
        assert reader.size == 3


def test_a_file_that_vanishes_while_it_is_read_is_missing(server: Server, source: Source) -> None:
    server.faults["/file"] = [CUT, Fault(404)]
    with pytest.raises(NotFound, match="404"):
        source.read("file", LIMIT)


def test_an_answer_that_is_always_too_short_is_unavailable(server: Server, source: Source) -> None:
    server.always["/file"] = Fault(headers={"Content-Length": "2048"}, ranges=False, cut=1024)
    with pytest.raises(Unavailable, match="the connection broke after 1024 of 2048 bytes; tried 4 times"):
        source.read("file", LIMIT)


def test_a_resumed_answer_may_not_outgrow_the_limit(server: Server, source: Source) -> None:
    server.faults["/file"] = [CUT_CHUNKED]
    with pytest.raises(Refused, match="longer than the 500 bytes"):
        source.read("file", 500)
