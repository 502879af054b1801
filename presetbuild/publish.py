"""From images to a published preset: what is written in which order, and what a tag that exists is worth.

Order: blobs, manifests, index; all of it read back; then the platforms' dated tags, the dated tag, the rolling tag. So
a crash at any moment leaves no tag that names something incomplete, and the next run completes what is missing. A tag
is never believed for existing: what it names is read and compared with the signed lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from presetbuild.catalog import Catalog, Preset
from presetbuild.image import (
    OCI,
    PRESET_NAME,
    UPSTREAM_BUILD,
    UPSTREAM_KEY,
    UPSTREAM_SHA256,
    UPSTREAM_URL,
    Image,
    common_annotations,
    dated_tag,
    make_image,
    make_index,
    platform_tag,
)
from presetbuild.layer import Layer, PendingLayer
from presetbuild.upstream.lxc import ARCHIVE, Build
from presetbuild.verify import SignedList
from shim.errors import FormatError, NotFound, Refused, Unavailable, VerificationError, printable
from shim.image.digest import Digest
from shim.image.model import MAX_MANIFEST, OCI_CONFIG, Config, Descriptor, Index, Manifest, Platform, parse_config
from shim.image.progress import Progress, silent
from shim.image.reference import LayoutReference, Reference, check_host, check_repository
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


def open_destination(to: str, repository: str, *, progress: Progress = silent) -> Repository:
    """Return the repository called `repository` under a destination: ``oci:DIR``, or a registry prefix.

    Raises `FormatError` for a malformed destination.
    """
    if to.startswith("oci:"):
        return open_repository(LayoutReference(Path(to.removeprefix("oci:")) / repository), create=True)
    host, _, path = (to.removeprefix("docker://") + repository).partition("/")
    from shim.image.registry import RegistryRepository  # noqa: PLC0415 - costs 0.2 s, which a layout need not pay

    return RegistryRepository(check_host(host), check_repository(path, host), push=True, progress=progress)


def open_repository(reference: Reference, *, create: bool = False, progress: Progress = silent) -> Repository:
    """Return the repository that `reference` lies in, to read from; with `create` a layout is made where none is."""
    if isinstance(reference, LayoutReference):
        from shim.image.layout import Layout  # noqa: PLC0415

        return Layout(reference.path, create=create)
    from shim.image.registry import RegistryRepository  # noqa: PLC0415

    return RegistryRepository(reference.host, reference.repository, progress=progress)


def find_published(
    repository: Repository, catalog: Catalog, preset: Preset, signed: Sequence[SignedList], *, allow_older: bool = False
) -> Published | None:
    """Return what the build's dated tag names, None if it was not published yet; a rolling tag left behind is moved.

    Raises `Refused` where the build is older than what the rolling tag names (unless `allow_older`), or the tag names
    another set of platforms; `VerificationError` where it names anything but the archives of `signed`.
    """
    build = signed[0].build
    try:
        index = _index(repository, dated_tag(preset, build))
    except NotFound:
        index = None
    rolling = repository.resolve(preset.release)
    if rolling is not None and (index is None or rolling != index.descriptor.digest):
        _refuse_older(_index(repository, rolling), repository, preset, build, allow_older=allow_older)
    if index is None:
        return None
    _compare(repository, catalog, preset, index, signed)
    if rolling != index.descriptor.digest:
        repository.put_manifest(index, preset.release)
    return Published(
        preset.name, build.name, repository.name, index.descriptor.digest, _tags(preset, build, signed), new=False
    )


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
    keys = [entry.signature.primary for entry in signed]
    index = make_index(common_annotations(catalog, preset, build, keys), images)
    repository.put_manifest(index)
    _read_back(repository, index, images, layers)
    for image in images:
        repository.put_manifest(image.manifest, platform_tag(preset, build, image.platform))
    repository.put_manifest(index, dated_tag(preset, build))
    # Somebody may have published a newer build since this one was surveyed.
    rolling = repository.resolve(preset.release)
    if rolling is not None and rolling != index.descriptor.digest:
        _refuse_older(_index(repository, rolling), repository, preset, build, allow_older=allow_older)
    repository.put_manifest(index, preset.release)
    return Published(
        preset.name, build.name, repository.name, index.descriptor.digest, _tags(preset, build, signed), new=True
    )


def read_config(repository: Repository, descriptor: Descriptor) -> Config:
    """Return an image's config, verified by digest and size; raises `FormatError`, and what the repository raises."""
    what = f"the config {descriptor.digest}"
    if descriptor.size > MAX_MANIFEST:
        raise FormatError(f"{what} has {descriptor.size} bytes; a config has {MAX_MANIFEST} at most")
    with repository.open_blob(descriptor) as blob:
        return parse_config(blob.read(-1), what)


