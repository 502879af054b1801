"""Names of images: ``host/repository[:tag][@digest]`` in a registry, ``oci:DIR[:TAG|@DIGEST]`` in an image layout.

Sources: OCI distribution specification v1.1, "Pulling manifests" (the grammar of names and tags); containers-image's
``oci:`` transport, for the second form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from shim.errors import FormatError, printable
from shim.image.digest import Digest

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?", re.ASCII)
_REPOSITORY_LENGTH = 255  # with the host; what Docker's and most registries accept


@dataclass(frozen=True, slots=True)
class RegistryReference:
    """An image in a registry. With a digest, the tag is a note for people and decides nothing."""

    host: str
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @property
    def name(self) -> str:
        """Host and repository, without tag and digest."""
        return f"{self.host}/{self.repository}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True, slots=True)
class LayoutReference:
    """An image in an image layout on disk."""

    path: Path
    tag: str | None = None
    digest: Digest | None = None

    @property
    def name(self) -> str:
        """The layout, without tag and digest."""
        return f"oci:{self.path}"

    def __str__(self) -> str:
        if self.digest:
            return f"{self.name}@{self.digest}"
        return f"{self.name}:{self.tag}" if self.tag else self.name


Reference = RegistryReference | LayoutReference


def parse_reference(text: str) -> Reference:
    """Return what `text` names; raises `FormatError`.

    A registry reference must name its host (``docker.io`` is never guessed), and must be lower case where the
    specification says so. What follows the last ``@`` is a digest, what follows a ``:`` behind the last ``/`` a tag.
    """
    if text.startswith("oci:"):
        return _layout(text)
    name, at, encoded = text.rpartition("@")
    digest = _digest(encoded, text) if at else None
    name = name if at else text
    tag: str | None = None
    slash, colon = name.rfind("/"), name.rfind(":")
    if colon > slash:
        name, tag = name[:colon], check_tag(name[colon + 1 :])
    host, slash_found, repository = name.partition("/")
    if not slash_found or not ("." in host or ":" in host or host == "localhost"):
        raise FormatError(
            f"{printable(text)!r} names no registry: expected HOST/REPOSITORY[:TAG][@DIGEST], such as "
            "registry.example.org/debian-cloud:trixie, or oci:DIR[:TAG] for an image layout"
        )
    return RegistryReference(check_host(host), check_repository(repository, host), tag, digest)


def check_host(host: str) -> str:
    """Return `host` if it is a registry's host name or address, with a port if need be; raises `FormatError`."""
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else "1"
    if not _HOST.fullmatch(host) or not 0 < int(port) < 65536:
        raise FormatError(f"malformed registry host {printable(host)!r}")
    return host


def check_repository(repository: str, host: str = "") -> str:
    """Return `repository` if a registry would accept it as a name; raises `FormatError`."""
    if not _REPOSITORY.fullmatch(repository):
        raise FormatError(
            f"malformed repository {printable(repository)!r}: lower-case letters, digits and single separators "
            "(. _ __ -), in parts joined by /"
        )
    if len(host) + 1 + len(repository) > _REPOSITORY_LENGTH:
        raise FormatError(f"repository {printable(repository)!r} is longer than {_REPOSITORY_LENGTH} characters")
    return repository


def is_tag(tag: str) -> bool:
    """Say whether a registry would take `tag` as one."""
    return _TAG.fullmatch(tag) is not None


def check_tag(tag: str) -> str:
    """Return `tag` if it is well-formed; raises `FormatError`."""
    if not is_tag(tag):
        raise FormatError(f"malformed tag {printable(tag)!r}: letters, digits, _ . and -, at most 128 of them")
    return tag


def _layout(text: str) -> LayoutReference:
    rest = text.removeprefix("oci:")
    path, at, encoded = rest.rpartition("@")
    # A directory may hold an @ or a : of its own; only what looks like a digest or a tag behind one is split off.
    if at and re.match(r"[a-z0-9]+:", encoded):
        reference = LayoutReference(Path(path), None, _digest(encoded, text))
    else:
        path, colon, tag = rest.rpartition(":")
        if colon and "/" not in tag:
            reference = LayoutReference(Path(path), check_tag(tag))
        else:
            path, reference = rest, LayoutReference(Path(rest))
    if not path or "\0" in path:
        raise FormatError(f"{printable(text)!r} names no directory: expected oci:DIR[:TAG|@DIGEST]")
    return reference


def _digest(encoded: str, text: str) -> Digest:
    try:
        return Digest.parse(encoded)
    except FormatError as error:
        raise FormatError(f"{printable(text)!r}: {error}") from error
