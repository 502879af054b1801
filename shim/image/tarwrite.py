"""Tar headers, written: members that keep their content and get another name, and members that have no content.

An extension header in front of a member's own one gives it the new name, so that everything else of that header, sparse
maps among it, stays as it is. Sources: POSIX.1-2017, pax, "pax Interchange Format"; GNU tar manual, "Basic Tar Format";
acl(5) and Linux's posix_acl_xattr.h for access control lists.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from shim.errors import printable
from shim.image.tar import DIRECTORY, HARD_LINK, SYMLINK, Member
from shim.image.tarfields import BLOCK, HeaderError, header_number, padded

END = bytes(2 * BLOCK)
XATTR = b"SCHILY.xattr."  # prefix of the PAX keys that hold extended attributes

_KEPT = re.compile(
    rb"path|linkpath|size|[ug]id|[ug]name|[amc]time"
    rb"|GNU\.sparse\.(?:major|minor|name|realsize|size|numblocks|map)|SCHILY\.xattr\..+",
    re.DOTALL,
)
_RENAMED = {b"RHT.security.selinux": XATTR + b"security.selinux"}
_ACLS = {
    b"SCHILY.acl.access": XATTR + b"system.posix_acl_access",
    b"SCHILY.acl.default": XATTR + b"system.posix_acl_default",
}
_FOREIGN_XATTR = b"LIBARCHIVE.xattr."  # beside SCHILY's as a rule
_LONG_NAME, _LONG_LINK, _PAX = b"L", b"K", b"x"
_ACL_ENTRY = re.compile(
    rb"(?P<tag>u(?:ser)?|g(?:roup)?|m(?:ask)?|o(?:ther)?):(?P<who>[^:]*):(?P<may>[r-][w-][x-])(?::(?P<number>[0-9]+))?"
)
_ACL_VERSION, _NOBODY = 2, 0xFFFFFFFF
_ACL_TAGS = {(b"u", False): 1, (b"u", True): 2, (b"g", False): 4, (b"g", True): 8, (b"m", False): 16, (b"o", False): 32}


def is_plain(member: Member, path: bytes, link: bytes) -> bool:
    """Say whether the headers of `member` can stay: they spell `path` and `link`, and hold nothing that is dropped.

    A leading ``./``, and a ``/`` behind a directory, are as good as none.
    """
    name = member.name.removeprefix(b"./")
    if (name.rstrip(b"/") if member.type == DIRECTORY else name) != path or member.name.startswith(b"/"):
        return False
    if member.type == HARD_LINK and member.linkname.removeprefix(b"./") != link:
        return False
    return not member.pax or all(_KEPT.fullmatch(key) for key in member.pax)


def rewritten(raw: bytes, member: Member, path: bytes, link: bytes) -> bytes:
    """Return the headers of `member`, which are `raw`, for another `path` and, for a hard link, another `link`.

    Raises `HeaderError` for extended attributes and access control lists that cannot be kept.
    """
    own = 0
    while raw[own + 156 : own + 157] in (_LONG_NAME, _LONG_LINK, _PAX):
        own += BLOCK + padded(header_number(raw[own : own + BLOCK], "size", 124, 136))
    name = _spelled(path, member.type)
    linkname = link if member.type == HARD_LINK else member.linkname
    if not member.pax:
        return _long(name, linkname if member.type in (HARD_LINK, SYMLINK) else b"") + raw[own:]
    records = pax_records(member.pax) | {b"path": name}
    if b"GNU.sparse.name" in records:
        records[b"GNU.sparse.name"] = name
    if member.type in (HARD_LINK, SYMLINK):
        records[b"linkpath"] = linkname
    body = b"".join(_record(key, value) for key, value in records.items())
    return _header(b"./@PaxHeader", _PAX, size=len(body)) + _padding(body) + raw[own:]


def pax_records(pax: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return those records of `pax` that decide what is unpacked, in the one form that GNU tar is handed.

    Access control lists become the attributes that the kernel knows: as text, the names in them would be looked up in
    this system's user database and not in the guest's. Raises `HeaderError`.
    """
    kept = {}
    for key, value in pax.items():
        if key in _ACLS:
            kept[_ACLS[key]] = _acl(value)
        elif key in _RENAMED:
            kept[_RENAMED[key]] = value
        elif key.startswith(_FOREIGN_XATTR):
            if not any(other.startswith(XATTR) for other in pax):
                raise HeaderError(f"it has extended attributes in a form that is libarchive's alone ({printable(key)})")
        elif _KEPT.fullmatch(key):
            kept[key] = value
    return kept


def xattrs(pax: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the extended attributes that `pax` sets, by name; raises `HeaderError`."""
    found = {key[len(XATTR) :]: value for key, value in pax_records(pax).items() if key.startswith(XATTR)}
    return {name.replace(b"%3D", b"=").replace(b"%25", b"%"): value for name, value in found.items()}


def directory(path: bytes, mode: int) -> bytes:
    """Return a directory of root's, from the beginning of time."""
    name = _spelled(path, DIRECTORY)
    return _long(name) + _header(name[:100], DIRECTORY, mode=mode)


def hard_link(path: bytes, target: bytes) -> bytes:
    """Return a hard link `path` to the file `target`."""
    return _long(path, target) + _header(path[:100], HARD_LINK, linkname=target[:100])


def _spelled(path: bytes, kind: bytes) -> bytes:
    return b"./" + path + b"/" * (kind == DIRECTORY and path != b"")


def _long(name: bytes, linkname: bytes = b"") -> bytes:
    parts = ((_LONG_LINK, linkname), (_LONG_NAME, name))
    return b"".join(
        _header(b"././@LongLink", kind, size=len(text) + 1) + _padding(text + b"\0") for kind, text in parts if text
    )


def _header(name: bytes, kind: bytes, *, size: int = 0, mode: int = 0o644, linkname: bytes = b"") -> bytes:
    fields = (name, b"%07o" % mode, b"%07o" % 0, b"%07o" % 0, b"%011o" % size, b"%011o" % 0, b" " * 8, kind, linkname)
    block = struct.pack("100s8s8s8s12s12s8ss100s8s247x", *fields, b"ustar  ")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _padding(body: bytes) -> bytes:
    return body + bytes(padded(len(body)) - len(body))


def _record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest + len(str(rest))))
    return b"%d %s=%s\n" % (length, key, value)


def _acl(text: bytes) -> bytes:
    """Return an access control list as the kernel's extended attribute holds it."""
    entries = []
    for line in filter(None, re.split(rb"[,\n]", text)):
        found = _ACL_ENTRY.fullmatch(line.partition(b"#")[0].strip())
        if not found:
            raise HeaderError(f"its access control list is malformed: '{printable(line)}'")
        who = found["number"] or found["who"]  # star writes a name, and behind it the number
        tag = _ACL_TAGS.get((found["tag"][:1], who != b""))
        if tag is None or (who and not (who.isdigit() and int(who) < _NOBODY)):
            raise HeaderError(
                f"its access control list names '{printable(found['who'])}', and who that is in the guest cannot be "
                "told; make the archive with --numeric-owner"
            )
        may = sum(bit for bit, char in zip((4, 2, 1), found["may"], strict=True) if char != ord("-"))
        entries.append((tag, int(who) if who else _NOBODY, may))
    packed = [struct.pack("<HHI", tag, may, who) for tag, who, may in sorted(entries)]
    return struct.pack("<I", _ACL_VERSION) + b"".join(packed)
