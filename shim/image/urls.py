"""Which origin a URL belongs to, where a `Location` leads, and who may be spoken to without TLS.

Everything here decides where credentials may go, so it is pure, small, and apart from the client that sends them.
Sources: RFC 3986 (references), RFC 6454 (origins), RFC 6761 and RFC 6762 (the names localhost and local).
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from shim.errors import FormatError, Refused, printable

_PORTS = {"https": 443, "http": 80}
_PROBE_SECONDS = 3.0
_VISIBLE = re.compile(r"[\x21-\x7e]+", re.ASCII)


class Origin(NamedTuple):
    """Scheme, lower-case host and port: what a credential is bound to."""

    scheme: str
    host: str
    port: int


def origin(url: str) -> Origin:
    """Return the origin of an absolute http or https URL; raises `FormatError` for anything else.

    A URL with a user name is refused as well: libraries turn that into an Authorization header.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if not _VISIBLE.fullmatch(url) or parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        raise FormatError(f"malformed URL {shown(url)!r}: expected https://HOST/… without a user name")
    return Origin(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port)


def follow(base: str, location: str) -> str:
    """Return the absolute URL that `location`, an answer of `base`, leads to, byte for byte where it can be.

    Raises `FormatError` for a malformed one, and `Refused` for one that would leave https, or would go in the clear
    to a host that must not be spoken to that way.
    """
    here = origin(base)
    if not _VISIBLE.fullmatch(location):
        raise FormatError(f"{shown(base)} answered with a malformed Location {shown(location)!r}")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location):
        url = location
    elif location.startswith("/") and not location.startswith("//"):
        url = re.split(r"(?<=[^:/])[/?#]", base, maxsplit=1)[0] + location  # urljoin would tidy it up
    else:
        try:
            url = urljoin(base, location)
        except ValueError as error:
            raise FormatError(f"{shown(base)} answered with a malformed Location {shown(location)!r}") from error
    there = origin(url)
    if there.scheme == "http" and (here.scheme != "http" or not may_be_plain(there.host)):
        raise Refused(f"{shown(base)} leads to {shown(url)}, which is not https; nothing was sent there")
    return url


def target(url: str) -> str:
    """Return what follows the authority of `url`, unchanged: the request target."""
    rest = url.partition("#")[0].partition("://")[2]
    position = re.search(r"[/?]|$", rest)
    found = rest[position.start() :] if position else ""
    return found if found.startswith("/") else "/" + found


def shown(url: str) -> str:
    """Return `url` for a message, without its query: that may hold a signature or a token."""
    return printable(url.partition("?")[0], 300)


def split_host(host: str) -> tuple[str, int | None]:
    """Return name (lower-case, an IPv6 address without brackets) and port of ``HOST[:PORT]``."""
    parts = urlsplit("//" + host)
    return parts.hostname or "", parts.port


def is_loopback(name: str) -> bool:
    """Say whether `name` is this machine: ``localhost``, 127.0.0.0/8 or ::1. Nothing is resolved."""
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address in ipaddress.ip_network("127.0.0.0/8") or address == ipaddress.IPv6Address(1)


def may_be_plain(name: str) -> bool:
    """Say whether `name` may be spoken to without TLS at all: loopback, and names ending in .local or .localhost."""
    return is_loopback(name) or name.endswith((".local", ".localhost"))


def scheme(host: str) -> str:
    """Return ``https``, or ``http`` for a registry that may be plain and does not speak TLS at this moment.

    `host` is ``HOST[:PORT]``. At most one connection is made, and no request.
    """
    name, port = split_host(host)
    return "http" if may_be_plain(name) and not _speaks_tls(name, port) else "https"


def _speaks_tls(name: str, port: int | None) -> bool:
    # Without a port, https would be asked for at 443 and http at 80; TLS on 443 settles it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # whether the certificate is good decides nothing here; the request checks it
    try:
        connection = socket.create_connection((name, port or 443), timeout=_PROBE_SECONDS)
    except (OSError, UnicodeError):
        return port is not None  # nobody there: let the request itself fail, with its retries and its message
    with connection:
        try:
            context.wrap_socket(connection, server_hostname=name).close()
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")  # an alert is TLS; any other answer is not
        except OSError:
            return False
        return True
