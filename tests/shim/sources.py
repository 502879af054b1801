"""Small root filesystems, as archives and as images, to seed from."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Callable, Mapping, Sequence

import zstandard

from shim.image import model
from shim.image.digest import Digest
from shim.image.model import Manifest, Platform, canonical_json, parse_manifest
from shim.image.repository import Repository
from tests.shim import tars

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}
SUFFIXES = {"none": "", "gzip": "+gzip", "zstd": "+zstd"}
AMD64 = Platform("linux", "amd64")

ROOTFS = tars.rootfs(
    tars.directory(b"./usr/bin/", mode=0o755),
    tars.file(b"./usr/bin/su", b"#!" * 5000, mode=0o4755, mtime=1_700_000_000),
    tars.file(b"./usr/bin/mail", b"#!", mode=0o2711, gid=8),
    tars.link(b"./usr/bin/sh", b"/usr/bin/su"),
    tars.link(b"./usr/sbin/su", b"./usr/bin/su", b"1"),
    tars.directory(b"./home/", mode=0o700, uid=1000, gid=1000, mtime=5),
)


def push(
    repository: Repository,
    layers: Sequence[bytes],
    tag: str | None = None,
    *,
    compression: str = "zstd",
    platform: Platform = AMD64,
    members: Mapping[str, object] | None = None,
) -> Digest:
    """Store an image with these uncompressed layers, and return its digest. `members` are the manifest's own."""
    descriptors = []
    for data in layers:
        with repository.new_blob() as blob:
            blob.write(COMPRESSIONS[compression](data))
            descriptors.append(blob.commit(model.OCI_LAYER + SUFFIXES[compression]))
    config = {
        "architecture": platform.architecture,
        "os": platform.os,
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers]},
    }
    document = {
        "schemaVersion": 2,
        "mediaType": model.OCI_MANIFEST,
        "config": repository.put_blob(canonical_json(config), model.OCI_CONFIG).to_json(),
        "layers": [descriptor.to_json() for descriptor in descriptors],
    }
    manifest = parse_manifest(canonical_json(document | dict(members or {})), None, "an image")
    assert isinstance(manifest, Manifest)
    repository.put_manifest(manifest, tag)
    return manifest.descriptor.digest
