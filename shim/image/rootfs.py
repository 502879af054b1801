"""Whether an archive is a root filesystem, and what it says about itself, found out while it streams by.

Sources: os-release(5); OCI image specification, layer.md, "Whiteouts"; System V ABI, "ELF Header".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from shim.errors import FormatError, printable
from shim.image.tar import DIRECTORY, HARD_LINK, REGULAR, SYMLINK, Member, TarWalker

MAX_OS_RELEASE = 64 << 10  # bytes

_BINARIES = frozenset((b"bin", b"sbin", b"usr/bin", b"usr/sbin"))
_CLOUD_INIT = (b"usr/bin/cloud-init", b"bin/cloud-init", b"usr/local/bin/cloud-init")
_OS_RELEASE = (b"etc/os-release", b"usr/lib/os-release")
_MAX_KEPT = 64  # files whose name says os-release; the link may come behind what it points at
# Bytes of all paths and link texts that are kept, with what one entry takes beside them: 130,000 files with paths of 60
# bytes. More would not leave this process below 150 MB together with an xz that uses all of its own bound.
_MAX_INDEX = 20 << 20
_ENTRY = 96  # bytes, as measured
_MAX_LINKS = 40  # symlinks in one path, as the kernel counts them
_ELF_HEADER = 20  # bytes, up to and with e_machine

# What a path is, where it is no symlink; a symlink is the bytes of its text.
_IMPLIED, _DIRECTORY, _OTHER, _FILE, _EXECUTABLE = range(5)

#: By class (1: 32 bit, 2: 64 bit), data encoding (1: little endian, 2: big) and e_machine, OCI's architecture.
_ARCHITECTURES = {
    (1, 1, 3): "386",
    (1, 1, 40): "arm",
    (2, 1, 21): "ppc64le",
    (2, 1, 62): "amd64",
    (2, 1, 183): "arm64",
    (2, 1, 243): "riscv64",
    (2, 2, 22): "s390x",
}

_ASSIGNMENT = re.compile(
    r"""(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?:
        "(?P<double>(?:[^"$`\\]|\\.)*)" | '(?P<single>[^']*)' | (?P<plain>(?:[^\s"'$`\\;&|<>()~]|(?<![=:])~)*)
    )""",
    re.ASCII | re.VERBOSE,
)
# A backslash at its end continues a comment for older releases of systemd, and does not for a shell.
_NOTHING = re.compile(r"(?:#.*(?<!\\))?")
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f]")
_ESCAPED = re.compile(r'\\([\\$"`])')


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found in the archive of a root filesystem."""

    size: int  # bytes of the uncompressed archive
    members: int
    os_release: Mapping[str, str]
    machines: Mapping[str, bytes]  # OCI architecture (or "ELF machine N") → path of an executable for it
    cloud_init: bool  # it holds an executable cloud-init


