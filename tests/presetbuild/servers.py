"""An HTTP or HTTPS server in this process: it serves a directory as a good mirror does, and fails as it is told to."""

from __future__ import annotations

import hashlib
import ssl
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Self
from urllib.parse import unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Fault:
    """How one answer differs from a good one.

    `headers` replaces headers, and removes those whose value is None. `body` replaces the file's content; `cut` closes
    the connection after so many bytes of it; `chunked` sends it in chunks, without a length; `hang_up` closes the
    connection before anything is answered. `ranges` False ignores the Range header; `if_range` False ignores If-Range.
    """

    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: bytes | None = None
    cut: int | None = None
    chunked: bool = False
    hang_up: bool = False
    ranges: bool = True
    if_range: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for. `path` is as it came over the wire."""

    path: str
    headers: Message


class Server:
    """Serves `root` on a free port of the loopback interface, as a context manager.

    `faults` maps a path (``/SHA256SUMS``) to the faults of its next answers, in order; `always` to the one of all that
    come after them. `requests` records what was asked. `tls` names the PEM files of a certificate and of its key.
    """

    def __init__(self, root: Path, tls: tuple[Path, Path] | None = None) -> None:
        self.root = root
        self.requests: list[Request] = []
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.always: dict[str, Fault] = {}
        self._http = _HttpServer(("127.0.0.1", 0), self)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            # The handshake belongs into the connection's thread: in the accepting one it would block all others.
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._http.server_port}"
        self._thread = Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def paths(self) -> list[str]:
        """The paths that were asked for, in order."""
        return [request.path for request in self.requests]

    def fault(self, path: str) -> Fault:
        """Return, and use up, how the next answer for `path` differs."""
        return self.faults[path].pop(0) if self.faults[path] else self.always.get(path, Fault())


def self_signed(directory: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key into `directory`, and return their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], owner: Server) -> None:
        super().__init__(address, _Handler)
        self.owner = owner

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that hang up, and handshakes that they refuse, are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10
    server: _HttpServer

    def do_GET(self) -> None:
        owner = self.server.owner
        owner.requests.append(Request(self.path, self.headers))
        fault = owner.fault(self.path)
        if fault.hang_up:
            self.close_connection = True
            return
        status, headers, body = self._good_answer(fault)
        status = fault.status or status
        if fault.chunked:
            del headers["Content-Length"]
            headers["Transfer-Encoding"] = "chunked"
        headers = {"Date": self.date_time_string(), **headers, **fault.headers}
        self.send_response_only(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        if headers.get("Content-Length") is None and not fault.chunked:
            self.close_connection = True  # nothing but the end of the connection tells the end of the body
        self.end_headers()
        sent = body if fault.cut is None else body[: fault.cut]
        if fault.chunked:
            sent = b"".join(
                b"%x\r\n%b\r\n" % (len(sent[at : at + 100]), sent[at : at + 100]) for at in range(0, len(sent), 100)
            )
            sent += b"0\r\n\r\n" if fault.cut is None else b""
        self.wfile.write(sent)
        if fault.cut is not None:
            self.close_connection = True

    def _good_answer(self, fault: Fault) -> tuple[int, dict[str, str | None], bytes]:
        file = self.server.owner.root / unquote(urlsplit(self.path).path).lstrip("/")
        if not file.is_file() and fault.body is None:
            return 404, {"Content-Length": "6", "Content-Type": "text/html"}, b"<html>"
        body = file.read_bytes() if fault.body is None else fault.body
        headers: dict[str, str | None] = {
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:16]}"',
            "Last-Modified": formatdate(file.stat().st_mtime if file.exists() else 0, usegmt=True),
            "Content-Type": "application/octet-stream",
            "Content-Length": str(len(body)),
        }
        asked, condition = self.headers["Range"], self.headers["If-Range"]
        unchanged = condition in (None, headers["ETag"], headers["Last-Modified"])
        if not asked or not fault.ranges or (fault.if_range and not unchanged):
            return 200, headers, body
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            return 416, {"Content-Length": "0", "Content-Range": f"bytes */{len(body)}"}, b""
        headers["Content-Length"] = str(len(body) - start)
        headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return 206, headers, body[start:]

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing; `Server.requests` records what came."""
