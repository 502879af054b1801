"""The one gate between bytes that somebody served and bytes that are packaged.

What must hold, in this order; there is no switch that leaves any of it out:

1. ``SHA256SUMS`` carries a detached OpenPGP signature by a pinned key (signature.py) → `SignedList`.
2. The signature was made after the time that the build's name states, and not in the future (identity.py).
3. Where the list covers ``incus.tar.xz``, that file has the listed SHA-256, and every property that its metadata states
   is the one that was asked for (identity.py).
4. ``rootfs.tar.xz`` has the listed SHA-256; it decompresses to its end; the tar archive inside is whole, holds nothing
   that an image layer must not hold, and is a root filesystem; its os-release is the catalog's and its executables are
   the platform's; it holds cloud-init where the catalog claims so. This is established while the archive is read for
   the use that is made of it, so what is used is what was checked.

Only this module constructs a `SignedList` or a `Verified`, and packaging takes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from presetbuild import identity
from presetbuild.signature import Signature, verify_signature
from presetbuild.sums import Sums, parse_sums
from presetbuild.upstream.lxc import ARCHIVE, LIST, METADATA, SIGNATURE, Untrusted
from shim.errors import FormatError, NotFound, StatefulPodsError, VerificationError
from shim.image.archive import decompressed
from shim.image.digest import CHUNK, Digest, VerifyingReader
from shim.image.rootfs import Inspection, Inspector

if TYPE_CHECKING:
    from presetbuild.catalog import Preset
    from presetbuild.keys import Keyring
    from presetbuild.upstream.lxc import Build
    from shim.image.model import Platform


class Download(Protocol):
    """What a source hands out: bytes, and how many there are where that is known."""

    @property
    def size(self) -> int | None: ...
    def read(self, amount: int, /) -> bytes: ...
    def close(self) -> None: ...


#: Opens one of the files of the build's directory, by its name.
Open = Callable[[str], AbstractContextManager[Download]]


@dataclass(frozen=True, slots=True)
class SignedList:
    """A checksum list whose signature by a pinned key was found good, for the build that was asked for."""

    build: Build
    platform: Platform
    url: str  # of the build's directory, as the catalog names it and it is published
    where: str  # the directory that was read, for messages
    sums: Sums
    signature: Signature

    @property
    def archive_digest(self) -> Digest:
        """The SHA-256 that the list gives to the root filesystem archive."""
        return Digest("sha256", self.sums.sha256(ARCHIVE))


@dataclass(frozen=True, slots=True)
class Verified:
    """A signed list's entry for a root filesystem, joined to a reader that raises unless the archive is that entry's.

    `established` names the properties of the build that its signed metadata confirmed.
    """

    signed: SignedList
    preset: Preset
    established: tuple[str, ...]
    _open: Open

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed archive, and raise at its end unless everything holds that this module's rule 4 says.

        Whatever was made of the chunks must be discarded when this raises. Raises `VerificationError` for a wrong
        checksum or identity, `FormatError` for an archive that is malformed or no root filesystem, `Unavailable` and
        `NotFound` for what the source says.
        """
        what = self.signed.where + ARCHIVE
        with self._open(ARCHIVE) as download:
            archive = VerifyingReader(download, self.signed.archive_digest, download.size, what)
            inspector = Inspector(what)
            try:
                with decompressed(archive, "xz", what) as tar:
                    while data := tar.read(CHUNK):
                        inspector.feed(data)
                        yield data
                archive.finish()
                inspection = inspector.finish()
            except FormatError as error:
                # Bytes that are not the signed ones seldom decode; the checksum is the better news, and it decides.
                _check_rest(archive, self.signed, error)
                raise
        check_contents(inspection, self.preset, self.signed.platform, what=what)


def verify_list(untrusted: Untrusted, keyring: Keyring, *, now: datetime) -> SignedList:
    """Return the list that `untrusted` carries, once rules 1 and 2 hold; raises `VerificationError`, `FormatError`."""
    what = untrusted.where + LIST
    signature = verify_signature(untrusted.sums, untrusted.signature, keyring, now=now, what=what)
    sums = parse_sums(untrusted.sums, what)
    identity.check_signed_at(signature.made, untrusted.build, now=now, what=untrusted.where + SIGNATURE)
    sums.sha256(ARCHIVE)  # a list that does not name the archive is refused here, before anything is fetched for it
    return SignedList(untrusted.build, untrusted.platform, untrusted.url, untrusted.where, sums, signature)


def verify_archive(signed: SignedList, preset: Preset, open_file: Open, *, metadata_limit: int = 1 << 20) -> Verified:
    """Return the archive that `signed` names, once rule 3 holds; rule 4 follows while it is read.

    `metadata_limit` is in bytes. Raises `VerificationError`, `FormatError`, and what `open_file` raises.
    """
    if METADATA not in signed.sums.names:
        return Verified(signed, preset, (), open_file)
    what = signed.where + METADATA
    expected = Digest("sha256", signed.sums.sha256(METADATA))
    try:
        with open_file(METADATA) as download:
            reader = VerifyingReader(download, expected, download.size, what)
            data = reader.read(metadata_limit + 1)
            while len(data) <= metadata_limit and (more := reader.read(metadata_limit + 1 - len(data))):
                data += more
            if len(data) > metadata_limit:
                raise FormatError(f"{what} is longer than {metadata_limit} bytes, so it is not read as metadata")
    except NotFound as error:
        found = f"{what} is missing, and the signed {LIST} lists it with {expected}"
        raise VerificationError(_with_archive(found, signed, open_file)) from error
    except VerificationError as error:
        raise VerificationError(_with_archive(str(error), signed, open_file)) from error
    established = identity.check_metadata(
        identity.read_metadata(data, what),
        distribution=preset.distribution,
        release=preset.release,
        architecture=signed.platform.architecture,
        variant=preset.variant,
        build=signed.build.name,
        what=what,
    )
    return Verified(signed, preset, established, open_file)


def check_contents(inspection: Inspection, preset: Preset, platform: Platform, *, what: str) -> None:
    """Raise `VerificationError` unless what was found in an archive is what the catalog says of `preset`."""
    identity.check_os_release(inspection.os_release, preset.os_release, what=what)
    identity.check_machine(inspection.machines, platform, what=what)
    if "cloud-init" in preset.provisioning and not inspection.cloud_init:
        raise VerificationError(
            f"{what} holds no cloud-init, and the catalog says that {preset.name} can be provisioned by it; "
            f"choose the upstream's cloud variant, or take cloud-init out of presets.{preset.name}.provisioning"
        )


def _check_rest(archive: VerifyingReader, signed: SignedList, cause: StatefulPodsError) -> None:
    try:
        archive.finish()
    except VerificationError as mismatch:
        raise VerificationError(f"{mismatch} (signed in {signed.where}{LIST} by {signed.signature.primary})") from cause


def _with_archive(problem: str, signed: SignedList, open_file: Open) -> str:
    """Add to `problem` what became of the archive beside it, so that one report tells the state of the directory."""
    try:
        with open_file(ARCHIVE) as download:
            VerifyingReader(download, signed.archive_digest, download.size, signed.where + ARCHIVE).finish()
    except StatefulPodsError as error:
        return f"{problem}; also, {error}"
    return problem
