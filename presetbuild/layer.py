"""From a verified archive to the one layer of a preset: the archive's decompressed bytes, unchanged.

The parameters of the compression decide the digest of the layer, so they are constants, and with zstd the version of
the library is one too: equal digests on every machine are promised for zstd, and not for gzip, whose bytes differ
between builds of zlib. Source: OCI image specification, layer.md; RFC 8878 for zstd.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import Protocol

import zstandard

from presetbuild.verify import SignedList, Verified
from shim.errors import Refused
from shim.image.digest import Digest
from shim.image.model import OCI_LAYER, Descriptor
from shim.image.repository import BlobWriter

ZSTD_LIBRARY = (1, 5, 7)
ZSTD_LEVEL = 3
GZIP_LEVEL = 6


class Compressor(Protocol):
    """The part of a compression object that is used here."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Layer:
    """A verified archive as a layer in a repository."""

    signed: SignedList
    descriptor: Descriptor
    diff_id: Digest
    size: int  # bytes, decompressed
    compression: str  # what made it, with its version and level


@dataclass(frozen=True, slots=True)
class PendingLayer:
    """A layer that was written and verified whole, and that nobody else can see before `commit`."""

    signed: SignedList
    diff_id: Digest
    size: int
    compression: str
    media_type: str
    _blob: BlobWriter

    def commit(self) -> Layer:
        """Finalise the layer in its repository; raises what the repository raises."""
        descriptor = self._blob.commit(self.media_type)
        return Layer(self.signed, descriptor, self.diff_id, self.size, self.compression)


def write_layer(verified: Verified, blob: BlobWriter, compression: str) -> PendingLayer:
    """Read `verified` to its end, write it compressed to `blob`, and return the layer that can now be committed.

    `compression` is ``zstd`` or ``gzip``. Raises what `Verified.chunks` raises, and the blob with it is worthless then.
    """
    compressor = new_compressor(compression)
    hasher = hashlib.sha256()
    size = 0
    for data in verified.chunks():
        hasher.update(data)
        size += len(data)
        if compressed := compressor.compress(data):
            blob.write(compressed)
    blob.write(compressor.flush())
    return PendingLayer(
        signed=verified.signed,
        diff_id=Digest("sha256", hasher.hexdigest()),
        size=size,
        compression=describe_compression(compression),
        media_type=f"{OCI_LAYER}+{compression}",
        _blob=blob,
    )


def new_compressor(compression: str) -> Compressor:
    """Return a compressor of the fixed parameters; raises `Refused` where this machine's zstd would differ."""
    if compression == "gzip":
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, wbits=31)
    if zstandard.ZSTD_VERSION != ZSTD_LIBRARY:
        raise Refused(
            f"layers are compressed with zstd {_version(ZSTD_LIBRARY)}, because its version decides their digests, and "
            f"this python has {_version(zstandard.ZSTD_VERSION)}; install the zstandard release that the project's "
            "lock names"
        )
    # No threads, no pledged size: both change the bytes. The chunks that are fed in do not.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        ZSTD_LEVEL, write_checksum=True, write_content_size=False, write_dict_id=False, threads=0
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compressobj()


def describe_compression(compression: str) -> str:
    """Return what makes a layer of this compression, as a published image records it."""
    if compression == "gzip":
        return f"gzip level {GZIP_LEVEL}"
    return f"zstd {_version(ZSTD_LIBRARY)} level {ZSTD_LEVEL}"


def _version(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))
