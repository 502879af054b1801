"""What an image is made of: descriptors, platforms, configs, manifests and indexes.

Each parsed form keeps the raw bytes that it was read from, because a digest is over those and not over what a JSON
library would write again. Source: OCI image specification v1.1 (descriptor.md, manifest.md, image-index.md, config.md)
and Docker's schema 2, which is read and never written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from shim.errors import FormatError, NotFound, VerificationError, printable
from shim.image.digest import Digest
from shim.image.document import read_object, shape

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"

INDEX_TYPES = (OCI_INDEX, DOCKER_LIST)
MANIFEST_TYPES = (OCI_MANIFEST, DOCKER_MANIFEST)
CONFIG_TYPES = (OCI_CONFIG, DOCKER_CONFIG)

#: The compression that a layer's media type declares.
LAYER_COMPRESSION: Mapping[str, str] = MappingProxyType(
    {
        OCI_LAYER: "none",
        OCI_LAYER + "+gzip": "gzip",
        OCI_LAYER + "+zstd": "zstd",
        DOCKER_LAYER: "none",
        DOCKER_LAYER + ".gzip": "gzip",
        DOCKER_LAYER + ".zstd": "zstd",
    }
)

MAX_MANIFEST = 4 << 20  # bytes; the least that the distribution specification asks registries to accept

MAX_SIZE = 2**63 - 1  # bytes; other readers hold a size in 64 bits

_UNSPECIFIC = (None, "application/json", "text/plain")  # what servers say that know no media types of images
_NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})

# Names that people choose, such as labels, are in none of these.
_PLATFORM = shape("architecture os os.version os.features variant features")
_DESCRIPTOR = shape("mediaType digest size urls annotations data artifactType", platform=_PLATFORM)
_MANIFEST = shape(
    "schemaVersion mediaType artifactType annotations",
    config=_DESCRIPTOR,
    layers=_DESCRIPTOR,
    manifests=_DESCRIPTOR,
    subject=_DESCRIPTOR,
)
_CONFIG = shape(
    "created author architecture os os.version os.features variant",
    config=shape(
        "User ExposedPorts Env Entrypoint Cmd Volumes WorkingDir Labels StopSignal StopTimeout ArgsEscaped Memory "
        "MemorySwap CpuShares OnBuild Shell",
        Healthcheck=shape("Test Interval Timeout StartPeriod StartInterval Retries"),
    ),
    rootfs=shape("type diff_ids"),
    history=shape("created created_by author comment empty_layer"),
)


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system, an architecture and its variant, such as ``linux/arm64``.

    Architecture names are GOARCH's. arm64 without a variant is v8, as containerd and Docker read it, so the two
    compare equal and print alike.
    """

    os: str
    architecture: str
    variant: str | None = None

    def __post_init__(self) -> None:
        if (self.architecture, self.variant) == ("arm64", "v8"):
            object.__setattr__(self, "variant", None)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the platform that `text` writes as ``os/architecture[/variant]``; raises `FormatError`."""
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(part.isascii() and part.isalnum() for part in parts):
            raise FormatError(f"malformed platform {printable(text)!r}: expected OS/ARCH, such as linux/amd64")
        return cls(*parts)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What points at content: its media type, digest and size in bytes."""

    media_type: str
    digest: Digest
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=lambda: _NO_ANNOTATIONS, hash=False)
    artifact_type: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that stands for this descriptor."""
        value: dict[str, Any] = {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        if self.platform:
            value["platform"] = {"architecture": self.platform.architecture, "os": self.platform.os}
            if self.platform.variant:
                value["platform"]["variant"] = self.platform.variant
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value


@dataclass(frozen=True, slots=True)
class Config:
    """An image's configuration: its platform, the diff IDs of its layers, and its labels."""

    raw: bytes
    platform: Platform
    diff_ids: tuple[Digest, ...]
    labels: Mapping[str, str]
    created: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image: a config and layers, lowest first."""

    raw: bytes
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]
    subject: Descriptor | None = None
    artifact_type: str | None = None

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor of the raw bytes."""
        return Descriptor(self.media_type, Digest.of(self.raw), len(self.raw))