def _push_image(repository: Repository, catalog: Catalog, preset: Preset, layer: Layer) -> Image:
    image = make_image(catalog, preset, layer)
    repository.put_blob(image.config, OCI_CONFIG)
    repository.put_manifest(image.manifest)
    return image


def _read_back(repository: Repository, index: Index, images: Sequence[Image], layers: Sequence[Layer]) -> None:
    """Manifests and index by digest, blobs by presence and size."""
    repository.manifest(index.descriptor)
    for image in images:
        repository.manifest(image.manifest.descriptor)
    for descriptor in [layer.descriptor for layer in layers] + [image.manifest.config for image in images]:
        if not repository.has_blob(descriptor):
            raise Unavailable(
                f"{repository.name} accepted the blob {descriptor.digest} and does not have it in its "
                f"{descriptor.size} bytes when asked again; nothing was tagged, try again"
            )


def _tags(preset: Preset, build: Build, signed: Sequence[SignedList]) -> tuple[str, ...]:
    platforms = [platform_tag(preset, build, entry.platform) for entry in signed]
    return (dated_tag(preset, build), preset.release, *platforms)


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


def _refuse_older(index: Index, repository: Repository, preset: Preset, build: Build, *, allow_older: bool) -> None:
    there = _build_of(index, repository, preset)
    if there > build.name and not allow_older:
        raise Refused(
            f"{preset.name}: the upstream offers build {build.name}, and {repository.name}:{preset.release} already "
            f"names the newer {printable(there)}; nothing goes backwards unless --allow-older says so"
        )


def _compare(
    repository: Repository, catalog: Catalog, preset: Preset, index: Index, signed: Sequence[SignedList]
) -> None:
    """Raise unless `index` is the preset of exactly these signed archives."""
    build = signed[0].build
    where = f"{repository.name}:{dated_tag(preset, build)}"
    there = {entry.platform for entry in index.manifests}
    wanted = {entry.platform for entry in signed}
    if there != wanted:
        raise Refused(
            f"{where} holds {_names(there)}, and {_names(wanted)} was asked for; a dated tag names one set of "
            "platforms for ever: publish into another repository"
        )
    expected = common_annotations(catalog, preset, build, [entry.signature.primary for entry in signed])
    for key in (PRESET_NAME, UPSTREAM_BUILD, UPSTREAM_KEY, OCI + "created"):
        _expect(index.annotations.get(key), expected[key], key, where)
    for entry in signed:
        descriptor = index.select(entry.platform, where)
        what = f"{where} for {entry.platform}"
        manifest = repository.manifest(descriptor)
        if not isinstance(manifest, Manifest):
            raise VerificationError(f"{what} is an index inside an index, which no preset is")
        config = read_config(repository, manifest.config)
        facts = {
            UPSTREAM_SHA256: entry.archive_digest.encoded,
            UPSTREAM_KEY: entry.signature.primary,
            UPSTREAM_URL: entry.url + ARCHIVE,
        }
        for key, value in facts.items():
            _expect(manifest.annotations.get(key), value, key, what)
            _expect(config.labels.get(key), value, f"the label {key}", what)


def _expect(found: str | None, expected: str, key: str, where: str) -> None:
    if found != expected:
        raise VerificationError(
            f"{where} was published from something else: {key} should be {printable(expected)}, "
            f"and is {printable(found) if found is not None else 'absent'}; a published build is never replaced"
        )


def _names(platforms: AbstractSet[Platform | None]) -> str:
    return ", ".join(sorted(printable(str(platform)) for platform in platforms)) or "nothing"
