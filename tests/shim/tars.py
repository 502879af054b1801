"""Tar archives byte by byte, so that a test controls what a library would not write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

USTAR, GNU, V7 = b"ustar\x0000", b"ustar  \0", bytes(8)
END = bytes(1024)


def header(
    name: bytes,
    *,
    type: bytes = b"0",
    size: int | bytes = 0,
    mode: int | bytes = 0o644,
    uid: int | bytes = 0,
    gid: int | bytes = 0,
    mtime: int | bytes = 0,
    linkname: bytes = b"",
    magic: bytes = USTAR,
    prefix: bytes = b"",
    patch: Mapping[int, bytes] | None = None,
    checksum: bytes | None = None,
) -> bytes:
    """Return a header block. A number is written in octal, bytes as they are; `patch` sets bytes by offset."""
    block = bytearray(512)
    fields: list[tuple[int, int, int | bytes]] = [
        (0, 100, name), (100, 8, mode), (108, 8, uid), (116, 8, gid), (124, 12, size), (136, 12, mtime),
        (156, 1, type), (157, 100, linkname), (257, 8, magic), (345, 155, prefix),
    ]  # fmt: skip
    for start, length, value in fields:
        data = value if isinstance(value, bytes) else b"%0*o" % (length - 1, value)
        assert len(data) <= length
        block[start : start + len(data)] = data
    for start, data in (patch or {}).items():
        block[start : start + len(data)] = data
    block[148:156] = b" " * 8
    block[148:156] = checksum or b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    """Return `content` followed by zeros up to a whole block."""
    return content + bytes(-len(content) % 512)


def file(name: bytes, content: bytes = b"", **fields: int | bytes) -> bytes:
    """Return a member with content."""
    return header(name, size=len(content), **fields) + padded(content)  # type: ignore[arg-type]


def directory(name: bytes, **fields: int | bytes) -> bytes:
    """Return a directory."""
    return header(name, type=b"5", **({"mode": 0o755} | fields))  # type: ignore[arg-type]


def link(name: bytes, target: bytes, type: bytes = b"2") -> bytes:
    """Return a symlink, or with type ``1`` a hard link."""
    return header(name, type=type, linkname=target)


def record(key: bytes, value: bytes) -> bytes:
    """Return one PAX record."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def extension(type: bytes, body: bytes) -> bytes:
    """Return an extension header: ``x`` or ``g`` with PAX records, ``L`` or ``K`` with a long name."""
    return header(b"extension", type=type, size=len(body)) + padded(body)


def long_name(name: bytes, type: bytes = b"L") -> bytes:
    """Return GNU's header of a long name, or with type ``K`` of a long link text."""
    return extension(type, name + b"\0")


def pax(records: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]], type: bytes = b"x") -> bytes:
    """Return a PAX header with these records."""
    pairs = records.items() if isinstance(records, Mapping) else records
    return extension(type, b"".join(record(key, value) for key, value in pairs))


def rootfs(*more: bytes) -> bytes:
    """Return the archive of a least root filesystem, with `more` members at its end."""
    release = b'ID=debian\nVERSION_CODENAME="trixie"\n'
    members = (directory(b"./"), directory(b"./etc/"), directory(b"./usr/"), directory(b"./usr/sbin/"))
    return b"".join((*members, file(b"./etc/os-release", release), *more, END))
