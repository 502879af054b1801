"""What the headers of one tar member say: `Member`, and how it is read from blocks.

Read are the old v7 form, ustar, GNU's and PAX, as GNU tar, libarchive and Go's archive/tar write them. What two of the
common readers would understand differently is refused rather than guessed, because the reader that vets an archive
is not the one that unpacks it. Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU
tar manual, "Basic Tar Format" and "Storing Sparse Files".

The functions here raise `HeaderError`, which says what is wrong; `shim.image.tar` adds where.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from zlib import adler32

from shim.errors import printable

BLOCK = 512  # bytes
MAX_EXTENSION = 1 << 20  # bytes of one member's long name, PAX header or sparse map
MAX_UNPACKED = 64 << 30  # bytes of a whole archive

REGULAR, HARD_LINK, SYMLINK, CHARACTER_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO = (b"%d" % kind for kind in range(7))
GNU_SPARSE = b"S"

_USTAR, _GNU, _V7 = b"ustar\x0000", b"ustar  \0", bytes(8)  # magic and version
_KINDS = (REGULAR, HARD_LINK, SYMLINK, CHARACTER_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO, GNU_SPARSE)
_VOLUME = "it belongs to one volume of several; join the volumes and make one archive"
_REFUSED_FLAGS = {b"M": _VOLUME, b"V": _VOLUME, b"D": "it is a directory listing of GNU tar's incremental backups"}
_MAX_ID = (1 << 32) - 2  # (uid_t)-1 means "leave it" to chown, and would leave root
_MAX_PATH = 4095  # bytes
_MAX_FIELD = 0o77777777777  # what the size field of a header holds in octal
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*|\0*")
_DECIMAL = re.compile(rb"[0-9]{1,19}")
_DECIMALS = re.compile(rb"[0-9]{1,19}(?:,[0-9]{1,19})*")
_TIME = re.compile(rb"-?[0-9]{1,19}(?:\.[0-9]*)?")
_ANY = re.compile(rb"[^\0]*")
_SPARSE_FORMS = (  # which keys stand together in PAX forms 1.0 and 0.1; 0.0 is read as 0.1
    {b"GNU.sparse.major", b"GNU.sparse.minor", b"GNU.sparse.name", b"GNU.sparse.realsize"},
    {b"GNU.sparse.size", b"GNU.sparse.numblocks", b"GNU.sparse.name", b"GNU.sparse.map"},
    {b"GNU.sparse.size", b"GNU.sparse.numblocks", b"GNU.sparse.map"},
)
_PAX_VALUES = {
    **dict.fromkeys((b"size", b"uid", b"gid"), _DECIMAL),
    **dict.fromkeys((b"GNU.sparse.size", b"GNU.sparse.realsize", b"GNU.sparse.numblocks"), _DECIMAL),
    **dict.fromkeys((b"GNU.sparse.offset", b"GNU.sparse.numbytes"), _DECIMAL),
    **dict.fromkeys((b"mtime", b"atime", b"ctime"), _TIME),
    **dict.fromkeys((b"path", b"linkpath", b"uname", b"gname", b"GNU.sparse.name"), _ANY),
    b"GNU.sparse.major": re.compile(b"1"),
    b"GNU.sparse.minor": re.compile(b"0"),
    b"GNU.sparse.map": _DECIMALS,
    b"hdrcharset": re.compile(b"BINARY|ISO-IR 10646 2000 UTF-8"),
}


class HeaderError(ValueError):
    """What is wrong with a member, in words that follow its name."""


@dataclass(frozen=True, slots=True)
class Member:
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
    """Raise `HeaderError` unless `block` has the checksum that it states, and the magic of a known form."""
    # The low half of Adler-32 is one more than the sum of the bytes, exact below 65521: for half a block it is.
    total = (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2
    if header_number(block, "checksum", 148, 156) != total - sum(block[148:156]) + 8 * 0x20:
        raise HeaderError("its header does not match its checksum")
    magic = block[257:265]
    if magic not in (_USTAR, _GNU, _V7) or (magic == _USTAR and block[508:] == b"tar\0"):
        raise HeaderError(f"its header is of no known form (magic '{printable(magic)}')")


def header_number(block: bytes, what: str, start: int, end: int) -> int:
    """Return the number in a field of a header; raises `HeaderError`."""
    value = _number(block[start:end])
    if value is None:
        raise HeaderError(f"its {what} is not a number: '{printable(block[start:end])}'")
    return value


def header_text(block: bytes, start: int, end: int) -> bytes:
    """Return the text in a field of a header, which a zero byte or the end of the field ends."""
    return block[start:end].partition(b"\0")[0]


def pax_records(body: bytes) -> dict[bytes, bytes]:
    """Return the records of a PAX header by key; raises `HeaderError`.

    A sparse map of form 0.0 (repeated keys) is returned as form 0.1 writes it.
    """
    records: dict[bytes, bytes] = {}
    sparse_map: list[bytes] = []
    position = 0
    while position < len(body):
        space = body.find(b" ", position, position + 8)
        digits = body[position : max(space, position)]
        end = position + int(digits) if digits.isdigit() else 0
        key, equals, value = body[space + 1 : max(end - 1, 0)].partition(b"=")
        if not space < end <= len(body) or body[end - 1] != 0x0A or not equals or not key or b"\0" in key:
            raise HeaderError(f"the record at byte {position} of its PAX header is malformed")
        if key.startswith(b"GNU.volume."):
            raise HeaderError(_VOLUME)
        form = _PAX_VALUES.get(key)
        if form and not form.fullmatch(value):
            raise HeaderError(f"its PAX header says {printable(key)}={printable(value)}, which is malformed")
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            if (key == b"GNU.sparse.offset") == len(sparse_map) % 2:
                raise HeaderError("its sparse map is malformed")
            sparse_map.append(value)
        elif records.setdefault(key, value) != value:
            raise HeaderError(f"its PAX header holds two values of {printable(key)}")
        position = end
    if sparse_map:
        if b"GNU.sparse.map" in records:
            raise HeaderError("it has two sparse maps")
        records[b"GNU.sparse.map"] = b",".join(sparse_map)
    return records


def read_member(name: bytes, block: bytes, extensions: Extensions, sparse_map: bytes, offset: int) -> Member:
    """Return the member that its own header `block` and what stands before it describe; raises `HeaderError`.

    `name` is what `member_name` found, `sparse_map` holds the entries of GNU's old sparse form, and `offset` is where
    the last block of the headers is.
    """
    pax = extensions.pax
    kind = _kind(block[156:157], name)
    size = _size(block, pax, kind)
    linkname = _override(extensions, b"K", b"linkpath", header_text(block, 157, 257))
    if kind in (HARD_LINK, SYMLINK) and not linkname:
        raise HeaderError("it is a link to nothing")
    device = kind in (CHARACTER_DEVICE, BLOCK_DEVICE)
    if device and block[257:265] == _V7:
        raise HeaderError("it is a device, and its header has no field for which")
    if max(len(name), len(linkname)) > _MAX_PATH:
        raise HeaderError(f"its name or link text is longer than {_MAX_PATH} bytes, more than Linux takes")
    path = canonical(name)
    if not path and kind != DIRECTORY:
        raise HeaderError("it is the root, and no directory")
    return Member(
        name=name,
        path=path,
        type=REGULAR if kind == GNU_SPARSE else kind,
        mode=header_number(block, "mode", 100, 108) & 0o7777,
        uid=_id(block, pax, "uid", 108),
        gid=_id(block, pax, "gid", 116),
        size=size,
        mtime=_mtime(block, pax),
        linkname=linkname,
        link=canonical(linkname) if kind == HARD_LINK else b"",
        devmajor=header_number(block, "device number", 329, 337) if device else 0,
        devminor=header_number(block, "device number", 337, 345) if device else 0,
        pax=pax,
        sparse=_sparse(block, pax, sparse_map, kind, size),
        start=offset if extensions.start is None else extensions.start,
        data=offset + BLOCK,
        end=offset + BLOCK + padded(size),
    )


def member_name(block: bytes, extensions: Extensions) -> bytes:
    """Return the name of a member as its headers spell it; raises `HeaderError` when they spell two."""
    name = header_text(block, 0, 100)
    if block[257:265] == _USTAR and block[345]:
        name = header_text(block, 345, 500) + b"/" + name
    name = _override(extensions, b"L", b"path", name)
    return extensions.pax.get(b"GNU.sparse.name", name)


def canonical(name: bytes) -> bytes:
    """Return the one spelling of a path inside the root that equals `name`; raises `HeaderError`."""
    parts = [part for part in name.split(b"/") if part and part != b"."]
    if b".." in parts:
        raise HeaderError(f"'{printable(name)}' has a component .., which may lead out of the root")
    return b"/".join(parts)


def padded(size: int) -> int:
    """Return `size` in bytes rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


