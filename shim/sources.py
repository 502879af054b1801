"""What a volume is seeded from, opened: layers whose bytes verify themselves, and the source as the record names it.

Trust is a digest: an image's, which leads to its layers through the manifest and to their contents through the diff
IDs, or an archive's SHA-256. The one exception is an image that is named without a digest. Its registry's TLS is then
all that says it is the right one; so that is said, the digest found is recorded, and it is refused where there is no
TLS.
"""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from shim.errors import FormatError, NotFound, Refused, printable
from shim.image.digest import Digest, VerifyingReader
from shim.image.flatten import Layer
from shim.image.layout import Layout
from shim.image.model import (
    CONFIG_TYPES,
    LAYER_COMPRESSION,
    MAX_MANIFEST,
    Config,
    Descriptor,
    Index,
    Manifest,
    Platform,
    parse_config,
)
from shim.image.progress import Progress
from shim.image.reference import LayoutReference, RegistryReference, parse_reference
from shim.image.repository import Repository
from shim.plain import PlainArchive
from shim.run import Reader
from shim.spec import Source
from shim.streams import Kept, Metered, decoded

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Opened:
    """A source that was found: for the record, and for `flatten`. `plain` is set for an archive that is no image."""

    source: Source
    layers: Sequence[Layer]
    plain: PlainArchive | None = None


class _Closable(Protocol):
    def read(self, amount: int, /) -> bytes: ...
    def close(self) -> None: ...


@contextmanager
def open_source(source: Source, scratch: Path, *, tell: Tell, progress: Progress) -> Iterator[Opened]:
    """Find `source`, and give it opened. What can be refused before a byte of it is used has then been refused.

    Layers that have to be read twice and come over the network are kept, compressed as they are, in unnamed files in
    the directory `scratch`. `tell` is told what was found, `progress` the bytes of each layer. Raises what `Repository`
    and `Download` do: `NotFound`, `Refused`, `FormatError`, `Unavailable`; reading raises `VerificationError` besides.
    """
    with ExitStack() as stack:
        if source.kind == "oci":
            yield _open_image(source, scratch, stack, tell, progress)
        else:
            yield _open_archive(source, stack, progress)


def node_platform() -> Platform:
    """Return the platform that this node runs."""
    machine = platform.machine()
    return Platform("linux", _ARCHITECTURES.get(machine, machine))


def _open_image(source: Source, scratch: Path, stack: ExitStack, tell: Tell, progress: Progress) -> Opened:
    reference = parse_reference(source.reference or "")
    wanted = source.platform or node_platform()
    repository: Repository
    if isinstance(reference, LayoutReference):
        layout = repository = Layout(reference.path)
        at = reference.digest or reference.tag or _only(layout)
    else:
        repository, at = _open_registry(reference, tell)
    top = repository.manifest(at)
    digest = top.descriptor.digest
    if not reference.digest:
        tell(f"{source} names {digest} at this moment")
    what = printable(f"{reference.name}@{digest}", 500)
    manifest = repository.manifest(top.select(wanted, what)) if isinstance(top, Index) else top
    if isinstance(manifest, Index):
        raise FormatError(f"{what}: the entry for {wanted} is an index of its own, which is not understood")
    config = _config(repository, manifest, wanted, what)
    if len(manifest.layers) > 1 and isinstance(reference, RegistryReference):
        kept = Kept(repository, scratch)
        stack.callback(kept.close)
        open_blob = kept.open_blob
    else:
        open_blob = repository.open_blob
    layers = []
    for number, (descriptor, diff_id) in enumerate(zip(manifest.layers, config.diff_ids, strict=True), 1):
        name = f"layer {number} of {len(manifest.layers)} ({_short(descriptor.digest)})"
        layers.append(_layer(open_blob, descriptor, diff_id, name, progress))
    return Opened(replace(source, digest=digest), layers)


def _only(layout: Layout) -> Digest:
    """Return the digest of what a layout holds, if that is one thing."""
    found = {entry.digest for entry in layout.manifests()}
    if len(found) != 1:
        tags = ", ".join(layout.tags()) or "none"
        raise NotFound(f"{printable(layout.name)} holds {len(found)} images; name one by its tag ({tags}) or digest")
    return found.pop()


