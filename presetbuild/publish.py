"""From images to a published preset: what is written in which order, and what a tag that exists is worth.

Order: blobs, manifests, index; all of it read back; then the platforms' dated tags, the dated tag, the rolling tag. So
a crash at any moment leaves no tag that names something incomplete, and the next run completes what is missing. A tag
is never believed for existing: what it names is read and compared with the signed lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from presetbuild.catalog import Catalog, Preset
from presetbuild.image import (
    COMMON,
    COMPRESSION,
    DIFF_ID,
    OWN,
    PRESET_NAME,
    UPSTREAM_BUILD,
    UPSTREAM_SHA256,
    Image,
    annotations_of,
    common_annotations,
    dated_tag,
    difference,
    make_image,
    make_index,
    platform_tag,
)
from presetbuild.layer import Layer, PendingLayer
from presetbuild.upstream.lxc import Build
from presetbuild.verify import SignedList
from shim.errors import FormatError, NotFound, Refused, Unavailable, VerificationError, printable
from shim.image.digest import Digest
from shim.image.model import (
    MAX_MANIFEST,
    OCI_CONFIG,
    OCI_LAYER,
    Config,
    Descriptor,
    Index,
    Manifest,
    Platform,
    parse_config,
)
from shim.image.progress import Progress, silent
from shim.image.reference import LayoutReference, Reference, RegistryReference, check_host, check_repository
from shim.image.repository import Repository


@dataclass(frozen=True, slots=True)
class Published:
    """A preset in its repository. From here on, trust is the digest.

    `new` is False where the build had been published before.
    """

    preset: str
    build: str
    repository: str
    digest: Digest
    tags: tuple[str, ...]
    new: bool

    @property
    def reference(self) -> str:
        """The repository and the digest, as a machine names it."""
        return f"{self.repository}@{self.digest}"


def parse_destination(to: str, repository: str) -> Reference:
    """Return the repository called `repository` under a destination: ``oci:DIR``, or a registry prefix.

    Raises `FormatError` for a malformed destination.
    """
    if not to.isprintable():
        raise FormatError(f"the destination {printable(to)!r} holds characters that cannot be printed")
    kind, _, directory = to.partition(":")
    if kind == "oci" and directory:
        return LayoutReference(Path(directory) / repository)
    host, slash, path = (to + repository).partition("/")
    try:
        if not slash or "/" not in to:
            raise FormatError("no repository stands behind the host")
        return RegistryReference(check_host(host), check_repository(path, host))
    except FormatError as error:
        raise FormatError(
            f"the destination {printable(to)!r} cannot be used: {error}. Expected oci:DIR for image layouts below a "
            "directory, or a registry prefix such as ghcr.io/owner/stateful-pods-, to which the repository is appended"
        ) from error


def open_repository(reference: Reference, *, push: bool = False, progress: Progress = silent) -> Repository:
    """Return the repository that `reference` lies in; to `push` into one, a layout is made where there is none."""
    if isinstance(reference, LayoutReference):
        from shim.image.layout import Layout  # noqa: PLC0415 - only one of the two is ever needed

        return Layout(reference.path, create=push)
    from shim.image.registry import RegistryRepository  # noqa: PLC0415 - costs 0.2 s, which a layout need not pay

    return RegistryRepository(reference.host, reference.repository, push=push, progress=progress)


def find_published(
    repository: Repository, catalog: Catalog, preset: Preset, signed: Sequence[SignedList], *, allow_older: bool = False
) -> Published | None:
    """Return what the build's dated tag names, None if it was not published yet; a rolling tag left behind is moved.

    The documents are made again from the signed lists and compared byte for byte, and each layer must be there; its
    bytes are not read. None also if a manifest or a layer is lost: publishing again puts it back. Raises `Refused`
    where the build is older than what the rolling tag names (unless `allow_older`), or the tag names another set of
    platforms; `VerificationError` where it names anything but the archives of `signed`.
    """
    build = signed[0].build
    try:
        index = _index(repository, dated_tag(preset, build))
    except NotFound:
        index = None
    rolling = repository.resolve(preset.release)
    if rolling is not None and (index is None or rolling != index.descriptor.digest):
        _refuse_older(repository, rolling, preset, build.name, allow_older=allow_older)
    if index is None:
        return None
    try:
        layers = _compare(repository, catalog, preset, index, signed)
    except NotFound:
        return None
    if not all(repository.has_blob(layer) for layer in layers):
        return None
    rolled = rolling == index.descriptor.digest or _move_rolling(repository, preset, index, allow_older=allow_older)
    return _published(repository, preset, build, index, rolled=rolled, new=False)


def publish(
    repository: Repository,
    catalog: Catalog,
    preset: Preset,
    pending: Sequence[PendingLayer],
    *,
    allow_older: bool = False,
) -> Published:
    """Publish verified layers as one preset. Raises what the repository raises, and `Refused` as `find_published`."""
    layers = [layer.commit() for layer in pending]
    images = [_push_image(repository, catalog, preset, layer) for layer in layers]
    signed = [layer.signed for layer in layers]
    build = signed[0].build
    index = make_index(
        common_annotations(catalog, preset, build, _keys(signed)),
        [replace(image.manifest.descriptor, platform=image.platform) for image in images],
    )
    repository.put_manifest(index)
    _read_back(repository, index, images)
    _refuse_other(repository, preset, build, index)
    for image in images:
        repository.put_manifest(image.manifest, platform_tag(preset, build, image.platform))
    repository.put_manifest(index, dated_tag(preset, build))
    rolled = _move_rolling(repository, preset, index, allow_older=allow_older)
    return _published(repository, preset, build, index, rolled=rolled, new=True)


def _refuse_other(repository: Repository, preset: Preset, build: Build, index: Index) -> None:
    """Refuse where somebody published something else under the dated tag since it was looked for."""
    tag = dated_tag(preset, build)
    found = repository.resolve(tag)
    if found is not None and found != index.descriptor.digest:
        raise Refused(
            f"{repository.name}:{tag} names {found} since a moment ago, and this build is {index.descriptor.digest}; "
            "a dated tag never moves. Run the build again: it says how the two differ"
        )


def _move_rolling(repository: Repository, preset: Preset, index: Index, *, allow_older: bool) -> bool:
    """Let the rolling tag name `index`, unless a newer build is there, and say whether it names it now.

    A registry cannot compare and set, so whoever published a newer build meanwhile may be overwritten here. Its dated
    tag was there before it moved the rolling one, so it is found afterwards, and the rolling tag is given back to it.
    """
    there = repository.resolve(preset.release)
    build = _build_of(index, repository, preset)
    if there is not None and there != index.descriptor.digest:
        _refuse_older(repository, there, preset, build, allow_older=allow_older)
    repository.put_manifest(index, preset.release)
    if allow_older:
        return True
    newest = max((tag for tag in repository.tags() if is_dated(tag, preset)), default="")
    if newest <= f"{preset.release}-{build.replace(':', '')}":
        return True
    try:
        newer = _index(repository, newest)
    except (NotFound, VerificationError):  # somebody else's
        return True
    if newer.annotations.get(PRESET_NAME) != preset.name:
        return True
    repository.put_manifest(newer, preset.release)
    return False


def is_dated(tag: str, preset: Preset) -> bool:
    """Say whether `tag` names one build of the preset, for all platforms."""
    return re.fullmatch(re.escape(preset.release) + r"-[0-9]{8}_[0-9]{4}", tag, re.ASCII) is not None


def _published(
    repository: Repository, preset: Preset, build: Build, index: Index, *, rolled: bool, new: bool
) -> Published:
    tags = (dated_tag(preset, build), *([preset.release] if rolled else []))
    return Published(preset.name, build.name, repository.name, index.descriptor.digest, tags, new)


def read_config(repository: Repository, descriptor: Descriptor) -> Config:
    """Return an image's config, verified by digest and size; raises `FormatError`, and what the repository raises."""
    what = f"the config {descriptor.digest}"
    if descriptor.size > MAX_MANIFEST:
        raise FormatError(f"{what} has {descriptor.size} bytes; a config has {MAX_MANIFEST} at most")
    with repository.open_blob(descriptor) as blob:
        return parse_config(blob.read(-1), what)


