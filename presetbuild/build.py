"""The recipe: from the name of a preset to its published digest, one step a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from presetbuild.catalog import Catalog, Preset
from presetbuild.fetch import Source, open_source
from presetbuild.keys import Keyring, default_signing_keys, open_keyring
from presetbuild.layer import new_compressor, write_layer
from presetbuild.publish import Published, find_published, open_repository, parse_destination, publish
from presetbuild.upstream import lxc
from presetbuild.verify import SignedList, Verified, verify_archive, verify_list
from shim.errors import FormatError, Refused
from shim.image.model import Platform
from shim.image.progress import Progress, silent

#: Called with one sentence about a step that is done.
Tell = Callable[[str], None]

DEFAULT_DESTINATION = "oci:preset-images"


def quiet(sentence: str) -> None:
    """A `Tell` that nobody reads."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a build may be told besides the preset.

    `signing_keys` is a directory (None: the packaged one); `mirror` a URL or directory that is read in place of the
    upstream; `platforms` some of the preset's (empty: all); `now` the time that signatures are judged at (None: the
    clock's). None of them relaxes a check.
    """

    signing_keys: Path | None = None
    mirror: str | None = None
    platforms: tuple[Platform, ...] = ()
    allow_older: bool = False
    now: datetime | None = None
    progress: Progress = silent
    tell: Tell = quiet


def build_preset(
    catalog: Catalog, name: str, to: str = DEFAULT_DESTINATION, options: Options | None = None
) -> Published:
    """Build the preset called `name` and publish it under `to`, or confirm that it is published already.

    `to` is ``oci:DIR`` or a registry prefix, to which the preset's repository name is appended. Raises `Refused` and
    its subclasses for whatever must not be published, `NotReady` while the upstream's platforms are not on one build,
    `Unavailable` for what a later try may cure. Unless it is raised while the verified
    result is being published, no blob, manifest or tag was written; no tag ever names a part of a preset.
    """
    options = options or Options()
    tell = options.tell
    preset = catalog.preset(name)
    new_compressor(catalog.compression)  # fails early where this machine could not reproduce a layer
    destination = parse_destination(to, preset.repository)
    with open_keyring(options.signing_keys or default_signing_keys(), preset.upstream.keys) as keyring:
        source, build = resolve_build(preset, options)
        age = lxc.describe_age((options.now or datetime.now(UTC)) - build.created)
        platforms = ", ".join(map(str, build.directories))
        tell(f"{name}: the build that {source.url} offers is {build.name}, {age} old, for {platforms}")
        signed = [_verify_list(preset, source, build, platform, keyring, options) for platform in build.directories]
    # Not before: a build that ends above leaves nothing behind, not even an empty layout.
    repository = open_repository(destination, push=True, progress=options.progress)
    published = find_published(repository, catalog, preset, signed, allow_older=options.allow_older)
    if published is not None:
        tell(f"{name}: {published.reference} holds this build already; its documents follow from the signed lists")
        return published
    with ExitStack() as blobs:
        verified = [_verify_archive(entry, preset, source, tell) for entry in signed]
        pending = []
        for archive in verified:
            layer = write_layer(archive, blobs.enter_context(repository.new_blob()), catalog.compression)
            tell(
                f"{name}: {archive.signed.platform}: the archive has the signed SHA-256 and is the root filesystem "
                f"that was asked for; {layer.size} bytes, diff ID {layer.diff_id}"
            )
            pending.append(layer)
        # Every platform has been verified to its end: only now does anything become visible.
        published = publish(repository, catalog, preset, pending, allow_older=options.allow_older)
    tell(f"{name}: published as {published.reference}, read back, and tagged {', '.join(published.tags)}")
    return published


def resolve_build(preset: Preset, options: Options) -> tuple[Source, lxc.Build]:
    """Return where the upstream is read from and the build that it offers; raises `NotReady` as `lxc.resolve` does."""
    platforms = chosen_platforms(preset, options.platforms)
    if options.mirror == "":
        raise FormatError("the mirror is an empty text; expected a URL or a directory, or no mirror at all")
    source = open_source(options.mirror or preset.upstream.url, progress=options.progress)
    build = lxc.resolve(
        lxc.read_index(source),
        distribution=preset.distribution,
        release=preset.release,
        variant=preset.variant,
        platforms=platforms,
        what=preset.name,
        now=options.now or datetime.now(UTC),
    )
    return source, build


def chosen_platforms(preset: Preset, asked: Sequence[Platform]) -> tuple[Platform, ...]:
    """Return the preset's platforms in the catalog's order, or those of them in `asked`; raises `Refused`."""
    for platform in asked:
        if platform not in preset.platforms:
            there = ", ".join(map(str, preset.platforms))
            raise Refused(f"{preset.name} has no platform {platform}; the catalog gives it {there}")
    return tuple(platform for platform in preset.platforms if not asked or platform in asked)


def open_archive(signed: SignedList, preset: Preset, source: Source) -> Verified:
    """Return the archive that `signed` names, to be read from `source`; raises what `verify_archive` raises."""
    directory = signed.build.directories[signed.platform]
    return verify_archive(
        signed, preset, lambda name: source.open(directory + name, lxc.ARCHIVE_LIMIT, f"{signed.platform} {name}")
    )


def _verify_list(
    preset: Preset, source: Source, build: lxc.Build, platform: Platform, keyring: Keyring, options: Options
) -> SignedList:
    untrusted = lxc.fetch_lists(source, build, platform, preset.upstream.url)
    signed = verify_list(untrusted, keyring, now=options.now or datetime.now(UTC))
    options.tell(
        f"{preset.name}: {platform}: {lxc.LIST} is signed by {signed.signature.primary} "
        f"({signed.signature.hash}, {signed.signature.made:%Y-%m-%d %H:%M:%S} UTC)"
    )
    return signed


def _verify_archive(signed: SignedList, preset: Preset, source: Source, tell: Tell) -> Verified:
    verified = open_archive(signed, preset, source)
    if verified.established:
        tell(f"{preset.name}: {signed.platform}: the signed metadata confirms {', '.join(verified.established)}")
    else:
        tell(f"{preset.name}: {signed.platform}: the signed list covers no {lxc.METADATA}, so variant is not confirmed")
    return verified