def _open_registry(reference: RegistryReference, tell: Tell) -> tuple[Repository, Digest | str]:
    from shim.image.registry import RegistryRepository  # noqa: PLC0415 - a layout and an archive need no registry

    repository = RegistryRepository(reference.host, reference.repository)
    if reference.digest:
        return repository, reference.digest
    if repository.is_plain:
        raise Refused(
            f"{printable(reference.host)} does not speak TLS, and {reference} names no digest: nothing would say that "
            f"the image is the right one. Add its digest: {reference}@sha256:…"
        )
    tell(f"{reference} names no digest: that it is the right image rests on the TLS of {reference.host} alone")
    return repository, reference.tag or "latest"


def _config(repository: Repository, manifest: Manifest, wanted: Platform, what: str) -> Config:
    """Return the config of an image whose layers can be unpacked on `wanted`."""
    descriptor = manifest.config
    if descriptor.media_type not in CONFIG_TYPES or descriptor.size > MAX_MANIFEST:
        raise FormatError(
            f"{what} is no image to run: its config is {descriptor.size} bytes of {printable(descriptor.media_type)}"
        )
    with repository.open_blob(descriptor) as reader:
        config = parse_config(reader.read(-1), f"the config of {what}")
    there = config.platform
    same = (there.os, there.architecture) == (wanted.os, wanted.architecture)
    if not same or wanted.variant not in (None, there.variant):
        raise NotFound(f"{what} holds no image for {wanted}; it holds: {printable(str(there))}")
    if not manifest.layers or len(manifest.layers) != len(config.diff_ids):
        raise FormatError(f"{what} has {len(manifest.layers)} layers, and its config {len(config.diff_ids)} diff IDs")
    for layer in manifest.layers:
        if layer.media_type not in LAYER_COMPRESSION:
            raise FormatError(f"{what} has a layer of type {printable(layer.media_type)}; expected a tar layer")
    return config


def _layer(
    open_blob: Callable[[Descriptor], VerifyingReader],
    descriptor: Descriptor,
    diff_id: Digest,
    name: str,
    progress: Progress,
) -> Layer:
    @contextmanager
    def opened() -> Iterator[Reader]:
        with open_blob(descriptor) as blob, decoded(Metered(blob, name, descriptor.size, progress), name) as reader:
            # How it is compressed is told by its bytes, whatever was declared; that it is right, by the diff ID.
            yield VerifyingReader(reader, diff_id, None, f"{name}, uncompressed,")

    return Layer(name, opened)


def _open_archive(source: Source, stack: ExitStack, progress: Progress) -> Opened:
    url, name = source.url or "", str(source)
    file, size = _open_url(url) if "://" in url else _open_file(url)
    stack.enter_context(closing(file))
    verified = VerifyingReader(file, Digest("sha256", source.sha256 or ""), None, name)
    reader = stack.enter_context(decoded(Metered(verified, name, size, progress), name))
    plain = PlainArchive(reader, name)
    return Opened(replace(source, url=source.public_url), [Layer(name, lambda: nullcontext(plain))], plain)


def _open_url(url: str) -> tuple[_Closable, int | None]:
    from shim.image.download import Download, Patience, check_url  # noqa: PLC0415 - it imports requests
    from shim.image.session import Session  # noqa: PLC0415
    from shim.image.urls import may_be_plain, origin, shown  # noqa: PLC0415 - it imports ssl

    check_url(url)
    if (there := origin(url)).scheme != "https" and not may_be_plain(there.host):
        raise Refused(f"{shown(url)} is not https, which only this machine and names ending in .local may do without")
    download = Download(Session(), url, Patience())
    return download, download.size


def _open_file(path: str) -> tuple[_Closable, int | None]:
    try:
        # Without O_NONBLOCK a FIFO under that name would wait for its writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"there is no file {printable(path, 300)}; expected a path, or an https URL") from error
    except OSError as error:
        raise Refused(f"cannot open {printable(path, 300)}: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise Refused(f"{printable(path, 300)} is no regular file; expected a root filesystem archive (.tar.xz, …)")
    return os.fdopen(descriptor, "rb", buffering=0), status.st_size


def _short(digest: Digest) -> str:
    return f"{digest.algorithm}:{digest.encoded[:12]}"