def _push_image(repository: Repository, catalog: Catalog, preset: Preset, layer: Layer) -> Image:
    image = make_image(layer.signed.platform, layer.descriptor, annotations_of(catalog, preset, layer))
    repository.put_blob(image.config, OCI_CONFIG)
    repository.put_manifest(image.manifest)
    return image


def _read_back(repository: Repository, index: Index, images: Sequence[Image]) -> None:
    """Manifests and index by digest, blobs by presence and size."""
    repository.manifest(index.descriptor)
    for image in images:
        repository.manifest(image.manifest.descriptor)
        for blob in (image.manifest.config, *image.manifest.layers):
            if not repository.has_blob(blob):
                raise Unavailable(
                    f"{repository.name} accepted the blob {blob.digest} and does not have it in its {blob.size} bytes "
                    "when asked again; nothing was tagged, try again"
                )


def _index(repository: Repository, at: Digest | str) -> Index:
    """Return the index at `at`; raises `NotFound` where there is nothing, `VerificationError` where it is no index."""
    found = repository.manifest(at)
    if not isinstance(found, Index):
        raise VerificationError(
            f"{repository.name}: {at} names a single image where a preset's index was expected; it was not published "
            "by presetbuild, so remove that tag or choose another repository"
        )
    return found


def _build_of(index: Index, repository: Repository, preset: Preset) -> str:
    name, build = (index.annotations.get(key) for key in (PRESET_NAME, UPSTREAM_BUILD))
    if name != preset.name or build is None:
        raise VerificationError(
            f"{repository.name}:{preset.release} names {index.descriptor.digest}, which is "
            + (f"the preset {printable(name)}" if name else "no preset")
            + f" where {preset.name} was expected; it is not replaced: remove that tag or choose another repository"
        )
    return build


