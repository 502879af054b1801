"""Reading a published preset back, and saying what holds, what does not, and what nobody here can tell.

The chain: the reference → the raw index → the manifests → the configs and layers, each by digest and size; then what
the documents say, against each other and against the catalog; then the layers' contents; then, where the upstream
still has the build, the signed archive itself. Without that last step, "the layer is the signed archive, decompressed"
rests on the builder's word, and is called so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from presetbuild.build import Options
from presetbuild.catalog import Catalog, Preset
from presetbuild.fetch import open_source
from presetbuild.findings import Audit, State
from presetbuild.image import (
    OCI,
    PRESET_NAME,
    PROVISIONING,
    SIZE,
    UPSTREAM_BUILD,
    UPSTREAM_KEY,
    UPSTREAM_SHA256,
    UPSTREAM_URL,
    dated_tag,
    platform_tag,
)
from presetbuild.keys import default_signing_keys, open_keyring
from presetbuild.publish import open_repository, read_config
from presetbuild.upstream import lxc
from presetbuild.verify import check_contents, verify_archive, verify_list
from shim.errors import FormatError, NotFound, Refused, Unavailable, VerificationError, printable
from shim.image.archive import decompressed
from shim.image.digest import CHUNK, Digest
from shim.image.model import LAYER_COMPRESSION, Config, Descriptor, Index, Manifest, Platform
from shim.image.reference import Reference
from shim.image.repository import Repository
from shim.image.rootfs import Inspection, Inspector


@dataclass(frozen=True, slots=True)
class _Part:
    """One platform of the preset, as far as it could be read."""

    platform: Platform
    manifest: Manifest
    config: Config


def audit(reference: Reference, catalog: Catalog, options: Options | None = None, *, offline: bool = False) -> Audit:
    """Read the preset at `reference` back and check the whole chain.

    `offline` leaves the upstream alone. A difference is a finding and not an exception; raises `Unavailable` where
    the repository cannot be reached.
    """
    options = options or Options()
    repository = open_repository(reference, progress=options.progress)
    result = Audit(str(reference))
    index = _read_index(repository, reference, result)
    if index is None:
        return result
    preset = _check_claims(index, catalog, result)
    parts = [part for entry in index.manifests if (part := _read_part(repository, entry, result))]
    for part in parts:
        _check_documents(part, index, result)
        _check_layer(repository, part, preset, result, options)
    if preset and result.build:
        build = _build(result.build, parts, preset, result)
        _check_tags(repository, index, preset, build, result)
        for part in parts:
            _check_upstream(part, build, preset, result, options, offline=offline)
    return result


def _read_index(repository: Repository, reference: Reference, result: Audit) -> Index | None:
    at = reference.digest or reference.tag
    if at is None:
        tags = ", ".join(repository.tags()) or "none"
        result.note(State.DIFFERS, "reference", f"{reference} names neither a tag nor a digest; the tags are: {tags}")
        return None
    try:
        index = repository.manifest(at)
    except Refused as error:
        result.note(State.DIFFERS, "index", str(error))
        return None
    result.digest = index.descriptor.digest
    if not isinstance(index, Index):
        result.note(State.DIFFERS, "index", f"{reference} names a single image where a preset's index was expected")
        return None
    if reference.digest:
        result.note(State.HOLDS, "index", f"{len(index.raw)} bytes match the digest that was named")
    else:
        result.note(State.UNPROVEN, "index", f"the tag {at} named {result.digest} just now; a tag proves no content")
    return index


def _check_claims(index: Index, catalog: Catalog, result: Audit) -> Preset | None:
    """Check what the index says of itself against the catalog, and return the preset that it is."""
    annotations = index.annotations
    name, build = annotations.get(PRESET_NAME), annotations.get(UPSTREAM_BUILD)
    with result.check("index", f"it is build {build} of the preset {name}"):
        if name is None or build is None:
            raise FormatError(f"the index names no preset and build ({PRESET_NAME}, {UPSTREAM_BUILD})")
        created = f"{lxc.parse_build(build):%Y-%m-%dT%H:%M:%SZ}"
        _expect(annotations.get(OCI + "created"), created, OCI + "created")
        _expect(annotations.get(OCI + "version"), build, OCI + "version")
        _expect(annotations.get(OCI + "title"), name, OCI + "title")
        result.preset, result.build = name, build
    preset = catalog.presets.get(result.preset or "")
    if preset is None:
        result.note(
            State.UNPROVEN, "catalog", f"it has no preset {printable(name or '?')}, so nothing was compared with it"
        )
        return None
    with result.check("catalog", "source, provisioning, platforms and signing key are the catalog's"):
        _expect(annotations.get(OCI + "source"), catalog.source, OCI + "source")
        _expect(annotations.get(PROVISIONING), ",".join(preset.provisioning), PROVISIONING)
        pinned = {key.fingerprint for key in preset.upstream.keys}
        for key in annotations.get(UPSTREAM_KEY, "").split(","):
            if key not in pinned:
                raise VerificationError(f"{UPSTREAM_KEY} is {printable(key)}, which the catalog does not pin")
        foreign = {str(entry.platform) for entry in index.manifests} - set(map(str, preset.platforms))
        if foreign:
            raise VerificationError(f"the index holds {printable(', '.join(foreign))}, which the catalog does not list")
    missing = set(map(str, preset.platforms)) - {str(entry.platform) for entry in index.manifests}
    if missing:
        result.note(
            State.UNPROVEN, "index", f"it has nothing for {', '.join(sorted(missing))}, which the catalog lists"
        )
    return preset


def _read_part(repository: Repository, entry: Descriptor, result: Audit) -> _Part | None:
    """Read one platform's manifest and config, each by digest and size."""
    platform = entry.platform
    if platform is None:
        result.note(
            State.DIFFERS, "index", f"its entry {entry.digest} names no platform, which every one of a preset does"
        )
        return None
    subject = printable(str(platform))
    manifest = result.attempt(
        f"{subject} manifest", f"{entry.size} bytes match {entry.digest}", lambda: _single(repository.manifest(entry))
    )
    if manifest is None:
        return None
    config = result.attempt(
        f"{subject} config",
        f"{manifest.config.size} bytes match {manifest.config.digest}",
        lambda: read_config(repository, manifest.config),
    )
    return _Part(platform, manifest, config) if config else None


