"""What the headers of one tar member say: `Member`, and how it is read from blocks.

Read are the old v7 form, ustar, GNU's and PAX, as GNU tar, libarchive and Go's archive/tar write them. What two of the
common readers would understand differently is refused rather than guessed, because the reader that vets an archive
is not the one that unpacks it. Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU
tar manual, "Basic Tar Format" and "Storing Sparse Files".

The functions here raise `HeaderError`, which says what is wrong; `shim.image.tar` adds where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from zlib import adler32

from shim.errors import printable
from shim.image.tarfields import (
    BLOCK,
    BLOCK_DEVICE,
    CHARACTER_DEVICE,
    DIRECTORY,
    FIFO,
    GNU,
    GNU_SPARSE,
    HARD_LINK,
    INCREMENTAL,
    MAX_EXTENSION,
    MAX_UNPACKED,
    REGULAR,
    SYMLINK,
    USTAR,
    V7,
    VOLUME,
    HeaderError,
    header_number,
    header_text,
    padded,
    within,
)
from shim.image.tarsparse import sparse_size

_KINDS = (REGULAR, HARD_LINK, SYMLINK, CHARACTER_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO, GNU_SPARSE)
# What stands where ustar has the prefix of a name is a prefix for tarfile in every form, and for Go in GNU's, unless it
# is the two times that GNU tar puts there in incremental backups.
_BLANK = bytes(BLOCK - 345)
_NO_DEVICE = (bytes(16), b"0000000\0" * 2)
_REFUSED_FLAGS = {b"M": VOLUME, b"V": VOLUME, b"D": INCREMENTAL}
_MAX_ID = (1 << 32) - 2  # (uid_t)-1 means "leave it" to chown, and would leave root
_MAX_PATH = 4095  # bytes
_MAX_FIELD = 0o77777777777  # what the size field of a header holds in octal
_MAX_MODE = 0o7777777  # the same for the mode; the bits of the file's type may be among them
_MAX_MAJOR, _MAX_MINOR = 0xFFF, 0xFFFFF  # Linux, dev_t inside of the kernel


class Member(NamedTuple):
    """One member of an archive. Bytes stay bytes; offsets count bytes of the uncompressed archive."""

    name: bytes  # as the archive spells it
    path: bytes  # its one canonical form: no leading "./" or "/", no empty or "." components; b"" is the root
    type: bytes  # the type flag: REGULAR (also for NUL, 7 and S), HARD_LINK, …
    mode: int  # permission bits with setuid, setgid and sticky
    uid: int
    gid: int
    size: int  # bytes of content in the archive
    mtime: int  # seconds since the epoch, rounded down; a fraction is in `pax`
    linkname: bytes  # as the archive spells it
    link: bytes  # the canonical path that a hard link means, else b""
    devmajor: int
    devminor: int
    pax: Mapping[bytes, bytes]  # PAX records, extended attributes among them
    sparse: int | None  # bytes of a sparse file with its holes
    start: int  # where the member's first block is: an extension header, or its own
    data: int  # where its content is
    end: int  # where the next member is


@dataclass(slots=True)
class Extensions:
    """What stands before a member's own header: GNU's long name (L) and long link (K), and PAX records (x)."""

    start: int | None = None  # offset of the first of them; None: there is none
    texts: dict[bytes, bytes] = field(default_factory=dict)
    pax: dict[bytes, bytes] = field(default_factory=dict)


def check_header(block: bytes) -> None:
    """Raise `HeaderError` unless `block` has the checksum that it states, and is of a form that is read."""
    # The low half of Adler-32 is one more than the sum of the bytes, exact below 65521: for half a block it is.
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2
    if header_number(block, "checksum", 148, 156) != total - sum(block[148:156]) + 8 * 0x20:
        raise HeaderError("its header does not match its checksum")
    magic = block[257:265]
    if magic not in (USTAR, GNU, V7) or (magic == USTAR and block[508:] == b"tar\0"):
        raise HeaderError(f"its header is of no known form (magic '{printable(magic)}')")
    flag = block[156:157]
    if flag in _REFUSED_FLAGS:
        raise HeaderError(_REFUSED_FLAGS[flag])
    if magic != USTAR and not block.endswith(_BLANK):
        sparse = magic == GNU and flag == GNU_SPARSE
        if not sparse or block[345:386].strip(b"\0") or block[495:].strip(b"\0"):
            raise HeaderError("its header goes on behind its last field, which some readers take for part of a name")
    if block[329:345] not in _NO_DEVICE:  # Go and tarfile read them also where they mean nothing
        header_number(block, "device number", 329, 337)
        header_number(block, "device number", 337, 345)


def extension_size(block: bytes) -> int:
    """Return how many bytes of an extension stand behind its header; raises `HeaderError`."""
    # The rest means nothing, but Go reads it too, and tarfile takes what it cannot read for the end of the archive.
    for what, start, end in (("mode", 100, 108), ("uid", 108, 116), ("gid", 116, 124), ("mtime", 136, 148)):
        header_number(block, what, start, end)
    size = header_number(block, "size", 124, 136)
    if not 0 < size <= MAX_EXTENSION:
        raise HeaderError(f"it is an extension header of {size} bytes; expected 1 to {MAX_EXTENSION}")
    return size


def read_member(name: bytes, block: bytes, extensions: Extensions, sparse_map: bytes, offset: int) -> Member:
    """Return the member that its own header `block` and what stands before it describe; raises `HeaderError`.

    `name` is what `member_name` found, `sparse_map` holds the entries of GNU's old sparse form, and `offset` is where
    the last block of the headers is.
    """
    pax = extensions.pax
    kind = _kind(block, name)
    size = _size(block, pax, kind)
    linkname = _override(extensions, b"K", b"linkpath", header_text(block, 157, 257))
    if kind in (HARD_LINK, SYMLINK) and not linkname:
        raise HeaderError("it is a link to nothing")
    if kind == HARD_LINK and _is_directorys(linkname):
        raise HeaderError("it is a hard link to a directory")
    device = kind in (CHARACTER_DEVICE, BLOCK_DEVICE)
    if device and block[257:265] == V7:
        raise HeaderError("it is a device, and its header has no field for which")
    if max(len(name), len(linkname)) > _MAX_PATH:
        raise HeaderError(f"its name or link text is longer than {_MAX_PATH} bytes, more than Linux takes")
    path = canonical(name)
    if not path and kind != DIRECTORY:
        raise HeaderError("it is the root, and no directory")
    mode, uid, gid = _mode_and_owner(block[100:124])
    return Member(
        name=name,
        path=path,
        type=REGULAR if kind == GNU_SPARSE else kind,
        mode=within("mode", mode, _MAX_MODE) & 0o7777,
        uid=within("uid", int(pax.get(b"uid", uid)), _MAX_ID),
        gid=within("gid", int(pax.get(b"gid", gid)), _MAX_ID),
        size=size,
        mtime=_mtime(block, pax),
        linkname=linkname,
        link=canonical(linkname) if kind == HARD_LINK else b"",
        devmajor=within("device number", header_number(block, "", 329, 337), _MAX_MAJOR) if device else 0,
        devminor=within("device number", header_number(block, "", 337, 345), _MAX_MINOR) if device else 0,
        pax=pax,
        sparse=sparse_size(block, pax, sparse_map, kind, size),
        start=offset if extensions.start is None else extensions.start,
        data=offset + BLOCK,
        end=offset + BLOCK + padded(size),
    )


def member_name(block: bytes, extensions: Extensions) -> bytes:
    """Return the name of a member as its headers spell it; raises `HeaderError` when they spell two."""
    name = header_text(block, 0, 100)
    if block[257:265] == USTAR and block[345]:
        name = header_text(block, 345, 500) + b"/" + name
    if extensions.start is None:
        return name
    name = _override(extensions, b"L", b"path", name)
    return _override(extensions, b"L", b"GNU.sparse.name", name)


def canonical(name: bytes) -> bytes:
    """Return the one spelling of a path inside the root that equals `name`; raises `HeaderError`."""
    parts = [part for part in name.split(b"/") if part and part != b"."]
    if b".." in parts:
        raise HeaderError(f"'{printable(name)}' has a component .., which may lead out of the root")
    return b"/".join(parts)


def _override(extensions: Extensions, flag: bytes, key: bytes, text: bytes) -> bytes:
    if extensions.start is None:
        return text
    if flag in extensions.texts and key in extensions.pax:
        raise HeaderError(f"both a GNU long name and a PAX record give its {printable(key)}")
    return extensions.texts.get(flag, extensions.pax.get(key, text))


def _is_directorys(name: bytes) -> bool:
    return name.endswith((b"/", b"/.")) or name in (b"", b".")


def _kind(block: bytes, name: bytes) -> bytes:
    flag = block[156:157]
    if not name:
        raise HeaderError("its name is empty")
    if flag == b"\0":  # the v7 form marks a directory by its name; tarfile asks the header's, others the long name
        if name.endswith(b"/") != header_text(block, 0, 100).endswith(b"/"):
            raise HeaderError("by one of its names it is a directory, by the other it is none")
        if name.endswith(b"/"):
            return DIRECTORY
    kind = REGULAR if flag in (b"\0", b"7") else flag
    if kind not in _KINDS:
        raise HeaderError(f"its type flag '{printable(flag)}' is unknown")
    if kind != DIRECTORY and _is_directorys(name):
        raise HeaderError("it is no directory, and its name is a directory's")
    return kind


def _size(block: bytes, pax: Mapping[bytes, bytes], kind: bytes) -> int:
    size = stated = header_number(block, "size", 124, 136)
    if b"size" in pax:
        size = int(pax[b"size"])
        # A reader that knows no PAX goes by the header, and would take content for members.
        if size <= _MAX_FIELD and size != stated:
            raise HeaderError(f"its header states {stated} bytes, its PAX header {size}")
    if within("size", size, MAX_UNPACKED) and kind not in (REGULAR, GNU_SPARSE):
        raise HeaderError(f"it is no regular file, and states {size} bytes of content")
    return size


@lru_cache(1024)  # they are few
def _mode_and_owner(fields: bytes) -> tuple[int, int, int]:
    mode, uid = header_number(fields, "mode", 0, 8), header_number(fields, "uid", 8, 16)
    return mode, uid, header_number(fields, "gid", 16, 24)


def _mtime(block: bytes, pax: Mapping[bytes, bytes]) -> int:
    seconds = header_number(block, "mtime", 136, 148)
    if b"mtime" in pax:
        whole, _, fraction = pax[b"mtime"].partition(b".")
        seconds = int(whole) - (whole.startswith(b"-") and bool(fraction.strip(b"0")))
    return seconds
