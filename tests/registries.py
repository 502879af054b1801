"""Registries for the tests: Debian's real one, and one in this process that can be told to fail.

`docker_registry` and `docker_registry_auth` are real. `FaultyRegistry` speaks the distribution API from memory and is
honest until `fault` says otherwise: a fault is a function of a request and the honest response, so any lie fits.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import itertools
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from shim.image.registry import RegistryRepository
from shim.image.retry import Retry

USERNAME, PASSWORD = "test", "throwaway"
NAME = "test/image"  # the repository that `connect` opens
Connect = Callable[..., RegistryRepository]
Configure = Callable[[dict[str, Any]], None]
_HTPASSWD = "test:$2b$04$mYyyxNH2nKqkM7Nm5kozQe5U.ZHETQ5KUhUhSJ4iafG6./RirwjxO\n"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class RegistryAt:
    """A repository that no other test uses, in a running registry."""

    host: str
    repository: str

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"


def docker_config(host: str, username: str = USERNAME, password: str = PASSWORD, **more: str) -> dict[str, Any]:
    """What `docker login` writes for `host`."""
    return {"auths": {host: {"auth": base64.b64encode(f"{username}:{password}".encode()).decode(), **more}}}


@pytest.fixture(scope="session")
def _docker_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_docker_registry(tmp_path_factory.mktemp("registry"), auth=False) as host:
        yield host


@pytest.fixture(scope="session")
def _docker_registry_auth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_docker_registry(tmp_path_factory.mktemp("registry-auth"), auth=True) as host:
        yield host


@pytest.fixture
def docker_registry(_docker_registry: str) -> RegistryAt:
    """Debian's docker-registry over http on loopback, open to everybody."""
    return RegistryAt(_docker_registry, f"test/repository-{next(_numbers)}")


@pytest.fixture
def docker_registry_auth(_docker_registry_auth: str) -> RegistryAt:
    """The same behind basic authentication with a space in its realm: USERNAME and PASSWORD."""
    return RegistryAt(_docker_registry_auth, f"test/repository-{next(_numbers)}")


@pytest.fixture
def faulty_registry() -> Iterator[FaultyRegistry]:
    """An in-process registry over http on loopback."""
    with FaultyRegistry() as registry:
        yield registry


@pytest.fixture
def sleeps() -> list[float]:
    """How long the client would have slept."""
    return []


@pytest.fixture
def connect(sleeps: list[float]) -> Connect:
    def connect(registry: FaultyRegistry, **options: Any) -> RegistryRepository:
        return RegistryRepository(registry.host, NAME, retry=Retry(sleep=sleeps.append), **options)

    return connect


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Write a config.json, and name its directory in DOCKER_CONFIG."""

    def configure(document: dict[str, Any]) -> None:
        (tmp_path / "config.json").write_text(json.dumps(document))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    return configure


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def trusted(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.certificate))
    return certificate


@pytest.fixture
def store(faulty_registry: FaultyRegistry) -> Iterator[FaultyRegistry]:
    """A second origin that serves the same blobs and uploads."""
    with FaultyRegistry(shares=faulty_registry) as other:
        yield other


def resolve_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name be this machine: no name server is asked."""
    honest = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: honest("127.0.0.1", *rest, **more))


@contextmanager
def run_docker_registry(directory: Path, *, auth: bool) -> Iterator[str]:
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    for _ in range(5):
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            host = f"127.0.0.1:{probe.getsockname()[1]}"
        process = _start(program, directory, host, auth)
        try:
            if _answers(process, host):
                yield host
                return
        finally:
            process.terminate()
            process.wait()
    pytest.fail(f"docker-registry did not start: {(directory / 'log').read_text(errors='replace')[-2000:]}")


def _start(program: str, directory: Path, host: str, auth: bool) -> subprocess.Popen[bytes]:
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},  # with its access log, which the benchmark counts
        "storage": {"filesystem": {"rootdirectory": str(directory / "storage")}, "delete": {"enabled": True}},
        "http": {"addr": host, "secret": "throwaway"},
    }
    if auth:
        (directory / "htpasswd").write_text(_HTPASSWD)
        config["auth"] = {"htpasswd": {"realm": "a realm with spaces", "path": str(directory / "htpasswd")}}
    (directory / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    with (directory / "log").open("ab") as log:
        return subprocess.Popen([program, "serve", str(directory / "config.yml")], stdout=log, stderr=log)


def _answers(process: subprocess.Popen[bytes], host: str) -> bool:
    name, port = host.split(":")
    for _ in range(500):
        if process.poll() is not None:
            return False  # the port went to somebody else meanwhile
        with suppress(OSError), socket.create_connection((name, int(port)), timeout=1):
            return True
        time.sleep(0.02)
    return False


@dataclass(frozen=True)
class Request:
    """What arrived: method, raw request target, headers, and how long the body was."""

    method: str
    target: str
    headers: dict[str, str]
    length: int = 0

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query)

    @property
    def authorization(self) -> str | None:
        return self.headers.get("authorization")