def _single(found: Manifest | Index) -> Manifest:
    if isinstance(found, Index):
        raise FormatError(f"{found.descriptor.digest} is an index inside an index, which no preset is")
    return found


def _check_documents(part: _Part, index: Index, result: Audit) -> None:
    """Check index, manifest and config of one platform against each other."""
    annotations = part.manifest.annotations
    with result.check(f"{part.platform} manifest", "its annotations are the index's and its config's labels"):
        for key, value in index.annotations.items():
            if key == UPSTREAM_KEY and annotations.get(key, "") in value.split(","):
                continue
            _expect(annotations.get(key), value, f"the annotation {key}")
        for key in sorted(annotations.keys() | part.config.labels.keys()):
            _expect(part.config.labels.get(key), annotations.get(key), f"the label {key}")
        _expect(str(part.config.platform), str(part.platform), "the config's platform")
        _expect(part.config.created, annotations.get(OCI + "created"), "the config's created")
        inner = json.loads(part.config.raw).get("config", {})
        if set(inner) - {"Labels"}:
            raise VerificationError(
                f"the config sets {printable(', '.join(sorted(set(inner) - {'Labels'})))}; no preset does"
            )


def _check_layer(repository: Repository, part: _Part, preset: Preset | None, result: Audit, options: Options) -> None:
    """Read a layer to its end: its digest, its diff ID, and what it holds."""
    subject = f"{part.platform} layer"
    diff_ids = part.config.diff_ids
    if len(part.manifest.layers) != 1 or len(diff_ids) != 1:
        result.note(State.DIFFERS, subject, f"it has {len(part.manifest.layers)} layers where a preset has one")
        return
    inspection = result.attempt(
        subject,
        f"it matches its digest, and decompressed it is {diff_ids[0]}",
        lambda: _read_layer(repository, part.manifest.layers[0], diff_ids[0]),
    )
    if inspection is None:
        return
    with result.check(subject, f"it has the {inspection.size} bytes that {SIZE} states"):
        _expect(part.manifest.annotations.get(SIZE), str(inspection.size), SIZE)
    if preset is None:
        return
    with result.check(subject, "it is the root filesystem that the catalog describes"):
        check_contents(inspection, preset, part.platform, what=f"the {subject}")


