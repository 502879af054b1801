"""The catalog: which presets there are, which upstreams they come from, and whose signatures count.

A catalog is read whole and checked by hand before anything is done with it, so that every mistake is reported with the
file and the place: ``catalog.toml: presets.debian-trixie.platforms[1]: …``.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from shim.errors import FormatError, NotFound, Refused, Unavailable, printable
from shim.image.model import Platform
from shim.image.reference import check_repository, check_tag

T = TypeVar("T")

#: Words that name a command, so that the first word of a command line is never two things.
RESERVED = ("build", "resolve", "keys", "verify", "demo", "bump", "retain", "diff", "rebuild", "report", "help")

KINDS, COMPRESSIONS = ("lxc",), ("zstd", "gzip")
PROVISIONING = ("cloud-init", "exec")

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*", re.ASCII)
_UPSTREAM_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*", re.ASCII)
_KEY_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]*\.asc", re.ASCII)
_FINGERPRINT = re.compile(r"[0-9A-F]{40}", re.ASCII)
_OS_RELEASE_KEY = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_DATED = re.compile(r"-[0-9]{8}_[0-9]{4}(-|$)", re.ASCII)
_DATED_TAG = "{release}-20260829_0524-{platform.architecture}"  # the longest tag that a preset publishes
_TYPES = {str: "a text", bool: "true or false", list: "a list", dict: "a table"}


@dataclass(frozen=True, slots=True)
class KeyPin:
    """A signing key: its file in the directory of keys, and the fingerprint of its primary key (40 upper-case digits).

    A retired key may prove old evidence, never a new build.
    """

    file: str
    fingerprint: str
    retired: bool = False


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where root filesystems come from. `url` has no slash at its end."""

    name: str
    kind: str
    url: str
    keys: tuple[KeyPin, ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """A root filesystem that can be built: what it is called upstream, what it must be, and where it goes."""

    name: str
    upstream: Upstream
    distribution: str
    release: str
    variant: str
    repository: str
    provisioning: tuple[str, ...]
    os_release: Mapping[str, str]
    platforms: tuple[Platform, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Upstreams and presets by name, and what holds for all of them."""

    compression: str
    source: str
    upstreams: Mapping[str, Upstream]
    presets: Mapping[str, Preset]

    def preset(self, name: str) -> Preset:
        """Return the preset called `name`; raises `NotFound`, which lists the ones that there are."""
        if name in self.presets:
            return self.presets[name]
        close = difflib.get_close_matches(name, self.presets, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise NotFound(f"there is no preset {printable(name)!r}{hint}; the catalog has: {', '.join(self.presets)}")


def matches(expected: str, found: str) -> bool:
    """Say whether the os-release value `found` is what the catalog's `expected` allows; a final ``*`` is any ending."""
    return found.startswith(expected[:-1]) if expected.endswith("*") else found == expected


def load_catalog(path: str | PathLike[str] | None = None) -> Catalog:
    """Return the catalog at `path`, or the packaged one.

    Raises `NotFound`, `Refused` or `Unavailable` where it cannot be read, `FormatError`, with the place, for a mistake.
    """
    source = resources.files("presetbuild").joinpath("catalog.toml") if path is None else Path(path)
    file = "catalog.toml" if path is None else printable(str(path))
    try:
        document = tomllib.loads(source.read_bytes().decode("utf-8"))
    except FileNotFoundError as error:
        raise NotFound(f"{file}: there is no such catalog") from error
    except OSError as error:
        kind = Refused if isinstance(error, IsADirectoryError | PermissionError) else Unavailable
        raise kind(f"{file}: the catalog cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # tomllib's message ends with line and column
        raise FormatError(f"{file}: not a TOML document: {printable(str(error))}") from error
    try:
        return _catalog(document)
    except Refused as error:
        raise FormatError(f"{file}: {error}") from error


def _catalog(document: dict[str, Any]) -> Catalog:
    root = _Table(document, "", required=("compression", "source", "upstreams", "presets"))
    upstreams = {name: _upstream(name, value) for name, value in root.named("upstreams")}
    presets = {name: _preset(name, value, upstreams) for name, value in root.named("presets")}
    published: dict[tuple[str, str], str] = {}
    for preset in presets.values():
        other = published.setdefault((preset.repository, preset.release), preset.name)
        if other != preset.name:
            raise FormatError(
                f"presets.{preset.name}: publishes release {preset.release} into repository {preset.repository}, as "
                f"presets.{other} does, so their tags would collide; give one of them another repository"
            )
    return Catalog(
        compression=root.choice("compression", COMPRESSIONS),
        source=_url(root.text("source"), "source", schemes=("https",)),
        upstreams=MappingProxyType(upstreams),
        presets=MappingProxyType(presets),
    )


def _upstream(name: str, value: object) -> Upstream:
    table = _Table(value, f"upstreams.{name}", required=("kind", "url", "keys"))
    keys = tuple(_key(entry, where) for entry, where in table.entries("keys"))
    for what, values in (("file", [key.file for key in keys]), ("fingerprint", [key.fingerprint for key in keys])):
        _no_duplicate(values, table.place("keys"), f"the {what}")
    if all(key.retired for key in keys):
        raise FormatError(f"{table.place('keys')}: every key is retired, so nothing could be built")
    return Upstream(
        name=name,
        kind=table.choice("kind", KINDS),
        url=_url(table.text("url"), table.place("url"), schemes=("https", "http", "file")).rstrip("/"),
        keys=keys,
    )


def _key(value: object, where: str) -> KeyPin:
    table = _Table(value, where, required=("file", "fingerprint"), optional=("retired",))
    fingerprint = table.text("fingerprint")
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise FormatError(
            f"{table.place('fingerprint')}: expected the primary key's whole fingerprint, 40 upper-case hexadecimal "
            f"digits without spaces, found {printable(fingerprint)!r}"
        )
    return KeyPin(
        file=table.word("file", _KEY_FILE, "the plain name of a file in signing-keys/ that ends in .asc"),
        fingerprint=fingerprint,
        retired=table.flag("retired"),
    )


def _preset(name: str, value: object, upstreams: Mapping[str, Upstream]) -> Preset:
    table = _Table(
        value,
        f"presets.{name}",
        required=(
            "upstream", "distribution", "release", "variant", "repository", "provisioning", "os-release", "platforms",
        ),
    )  # fmt: skip
    if name in RESERVED:
        raise FormatError(f"{table.where}: {name} is the name of a command; choose another name for the preset")
    provisioning = table.texts("provisioning")
    for text, where in provisioning:
        _choice(text, where, PROVISIONING)
    platforms = [_platform(text, where) for text, where in table.texts("platforms")]
    _no_duplicate([str(platform) for platform in platforms], table.place("platforms"), "the platform")
    _no_duplicate([text for text, _ in provisioning], table.place("provisioning"), "the entry")
    upstream_word = "the upstream's name, of letters, digits, . _ + and -"
    return Preset(
        name=name,
        upstream=upstreams[table.choice("upstream", tuple(upstreams))],
        distribution=table.word("distribution", _UPSTREAM_WORD, upstream_word),
        release=_release(table, platforms),
        variant=table.word("variant", _UPSTREAM_WORD, upstream_word),
        repository=_checked(check_repository, table.text("repository"), table.place("repository")),
        provisioning=tuple(text for text, _ in provisioning),
        os_release=_os_release(table),
        platforms=tuple(platforms),
    )


def _platform(text: str, where: str) -> Platform:
    platform = _checked(Platform.parse, text, where)
    if platform.os != "linux":
        raise FormatError(f"{where}: {platform} is no Linux platform, and a machine runs Linux; expected linux/ARCH")
    return platform


def _release(table: _Table, platforms: Sequence[Platform]) -> str:
    release, where = table.text("release"), table.place("release")
    for tag in (release, *(_DATED_TAG.format(release=release, platform=platform) for platform in platforms)):
        _checked(check_tag, tag, where)
    if _DATED.search(release):
        raise FormatError(
            f"{where}: {printable(release)!r} reads like the tag of a dated build (RELEASE-YYYYMMDD_HHMM), which never "
            "moves; a release is the tag that moves"
        )
    return release


def _os_release(table: _Table) -> Mapping[str, str]:
    values = table.filled("os-release", dict)
    where = table.place("os-release")
    for key, value in values.items():
        if not _OS_RELEASE_KEY.fullmatch(key):
            raise FormatError(f"{where}: {printable(key)!r} is no name that os-release uses, such as VERSION_ID")
        _typed(value, str, f"{where}.{key}")
        if not value or value == "*":
            raise FormatError(f"{where}.{key}: {value!r} checks nothing; name a value, or leave the field out")
        if "*" in value[:-1]:
            raise FormatError(f"{where}.{key}: a * stands at the end of a value only, found {printable(value)!r}")
    return MappingProxyType(values)


def _url(url: str, where: str, *, schemes: Sequence[str]) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise FormatError(f"{where}: malformed URL {printable(url)!r}: {error}") from error
    expected = " or ".join(f"{scheme}://" for scheme in schemes)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        problem = "holds a character that a URL must not hold"
    elif parts.scheme not in schemes or not url.startswith(f"{parts.scheme}://"):
        problem = f"does not begin with {expected}"
    elif "@" in parts.netloc:
        problem = "holds credentials, which would be published with it"
    elif "?" in url or "#" in url:
        problem = "holds a query or a fragment, so no path can be appended to it"
    elif parts.scheme == "file" and (host or not parts.path.startswith("/")):
        problem = "names no absolute path of this machine (expected file:///PATH)"
    elif parts.scheme != "file" and not host:
        problem = "names no host"
    elif parts.scheme == "http" and not _is_loopback(host or ""):
        problem = "is plain http to another machine, where only loopback is allowed; use https"
    else:
        return url
    raise FormatError(f"{where}: {printable(url)!r} {problem}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checked(check: Callable[[str], T], text: str, where: str) -> T:
    try:
        return check(text)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from error


def _choice(text: str, where: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise FormatError(f"{where}: expected {' or '.join(choices) or 'nothing'}, found {printable(text)!r}")
    return text


def _no_duplicate(values: Sequence[str], where: str, what: str) -> None:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise FormatError(f"{where}[{position}]: {what} {value} stands in this list already")


def _typed(value: object, kind: type[T], where: str) -> T:
    if isinstance(value, kind):
        return value
    found = _TYPES.get(type(value), f"{type(value).__name__} {printable(str(value))}")
    raise FormatError(f"{where}: expected {_TYPES[kind]}, found {found}")


class _Table:
    """A table of the document whose fields are known by name; each accessor raises `FormatError` with the place."""

    def __init__(self, value: object, where: str, required: Sequence[str], optional: Sequence[str] = ()) -> None:
        self.where = where
        self._fields: dict[str, Any] = _typed(value, dict, where)
        known = (*required, *optional)
        for field in self._fields:
            if field not in known:
                raise FormatError(f"{self.place(field)}: unknown field; the fields here are {', '.join(known)}")
        for field in required:
            if field not in self._fields:
                raise FormatError(f"{self.place(field)}: this field is missing")

    def place(self, field: str) -> str:
        return f"{self.where}.{printable(field)}" if self.where else printable(field)

    def text(self, field: str) -> str:
        return _typed(self._fields[field], str, self.place(field))

    def flag(self, field: str) -> bool:
        return _typed(self._fields.get(field, False), bool, self.place(field))

    def choice(self, field: str, choices: Sequence[str]) -> str:
        return _choice(self.text(field), self.place(field), choices)

    def word(self, field: str, pattern: re.Pattern[str], expected: str) -> str:
        text = self.text(field)
        if not pattern.fullmatch(text):
            raise FormatError(f"{self.place(field)}: expected {expected}, found {printable(text)!r}")
        return text

    def named(self, field: str) -> list[tuple[str, object]]:
        """Return the tables below `field` with their names, which must be plain ones."""
        tables = self.filled(field, dict)
        for name in tables:
            if not _NAME.fullmatch(name):
                expected = "lower-case letters, digits, . and -, with a letter or digit first"
                raise FormatError(f"{field}: malformed name {printable(name)!r}: {expected}")
        return list(tables.items())

    def entries(self, field: str) -> list[tuple[object, str]]:
        """Return the entries of the list `field`, each with its place."""
        return [(value, f"{self.place(field)}[{n}]") for n, value in enumerate(self.filled(field, list))]

    def texts(self, field: str) -> list[tuple[str, str]]:
        return [(_typed(value, str, where), where) for value, where in self.entries(field)]

    def filled(self, field: str, kind: type[T]) -> T:
        value = _typed(self._fields[field], kind, self.place(field))
        if not value:
            raise FormatError(f"{self.place(field)}: must not be empty")
        return value
