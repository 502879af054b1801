"""Small images and blobs for the tests, and how they are moved."""

from __future__ import annotations

import random
from typing import Any

from shim.image import model
from shim.image.digest import Digest
from shim.image.model import Descriptor, Manifest, canonical_json, parse_manifest
from shim.image.repository import Repository

BLOB = random.Random(1).randbytes(3 << 20)
LAYER = model.OCI_LAYER + "+zstd"


def descriptor(data: bytes, media_type: str = LAYER) -> Descriptor:
    return Descriptor(media_type, Digest.of(data), len(data))


def image(media_type: str = model.OCI_MANIFEST, **more: Any) -> Manifest:
    document = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": descriptor(b"{}", model.OCI_CONFIG).to_json(),
        "layers": [descriptor(BLOB).to_json()],
    }
    parsed = parse_manifest(canonical_json(document | more), media_type, "an image")
    assert isinstance(parsed, Manifest)
    return parsed


def read(repository: Repository, at: Descriptor) -> bytes:
    with repository.open_blob(at) as reader:
        return reader.read(-1)


def upload(repository: Repository, data: bytes) -> Descriptor:
    with repository.new_blob() as blob:
        for start in range(0, len(data), 1 << 20):
            blob.write(data[start : start + (1 << 20)])
        return blob.commit(LAYER)
