"""Decompression: everything is read, to the very end, within bounds; what is damaged, cut off or added is refused."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import shim.image.archive
from shim.errors import FormatError, VerificationError
from shim.image.archive import COMPRESSIONS, decompressed, sniff
from shim.image.digest import Digest, VerifyingReader
from shim.run import Reader, run

DATA = random.Random(1).randbytes(700_000) + bytes(3_000_000) + b"the end"


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_streamed(data: bytes) -> bytes:
    """Return a frame that does not state its size, with a checksum, as presetbuild writes it."""
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": lambda data: gzip.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zstd": zstd,
}
SKIPPABLE = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"\x28\xb5\x2f\xfd!"


class Dribble:
    """A source that gives a few bytes at a time, as a network may."""

    def __init__(self, data: bytes, step: int) -> None:
        self._file, self._step = io.BytesIO(data), step

    def read(self, amount: int, /) -> bytes:
        return self._file.read(min(amount, self._step))


def unpack(data: bytes | Reader, compression: str, amount: int = 1 << 20) -> bytes:
    source = io.BytesIO(data) if isinstance(data, bytes) else data
    with decompressed(source, compression, "it.tar") as reader:
        pieces = list(iter(lambda: reader.read(amount), b""))
    assert all(len(piece) == amount for piece in pieces[:-1])
    return b"".join(pieces)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("amount", [1000, 1 << 20, 1 << 30])
def test_what_was_compressed_comes_out(compression: str, amount: int) -> None:
    assert unpack(COMPRESS[compression](DATA), compression, amount) == DATA


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_source_may_give_little_at_a_time(compression: str) -> None:
    assert unpack(Dribble(COMPRESS[compression](DATA), 999), compression) == DATA


WHOLE: dict[str, tuple[str, bytes, bytes]] = {
    "several gzip members": ("gzip", gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two"), b"onetwo"),
    "very many gzip members": ("gzip", gzip.compress(b"x") * 20_000, b"x" * 20_000),
    "a gzip member of nothing": ("gzip", gzip.compress(b""), b""),
    "zeros behind gzip": ("gzip", gzip.compress(b"one") + bytes(100_000), b"one"),
    "several xz streams": ("xz", lzma.compress(b"one") + lzma.compress(b"two"), b"onetwo"),
    "padding of xz streams": ("xz", lzma.compress(b"one") + bytes(8) + lzma.compress(b"two") + bytes(4), b"onetwo"),
    "xz without a check": ("xz", lzma.compress(b"one", check=lzma.CHECK_NONE), b"one"),
    "several zstd frames": ("zstd", zstd(b"one") + zstd(b"") + zstd_streamed(b"two"), b"onetwo"),
    "very many zstd frames": ("zstd", zstd(b"x") * 20_000, b"x" * 20_000),
    "skippable zstd frames": ("zstd", SKIPPABLE + zstd(b"one") + SKIPPABLE * 2 + zstd(b"two") + SKIPPABLE, b"onetwo"),
    "only a skippable zstd frame": ("zstd", SKIPPABLE, b""),
    "a zstd frame with checksum and no size": ("zstd", zstd_streamed(DATA), DATA),
    "zstd from threads": ("zstd", zstandard.ZstdCompressor(threads=2).compress(DATA), DATA),
    "zstd of what does not compress": ("zstd", zstd(DATA[:700_000]), DATA[:700_000]),
    "nothing, not compressed": ("none", b"", b""),
}  # fmt: skip


@pytest.mark.parametrize(("compression", "packed", "expected"), WHOLE.values(), ids=WHOLE)
def test_everything_to_the_end_of_the_input_is_read(compression: str, packed: bytes, expected: bytes) -> None:
    assert unpack(packed, compression) == expected


BROKEN: dict[str, tuple[str, bytes, str]] = {
    "gzip, then junk": ("gzip", gzip.compress(b"one") + b"junk", "followed by more"),
    "gzip, zeros, then junk": ("gzip", gzip.compress(b"one") + bytes(70_000) + b"x", "follows the padding"),
    "gzip, zeros, then a member": ("gzip", gzip.compress(b"") + bytes(9) + gzip.compress(b"2"), "follows the padding"),
    "gzip, then half a member": ("gzip", gzip.compress(b"one") + gzip.compress(b"two")[:-3], "cut off"),
    "gzip, then half a magic": ("gzip", gzip.compress(b"one") + b"\x1f", "cut off"),
    "gzip with a wrong checksum": ("gzip", gzip.compress(b"one")[:-8] + bytes(8), "damaged"),
    "gzip with a wrong length": ("gzip", gzip.compress(b"one")[:-1] + b"\1", "damaged"),
    "zlib for gzip": ("gzip", zlib.compress(b"one"), "damaged"),
    "no gzip": ("gzip", b"", "cut off"),
    "no xz": ("xz", b"", "xz"),
    "xz, then junk": ("xz", lzma.compress(b"one") + b"junk", "xz"),
    "xz, then odd padding": ("xz", lzma.compress(b"one") + bytes(3), "xz"),
    "xz, then half a stream": ("xz", lzma.compress(b"one") + lzma.compress(b"two")[:-5], "Unexpected end of input"),
    "lzma for xz": ("xz", lzma.compress(b"one", lzma.FORMAT_ALONE), "not recognized"),
    "gzip for xz": ("xz", gzip.compress(b"one"), "not recognized"),
    "xz that asks for much memory": (
        "xz",
        lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 256 << 20, "mode": lzma.MODE_FAST}]),
        "[Mm]emory usage limit",
    ),
    "no zstd": ("zstd", b"", "is empty"),
    "zstd, then zeros": ("zstd", zstd(b"one") + bytes(4), "damaged, or followed by something else"),
    "zstd, then a few zeros": ("zstd", zstd(b"one") + bytes(2), "damaged, or followed by something else"),
    "zstd, then junk": ("zstd", zstd(b"one") + b"junk and more junk", "damaged, or followed by something else"),
    "zstd, then half a frame": ("zstd", zstd(b"one") + zstd(b"two" * 99)[:-1], "cut off"),
    "zstd, then half a skippable frame": ("zstd", zstd(b"one") + SKIPPABLE[:-1], "cut off"),
    "zstd without its checksum": ("zstd", zstd_streamed(b"one")[:-4], "cut off"),
    "zstd with a wrong checksum": ("zstd", zstd_streamed(b"one")[:-4] + bytes(4), "damaged"),
    "zstd that asks for a huge window": ("zstd", b"\x28\xb5\x2f\xfd\x00\x90" + bytes(20), "window of 268435456 bytes"),
    "gzip for zstd": ("zstd", gzip.compress(b"one"), "damaged"),
    "unknown": ("bzip2", b"", "unknown compression, 'bzip2'"),
}  # fmt: skip


@pytest.mark.parametrize(("compression", "packed", "problem"), BROKEN.values(), ids=BROKEN)
def test_what_is_damaged_cut_off_or_added_is_refused(compression: str, packed: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        unpack(packed, compression)
    assert "it.tar" in str(caught.value)


@pytest.mark.parametrize("compression", ["gzip", "xz", "zstd"])
def test_every_truncation_is_an_error(compression: str) -> None:
    packed = COMPRESS[compression](b"some content" * 10 + DATA[:100])
    for length in range(0, len(packed), 16 if compression == "xz" else 1):
        with pytest.raises(FormatError):
            unpack(packed[:length], compression)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@settings(max_examples=200)
@given(position=st.integers(0, 400), data=st.binary(min_size=1, max_size=4), step=st.integers(1, 500))
def test_corruption_is_an_error_or_changes_nothing_that_is_checked(
    compression: str, position: int, data: bytes, step: int
) -> None:
    content = DATA[:300] + bytes(5000)
    packed = bytearray(gzip.compress(content) if compression == "gzip" else zstd_streamed(content))
    packed[position : position + len(data)] = data[: max(0, len(packed) - position)]
    try:
        found = unpack(Dribble(bytes(packed), step), compression)
    except FormatError:
        return
    # What no checksum covers: gzip's name and time fields, and a zstd frame that has become skippable.
    assert found in (content, b"")


def test_an_error_stays_an_error() -> None:
    with decompressed(io.BytesIO(gzip.compress(DATA)[:-1]), "gzip", "it.tar") as reader:
        for _ in range(2):
            with pytest.raises(FormatError, match="cut off"):
                while reader.read(1 << 20):
                    pass


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_source_that_verifies_itself_explains_damaged_input(compression: str) -> None:
    """One flipped byte is told as what it is, a digest that differs, also where the decoder stumbles over it first."""
    packed = bytearray(COMPRESS[compression](DATA))
    digest = Digest.of(bytes(packed))
    packed[100_000] ^= 1
    source = VerifyingReader(io.BytesIO(bytes(packed)), digest, len(packed), "it.tar")
    with pytest.raises(VerificationError) as caught:
        unpack(source, compression)
    assert f"expected {digest}, found {Digest.of(bytes(packed))} " in str(caught.value)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_source_that_verifies_itself_is_read_to_its_verified_end(compression: str) -> None:
    packed = COMPRESS[compression](DATA)
    source = VerifyingReader(io.BytesIO(packed), Digest.of(b"another"), len(packed), "it.tar")
    with pytest.raises(VerificationError, match="does not match its digest"):
        unpack(source, compression)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_output_beyond_the_ceiling_is_refused(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = COMPRESS[compression](bytes(3_000_000))
    monkeypatch.setattr(shim.image.archive, "MAX_UNPACKED", 3_000_000)
    assert unpack(packed, compression) == bytes(3_000_000)
    monkeypatch.setattr(shim.image.archive, "MAX_UNPACKED", 2_999_999)
    with pytest.raises(FormatError, match=r"it\.tar unpacks to more than 2999999 bytes"):
        unpack(packed, compression)


MEASURE = """
import resource, sys
import shim.image.archive as archive
archive._XZ = tuple(a.replace("--threads=0", "--threads=16") for a in archive._XZ)  # a machine with many cores
with open(sys.argv[1], "rb") as packed, archive.decompressed(packed, sys.argv[2], "it.tar") as reader:
    print(sum(map(len, iter(lambda: reader.read(1 << 20), b""))))
