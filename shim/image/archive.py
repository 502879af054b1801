"""Archives as streams: told apart by their first bytes, and decompressed to their very end.

Sources: RFC 1952 (gzip), RFC 8878 (zstd); the .xz file format is left to the `xz` tool, which decodes the blocks of one
archive in parallel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import zstandard

from shim.errors import FormatError, printable
from shim.image.digest import CHUNK
from shim.image.tar import MAX_UNPACKED
from shim.run import Reader, piped

COMPRESSIONS = ("none", "gzip", "xz", "zstd")

# One bound for any number of cores. To keep the first limit, xz uses fewer threads: it stays under 100 MB, and two are
# busy for root filesystems packed with presets 0 to 6 (measured with xz 5.4). The second is for one thread, and caps
# the first; it admits preset 9, which takes 65 MiB, and refuses a dictionary much larger than that.
_XZ_MEMORY = "88MiB"
_XZ = (
    "xz", "--decompress", "--stdout", "--format=xz", "--threads=0",
    f"--memlimit-mt-decompress={_XZ_MEMORY}", f"--memlimit-decompress={_XZ_MEMORY}",
)  # fmt: skip
_MAX_WINDOW = 128 << 20  # bytes; what the zstd tool accepts without being told

_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\0"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"  # behind a first byte 0x50 to 0x5f
_GZIP_CHUNK = 64 << 10  # bytes; what follows a member is copied, which many small members would make slow
_ZSTD_HEADER = 18  # bytes; the longest frame header
_RLE_BLOCK = 1
_BLOCKS = 16  # zstd blocks that are decoded in one step; each yields 128 KiB at most, and mostly a quarter of that


def sniff(head: bytes) -> str | None:
    """Return the compression (one of COMPRESSIONS) that the first bytes of a file tell; None: none that is known.

    512 bytes are enough. ``none`` means a tar archive, by the magic of its first header or an end at once.
    """
    if head.startswith(_GZIP_MAGIC):
        return "gzip"
    if head.startswith(_XZ_MAGIC):
        return "xz"
    if head.startswith(_ZSTD_MAGIC) or _is_skippable(head):
        return "zstd"
    return "none" if head[257:262] == b"ustar" or (len(head) >= 512 and not head[:512].strip(b"\0")) else None


@contextmanager
def decompressed(source: Reader, compression: str, what: str) -> Iterator[Reader]:
    """Give a reader of what `source` holds under `compression`, one of COMPRESSIONS.

    Everything is read: each of several gzip members, xz streams or zstd frames, the padding that the format allows,
    and the end of the source, so that a source which verifies itself has done so when the reader returns ``b""``.
    `what` names the archive in messages.

    The reader raises what the source raises, as it is, and `FormatError` when the input is damaged, is cut off, is
    followed by anything else, asks for too much memory, or yields more than MAX_UNPACKED bytes. `decompressed` raises
    `Refused` when the xz tool is missing.
    """
    with ExitStack() as stack:
        if compression == "xz":
            filtered = stack.enter_context(piped(_XZ, source, f"decompressing {what}"))
            pieces = iter(lambda: filtered.read(CHUNK), b"")
        elif compression == "gzip":
            pieces = _gunzip(source, what)
        elif compression == "zstd":
            pieces = _unzstd(_Input(source, what), what)
        elif compression == "none":
            pieces = iter(lambda: source.read(CHUNK), b"")
        else:
            raise FormatError(f"{what} has an unknown compression, '{printable(compression)}'")
        yield _Pieces(pieces, source, what)


class _Pieces:
    """A reader over pieces of any size."""

    def __init__(self, pieces: Iterator[bytes], source: Reader, what: str) -> None:
        self._pieces, self._source, self._what = filter(None, pieces), source, what
        self._left = b""
        self._count = 0
        self._error: BaseException | None = None

    def read(self, amount: int = CHUNK, /) -> bytes:
        taken = [self._left] if self._left else []
        size = len(self._left)
        while size < amount and (piece := self._next()):
            taken.append(piece)
            size += len(piece)
        data = taken[0] if len(taken) == 1 else b"".join(taken)
        self._left = data[amount:]
        return data[:amount]

    def _next(self) -> bytes:
        if self._error:  # a generator that raised has ended, which must not look like the end of the archive
            raise self._error
        try:
            piece = next(self._pieces, b"")
            self._count += len(piece)
            if self._count > MAX_UNPACKED:
                raise FormatError(f"{self._what} unpacks to more than {MAX_UNPACKED} bytes")
        except BaseException as error:
            self._error = error
            if isinstance(error, FormatError):
                self._drain()
            raise
        return piece

    def _drain(self) -> None:
        # A source that verifies itself has the better explanation for damaged input, and raises it at its end.
        while self._source.read(CHUNK):
            pass


def _gunzip(source: Reader, what: str) -> Iterator[bytes]:
    data = source.read(_GZIP_CHUNK)
    while True:  # one member each time
        decoder = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        while not decoder.eof:
            if not data:
                raise FormatError(f"{what}: the gzip data is cut off")
            try:
                yield decoder.decompress(data, CHUNK)
            except zlib.error as error:
                raise FormatError(f"{what}: the gzip data is damaged, or followed by more: {error}") from error
            data = decoder.unconsumed_tail or decoder.unused_data or source.read(_GZIP_CHUNK)
        if not data or data.startswith(b"\0"):
            break
    while data:  # zeros may pad a gzip file, and nothing follows them
        if data.strip(b"\0"):
            raise FormatError(f"{what}: something follows the padding of the gzip data")
        data = source.read(_GZIP_CHUNK)


def _unzstd(source: _Input, what: str) -> Iterator[bytes]:
    """Decode a few blocks at a time: the output of one step is bounded, and where a frame ends is known.

    The library's stream reader does not say whether its input ended inside of a frame, and its decompression object
    does not bound its output.
    """
    context = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    frames = 0
    while head := source.peek(_ZSTD_HEADER):
        frames += 1
        if _is_skippable(head):
            source.take(4)
            source.skip(int.from_bytes(source.take(4), "little"))
            continue
        try:
            parameters = zstandard.get_frame_parameters(head)
            header = source.take(zstandard.frame_header_size(head))
            if parameters.window_size > _MAX_WINDOW:
                raise FormatError(f"{what}: the zstd data asks for a window of {parameters.window_size} bytes")
            decoder = context.decompressobj()
            yield decoder.decompress(header)
            last = False
            while not last:
                blocks, last = source.take_blocks()
                yield decoder.decompress(blocks)
            if parameters.has_checksum:
                yield decoder.decompress(source.take(4))
        except zstandard.ZstdError as error:
            raise FormatError(f"{what}: the zstd data is damaged, or followed by something else: {error}") from error
        if not decoder.eof:
            raise FormatError(f"{what}: the zstd data is damaged")
    if not frames:
        raise FormatError(f"{what}: the zstd data is empty")


class _Input:
    """A source of which exact amounts can be taken."""

    def __init__(self, source: Reader, what: str) -> None:
        self._source, self._what = source, what
        self._data = b""
        self._position = 0

    def peek(self, amount: int) -> bytes:
        """Return what comes next, `amount` bytes or as many as are left, and leave it there."""
        while len(self._data) - self._position < amount and (more := self._source.read(CHUNK)):
            self._data = self._data[self._position :] + more
            self._position = 0
        return self._data[self._position : self._position + amount]

    def take(self, amount: int) -> bytes:
        """Return `amount` bytes; raises `FormatError` when fewer are left."""
        data = self.peek(amount)
        if len(data) < amount:
            raise FormatError(f"{self._what}: the zstd data is cut off")
        self._position += amount
        return data

    def take_blocks(self) -> tuple[bytes, bool]:
        """Return the next zstd blocks, those that are at hand and at least one, and whether the frame's last is there.

        Raises `FormatError` when the source ends within the first.
        """
        data, start = self._data, self._position
        position, last = start, False
        for _ in range(_BLOCKS):
            header = int.from_bytes(data[position : position + 3], "little")
            end = position + 3 + (1 if header >> 1 & 3 == _RLE_BLOCK else header >> 3)
            if position + 3 > len(data) or end > len(data):
                break
            position = end
            if last := bool(header & 1):
                break
        if position > start:
            self._position = position
            return data[start:position], last
        header = int.from_bytes(self.peek(3), "little")
        return self.take(4 if header >> 1 & 3 == _RLE_BLOCK else 3 + (header >> 3)), bool(header & 1)

    def skip(self, amount: int) -> None:
        """Pass over `amount` bytes."""
        while amount:
            amount -= len(self.take(min(amount, CHUNK)))


def _is_skippable(head: bytes) -> bool:
    return head[1:4] == _SKIPPABLE and 0x50 <= head[0] <= 0x5F
