"""From layers to the documents of a preset: a config and a manifest for each platform, and one index over them.

Nothing here depends on when, where or by which machine it is made: the same layers and the same catalog give the same
bytes. Source: OCI image specification, config.md, manifest.md, image-index.md, annotations.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from presetbuild.catalog import Catalog, Preset
from presetbuild.layer import Layer
from presetbuild.upstream.lxc import ARCHIVE, Build
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

PRESET_NAME = PRESET + "name"
UPSTREAM_BUILD = PRESET + "upstream.build"
UPSTREAM_KEY = PRESET + "upstream.key"
UPSTREAM_URL = PRESET + "upstream.url"
UPSTREAM_SHA256 = PRESET + "upstream.sha256"
SIZE = PRESET + "size"
PROVISIONING = PRESET + "provisioning"
COMPRESSION = PRESET + "compression"


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


def common_annotations(catalog: Catalog, preset: Preset, build: Build, keys: Sequence[str]) -> dict[str, str]:
    """Return what an index and its manifests both state. `keys` are the fingerprints that signed."""
    return {
        OCI + "title": preset.name,
        OCI + "version": build.name,
        OCI + "created": f"{build.created:%Y-%m-%dT%H:%M:%SZ}",
        OCI + "source": catalog.source,
        PRESET_NAME: preset.name,
        UPSTREAM_BUILD: build.name,
        UPSTREAM_KEY: ",".join(sorted(set(keys))),
        PROVISIONING: ",".join(preset.provisioning),
    }


def make_image(catalog: Catalog, preset: Preset, layer: Layer) -> Image:
    """Return the config and the manifest for one platform's layer."""
    signed = layer.signed
    annotations = common_annotations(catalog, preset, signed.build, [signed.signature.primary]) | {
        OCI + "url": signed.url,
        UPSTREAM_URL: signed.url + ARCHIVE,
        UPSTREAM_SHA256: signed.archive_digest.encoded,
        SIZE: str(layer.size),
        COMPRESSION: layer.compression,
    }
    platform = signed.platform
    config = canonical_json(
        {
            "created": annotations[OCI + "created"],
            "architecture": platform.architecture,
            "os": platform.os,
            **({"variant": platform.variant} if platform.variant else {}),
            "config": {"Labels": annotations},
            "rootfs": {"type": "layers", "diff_ids": [str(layer.diff_id)]},
        }
    )
    config_descriptor = Descriptor(OCI_CONFIG, Digest.of(config), len(config))
    raw = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config_descriptor.to_json(),
            "layers": [layer.descriptor.to_json()],
            "annotations": annotations,
        }
    )
    return Image(platform, config, Manifest(raw, OCI_MANIFEST, config_descriptor, (layer.descriptor,), annotations))


def make_index(annotations: Mapping[str, str], images: Sequence[Image]) -> Index:
    """Return the index over `images`, in the order given."""
    manifests = tuple(replace(image.manifest.descriptor, platform=image.platform) for image in images)
    raw = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [descriptor.to_json() for descriptor in manifests],
            "annotations": dict(annotations),
        }
    )
    return Index(raw, OCI_INDEX, manifests, annotations)
