"""The compression decides digests, so its bytes are fixed here."""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Iterable

import pytest
import zstandard

from presetbuild import layer
from shim.errors import Refused

# These change only together with a note in CHANGELOG.md: every preset that is built after that has another digest.
GOLDEN = "f4b7630ad1f3533aa71d35f0e151e926f73f1e2eb1aaf96d0d5a0df069b9ab85"
_PAGES = 700


def compressible(seed: int = 0) -> bytes:
    """Return 2.8 MB that compress by half, the same on every python."""
    rng = random.Random(seed)
    return b"".join(bytes(rng.getrandbits(8) for _ in range(64)) * 32 + b"compressible " * 160 for _ in range(_PAGES))


def compress(chunks: Iterable[bytes], compression: str = "zstd") -> bytes:
    compressor = layer.new_compressor(compression)
    return b"".join([*(compressor.compress(chunk) for chunk in chunks), compressor.flush()])


def test_the_bytes_of_a_zstd_layer_are_golden() -> None:
    assert hashlib.sha256(compress([compressible()])).hexdigest() == GOLDEN


@pytest.mark.parametrize("size", [1, 4096, 65537, 1 << 20])
def test_how_the_archive_is_cut_into_chunks_changes_nothing(size: int) -> None:
    data = compressible()[: 1 << 20 if size > 1 else 5000]
    assert compress(data[start : start + size] for start in range(0, len(data), size)) == compress([data])


@pytest.mark.parametrize(("compression", "tool"), [("zstd", "zstd"), ("gzip", "gzip")])
def test_the_tools_of_the_format_read_a_layer(compression: str, tool: str) -> None:
    data = compressible(1)
    done = subprocess.run([tool, "-dc"], input=compress([data], compression), capture_output=True, check=True)
    assert done.stdout == data


def test_a_frame_states_no_size_and_carries_a_checksum() -> None:
    frame = zstandard.get_frame_parameters(compress([b"x" * 100]))
    assert frame.content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert frame.has_checksum
    assert frame.dict_id == 0


def test_a_gzip_layer_states_no_time_and_no_name() -> None:
    assert compress([b"x"], "gzip")[:9] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00"


def test_another_zstd_is_refused_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstandard, "ZSTD_VERSION", (1, 6, 0))
    with pytest.raises(
        Refused, match=r"compressed with zstd 1\.5\.7, .* this python has 1\.6\.0; install the zstandard"
    ):
        layer.new_compressor("zstd")
    assert compress([b"x"], "gzip")
