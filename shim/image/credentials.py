"""The registry credentials that `docker login` wrote: ``config.json`` in ``$DOCKER_CONFIG`` or ``~/.docker``.

oras-py can load them too, but it ignores ``DOCKER_CONFIG``, knows neither the URL forms of a host nor identity tokens,
and starts credential helpers. Here a helper is only named, because a library that reads images starts no programs.
Source: Docker's command line reference, "docker login".
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shim.errors import FormatError, Refused, printable

_LIMIT = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name with a password, or an identity token; and where they came from, or why there are none."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    note: str = "none are configured"

    @property
    def basic(self) -> str | None:
        """The value of a Basic Authorization header (RFC 7617), None without a user name."""
        if not self.username:
            return None
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def __bool__(self) -> bool:
        return bool(self.username or self.identity_token)


def load(host: str) -> Credentials:
    """Return the credentials for `host` (``HOST[:PORT]``), empty ones with a note if there are none.

    Raises `FormatError` for a file that is malformed and `Refused` for one that cannot be read.
    """
    directory = os.environ.get("DOCKER_CONFIG")
    # expanduser of os.path, because that of Path raises where there is no home.
    path = Path(directory or os.path.expanduser("~/.docker")) / "config.json"  # noqa: PTH111
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_LIMIT))
    except (FileNotFoundError, NotADirectoryError):
        return Credentials(note=f"{path} does not exist")
    except OSError as error:
        raise Refused(f"cannot read the registry credentials in {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not a JSON document; repair it, or run: docker login {host}") from error
    entry = _entry(_table(document, "auths", path), host)
    found = _credentials(entry, host, path)
    if found:
        return found
    helper = _entry(_table(document, "credHelpers", path), host) or document.get("credsStore")
    if helper:
        return Credentials(
            note=f"{path} leaves {host} to the credential helper {printable(str(helper))}, which is not run from here: "
            "put an auths entry for it into a config.json, and name its directory in DOCKER_CONFIG"
        )
    return Credentials(note=f"{path} has no entry for {host}")


def _table(document: object, key: str, path: Path) -> dict[str, Any]:
    value = document.get(key, {}) if isinstance(document, dict) else None
    if not isinstance(value, dict):
        raise FormatError(f"{path} is malformed: expected an object whose {key} is an object")
    return value


def _entry(table: dict[str, Any], host: str) -> Any:
    """Return the value whose key is `host` or a URL of it; the plain name wins over ``https://host/v1/``."""
    if host in table:
        return table[host]
    for key, value in table.items():
        if key.partition("://")[2 if "://" in key else 0].partition("/")[0] == host and _is_whole_host(key):
            return value
    return None


def _is_whole_host(key: str) -> bool:
    # host/namespace is another tool's form, and is for a part of the host only.
    scheme, separator, rest = key.partition("://")
    path = (rest if separator else scheme).partition("/")[2].rstrip("/")
    return path in ("", "v1", "v2")


def _credentials(entry: Any, host: str, path: Path) -> Credentials | None:
    if not entry:
        return None
    malformed = FormatError(f"the entry for {host} in {path} is malformed; run: docker login {host}")
    if not isinstance(entry, dict):
        raise malformed
    username, password, token, packed = (
        entry.get(key) or "" for key in ("username", "password", "identitytoken", "auth")
    )
    if not all(isinstance(value, str) for value in (username, password, token, packed)):
        raise malformed
    try:
        (username + password + token).encode()
    except UnicodeError:  # half of a surrogate pair, which JSON can write
        raise malformed from None
    if packed:
        try:
            username, colon, password = base64.b64decode(packed, validate=True).decode().partition(":")
        except ValueError:
            raise malformed from None  # the cause would quote the secret
        if not colon:
            raise malformed
    return Credentials(username, password.rstrip("\0"), token, f"those for {host} in {path}")
