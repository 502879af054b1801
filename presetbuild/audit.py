"""Reading a published preset back, and saying what holds, what does not, and what nobody here can tell.

The chain: the reference → the raw index → the manifests → the configs and layers, each by digest and size; then what
the documents say, against each other and against the catalog; then the layers' contents; then, where the upstream
still has the build, the signed archive itself. Without that last step, "the layer is the signed archive, decompressed"
rests on the builder's word, and is called so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack

from presetbuild.build import Options
from presetbuild.catalog import Catalog, Preset
from presetbuild.fetch import Source, open_source
from presetbuild.findings import Audit, Part, State, expect
from presetbuild.image import (
    COMMON,
    CREATED,
    PRESET_NAME,
    PROVISIONING,
    SIZE,
    SOURCE,
    TITLE,
    UPSTREAM_BUILD,
    UPSTREAM_KEY,
    UPSTREAM_URL,
    URL,
    VERSION,
    dated_tag,
    difference,
    make_config,
    make_index,
    platform_tag,
)
from presetbuild.keys import default_signing_keys, open_keyring
from presetbuild.provenance import Upstream, check_upstream
from presetbuild.publish import check_form, is_dated, open_repository, read_config
from presetbuild.upstream import lxc
from presetbuild.verify import check_contents
from shim.errors import FormatError, NotFound, Refused, Unavailable, VerificationError, printable
from shim.image.archive import decompressed
from shim.image.digest import CHUNK, Digest
from shim.image.model import LAYER_COMPRESSION, Descriptor, Index, Manifest
from shim.image.reference import Reference
from shim.image.repository import Repository
from shim.image.rootfs import Inspection, Inspector


def audit(reference: Reference, catalog: Catalog, options: Options | None = None, *, offline: bool = False) -> Audit:
    """Read the preset at `reference` back and check the whole chain.

    `offline` leaves the upstream alone. A difference is a finding and not an exception; raises `Unavailable` where
    the repository, or a mirror that `options` names, cannot be reached, `NotFound` where that mirror or the reference
    is not there, and `Refused` where this machine lacks what it takes.
    """
    options = options or Options()
    source = None
    if options.mirror is not None and not offline:
        if not options.mirror:
            raise FormatError("the mirror is an empty text; expected a URL or a directory, or no mirror at all")
        source = open_source(options.mirror, progress=options.progress)  # a mistyped mirror is told at once
    repository = open_repository(reference, progress=options.progress)
    result = Audit(str(reference))
    index = _read_index(repository, reference, result)
    if index is None:
        return result
    preset = _check_claims(index, catalog, result)
    parts = [part for entry in index.manifests if (part := _read_part(repository, entry, result))]
    with result.check("index", "it names the keys that its manifests name"):
        keys = {part.manifest.annotations.get(UPSTREAM_KEY, "") for part in parts}
        if len(parts) == len(index.manifests):
            expect(index.annotations.get(UPSTREAM_KEY), ",".join(sorted(keys)), UPSTREAM_KEY)
    for part in parts:
        _check_documents(part, index, result)
        _check_layer(repository, part, preset, result)
    try:
        _check_provenance(parts, index, preset, repository, reference, options, source, result, offline=offline)
    except (Refused, Unavailable) as error:
        if result.holds:
            raise
        # What is wrong already is the graver news, and must not be lost.
        result.note(State.UNPROVEN, "provenance", str(error))
    return result


def _check_provenance(
    parts: Sequence[Part],
    index: Index,
    preset: Preset | None,
    repository: Repository,
    reference: Reference,
    options: Options,
    source: Source | None,
    result: Audit,
    *,
    offline: bool,
) -> None:
    with ExitStack() as stack:
        upstream = None
        if preset and result.build:
            build = _build(result.build, parts, preset, result)
            _check_tags(repository, reference, index, preset, build, result)
            if not offline:
                pins, keys = preset.upstream.keys, options.signing_keys or default_signing_keys()
                keyring = stack.enter_context(open_keyring(keys, pins, include_retired=True))
                upstream = Upstream(preset, build, keyring, source, options)
        for part in parts:
            check_upstream(part, upstream, result)


def _read_index(repository: Repository, reference: Reference, result: Audit) -> Index | None:
    at = reference.digest or reference.tag
    if at is None:
        tags = ", ".join(repository.tags()) or "none"
        raise NotFound(f"{reference} names neither a tag nor a digest; the tags are: {printable(tags, 1000)}")
    try:
        index = repository.manifest(at)
    except (VerificationError, FormatError) as error:
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
    """Check what the index says of itself against its own form and the catalog, and return the preset that it is."""
    annotations = index.annotations
    shown = {key: printable(annotations.get(key, "nothing")) for key in (PRESET_NAME, UPSTREAM_BUILD)}
    with result.check("index", f"it is build {shown[UPSTREAM_BUILD]} of the preset {shown[PRESET_NAME]}"):
        missing = [key for key in COMMON if key not in annotations]
        if missing:
            raise FormatError(f"the index is no preset's: it lacks {', '.join(missing)}")
        name, build = annotations[PRESET_NAME], annotations[UPSTREAM_BUILD]
        expect(annotations[CREATED], f"{lxc.parse_build(build):%Y-%m-%dT%H:%M:%SZ}", CREATED)
        expect(annotations[VERSION], build, VERSION)
        expect(annotations[TITLE], name, TITLE)
        result.preset, result.build = name, build
    with result.check("index", "it is, to the byte, the document that presetbuild writes"):
        platforms = [entry.platform for entry in index.manifests if entry.platform]
        if not platforms or len(set(platforms)) != len(index.manifests):
            raise FormatError("the index must hold one manifest for each platform, and at least one")
        form = make_index({key: annotations[key] for key in COMMON if key in annotations}, index.manifests)
        if changed := difference(index.raw, form.raw):
            raise VerificationError(changed)
    preset = catalog.presets.get(result.preset or "")
    if preset is None:
        result.note(
            State.UNPROVEN, "catalog", f"it has no preset {shown[PRESET_NAME]}, so nothing was compared with it"
        )
        return None
    with result.check("catalog", "source, provisioning, platforms and signing key are the catalog's"):
        expect(annotations[SOURCE], catalog.source, SOURCE)
        expect(annotations[PROVISIONING], ",".join(preset.provisioning), PROVISIONING)
        pinned = {key.fingerprint for key in preset.upstream.keys}
        for key in annotations[UPSTREAM_KEY].split(","):
            if key not in pinned:
                raise VerificationError(f"{UPSTREAM_KEY} is {printable(key)}, which the catalog does not pin")
        if foreign := set(map(str, platforms)) - set(map(str, preset.platforms)):
            raise VerificationError(f"the index holds {printable(', '.join(foreign))}, which the catalog does not list")
        if platforms != [platform for platform in preset.platforms if platform in platforms]:
            raise VerificationError("the index does not list its platforms in the catalog's order")
    if missing := sorted(set(map(str, preset.platforms)) - set(map(str, platforms))):
        result.note(State.UNPROVEN, "index", f"it has nothing for {', '.join(missing)}, which the catalog lists")
    return preset


def _read_part(repository: Repository, entry: Descriptor, result: Audit) -> Part | None:
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
    return Part(platform, manifest, config) if config else None


def _single(found: Manifest | Index) -> Manifest:
    if isinstance(found, Index):
        raise FormatError(f"{found.descriptor.digest} is an index inside an index, which no preset is")
    return found


def _check_documents(part: Part, index: Index, result: Audit) -> None:
    """Check manifest and config of one platform against the index, each other, and the form that presetbuild writes."""
    annotations = part.manifest.annotations
    with result.check(f"{part.shown} manifest", "it and its config are, to the byte, what its annotations describe"):
        for key, value in index.annotations.items():
            if key == UPSTREAM_KEY and annotations.get(key, "") in value.split(","):
                continue
            expect(annotations.get(key), value, f"the annotation {printable(key)}")
        if len(part.manifest.layers) != 1:
            raise FormatError(f"it has {len(part.manifest.layers)} layers where a preset has one")
        if changed := difference(part.config.raw, make_config(part.platform, annotations)):
            raise VerificationError(f"the config differs: {changed}")
        check_form(part.manifest, part.platform, part.shown)
        expect(annotations[UPSTREAM_URL], annotations[URL] + lxc.ARCHIVE, UPSTREAM_URL)


def _check_layer(repository: Repository, part: Part, preset: Preset | None, result: Audit) -> None:
    """Read a layer to its end: its digest, its diff ID, and what it holds."""
    subject = f"{part.shown} layer"
    diff_ids = part.config.diff_ids
    if len(part.manifest.layers) != 1 or len(diff_ids) != 1:
        result.note(
            State.DIFFERS, subject, f"{len(part.manifest.layers)} layers, {len(diff_ids)} diff IDs; expected one"
        )
        return
    inspection = result.attempt(
        subject,
        f"it matches its digest, and decompressed it is {diff_ids[0]}",
        lambda: _read_layer(repository, part.manifest.layers[0], diff_ids[0]),
    )
    if inspection is None:
        return
    with result.check(subject, f"it has the {inspection.size} bytes that {SIZE} states"):
        expect(part.manifest.annotations.get(SIZE), str(inspection.size), SIZE)
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
    expect(f"sha256:{hasher.hexdigest()}", str(diff_id), f"the decompressed {what.removeprefix('the ')}")
    return inspection


def _build(name: str, parts: Sequence[Part], preset: Preset, result: Audit) -> lxc.Build:
    """Return the build that the labels name, with each platform's directory below the catalog's upstream."""
    directories = {}
    for part in parts:
        url = part.manifest.annotations.get(UPSTREAM_URL, "")
        base = preset.upstream.url.rstrip("/") + "/"
        with result.check(f"{part.shown} manifest", f"{UPSTREAM_URL} lies in the catalog's upstream"):
            if not url.startswith(base) or not url.endswith(f"/{name}/{lxc.ARCHIVE}"):
                raise VerificationError(f"{UPSTREAM_URL} is {printable(url)}, expected {base}…/{name}/{lxc.ARCHIVE}")
            directories[part.platform] = lxc.check_directory(url.removeprefix(base).removesuffix(lxc.ARCHIVE))
    return lxc.Build(name, lxc.parse_build(name), directories)


def _check_tags(
    repository: Repository, reference: Reference, index: Index, preset: Preset, build: lxc.Build, result: Audit
) -> None:
    tags = {dated_tag(preset, build): index.descriptor.digest}
    for entry in index.manifests:
        if entry.platform and entry.platform in build.directories:
            tags[platform_tag(preset, build, entry.platform)] = entry.digest
    for tag, digest in tags.items():
        found = repository.resolve(tag)
        if found is None:
            result.note(State.UNPROVEN, "tags", f"there is no tag {tag}; it may have been retired, or not copied along")
        else:
            with result.check("tags", f"{tag} names {digest}"):
                expect(str(found), str(digest), f"the tag {tag}")
    asked = reference.tag
    if asked and asked not in tags and asked != preset.release:
        result.note(
            State.UNPROVEN,
            "tags",
            f"{asked} is no tag that presetbuild gives {preset.name}; somebody else moved it here",
        )
    newest = max((tag for tag in repository.tags() if is_dated(tag, preset)), default="")
    if asked == preset.release and newest > dated_tag(preset, build):
        result.note(State.UNPROVEN, "tags", f"{asked} names an older build than the newest one there, {newest}")
