"""What binds signed bytes to what was asked for.

A signed list names files, not a distribution, an architecture or a day: under a good signature a mirror could answer
with another image, or an old one. So what the signed files say of themselves is compared with what was asked for:

* the properties in the metadata, each that is there: `check_metadata`;
* the time of the signature with the time that the build's name states: `check_signed_at`;
* the archive's os-release with the catalog's: `check_os_release`;
* the machine of the archive's own executables with the platform: `check_machine`.

All functions are pure: bytes and values in, nothing or a `VerificationError` out, and each kind of difference has its
own sentence. `what` names the file in messages. The form of
the metadata: Incus documentation, "Image format".
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import yaml

from shim.errors import FormatError, VerificationError, printable

if TYPE_CHECKING:
    from presetbuild.upstream.lxc import Build
    from shim.image.model import Platform

MEMORY_LIMIT = 80 << 20  # bytes that the xz decoder may use; xz -9 asks for 65 MiB
TAR_LIMIT = 8 << 20  # bytes of the decompressed tarball, which in truth has a few KiB
YAML_LIMIT = 64 << 10  # bytes; the real ones have a few KiB, and PyYAML may take 20 s for a hostile MiB
SLACK = timedelta(minutes=10)  # between this clock and the signer's

#: The kernel's names of architectures, which metadata may use in place of the upstream's own.
_KERNEL_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
_TEXT = "tag:yaml.org,2002:str"  # what YAML calls a node that is a text


def read_metadata(data: bytes, what: str) -> Mapping[str, str]:
    """Return the properties that ``metadata.yaml`` in the tarball `data` states, as texts; none where it states none.

    Every value is a text, as it stands there: a release 3.20 is not the number 3.2. Raises `FormatError` for a tarball
    or a document that is malformed, ambiguous or too large.
    """
    tar = _decompress(data, what)
    return _properties(_member(tar, what), f"metadata.yaml in {what}")


def check_metadata(
    properties: Mapping[str, str],
    *,
    distribution: str,
    release: str,
    architecture: str,
    variant: str,
    build: str,
    what: str,
) -> tuple[str, ...]:
    """Return the names of the properties that confirm what was asked for; one that is absent confirms nothing.

    Compared without case are ``os``, ``release``, ``architecture``, ``variant`` and ``serial``, and these spellings are
    one: an os with or without spaces and with or without "linux" at its end (Void Linux, voidlinux); an architecture by
    its own or the kernel's name (amd64, x86_64); a serial with or without its colon. Raises `VerificationError`.
    """
    asked = {
        "os": (distribution, _os_name),
        "release": (release, str.casefold),
        "architecture": (architecture, _architecture),
        "variant": (variant, str.casefold),
        "serial": (build, lambda text: text.replace(":", "")),
    }
    for name, (expected, canonical) in asked.items():
        found = properties.get(name)
        if found is not None and canonical(found) != canonical(expected):
            raise VerificationError(
                f"{what} is signed, and it is of another {name}: its metadata says {printable(found)!r}, and "
                f"{printable(expected)!r} was asked for; the upstream or its mirror serves another image at this place"
            )
    return tuple(name for name in asked if name in properties)


def check_signed_at(made: datetime, build: Build, *, now: datetime, what: str) -> None:
    """Raise `VerificationError` unless the signature was made after its build, and not in the future.

    All times carry their zone. The future begins ten minutes from `now`, because clocks differ.
    """
    if made < build.created:
        raise VerificationError(
            f"{what} was made at {_utc(made)}, before the build {build.name} that it is offered for "
            f"({_utc(build.created)}): it signs an older build"
        )
    if made > now + SLACK:
        raise VerificationError(
            f"{what} was made at {_utc(made)}, in the future (it is {_utc(now)} now); check this machine's clock"
        )


def check_os_release(found: Mapping[str, str], expected: Mapping[str, str], *, what: str) -> None:
    """Raise `VerificationError` unless os-release states every value that the catalog expects.

    An expected value with ``*`` at its end stands for all that begin with what precedes it.
    """
    for key, value in expected.items():
        there = found.get(key)
        prefix = value.removesuffix("*")
        if there is None or not (there == value or (prefix != value and there.startswith(prefix))):
            stated = "does not state it" if there is None else f"says {printable(there)!r}"
            raise VerificationError(
                f"{what} is another system: the catalog expects {key}={printable(value)}, and its os-release {stated}"
            )


def check_machine(machines: Mapping[str, bytes], platform: Platform, *, what: str) -> None:
    """Raise `VerificationError` unless all executables are the platform's, and there is one.

    `machines` maps each architecture that was seen among the executables, by its OCI name, to the path of one of them.
    """
    if not machines:
        raise VerificationError(f"{what} holds no executable, so nothing shows that it is for {platform}")
    others = {name: path for name, path in machines.items() if name != platform.architecture}
    if others:
        found = ", ".join(f"{printable(path)} for {printable(name)}" for name, path in sorted(others.items()))
        raise VerificationError(f"{what} is for another architecture: expected {platform}, found {found}")


def _os_name(text: str) -> str:
    name = "".join(text.casefold().split())
    return name.removesuffix("linux") or name


def _architecture(text: str) -> str:
    return _KERNEL_NAMES.get(text.casefold(), text.casefold())


def _utc(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _decompress(data: bytes, what: str) -> bytes:
    """Return all streams of an xz file, joined, and allow for padding. Source: the .xz file format, section 2."""
    output = bytearray()
    rest = data
    while rest:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_LIMIT)
        try:
            output += decoder.decompress(rest, TAR_LIMIT + 1 - len(output))
        except lzma.LZMAError as error:
            raise FormatError(f"{what} is no whole xz file: {error}") from error
        if len(output) > TAR_LIMIT:
            raise FormatError(f"{what} decompresses to more than {TAR_LIMIT} bytes, so it is not read as metadata")
        if not decoder.eof:
            raise FormatError(f"{what} is no whole xz file: it ends within a stream")
        rest = decoder.unused_data.lstrip(b"\0")
        if (len(decoder.unused_data) - len(rest)) % 4:
            raise FormatError(f"{what} is no whole xz file: its padding is no multiple of four bytes")
    return bytes(output)


def _member(data: bytes, what: str) -> bytes:
    """Return the content of metadata.yaml in a tarball; raises `FormatError` unless it is there once, as a file."""
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                if ".." in parts:
                    raise FormatError(f"{what} holds a member that leaves it: {printable(member.name)!r}")
                if parts == ["metadata.yaml"]:
                    found.append(member)
            # tarfile takes a damaged header for the end: what follows the last member must be the end indeed.
            end = data[tar.offset :]
            if len(end) < 1024 or end.strip(b"\0"):
                raise FormatError(f"{what} holds a tar archive that does not end as one")
            if len(found) != 1:
                raise FormatError(f"{what} holds {len(found)} files metadata.yaml; expected one")
            if not found[0].isreg() or found[0].issparse() or found[0].size > YAML_LIMIT:
                raise FormatError(f"metadata.yaml in {what} is no regular file of at most {YAML_LIMIT} bytes")
            content = tar.extractfile(found[0])
            return content.read() if content else b""
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
        raise FormatError(f"{what} holds no whole tar archive: {printable(str(error))}") from error


def _properties(text: bytes, what: str) -> dict[str, str]:
    # The nodes are read, not the values: a loader would keep the last of several equal keys, turn 3.20 into a number,
    # and let aliases multiply. A node that is an alias is the same object, however often it stands.
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise FormatError(f"{what} is no YAML: {printable(str(error))}") from error
    properties = _mapping(root, what).get("properties")
    if properties is None:
        return {}
    values = {}
    for key, node in _mapping(properties, f"properties in {what}").items():
        if not isinstance(node, yaml.ScalarNode) or node.tag != _TEXT:
            raise FormatError(f"{what}: the property {printable(key)!r} is no text")
        values[key] = str(node.value)
    return values


def _mapping(node: yaml.Node | None, what: str) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise FormatError(f"{what}: expected a mapping")
    entries: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
            raise FormatError(f"{what}: expected keys that are texts")
        if key.value in entries:
            raise FormatError(f"{what}: the key {printable(key.value)!r} stands twice")
        entries[key.value] = value
    return entries