@lru_cache(4096)  # owners, modes and device numbers are few
def _number(text: bytes) -> int | None:
    if text[0] == 0x80:
        return int.from_bytes(text[1:], "big")
    if text[0] == 0xFF:
        return int.from_bytes(text, "big", signed=True)
    octal = _OCTAL.fullmatch(text)
    return int(octal[1] or b"0", 8) if octal else None


def _override(extensions: Extensions, flag: bytes, key: bytes, text: bytes) -> bytes:
    if flag in extensions.texts and key in extensions.pax:
        raise HeaderError(f"both a GNU long name and a PAX record give its {printable(key)}")
    return extensions.texts.get(flag, extensions.pax.get(key, text))


def _kind(flag: bytes, name: bytes) -> bytes:
    if flag in _REFUSED_FLAGS:
        raise HeaderError(_REFUSED_FLAGS[flag])
    if not name:
        raise HeaderError("its name is empty")
    if flag == b"\0" and name.endswith(b"/"):
        return DIRECTORY  # how the v7 form marks one
    kind = REGULAR if flag in (b"\0", b"7") else flag
    if kind not in _KINDS:
        raise HeaderError(f"its type flag '{printable(flag)}' is unknown")
    if kind != DIRECTORY and name.rpartition(b"/")[2] in (b"", b"."):
        raise HeaderError("it is no directory, and its name is a directory's")
    return kind


