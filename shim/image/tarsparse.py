"""Sparse files in tar archives: GNU's old form, and PAX forms 0.0, 0.1 and 1.0.

Source: GNU tar manual, "Storing Sparse Files".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shim.errors import printable
from shim.image.tarfields import (
    GNU,
    GNU_SPARSE,
    MAX_UNPACKED,
    REGULAR,
    HeaderError,
    header_number,
    number_in,
    within,
)

_LINES = re.compile(rb"(?:[0-9]{1,19}\n)+")
_SPARSE_FORMS = (  # which keys stand together in PAX forms 1.0 and 0.1; 0.0 is read as 0.1
    {b"GNU.sparse.major", b"GNU.sparse.minor", b"GNU.sparse.name", b"GNU.sparse.realsize"},
    {b"GNU.sparse.size", b"GNU.sparse.numblocks", b"GNU.sparse.name", b"GNU.sparse.map"},
    {b"GNU.sparse.size", b"GNU.sparse.numblocks", b"GNU.sparse.map"},
)


def sparse_size(block: bytes, pax: Mapping[bytes, bytes], sparse_map: bytes, kind: bytes, size: int) -> int | None:
    """Return the size with holes of a sparse file, None for any other; raises `HeaderError`.

    `sparse_map` holds the entries of GNU's old form, and `size` is that of the content in the archive. In form 1.0 the
    map begins the content: see `check_content_map`.
    """
    keys = {key for key in pax if key.startswith(b"GNU.sparse.")} if pax else set()
    if kind == GNU_SPARSE and not keys and block[257:265] == GNU:
        real = within("real size", header_number(block, "real size", 483, 495), MAX_UNPACKED)
        _check_sparse_map(_gnu_sparse_map(sparse_map), size, real)
        return real
    if kind != GNU_SPARSE and not keys:
        return None
    if kind != REGULAR or keys not in _SPARSE_FORMS:
        raise HeaderError(f"its sparse headers are of no known form ({printable(b', '.join(sorted(keys)))})")
    real = within("real size", int(pax.get(b"GNU.sparse.realsize") or pax[b"GNU.sparse.size"]), MAX_UNPACKED)
    if b"GNU.sparse.major" in keys:
        return real  # the map begins the content
    numbers = [int(number) for number in pax[b"GNU.sparse.map"].split(b",") if number]
    if len(numbers) != 2 * int(pax[b"GNU.sparse.numblocks"]):
        raise HeaderError("its sparse map does not have as many entries as it states")
    _check_sparse_map(numbers, size, real)
    return real


def _gnu_sparse_map(entries: bytes) -> list[int]:
    fields = [entries[start : start + 12] for start in range(0, len(entries), 12)]
    while fields and not fields[-1].strip(b"\0"):
        fields.pop()
    numbers = [number_in(text) if text[0] else None for text in fields]
    known = [number for number in numbers if number is not None]
    if len(known) != len(numbers):
        raise HeaderError("its sparse map is malformed")
    return known


def _check_sparse_map(numbers: Sequence[int], size: int, real: int) -> None:
    position = 0
    empty = False
    for offset, count in zip(numbers[::2], numbers[1::2], strict=False):
        if offset < position or count < 0 or empty:
            raise HeaderError("its sparse map goes backwards, or on behind an empty entry")  # some readers end there
        position = offset + count
        empty = not count
    if len(numbers) % 2 or sum(numbers[1::2]) != size or position > real:
        raise HeaderError(f"its sparse map does not describe {size} bytes of content in a file of {real}")


def check_content_map(content: bytes, size: int, real: int) -> None:
    """Raise `HeaderError` unless `content`, whole blocks, is the map of a sparse file of PAX form 1.0.

    `size` is that of all the content in the archive, the map included, and `real` the one with holes; both in bytes.
    """
    text = content.rstrip(b"\0")
    numbers = [int(line) for line in text.split()] if _LINES.fullmatch(text) else []
    if len(numbers) != 2 * sum(numbers[:1]) + 1:
        raise HeaderError("the sparse map at the beginning of its content is malformed")
    _check_sparse_map(numbers[1:], size - len(content), real)
