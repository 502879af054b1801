"""From layers to the documents of a preset: a config and a manifest for each platform, and one index over them.

Nothing here depends on when, where or by which machine it is made: the same layers and the same catalog give the same
bytes. Source: OCI image specification, config.md, manifest.md, image-index.md, annotations.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from presetbuild.catalog import Catalog, Preset
from presetbuild.layer import Layer
from presetbuild.upstream.lxc import ARCHIVE, Build
from shim.errors import printable
from shim.image.digest import Digest
from shim.image.model import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Index,
    Manifest,
    Platform,
    canonical_json,
)

OCI = "org.opencontainers.image."
PRESET = "io.stateful-pods.preset."

TITLE, VERSION, CREATED, SOURCE = OCI + "title", OCI + "version", OCI + "created", OCI + "source"
PRESET_NAME, PROVISIONING = PRESET + "name", PRESET + "provisioning"
UPSTREAM_BUILD, UPSTREAM_KEY = PRESET + "upstream.build", PRESET + "upstream.key"
#: What an index states, and each of its manifests too.
COMMON = (TITLE, VERSION, CREATED, SOURCE, PRESET_NAME, PROVISIONING, UPSTREAM_BUILD, UPSTREAM_KEY)

URL = OCI + "url"
UPSTREAM_URL, UPSTREAM_SHA256 = PRESET + "upstream.url", PRESET + "upstream.sha256"
SIZE, DIFF_ID, COMPRESSION = PRESET + "size", PRESET + "diff-id", PRESET + "compression"
#: What only a manifest states, because it differs by platform.
OWN = (URL, UPSTREAM_URL, UPSTREAM_SHA256, SIZE, DIFF_ID, COMPRESSION)


@dataclass(frozen=True, slots=True)
class Image:
    """One platform of a preset: its raw config, and the manifest that names it."""

    platform: Platform
    config: bytes
    manifest: Manifest


def dated_tag(preset: Preset, build: Build) -> str:
    """Return the tag that names this build of the preset for ever, such as ``trixie-20260829_0524``."""
    return f"{preset.release}-{build.tag_suffix}"


def platform_tag(preset: Preset, build: Build, platform: Platform) -> str:
    """Return the tag that names one platform's manifest of a build, such as ``trixie-20260829_0524-arm64``."""
    return "-".join(filter(None, (dated_tag(preset, build), platform.architecture, platform.variant)))


def common_annotations(catalog: Catalog, preset: Preset, build: Build, keys: Iterable[str]) -> dict[str, str]:
    """Return what an index and its manifests both state. `keys` are the fingerprints that signed."""
    return {
        TITLE: preset.name,
        VERSION: build.name,
        CREATED: f"{build.created:%Y-%m-%dT%H:%M:%SZ}",
        SOURCE: catalog.source,
        PRESET_NAME: preset.name,
        UPSTREAM_BUILD: build.name,
        UPSTREAM_KEY: ",".join(sorted(set(keys))),
        PROVISIONING: ",".join(preset.provisioning),
    }


def annotations_of(catalog: Catalog, preset: Preset, layer: Layer) -> dict[str, str]:
    """Return what the manifest of a layer states, and its config's labels too."""
    signed = layer.signed
    return common_annotations(catalog, preset, signed.build, [signed.signature.primary]) | {
        URL: signed.url,
        UPSTREAM_URL: signed.url + ARCHIVE,
        UPSTREAM_SHA256: signed.archive_digest.encoded,
        SIZE: str(layer.size),
        DIFF_ID: str(layer.diff_id),
        COMPRESSION: layer.compression,
    }


def make_config(platform: Platform, annotations: Mapping[str, str]) -> bytes:
    """Return the config of an image of one layer; its diff ID and the time are those that `annotations` state."""
    return canonical_json(
        {
            "created": annotations.get(CREATED),
            "architecture": platform.architecture,
            "os": platform.os,
            **({"variant": platform.variant} if platform.variant else {}),
            "config": {"Labels": dict(annotations)},
            "rootfs": {"type": "layers", "diff_ids": [annotations.get(DIFF_ID)]},
        }
    )


def make_image(platform: Platform, layer: Descriptor, annotations: Mapping[str, str]) -> Image:
    """Return the config and the manifest over one layer.

    The documents are a function of the arguments alone, so whoever has read a published manifest can make them again
    and compare every byte.
    """
    config = make_config(platform, annotations)
    descriptor = Descriptor(OCI_CONFIG, Digest.of(config), len(config))
    layer = Descriptor(layer.media_type, layer.digest, layer.size)
    raw = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor.to_json(),
            "layers": [layer.to_json()],
            "annotations": dict(annotations),
        }
    )
    return Image(platform, config, Manifest(raw, OCI_MANIFEST, descriptor, (layer,), annotations))


def make_index(annotations: Mapping[str, str], manifests: Iterable[Descriptor]) -> Index:
    """Return the index over `manifests`, each with its platform, in the order given."""
    entries = tuple(
        Descriptor(OCI_MANIFEST, manifest.digest, manifest.size, manifest.platform) for manifest in manifests
    )
    raw = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [entry.to_json() for entry in entries],
            "annotations": dict(annotations),
        }
    )
    return Index(raw, OCI_INDEX, entries, annotations)


def difference(found: bytes, expected: bytes) -> str | None:
    """Return where a published document differs from the `expected` bytes, in words; None if it is the same.

    Every byte counts: a field that we do not know, or that is spelled in another case, may be what another tool reads.
    """
    if found == expected:
        return None
    return _first_difference(json.loads(found), json.loads(expected), "") or "it is the same JSON, written otherwise"


def _first_difference(found: object, expected: object, path: str) -> str | None:
    if isinstance(found, dict) and isinstance(expected, dict):
        pairs = [(f"{path}.{key}".lstrip("."), found.get(key), expected.get(key)) for key in sorted(found | expected)]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(f"{path}[{number}]", *pair) for number, pair in enumerate(zip(found, expected, strict=True))]
    elif found == expected:
        return None
    else:
        words = ["nothing" if value is None else printable(json.dumps(value)) for value in (found, expected)]
        return f"{printable(path)} is {words[0]}, expected {words[1]}"
    return next(filter(None, (_first_difference(there, here, where) for where, there, here in pairs)), None)