@dataclass(frozen=True, slots=True)
class Index:
    """Several images, one for each platform."""

    raw: bytes
    media_type: str
    manifests: tuple[Descriptor, ...]
    annotations: Mapping[str, str]
    subject: Descriptor | None = None

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor of the raw bytes."""
        return Descriptor(self.media_type, Digest.of(self.raw), len(self.raw))

    def select(self, platform: Platform, what: str = "the index") -> Descriptor:
        """Return the descriptor of the image for `platform`; raises `NotFound` with the platforms that there are.

        An entry without a platform, or for ``unknown/unknown`` (an attestation), is never an image to run. An exact
        match wins over one whose variant the request leaves open; two that match equally well are refused.
        """
        images = [entry for entry in self.manifests if entry.platform and entry.platform.os != "unknown"]
        matches = [entry for entry in images if entry.platform == platform] or [
            entry
            for entry in images
            if platform.variant is None
            and entry.platform
            and (entry.platform.os, entry.platform.architecture) == (platform.os, platform.architecture)
        ]
        if len({entry.digest for entry in matches}) > 1:
            raise FormatError(f"{what} holds {len(matches)} images for {platform}; which one is meant cannot be told")
        if not matches:
            there = ", ".join(printable(str(entry.platform)) for entry in images) or "none"
            raise NotFound(f"{what} holds no image for {platform}; it holds: {there}")
        return matches[0]


def parse_manifest(raw: bytes, media_type: str | None, what: str) -> Manifest | Index:
    """Return the manifest or index that `raw` holds.

    `media_type` is what a registry or a descriptor said it is (None: nothing was said); the document's own
    ``mediaType``, where it has one, must agree. `what` names the document in messages. Raises `FormatError`: for a
    schema 1 manifest, a document that is both an image and an index or neither, and anything malformed.
    """
    document = read_object(raw, _MANIFEST, what)
    declared = document.get("mediaType")
    if not isinstance(declared, str | None):
        raise FormatError(f"{what} has a mediaType that is no text")
    media_type = media_type.split(";")[0].strip() if media_type else None
    kind = declared or media_type
    if document.get("schemaVersion") == 1 or (kind or "").startswith("application/vnd.docker.distribution.manifest.v1"):
        raise FormatError(f"{what} is a Docker schema 1 manifest, which has no digests of its layers; push it again")
    if document.get("schemaVersion") != 2:
        raise FormatError(f"{what} has schemaVersion {printable(str(document.get('schemaVersion')))}; expected 2")
    if declared is not None and media_type not in (*_UNSPECIFIC, declared):
        raise FormatError(
            f"{what} was announced as {printable(str(media_type))} and says that it is {printable(declared)}"
        )
    if ("layers" in document or "config" in document) and "manifests" in document:
        raise FormatError(f"{what} has both layers and manifests: it reads as an image and as an index")
    if kind not in INDEX_TYPES + MANIFEST_TYPES:
        if declared is not None or media_type not in _UNSPECIFIC:
            raise FormatError(f"{what} has the media type {printable(str(kind))}, which is no image or index")
        kind = OCI_INDEX if "manifests" in document else OCI_MANIFEST
    annotations = _strings(document.get("annotations"), f"the annotations of {what}")
    subject = None if document.get("subject") is None else _descriptor(document["subject"], f"the subject of {what}")
    if kind in INDEX_TYPES:
        return Index(raw, kind, _descriptors(document, "manifests", what), annotations, subject)
    artifact_type = document.get("artifactType")
    if artifact_type is not None and not isinstance(artifact_type, str):
        raise FormatError(f"{what} has an artifactType that is no text")
    return Manifest(
        raw=raw,
        media_type=kind,
        config=_descriptor(document.get("config"), f"the config of {what}"),
        layers=_descriptors(document, "layers", what),
        annotations=annotations,
        subject=subject,
        artifact_type=artifact_type,
    )


def parse_config(raw: bytes, what: str) -> Config:
    """Return the image configuration that `raw` holds; raises `FormatError`."""
    document = read_object(raw, _CONFIG, what)
    architecture, system, variant = (document.get(key) for key in ("architecture", "os", "variant"))
    if not isinstance(architecture, str) or not isinstance(system, str) or not isinstance(variant, str | None):
        raise FormatError(f"{what} does not name its architecture and operating system")
    rootfs = document.get("rootfs")
    if not isinstance(rootfs, dict) or rootfs.get("type") != "layers" or not isinstance(rootfs.get("diff_ids"), list):
        raise FormatError(f"{what} has no rootfs with diff_ids of type layers")
    inner = {} if document.get("config") is None else document["config"]
    created = document.get("created")
    if not isinstance(inner, dict) or not isinstance(created, str | None):
        raise FormatError(f"{what} is malformed: config must be an object and created a text")
    return Config(
        raw=raw,
        platform=Platform(system, architecture, variant or None),
        diff_ids=tuple(_digest(value, f"a diff ID of {what}") for value in rootfs["diff_ids"]),
        labels=_strings(inner.get("Labels"), f"the labels of {what}"),
        created=created,
    )


def check_raw(raw: bytes, descriptor: Descriptor, what: str) -> None:
    """Raise `VerificationError` unless `raw` has the size and the digest that `descriptor` states."""
    if len(raw) != descriptor.size:
        raise VerificationError(f"{what} has {len(raw)} bytes; its descriptor states {descriptor.size}")
    hasher = descriptor.digest.hasher()
    hasher.update(raw)
    if hasher.hexdigest() != descriptor.digest.encoded:
        raise VerificationError(
            f"{what} does not match its digest: expected {descriptor.digest}, "
            f"found {descriptor.digest.algorithm}:{hasher.hexdigest()}"
        )


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """Return the one JSON encoding that published documents use: keys sorted, no white space, UTF-8, no escapes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _descriptors(document: Mapping[str, Any], key: str, what: str) -> tuple[Descriptor, ...]:
    entries = document.get(key)
    if not isinstance(entries, list):
        raise FormatError(f"{what} has no list of {key}")
    return tuple(_descriptor(entry, f"{key}[{position}] of {what}") for position, entry in enumerate(entries))


