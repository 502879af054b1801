"""The fields of tar headers: numbers, texts and PAX records, and how large things may be.

Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
from functools import lru_cache

from shim.errors import printable

BLOCK = 512  # bytes
MAX_EXTENSION = 256 << 10  # bytes of one member's long name, PAX header or sparse map, which take twenty times that
# Bytes of a whole archive, and of a sparse file with its holes. A root filesystem of this size is ten times a desktop;
# what is more is a bomb, which costs minutes before its digest can tell.
MAX_UNPACKED = 16 << 30

REGULAR, HARD_LINK, SYMLINK, CHARACTER_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO = (b"%d" % kind for kind in range(7))
GNU_SPARSE = b"S"

USTAR, GNU, V7 = b"ustar\x0000", b"ustar  \0", bytes(8)  # magic and version
VOLUME = "it belongs to one volume of several; join the volumes and make one archive"
INCREMENTAL = "it is a directory listing of GNU tar's incremental backups"
_STAR = "only some readers know that key"  # libarchive and star go by it, GNU tar and Go by the header
_REFUSED_KEYS = {
    **dict.fromkeys((b"GNU.volume.label", b"GNU.volume.filename", b"GNU.volume.size", b"GNU.volume.offset"), VOLUME),
    b"GNU.dumpdir": INCREMENTAL,
    **dict.fromkeys((b"SCHILY.realsize", b"SCHILY.devmajor", b"SCHILY.devminor", b"SUN.holesdata"), _STAR),
}
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*|\0*")
_DECIMAL = re.compile(rb"[0-9]{1,19}")
_DECIMALS = re.compile(rb"[0-9]{1,19}(?:,[0-9]{1,19})*")
_TIME = re.compile(rb"-?[0-9]{1,18}(?:\.[0-9]*)?")  # 64 bits hold it
_ANY = re.compile(rb"[^\0]*")
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


def header_number(block: bytes, what: str, start: int, end: int) -> int:
    """Return the number in a field of a header; raises `HeaderError`."""
    value = number_in(block[start:end])
    if value is None:
        raise HeaderError(f"its {what} is not a number of 64 bits: '{printable(block[start:end])}'")
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
        if key in _REFUSED_KEYS:
            raise HeaderError(f"its PAX header sets {printable(key)}: {_REFUSED_KEYS[key]}")
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


def padded(size: int) -> int:
    """Return `size` in bytes rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def within(what: str, value: int, limit: int) -> int:
    """Return `value` if it is from 0 to `limit`; raises `HeaderError`, which names it as `what`."""
    if not 0 <= value <= limit:
        raise HeaderError(f"its {what} is {value}; expected 0 to {limit}")
    return value


@lru_cache(4096)  # owners, modes and device numbers are few
def number_in(text: bytes) -> int | None:
    """Return the number that a field writes in octal or base 256, None if it is none that 64 bits hold."""
    if text[0] in (0x80, 0xFF):
        value = int.from_bytes(text[1:], "big") if text[0] == 0x80 else int.from_bytes(text, "big", signed=True)
        return value if -(1 << 63) <= value < 1 << 63 else None
    octal = _OCTAL.fullmatch(text)
    return int(octal[1] or b"0", 8) if octal else None