def _size(block: bytes, pax: Mapping[bytes, bytes], kind: bytes) -> int:
    size = stated = header_number(block, "size", 124, 136)
    if b"size" in pax:
        size = int(pax[b"size"])
        # A reader that knows no PAX goes by the header, and would take content for members.
        if size <= _MAX_FIELD and size != stated:
            raise HeaderError(f"its header states {stated} bytes, its PAX header {size}")
    if not 0 <= size <= MAX_UNPACKED:
        raise HeaderError(f"its size is {size} bytes; expected 0 to {MAX_UNPACKED}")
    if size and kind not in (REGULAR, GNU_SPARSE):
        raise HeaderError(f"it is no regular file, and states {size} bytes of content")
    return size


def _id(block: bytes, pax: Mapping[bytes, bytes], what: str, start: int) -> int:
    value = header_number(block, what, start, start + 8)
    if pax:
        value = int(pax.get(what.encode(), value))
    if not 0 <= value <= _MAX_ID:
        raise HeaderError(f"its {what} is {value}; expected 0 to {_MAX_ID}")
    return value


def _mtime(block: bytes, pax: Mapping[bytes, bytes]) -> int:
    seconds = header_number(block, "mtime", 136, 148)
    if b"mtime" in pax:
        whole, _, fraction = pax[b"mtime"].partition(b".")
        seconds = int(whole) - (whole.startswith(b"-") and bool(fraction.strip(b"0")))
    return seconds


def _sparse(block: bytes, pax: Mapping[bytes, bytes], sparse_map: bytes, kind: bytes, size: int) -> int | None:
    """Return the size with holes of a sparse file, None for any other."""
    keys = {key for key in pax if key.startswith(b"GNU.sparse.")} if pax else set()
    if kind == GNU_SPARSE and not keys and block[257:265] == _GNU:
        real = header_number(block, "real size", 483, 495)
        _check_sparse_map(_gnu_sparse_map(sparse_map), size, real)
        return real
    if kind != GNU_SPARSE and not keys:
        return None
    if kind != REGULAR or keys not in _SPARSE_FORMS:
        raise HeaderError(f"its sparse headers are of no known form ({printable(b', '.join(sorted(keys)))})")
    if b"GNU.sparse.major" in keys:
        return int(pax[b"GNU.sparse.realsize"])  # the map begins the content
    numbers = [int(number) for number in pax[b"GNU.sparse.map"].split(b",") if number]
    if len(numbers) != 2 * int(pax[b"GNU.sparse.numblocks"]):
        raise HeaderError("its sparse map does not have as many entries as it states")
    real = int(pax[b"GNU.sparse.size"])
    _check_sparse_map(numbers, size, real)
    return real


def _gnu_sparse_map(entries: bytes) -> list[int]:
    fields = [entries[start : start + 12] for start in range(0, len(entries), 12)]
    while fields and not fields[-1].strip(b"\0"):
        fields.pop()
    numbers = [_number(text) if text[0] else None for text in fields]
    known = [number for number in numbers if number is not None]
    if len(known) != len(numbers):
        raise HeaderError("its sparse map is malformed")
    return known


def _check_sparse_map(numbers: Sequence[int], size: int, real: int) -> None:
    position = 0
    for offset, count in zip(numbers[::2], numbers[1::2], strict=False):
        if offset < position or count < 0:
            raise HeaderError("its sparse map goes backwards")
        position = offset + count
    if len(numbers) % 2 or sum(numbers[1::2]) != size or position > real:
        raise HeaderError(f"its sparse map does not describe {size} bytes of content in a file of {real}")