class Inspector:
    """Looks at the archive of a root filesystem while it streams: `feed` it all of it, then `finish`.

    `what` names the archive in messages. Both methods raise `FormatError` for what `TarWalker` refuses, and for what an
    OCI layer must not hold or what has no one meaning: a name that begins with ``.wh.``, a path that stands twice (in
    any spelling), a member below something that is no directory, a hard link to what does not come before it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._walker = TarWalker(self._look, self._keep, what)
        self._kinds: dict[bytes, int | bytes] = {}
        self._members = 0
        self._index = 0  # bytes, counted as for _MAX_INDEX
        self._kept: dict[bytes, bytes] = {}  # content of files that may be the os-release
        self._machines: dict[str, bytes] = {}

    def feed(self, data: bytes) -> None:
        """Look at the next piece of the uncompressed archive."""
        self._walker.feed(data)

    def finish(self) -> Inspection:
        """Return what was found; raises `FormatError` unless it was a root filesystem."""
        size = self._walker.finish()
        self._check_root()
        return Inspection(
            size=size,
            members=self._members,
            os_release=MappingProxyType(self._os_release()),
            machines=MappingProxyType(dict(self._machines)),
            cloud_init=any(self._kinds.get(self._resolve(path)) == _EXECUTABLE for path in _CLOUD_INIT),
        )

    def _look(self, member: Member) -> int:
        """Judge a member by its headers, and say how much of its content is needed."""
        self._members += 1
        path = member.path
        parent, _, name = path.rpartition(b"/")
        if b".wh." in path and (path.startswith(b".wh.") or b"/.wh." in path):
            self._refuse(member, "a name that begins with .wh. marks a deletion in an OCI layer")
        if path and self._kinds.get(parent) not in (_DIRECTORY, _IMPLIED):
            self._imply(member, parent)
        before = self._kinds.get(path)
        if before == _IMPLIED and member.type != DIRECTORY:
            self._refuse(member, "it is no directory, and members before it are below it")
        if before is not None and before != _IMPLIED:
            self._refuse(member, "its path stands twice")
        self._kinds[path] = self._kind(member)
        self._index += _ENTRY + len(path) + (_ENTRY // 2 + len(member.linkname) if member.type == SYMLINK else 0)
        if self._index > _MAX_INDEX:
            self._refuse(member, f"the names of its members take more than {_MAX_INDEX} bytes of memory")
        if member.type == HARD_LINK and member.link in self._kept:
            self._kept[path] = self._kept[member.link]
        if member.type != REGULAR or member.sparse is not None:
            return 0
        if path in _OS_RELEASE or (b"os-release" in name and len(self._kept) < _MAX_KEPT):
            return MAX_OS_RELEASE + 1
        return _ELF_HEADER if member.mode & 0o111 and parent in _BINARIES else 0

    def _kind(self, member: Member) -> int | bytes:
        if member.type == DIRECTORY:
            return _DIRECTORY
        if member.type == REGULAR:
            return _EXECUTABLE if member.mode & 0o111 else _FILE
        if member.type == SYMLINK:
            return member.linkname
        if member.type != HARD_LINK:
            return _OTHER
        target = self._kinds.get(member.link, _IMPLIED)
        if target in (_IMPLIED, _DIRECTORY):
            self._refuse(member, f"it is a hard link to '{printable(member.link)}', and no such file comes before it")
        return target

    def _imply(self, member: Member, parent: bytes) -> None:
        """Note the directories above a member, which need not be members themselves."""
        while parent:
            kind = self._kinds.get(parent)
            if kind in (_IMPLIED, _DIRECTORY):
                break
            if kind is not None:
                self._refuse(member, f"it is below '{printable(parent)}', which is no directory")
            self._kinds[parent] = _IMPLIED
            self._index += _ENTRY + len(parent)
            parent = parent.rpartition(b"/")[0]

    def _keep(self, member: Member, content: bytes) -> None:
        if b"os-release" in member.path.rpartition(b"/")[2]:
            self._kept[member.path] = content
        elif content.startswith(b"\x7fELF") and len(content) == _ELF_HEADER:
            wordsize, encoding = content[4:6]
            machine = int.from_bytes(content[18:20], "big" if encoding == 2 else "little")
            name = _ARCHITECTURES.get((wordsize, encoding, machine), f"ELF machine {machine}")
            self._machines.setdefault(name, member.path)

    def _resolve(self, path: bytes) -> bytes:
        """Follow symlinks inside the root, as the guest will; a path that leads nowhere is returned as far as it is."""
        todo = path.split(b"/")[::-1]
        found: list[bytes] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == b"..":
                del found[-1:]
            elif part and part != b".":
                found.append(part)
            text = self._kinds.get(b"/".join(found))
            if isinstance(text, bytes) and links < _MAX_LINKS:
                links += 1
                found = [] if text.startswith(b"/") else found[:-1]
                todo += text.split(b"/")[::-1]
        return b"/".join(found)

    def _os_release(self) -> dict[str, str]:
        path = next(path for path in _OS_RELEASE if path in self._kinds)
        found = self._resolve(path)
        content = self._kept.get(found)
        if content is None:
            raise FormatError(
                f"{self._what}: {path.decode()} leads to '{printable(found)}', which is no regular file of the archive"
            )
        if len(content) > MAX_OS_RELEASE:
            raise FormatError(f"{self._what}: {printable(found)} is longer than {MAX_OS_RELEASE} bytes")
        return parse_os_release(content, f"{self._what}: {printable(found)}")

    def _check_root(self) -> None:
        directories = (_IMPLIED, _DIRECTORY)
        missing = [name for name in ("etc", "usr") if self._kinds.get(name.encode()) not in directories]
        sbins = [self._kinds.get(path) for path in (b"sbin", b"usr/sbin")]
        if not any(kind in directories or isinstance(kind, bytes) for kind in sbins):
            missing.append("sbin (or usr/sbin)")
        if not any(path in self._kinds for path in _OS_RELEASE):
            missing.append("etc/os-release (or usr/lib/os-release)")
        if missing:
            looks = looks_like(path.partition(b"/")[0] for path in self._kinds)
            raise FormatError(f"{self._what} is no root filesystem: it lacks {', '.join(missing)}; {looks}")

    def _refuse(self, member: Member, problem: str) -> NoReturn:
        raise FormatError(f"{self._what}, member '{printable(member.name)}', byte {member.start}: {problem}")


def looks_like(top: Iterable[bytes]) -> str:
    """Say what an archive seems to be that is no root filesystem, and what to do; `top` are the names at its top."""
    found = sorted({name for name in top if name})  # in an order that is the same each time
    if not found:
        return "it is empty"
    if b"metadata.yaml" in found and b"rootfs" in found:
        return "it looks like a unified LXD or Incus image (metadata.yaml and rootfs/); only its rootfs/ is needed"
    if b"oci-layout" in found or b"manifest.json" in found:
        return "it looks like an OCI or Docker image saved to a file (use it as an oci source)"
    names = [printable(name) for name in found]
    if len(names) == 1:
        return f"everything is below {names[0]}/ (pack what is inside of that directory, with tar -C {names[0]} .)"
    return f"at the top it holds {', '.join(names[:8])}" + (f" and {len(names) - 8} more" if names[8:] else "")


def parse_os_release(content: bytes, what: str = "os-release") -> dict[str, str]:
    """Return the variables of an os-release file, by the rules of os-release(5); the last assignment of one wins.

    Raises `FormatError`, which calls the file `what`, for a line that is neither blank nor a comment nor one plain
    assignment (an expansion, a command, quoted pieces put together, a value of several lines): a shell and the
    parsers of os-release would read different values.
    """
    variables = {}
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        text = line.strip(" \t")
        found = _ASSIGNMENT.fullmatch(text)
        if _CONTROL.search(line) or not (found or _NOTHING.fullmatch(text)):
            raise FormatError(
                f"{what}, line {number}: expected NAME=value as os-release(5) has it, a comment or nothing; "
                f"found '{printable(line)}'"
            )
        if found:
            double, single, plain = found["double"], found["single"], found["plain"]
            if double is not None:
                variables[found["name"]] = _ESCAPED.sub(r"\1", double)
            else:
                variables[found["name"]] = plain if single is None else single
    return variables