# Not ru_maxrss for this process: that begins with what the parent had when it forked.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def measure(packed: Path, compression: str) -> tuple[int, int]:
    """Return the size of what `packed` holds, and the peak memory (KiB) of reading it, children included."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", MEASURE, str(packed), compression]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True)
    size, own, child = map(int, done.stdout.split())
    return size, own + child


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "compressor"),
    [
        ("gzip", zlib.compressobj(1, wbits=31)),
        ("xz", lzma.LZMACompressor(preset=0)),
        ("zstd", zstandard.ZstdCompressor().compressobj()),
    ],
    ids=["gzip", "xz", "zstd"],
)
def test_a_bomb_comes_out_piece_by_piece(compression: str, compressor: Any, tmp_path: Path) -> None:
    packed = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(256)) + compressor.flush()
    assert len(packed) < 2 << 20
    (tmp_path / "bomb").write_bytes(packed)
    size, memory = measure(tmp_path / "bomb", compression)
    assert size == 256 << 20
    assert memory < 120_000


@pytest.mark.slow
def test_xz_holds_its_memory_with_many_threads(tmp_path: Path) -> None:
    """Blocks of 24 MiB, as `xz -6 -T0` makes them, of which six at once would take 220 MB."""
    # Letters out of four: it takes long enough to decode that all threads are at work.
    data = random.Random(2).randbytes(24 << 20).translate(b"acgt" * 64) * 6
    command = ["xz", "--stdout", "--threads=2", "--block-size=24MiB", "--lzma2=preset=0,dict=8MiB"]
    (tmp_path / "packed").write_bytes(run(command, data=data, what="packing"))
    size, memory = measure(tmp_path / "packed", "xz")
    assert size == len(data)
    assert memory < 150_000


def test_xz_admits_the_largest_preset() -> None:
    assert unpack(lzma.compress(b"one", preset=9), "xz") == b"one"


HEADS: dict[str, tuple[bytes, str | None]] = {
    **{name: (COMPRESS[name](b"x" * 600), name) for name in ("gzip", "xz", "zstd")},
    "a skippable zstd frame": (SKIPPABLE, "zstd"),
    "ustar": (bytes(257) + b"ustar\x0000", "none"),
    "GNU tar": (bytes(257) + b"ustar  \0", "none"),
    "an empty tar": (bytes(1024), "none"),
    "nothing": (b"", None),
    "half a magic": (b"\x1f", None),
    "too few zeros": (bytes(100), None),
    "HTML": (b"<!DOCTYPE html>", None),
    "squashfs": (b"hsqs", None),
    "bzip2": (b"BZh9", None),
}


@pytest.mark.parametrize(("head", "compression"), HEADS.values(), ids=HEADS)
def test_the_first_bytes_tell_the_compression(head: bytes, compression: str | None) -> None:
    assert sniff(head) == compression