@dataclass(frozen=True)
class Response:
    """What is answered. `length` False leaves out Content-Length; after `drop` bytes of body the connection ends."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: bool = True
    drop: int | None = None

    def having(self, **headers: str | None) -> Response:
        """Return this with other headers (``_`` for ``-``), without those that are None."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kept = {name: value for name, value in self.headers.items() if name not in named}
        return replace(self, headers=kept | {name: value for name, value in named.items() if value is not None})


Change = Callable[[Request, Response], Response]


@dataclass
class _Fault:
    method: str
    path: re.Pattern[str]
    change: Change
    times: int


class FaultyRegistry:
    """A registry in memory, on a free loopback port.

    `auth` is None, ``"basic"`` or ``"bearer"``; with ``"bearer"`` a token is good for `token_uses` requests. `tls` is
    what `make_certificate` returned. With `shares` the contents are another registry's: a second origin of the same
    store. Every request, those to the token server as well, is in `requests`.
    """

    def __init__(
        self,
        *,
        auth: str | None = None,
        token_uses: int = 1_000_000,
        tls: Certificate | None = None,
        shares: FaultyRegistry | None = None,
    ) -> None:
        self.auth = auth
        self.token_uses = token_uses
        self.realm: str | None = None
        self.requests: list[Request] = []
        self.blobs: dict[str, bytes] = shares.blobs if shares else {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = shares.manifests if shares else {}
        self.uploads: set[str] = shares.uploads if shares else set()
        self.page = 1000
        self._tokens: dict[str, tuple[str, int]] = {}
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()
        self._server = _Server(self)
        self.scheme = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            # The handshake belongs into the thread of its connection, not into the one that accepts.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}"

    def __enter__(self) -> FaultyRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fault(self, method: str, path: str, change: Change, times: int = 1) -> None:
        """Let `change` answer the next `times` requests of `method` whose path has a match of `path`."""
        self._faults.append(_Fault(method, re.compile(path), change, times))

    def seen(self, method: str, path: str = "") -> list[Request]:
        """Return the requests of `method` whose path has a match of `path`."""
        return [request for request in self.requests if request.method == method and re.search(path, request.path)]

    def add_blob(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    def add_manifest(self, repository: str, raw: bytes, media_type: str, tag: str | None = None) -> str:
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        for reference in filter(None, (digest, tag)):
            self.manifests[repository, reference] = (media_type, raw)
        return digest

    def answer(self, request: Request, body: bytes) -> Response:
        """Return the response to `request`, with the faults that are due."""
        with self._lock:
            self.requests.append(request)
            response = self._authenticate(request, body) or self._route(request, body)
            for fault in self._faults:
                if fault.times > 0 and fault.method == request.method and fault.path.search(request.path):
                    fault.times -= 1
                    return fault.change(request, response)
            return response

    def _authenticate(self, request: Request, body: bytes) -> Response | None:
        basic = "Basic " + base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
        if request.path == "/token":
            form = parse_qs(body.decode()) if request.method == "POST" else request.query
            refreshes = form.get("refresh_token") == ["identity"]
            if request.authorization not in (None, basic) or (request.method == "POST" and not refreshes):
                return _error(401, "UNAUTHORIZED", "who are you?")
            token = f"token-{len(self._tokens)}"
            self._tokens[token] = (form["scope"][0], self.token_uses)
            return Response(200, {"Content-Type": "application/json"}, json.dumps({"token": token}).encode())
        if self.auth == "basic" and request.authorization != basic:
            challenge = 'Basic realm="a realm with spaces, and a comma"'
            return _error(401, "UNAUTHORIZED", "authentication required").having(WWW_Authenticate=challenge)
        if self.auth != "bearer":
            return None
        repository = request.path.removeprefix("/v2/").partition("/manifests/")[0].partition("/blobs/")[0]
        needed = "pull" if request.method in ("GET", "HEAD") else "push"
        scope, uses = self._tokens.get((request.authorization or "").removeprefix("Bearer "), ("", 0))
        if not uses or needed not in scope:
            challenge = f'Bearer realm="{self.realm or self.url + "/token"}",service="a service",'
            challenge += f'scope="repository:{repository}:{needed}"'
            return _error(401, "UNAUTHORIZED", "authentication required").having(WWW_Authenticate=challenge)
        self._tokens[(request.authorization or "").removeprefix("Bearer ")] = (scope, uses - 1)
        return None

    def _route(self, request: Request, body: bytes) -> Response:
        match = re.fullmatch(r"/v2/(.+)/(blobs/uploads|blobs|manifests|tags)/([^/]*)", request.path)
        if not match:
            return _error(404, "UNSUPPORTED", "no such page")
        repository, kind, reference = match.groups()
        routes = {
            "blobs/uploads": self._upload, "blobs": self._blob, "manifests": self._manifest, "tags": self._tags,
        }  # fmt: skip
        return routes[kind](request, repository, reference, body)

    def _upload(self, request: Request, repository: str, reference: str, body: bytes) -> Response:
        if request.method == "POST":
            reference = f"upload-{len(self.uploads)}"
            self.uploads.add(reference)
            return Response(202, {"Location": f"/v2/{repository}/blobs/uploads/{reference}?_state=a%2fb%2Bc%7E=="})
        if reference not in self.uploads or "_state=a%2fb%2Bc%7E==&" not in request.target:
            return _error(404, "BLOB_UPLOAD_UNKNOWN", "no such upload, or its state was lost")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if request.query["digest"] != [digest]:
            return _error(400, "DIGEST_INVALID", "these are other bytes")
        self.blobs[digest] = body
        return Response(201, {"Location": f"/v2/{repository}/blobs/{digest}", "Docker-Content-Digest": digest})

    def _blob(self, request: Request, _repository: str, reference: str, _body: bytes) -> Response:
        data = self.blobs.get(reference)
        if data is None:
            return _error(404, "BLOB_UNKNOWN", "no such blob")
        start = re.fullmatch(r"bytes=([0-9]+)-", request.headers.get("range", ""))
        if start and int(start[1]) < len(data):
            part = f"bytes {start[1]}-{len(data) - 1}/{len(data)}"
            return Response(206, {"Content-Range": part}, data[int(start[1]) :])
        return Response(416) if start else Response(200, {"Docker-Content-Digest": reference}, data)

    def _manifest(self, request: Request, repository: str, reference: str, body: bytes) -> Response:
        if request.method == "PUT":
            digest = self.add_manifest(repository, body, request.headers["content-type"], reference)
            return Response(201, {"Docker-Content-Digest": digest})
        found = self.manifests.get((repository, reference))
        if found is None:
            return _error(404, "MANIFEST_UNKNOWN", "no such manifest")
        digest = f"sha256:{hashlib.sha256(found[1]).hexdigest()}"
        return Response(200, {"Content-Type": found[0], "Docker-Content-Digest": digest}, found[1])

    def _tags(self, request: Request, repository: str, _reference: str, _body: bytes) -> Response:
        tags = sorted(tag for name, tag in self.manifests if name == repository and ":" not in tag)
        last = request.query.get("last", [""])[0]
        rest = [tag for tag in tags if tag > last]
        response = Response(200, body=json.dumps({"name": repository, "tags": rest[: self.page]}).encode())
        if len(rest) > self.page:
            following = f"/v2/{repository}/tags/list?last={rest[self.page - 1]}"
            return response.having(Link=f'<{following}>; rel="next"')
        return response


def _error(status: int, code: str, message: str) -> Response:
    return Response(status, body=json.dumps({"errors": [{"code": code, "message": message}]}).encode())


def status(number: int, **headers: str) -> Change:
    """A fault: another status, without a body."""
    return lambda _request, _response: Response(number).having(**headers)


def headers(**changes: str | None) -> Change:
    """A fault: other headers on an honest response."""
    return lambda _request, response: response.having(**changes)


def drop(after: int) -> Change:
    """A fault: the connection ends after so many bytes of the body, below 0 before any answer."""
    return lambda _request, response: replace(response, drop=after)


def body(change: Callable[[bytes], bytes], *, length: bool = True) -> Change:
    """A fault: another body, with its right Content-Length or with none."""
    return lambda _request, response: replace(response, body=change(response.body), length=length)


#: What another attempt may cure.
PASSING_FAILURES: dict[str, Change] = {
    "500": status(500),
    "502": status(502),
    "503": status(503),
    "504": status(504),
    "429": status(429),
    "no answer": drop(-1),
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, registry: FaultyRegistry) -> None:
        self.registry = registry
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are part of what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or the second write of each answer waits 40 ms
    server: _Server

    def handle_one_request(self) -> None:
        if self.rfile.peek(1)[:1] == b"\x16":  # type: ignore[attr-defined]  # a TLS handshake, at a plain port
            self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            self.close_connection = True
        else:
            super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(
            self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, len(content)
        )
        response = self.server.registry.answer(request, content)
        if response.drop is not None and response.drop < 0:
            self.close_connection = True
            return
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.length:
            self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body[: response.drop])
        self.close_connection = self.close_connection or not response.length or response.drop is not None

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = _handle  # noqa: N815  # http.server's names


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1 and localhost that signs itself, as PEM files."""

    certificate: Path
    key: Path


def make_certificate(directory: Path) -> Certificate:
    """Return a new throwaway `Certificate` in `directory`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Certificate(directory / "certificate.pem", directory / "key.pem")
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made
