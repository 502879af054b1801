"""GNU tar writes the files: every attribute as the archive has it, and nothing that the archive does not say.

What tar is handed was vetted (`shim.image.flatten`). What tar cannot be relied on for is done here: it exits with 0
where the file system refused an extended attribute, and cannot say in a number that the disk is full.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from shim.errors import FormatError, Refused, Unavailable, printable
from shim.image.tar import Member
from shim.image.tarwrite import xattrs
from shim.run import piped, run

_TAR = (
    "tar", "--extract", "--file=-",
    "--blocking-factor=2048",  # it empties the pipe with one read
    "--numeric-owner", "--same-owner", "--same-permissions",
    "--xattrs", "--xattrs-include=*", "--no-acls",  # access control lists come as attributes; see tarwrite
    "--delay-directory-restore",  # a directory may come before, between or behind what is in it
    "--absolute-names",  # without it, links are first made as empty files; no name in the stream is absolute
    "--warning=no-timestamp", "--warning=no-unknown-keyword", "--warning=no-xattr-write",
)  # fmt: skip
_FULL = 1 << 20  # bytes; with less than that left, a disk is what stopped tar

#: Attributes that only label a file for another system's policy, and the prefixes of more such.
_LABELS = (b"security.selinux", b"security.apparmor", b"security.ima", b"security.evm")
_LABEL_PREFIXES = (b"security.SMACK64", b"trusted.overlay.", b"user.overlay.")
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_LEAST_ACL = 4 + 3 * 8  # bytes; one that says no more than the mode, and is not stored


def extract(pieces: Iterable[bytes], rootfs: Path, inherit: int) -> None:
    """Unpack a vetted tar stream into the directory `rootfs`; `inherit` is a lock's descriptor, which tar holds too.

    tar ends with this process: it finds the end of its input in the middle of an archive. Raises what `pieces` raises;
    `Unavailable` when the disk is full; `Refused` when tar is missing, is not GNU tar, or fails.
    """
    if not run(["tar", "--version"], what="unpacking").startswith(b"tar (GNU tar)"):
        raise Refused("unpacking needs GNU tar, and the tar of this system is another one; install it")
    command = (*_TAR, f"--directory={rootfs}")
    what = f"unpacking into {printable(str(rootfs))}"
    try:
        with piped(command, _Pieces(iter(pieces)), what, inherit=[inherit]) as output:
            while output.read(_FULL):
                pass
    except FormatError as error:
        if full := _is_full(rootfs):
            raise Unavailable(f"{what} failed because {full}; make room, and start again") from error
        raise


class Attributes:
    """What the members of a stream need from the volume: `note` each of them, unpack, then `check`."""

    def __init__(self) -> None:
        self._uids = _mapped(Path("/proc/self/uid_map"))
        self._gids = _mapped(Path("/proc/self/gid_map"))
        self._owners: set[tuple[int, int]] = set()  # those that exist
        self._wanted: dict[bytes, dict[bytes, bytes]] = {}

    def note(self, path: bytes, member: Member) -> None:
        """Take note of a member; raises `Refused` if its owner does not exist in this user namespace."""
        owner = (member.uid, member.gid)
        if owner not in self._owners:
            self._check_owner(path, member)
            self._owners.add(owner)
        self._wanted.pop(path, None)  # where a path stands twice, the last one counts
        if member.pax and (wanted := xattrs(member.pax)):
            self._wanted[path] = wanted

    def check(self, rootfs: Path, tell: Callable[[str], None]) -> None:
        """Compare the extended attributes of what was unpacked with what the archive says.

        `tell` is told of labels that the volume does not keep. Raises `Refused` for any other attribute.
        """
        dropped: dict[bytes, int] = {}
        for path, wanted in self._wanted.items():
            for name, value in wanted.items():
                if _has(os.path.join(os.fsencode(rootfs), path), name, value):  # noqa: PTH118 - bytes
                    continue
                if name not in _LABELS and not name.startswith(_LABEL_PREFIXES):
                    raise Refused(
                        f"the volume {printable(str(rootfs))} does not keep the attribute {printable(name)} of "
                        f"'{printable(path)}', which would change what the machine may do; use a volume whose file "
                        "system has extended attributes (ext4, xfs, btrfs)"
                    )
                dropped[name] = dropped.get(name, 0) + 1
        for name, count in sorted(dropped.items()):
            tell(f"the volume does not keep {printable(name)}, a label; {count} files are without it")

    def _check_owner(self, path: bytes, member: Member) -> None:
        for what, number, mapped in (("uid", member.uid, self._uids), ("gid", member.gid, self._gids)):
            if not any(number in ids for ids in mapped):
                there = ", ".join(f"{ids.start} to {ids.stop - 1}" for ids in mapped) or "none"
                raise Refused(
                    f"'{printable(path)}' belongs to {what} {number}, which this user namespace does not map (it maps "
                    f"{there}); give the pod a larger range of IDs, or run it without a user namespace"
                )


class _Pieces:
    """A reader over an iterator of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = filter(None, pieces)
        self._left = b""

    def read(self, amount: int, /) -> bytes:
        data = self._left or next(self._pieces, b"")
        self._left = data[amount:]
        return data[:amount]  # all of it as a rule, which is no copy


def _has(path: bytes, name: bytes, value: bytes) -> bool:
    if name in _ACLS and len(value) <= _LEAST_ACL:
        return True
    try:
        found = os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return False
    return found == value or name in _ACLS  # the kernel sorts their entries


def _is_full(rootfs: Path) -> str:
    """Return what is used up on the volume, an empty string if nothing is."""
    found = os.statvfs(rootfs)
    if found.f_bfree * found.f_frsize < _FULL:
        return f"the volume is full ({found.f_blocks * found.f_frsize >> 20} MiB in all)"
    return "the volume has no inode left" if found.f_files and not found.f_ffree else ""


def _mapped(table: Path) -> list[range]:
    """Return the IDs that exist in this user namespace."""
    rows = [[int(number) for number in line.split()] for line in table.read_text("ascii").splitlines()]
    return [range(first, first + count) for first, _, count in rows]