def _refuse_older(repository: Repository, rolling: Digest, preset: Preset, build: str, *, allow_older: bool) -> None:
    try:
        there = _build_of(_index(repository, rolling), repository, preset)
    except NotFound:
        return  # an index that a layout lost names no build any more
    if there > build and not allow_older:
        raise Refused(
            f"{preset.name}: the upstream offers build {build}, and {repository.name}:{preset.release} already "
            f"names the newer {printable(there)}; nothing goes backwards unless --allow-older says so"
        )


def _compare(
    repository: Repository, catalog: Catalog, preset: Preset, index: Index, signed: Sequence[SignedList]
) -> list[Descriptor]:
    """Return the layers of `index`; raises unless it is, to the byte, the preset of exactly these signed archives."""
    build = signed[0].build
    where = f"{repository.name}:{dated_tag(preset, build)}"
    there = {entry.platform for entry in index.manifests}
    wanted = {entry.platform for entry in signed}
    if there != wanted:
        raise Refused(
            f"{where} holds {_names(there)}, and {_names(wanted)} was asked for; a dated tag names one set of "
            "platforms for ever: publish into another repository"
        )
    layers: list[Descriptor] = []
    for entry in signed:
        what = f"{where} for {entry.platform}"
        manifest = repository.manifest(index.select(entry.platform, where))
        if not isinstance(manifest, Manifest) or len(manifest.layers) != 1:
            raise VerificationError(f"{what} is no image of one layer, which every preset is")
        common = common_annotations(catalog, preset, build, [entry.signature.primary])
        for key, value in {**common, UPSTREAM_SHA256: entry.archive_digest.encoded}.items():
            _expect(manifest.annotations.get(key), value, key, what)
        # What the lists do not say (the layer, its diff ID, the path in a mirror's index) is taken as it stands there;
        # the config and its labels follow from it, and are compared by their digest.
        check_form(manifest, entry.platform, what)
        layers += manifest.layers
    entries = [index.select(entry.platform, where) for entry in signed]  # in the catalog's order
    expected = make_index(common_annotations(catalog, preset, build, _keys(signed)), entries)
    if changed := difference(index.raw, expected.raw):
        raise VerificationError(f"{where} was published from something else: {changed}; it is never replaced")
    return layers


def check_form(manifest: Manifest, platform: Platform, what: str) -> Image:
    """Return the image that `manifest` must be by its own annotations; raises `VerificationError` unless it is."""
    missing = [key for key in (*COMMON, *OWN) if key not in manifest.annotations]
    unknown = sorted(manifest.annotations.keys() - {*COMMON, *OWN})
    if missing or unknown:
        words = [f"lacks {', '.join(missing)}"] if missing else []
        words += [f"has {printable(', '.join(unknown))}, which no preset has"] if unknown else []
        raise VerificationError(f"the manifest of {what} {' and '.join(words)}")
    Digest.parse(manifest.annotations[DIFF_ID])
    compression = manifest.annotations[COMPRESSION]
    kind = manifest.layers[0].media_type.removeprefix(f"{OCI_LAYER}+")
    if not re.fullmatch(rf"{re.escape(kind)}( [0-9]+(\.[0-9]+)*)? level [0-9]+", compression, re.ASCII):
        raise VerificationError(
            f"the manifest of {what} says {printable(compression)} of a layer of type {printable(kind)}"
        )
    image = make_image(platform, manifest.layers[0], manifest.annotations)
    if changed := difference(manifest.raw, image.manifest.raw):
        raise VerificationError(f"the manifest of {what} is not the one that its annotations describe: {changed}")
    return image


def _keys(signed: Sequence[SignedList]) -> list[str]:
    return [entry.signature.primary for entry in signed]


def _expect(found: str | None, expected: str, key: str, where: str) -> None:
    if found != expected:
        raise VerificationError(
            f"{where} was published from something else: {key} should be {printable(expected)}, "
            f"and is {printable(found) if found is not None else 'absent'}; a published build is never replaced"
        )


def _names(platforms: AbstractSet[Platform | None]) -> str:
    return ", ".join(sorted(printable(str(platform)) for platform in platforms)) or "nothing"
