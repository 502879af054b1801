"""The `lxc` kind of upstream, as images.linuxcontainers.org serves it: dated builds, listed in one index.

A line of ``meta/1.0/index-system`` is ``distribution;release;architecture;variant;YYYYMMDD_HH:MM;/path/``, one for each
combination. In each path lie the archive, a list of checksums over all the files there, and the list's signature. The
index itself is not signed: what it says is only where to look, and identity.py checks what was found there. So a
malformed line stops the build (half an index is no index), while a path is held to no more than that it is plain and
ends with the build's name. Source: README.md, "Your own catalog".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from presetbuild.fetch import Source, url_of
from shim.errors import FormatError, NotFound, NotReady, printable
from shim.image.model import Platform

INDEX = "meta/1.0/index-system"
LIST = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.asc"
METADATA = "incus.tar.xz"
ARCHIVE = "rootfs.tar.xz"

INDEX_LIMIT = 8 << 20  # bytes; the real index has about 100 KB
LIST_LIMIT = 1 << 20
SIGNATURE_LIMIT = 64 << 10
ARCHIVE_LIMIT = 8 << 30

_SHOWN = 30  # releases of a distribution that a message lists
_PLAIN = re.compile(r"[A-Za-z0-9._:+~@-]{1,255}", re.ASCII)
_FIELDS = ("distribution", "release", "architecture", "variant", "build", "path")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the index. `path` is relative to the upstream, and ends with a slash."""

    distribution: str
    release: str
    architecture: str
    variant: str
    build: str
    path: str


@dataclass(frozen=True, slots=True)
class Build:
    """One dated build of the upstream.

    `name` is the upstream's, such as ``20260829_05:24``; `created` is the time that it states, in UTC; `directories`
    are relative to the upstream, and end with a slash.
    """

    name: str
    created: datetime
    directories: Mapping[Platform, str]

    @property
    def tag_suffix(self) -> str:
        """The name without its colon, which a tag must not have."""
        return self.name.replace(":", "")


@dataclass(frozen=True, slots=True)
class Untrusted:
    """What was fetched for one platform of a build and not yet looked at.

    `url` is its directory as the catalog has it, also where a mirror answered; `where` is what was read, for messages;
    both end with a slash. `sums` and `signature` are raw bytes.
    """

    build: Build
    platform: Platform
    url: str
    where: str
    sums: bytes
    signature: bytes


def read_index(source: Source) -> tuple[Line, ...]:
    """Fetch the index and return its lines; raises `FormatError`, and what `Source.read` raises."""
    return parse_index(source.read(INDEX, INDEX_LIMIT), f"{source.url}/{INDEX}")


def parse_index(data: bytes, what: str) -> tuple[Line, ...]:
    """Return the lines of the index that `data` holds; `what` names it in messages.

    Raises `FormatError` for a line that does not parse, a combination that stands twice, and an index of no lines.
    """
    lines: dict[tuple[str, ...], tuple[int, Line]] = {}
    for number, raw in enumerate(data.rstrip(b"\n").split(b"\n"), 1):
        where = f"{printable(what)}, line {number}"
        line = _parse_line(raw, where)
        combination = (line.distribution, line.release, line.architecture, line.variant)
        first, _ = lines.setdefault(combination, (number, line))
        if first != number:
            raise FormatError(f"{where}: {';'.join(combination)} stands in line {first} already")
    return tuple(line for _, line in lines.values())


def parse_build(name: str) -> datetime:
    """Return the time that the name of a build states, in UTC; raises `FormatError`."""
    try:
        if re.fullmatch(r"[0-9]{8}_[0-9]{2}:[0-9]{2}", name):
            return datetime.strptime(name, "%Y%m%d_%H:%M").replace(tzinfo=UTC)
    except ValueError:  # of that form, and no date
        pass
    raise FormatError(f"malformed build {printable(name)!r}: expected a date and time as YYYYMMDD_HH:MM")