def _read_layer(repository: Repository, layer: Descriptor, diff_id: Digest) -> Inspection:
    what = f"the layer {layer.digest}"
    compression = LAYER_COMPRESSION.get(layer.media_type)
    if compression is None:
        raise FormatError(f"{what} has the media type {printable(layer.media_type)}, which is no layer's")
    inspector = Inspector(what)
    hasher = hashlib.sha256()
    with repository.open_blob(layer) as blob:
        try:
            with decompressed(blob, compression, what) as tar:
                while data := tar.read(CHUNK):
                    hasher.update(data)
                    inspector.feed(data)
            blob.finish()
            inspection = inspector.finish()
        except FormatError:
            blob.finish()  # a digest that does not match says more than what the wrong bytes decode to
            raise
    _expect(f"sha256:{hasher.hexdigest()}", str(diff_id), f"the decompressed {what.removeprefix('the ')}")
    return inspection


def _build(name: str, parts: Sequence[_Part], preset: Preset, result: Audit) -> lxc.Build:
    """Return the build that the labels name, with each platform's directory below the catalog's upstream."""
    directories = {}
    for part in parts:
        url = part.manifest.annotations.get(UPSTREAM_URL, "")
        base = preset.upstream.url.rstrip("/") + "/"
        with result.check(f"{part.platform} manifest", f"{UPSTREAM_URL} lies in the catalog's upstream"):
            if not url.startswith(base) or not url.endswith(f"/{name}/{lxc.ARCHIVE}"):
                raise VerificationError(f"{UPSTREAM_URL} is {printable(url)}, expected {base}…/{name}/{lxc.ARCHIVE}")
            directories[part.platform] = url.removeprefix(base).removesuffix(lxc.ARCHIVE)
    return lxc.Build(name, lxc.parse_build(name), directories)


def _check_tags(repository: Repository, index: Index, preset: Preset, build: lxc.Build, result: Audit) -> None:
    tags = {dated_tag(preset, build): index.descriptor.digest}
    for entry in index.manifests:
        if entry.platform:
            tags[platform_tag(preset, build, entry.platform)] = entry.digest
    for tag, digest in tags.items():
        found = repository.resolve(tag)
        if found is None:
            result.note(State.UNPROVEN, "tags", f"there is no tag {tag}; it may have been retired, or not copied along")
        else:
            with result.check("tags", f"{tag} names {digest}"):
                _expect(str(found), str(digest), f"the tag {tag}")


def _check_upstream(
    part: _Part, build: lxc.Build, preset: Preset, result: Audit, options: Options, *, offline: bool
) -> None:
    """Establish from the upstream's signed list and archive that the layer is that archive, where that can be done."""
    subject = f"{part.platform} provenance"
    word = "that the layer is the signed archive, decompressed, rests on the builder's word"
    if offline or part.platform not in build.directories:
        result.note(State.UNPROVEN, subject, f"{word}: the upstream was not asked")
        return
    try:
        _compare_with_upstream(part, build, preset, options)
    except (NotFound, Unavailable) as error:
        result.note(State.UNPROVEN, subject, f"{word}: {error}")
    except Refused as error:
        result.note(State.DIFFERS, subject, str(error))
    else:
        result.note(State.HOLDS, subject, "the upstream's signed archive, decompressed, is the layer")


def _compare_with_upstream(part: _Part, build: lxc.Build, preset: Preset, options: Options) -> None:
    source = open_source(options.mirror or preset.upstream.url, progress=options.progress)
    keys = options.signing_keys or default_signing_keys()
    with open_keyring(keys, preset.upstream.keys, include_retired=True) as keyring:
        untrusted = lxc.fetch_lists(source, build, part.platform, preset.upstream.url)
        signed = verify_list(untrusted, keyring, now=options.now or datetime.now(UTC))
    _expect(part.manifest.annotations.get(UPSTREAM_KEY), signed.signature.primary, UPSTREAM_KEY)
    _expect(part.manifest.annotations.get(UPSTREAM_SHA256), signed.archive_digest.encoded, UPSTREAM_SHA256)
    directory = build.directories[part.platform]
    verified = verify_archive(signed, preset, lambda name: source.open(directory + name, lxc.ARCHIVE_LIMIT))
    hasher = hashlib.sha256()
    for data in verified.chunks():
        hasher.update(data)
    _expect(str(part.config.diff_ids[0]), f"sha256:{hasher.hexdigest()}", "the diff ID")


def _expect(found: str | None, expected: str | None, what: str) -> None:
    if found != expected:
        shown = "absent" if found is None else printable(found)
        raise VerificationError(f"{what} is {shown}, expected {'nothing' if expected is None else printable(expected)}")