def _descriptor(value: object, what: str) -> Descriptor:
    if not isinstance(value, dict):
        raise FormatError(f"{what} is missing or is not a descriptor")
    media_type, size, artifact_type = (value.get(key) for key in ("mediaType", "size", "artifactType"))
    if not isinstance(media_type, str) or not isinstance(artifact_type, str | None):
        raise FormatError(f"{what} has no mediaType")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_SIZE:
        raise FormatError(f"{what} has no valid size")
    return Descriptor(
        media_type=media_type,
        digest=_digest(value.get("digest"), f"the digest of {what}"),
        size=size,
        platform=_platform(value.get("platform"), what),
        annotations=_strings(value.get("annotations"), f"the annotations of {what}"),
        artifact_type=artifact_type,
    )


def _platform(value: object, what: str) -> Platform | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise FormatError(f"the platform of {what} is not an object")
    system, architecture, variant = (value.get(key) for key in ("os", "architecture", "variant"))
    if not isinstance(system, str) or not isinstance(architecture, str) or not isinstance(variant, str | None):
        raise FormatError(f"the platform of {what} does not name an operating system and an architecture")
    return Platform(system, architecture, variant or None)


def _digest(value: object, what: str) -> Digest:
    if not isinstance(value, str):
        raise FormatError(f"{what} is missing")
    try:
        return Digest.parse(value)
    except FormatError as error:
        raise FormatError(f"{what}: {error}") from error


def _strings(value: object, what: str) -> Mapping[str, str]:
    if value is None:
        return _NO_ANNOTATIONS
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise FormatError(f"{what} are not texts by name")
    return MappingProxyType(dict(value))