def resolve(
    lines: Iterable[Line],
    *,
    distribution: str,
    release: str,
    variant: str,
    platforms: Sequence[Platform],
    what: str,
    now: datetime | None = None,
) -> Build:
    """Return the build that the upstream offers for all of `platforms`.

    `what` is the preset's name for messages. `now` adds the age of the newest build to them. Raises `NotReady` when a
    platform has no build, or they are on different ones: with what each platform has or, where the combination does not
    exist at all, with what there is of the distribution.
    """
    asked = f"{distribution};{release};{variant}"
    siblings = [line for line in lines if line.distribution == distribution]
    found = {line.architecture: line for line in siblings if (line.release, line.variant) == (release, variant)}
    if not found:
        releases = sorted({f"{line.release};{line.variant}" for line in siblings})
        there = ", ".join(releases[:_SHOWN]) + (f" and {len(releases) - _SHOWN} more" if releases[_SHOWN:] else "")
        raise NotReady(f"{what}: the upstream has no {asked}; of {distribution} it has: {there or 'nothing'}")
    offered = {
        platform: found.get(platform.architecture) if platform.os == "linux" and not platform.variant else None
        for platform in platforms
    }
    names = {line.build if line else None for line in offered.values()}
    name = next(iter(names), None)
    if len(names) == 1 and name:
        return Build(name, parse_build(name), {platform: line.path for platform, line in offered.items() if line})
    report = ", ".join(f"{platform} {line.build if line else 'none'}" for platform, line in offered.items())
    newest = max(line.build for line in found.values())
    age = f"; the newest build, {newest}, is {describe_age(now - parse_build(newest))} old" if now else ""
    raise NotReady(
        f"{what} is not ready: every platform must be on one build of {asked}, and the upstream has {report}{age}; "
        "try again when it has finished"
    )


def fetch_lists(source: Source, build: Build, platform: Platform, catalog_url: str) -> Untrusted:
    """Fetch the checksum list of one platform and its signature.

    Raises `NotReady` where the list of a build that the index names is not there, and what `Source.read` raises.

    `catalog_url` is the upstream's URL in the catalog, which is what gets published, whatever `source` is.
    """
    directory = build.directories[platform]
    try:
        sums = source.read(directory + LIST, LIST_LIMIT)
    except NotFound as error:
        raise NotReady(
            f"the index names build {build.name} for {platform}, and its directory has no {LIST}: {error}; the "
            "upstream may be replacing the build, so try again later"
        ) from error
    signature = source.read(directory + SIGNATURE, SIGNATURE_LIMIT)
    where = f"{source.url}/{directory}"
    return Untrusted(build, platform, url_of(catalog_url, directory), where, sums, signature)


def check_directory(path: str) -> str:
    """Return the `path` of a build's directory if it is made of plain names; raises `FormatError`.

    It ends up in URLs that are published, so nothing in it may need an escape or mean something else there.
    """
    parts = path.removesuffix("/").split("/")
    if not path.endswith("/") or not all(_PLAIN.fullmatch(part) and part.strip(".") for part in parts):
        raise FormatError(f"expected a path of plain names between slashes, found {printable(path)!r}")
    return path


def _parse_line(raw: bytes, where: str) -> Line:
    text = raw.decode("ascii", "replace")
    if not re.fullmatch(r"[!-~]+", text):
        raise FormatError(f"{where}: expected printable ASCII without spaces, found {printable(raw)!r}")
    fields = text.split(";")
    if len(fields) != len(_FIELDS) or not all(fields):
        raise FormatError(f"{where}: expected {';'.join(_FIELDS)}, found {printable(text)!r}")
    distribution, release, architecture, variant, build, path = fields
    try:
        parse_build(build)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from error
    if not path.startswith("/"):
        raise FormatError(f"{where}: expected a path that begins with a slash, found {printable(path)!r}")
    try:
        check_directory(path.removeprefix("/"))
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from error
    if path.split("/")[-2] != build:
        raise FormatError(f"{where}: expected a path that ends with its build, {build}/, found {printable(path)!r}")
    return Line(distribution, release, architecture, variant, build, path.removeprefix("/"))


def describe_age(age: timedelta) -> str:
    """Return a time span in words, such as ``3 days``; one that is negative is ``0 hours``."""
    hours = max(age, timedelta()) // timedelta(hours=1)
    number, unit = (hours, "hour") if hours < 48 else (hours // 24, "day")
    return f"{number} {unit}{'' if number == 1 else 's'}"
