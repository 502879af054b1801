"""Signing keys: the files in signing-keys/, the pins in the catalog, and the gpg that holds the pinned keys alone.

A key counts only when it is pinned twice: as a file here, and by the fingerprint of its primary key in the catalog. The
file must be one ASCII-armored public key block that holds exactly one primary key, the pinned one, with its user IDs,
subkeys and signatures and nothing else. In particular no trust packet (type 12): gpg keeps verdicts about signatures in
those, and would believe a file that brings its own.

The fingerprint is computed here from the key's bytes (RFC 9580 §5.5.4); gpg reads the same bytes from a binary file,
without import, so that neither an agent nor a trust database comes into being. python-gnupg starts it, and that is all:
its own parser takes status lines from standard error, and splits them at bytes that a user ID may hold. What gpg says
is read as raw bytes.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

try:
    import gnupg
except ModuleNotFoundError as missing:
    raise ImportError("presetbuild needs its extra: pip install 'stateful-pods[build]'") from missing

from presetbuild.catalog import KeyPin
from presetbuild.signature import dearmor, read_packets
from shim.errors import FormatError, NotFound, Refused, Unavailable, VerificationError, printable

MAX_KEY = 1 << 20  # bytes of a key file

_PRIMARY = 6
_PARTS = {_PRIMARY, 2, 13, 14, 17}  # and signatures, user IDs, subkeys, user attributes
_SECRET = (5, 7)

#: No configuration, no agent, no trust database, no network, no verdicts cached in the key file.
_SWITCHES = [
    "--no-options", "--trust-model", "always", "--no-auto-check-trustdb", "--no-autostart", "--disable-dirmngr",
    "--no-auto-key-retrieve", "--no-auto-key-locate", "--no-sig-cache", "--no-random-seed-file",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Keyring:
    """A gpg that knows the pinned keys alone. It lives as long as the block of `open_keyring`.

    `fingerprints` are those of the primary keys in it, `retired` those of pinned keys that were left out.
    """

    fingerprints: frozenset[str]
    retired: frozenset[str]
    _home: Path
    _gpg: Any

    def check(self, data: bytes, packet: bytes, now: datetime) -> bytes:
        """Return gpg's raw status lines for the one binary signature packet `packet` over `data`, judged as of `now`.

        No verdict is drawn here; `presetbuild.signature.verify_signature` does. Raises `Unavailable` where the
        temporary directory cannot be used.
        """
        if now.tzinfo is None:
            raise ValueError("now must have a time zone")
        clock = f"{now.astimezone(UTC):%Y%m%dT%H%M%S}!"  # one clock for the whole judgement: the caller's
        try:
            with tempfile.TemporaryDirectory(dir=self._home) as directory:
                status, signature = Path(directory, "status"), Path(directory, "signature")
                signature.write_bytes(packet)
                status.touch(0o600)
                with suppress(BrokenPipeError):  # gpg may stop before it has read all data; its status says why
                    self._gpg.verify_data(
                        str(signature), data, extra_args=["--status-file", str(status), "--faked-system-time", clock]
                    )
                return status.read_bytes()
        except OSError as error:
            raise Unavailable(f"gpg could not be run in {self._home}: {error}") from error

    def listing(self) -> bytes:
        """Return gpg's raw listing of the keys, in its format with colons."""
        listing: bytes = self._gpg.list_keys(sigs=True).data
        return listing


def default_signing_keys() -> Path:
    """Return the directory of keys that comes with the package; raises `NotFound`.

    An installed package carries it inside; in a checkout it lies beside the package.
    """
    package = Path(__file__).resolve().parent
    for directory in (package / "signing-keys", package.parent / "signing-keys"):
        if directory.is_dir():
            return directory
    raise NotFound(f"no signing-keys in {package} or beside it; name the directory with --signing-keys")


@contextmanager
def open_keyring(directory: Path, pins: Sequence[KeyPin], *, include_retired: bool = False) -> Iterator[Keyring]:
    """Open a key ring that holds the keys of `pins` alone, without the retired ones unless `include_retired`.

    Every file is checked first. Raises `NotFound` for a missing file, `VerificationError` for a key that is not the
    pinned one, `FormatError` for anything but one public key, `Refused` where no key is left or gpg is not installed.
    """
    used = [pin for pin in pins if include_retired or not pin.retired]
    if not used:
        raise Refused("no key that is pinned here may prove a new build; pin the upstream's current key in the catalog")
    keys = b"".join(pinned_key(directory, pin) for pin in used)
    fingerprints = frozenset(pin.fingerprint for pin in used)
    with gpg_with(keys) as (home, gpg):
        yield Keyring(fingerprints, frozenset(pin.fingerprint for pin in pins) - fingerprints, home, gpg)


def pinned_key(directory: Path, pin: KeyPin) -> bytes:
    """Return the key that `pin` names, in binary; raises `VerificationError` if the file holds another one."""
    path = directory / pin.file
    key, found = read_key(path)
    if found != pin.fingerprint:
        raise VerificationError(
            f"{printable(str(path))} holds another key than the pinned one: expected {pin.fingerprint}, found {found}; "
            "trust the new one only after the upstream has announced it"
        )
    return key


def read_key(path: Path) -> tuple[bytes, str]:
    """Return the one public key in the file at `path`, in binary, and the fingerprint of its primary key."""
    what = printable(str(path))
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEY + 1)
    except FileNotFoundError as error:
        raise NotFound(f"{what}: there is no such key file; put the upstream's armored public key there") from error
    except OSError as error:
        raise Refused(f"{what}: the key file cannot be read: {error.strerror}") from error
    if len(text) > MAX_KEY:
        raise FormatError(f"{what} is longer than {MAX_KEY} bytes; a key file holds one public key")
    secret = b"-----BEGIN PGP PRIVATE KEY BLOCK-----" in text
    packets = [] if secret else read_packets(dearmor(text, b"PGP PUBLIC KEY BLOCK", what), what)
    tags = [packet.tag for packet in packets]
    if secret or any(tag in _SECRET for tag in tags):
        raise FormatError(f"{what} holds a secret key; remove it at once, and take the key for disclosed")
    if tags[0] != _PRIMARY or tags.count(_PRIMARY) != 1:
        raise FormatError(f"{what} holds {tags.count(_PRIMARY)} primary keys; expected exactly one, at its beginning")
    if foreign := set(tags) - _PARTS:
        raise FormatError(f"{what} holds an OpenPGP packet of type {min(foreign)}, which is no part of a public key")
    body = packets[0].body
    if body[:1] != b"\x04":
        raise FormatError(f"{what} holds a key of version {body[0] if body else '?'}; only version 4 is accepted")
    # SHA-1 is what defines a version 4 fingerprint; finding another key with a given fingerprint is not feasible.
    digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False)
    return b"".join(packet.raw for packet in packets), digest.hexdigest().upper()


class _Raw:
    """Stands in for python-gnupg's results: keeps the raw bytes, and looks into none of them."""

    def __init__(self, gpg: object) -> None:
        self.data = b""
        self.stderr = ""
        self.returncode: int | None = None

    def handle_status(self, key: str, value: str) -> None: ...
    def _ignore(self, fields: list[str]) -> None: ...
    def __iter__(self) -> Iterator[Any]:
        return iter(())

    pub = uid = sec = fpr = sub = ssb = sig = grp = _ignore


@contextmanager
def gpg_with(keys: bytes) -> Iterator[tuple[Path, Any]]:
    """Give a temporary home, and a `gnupg.GPG` in it that knows the binary `keys` and no others."""
    try:
        directory = tempfile.TemporaryDirectory(prefix="presetbuild-gpg-", ignore_cleanup_errors=True)
        ring = Path(directory.name, "pinned.gpg")
        ring.touch(0o600)
        ring.write_bytes(keys)
    except OSError as error:
        raise Unavailable(f"the temporary directory for gpg cannot be used: {error}") from error
    with directory as home:
        yield Path(home), _start(Path(home), ring)


def _start(home: Path, ring: Path) -> Any:
    try:
        gpg = gnupg.GPG(gnupghome=str(home), keyring=str(ring), options=_SWITCHES)
    except (OSError, ValueError) as error:
        raise Refused("gpg cannot be run, and signatures are checked with it; install the package gnupg") from error
    gpg.result_map = {"verify": _Raw, "list": _Raw}
    return gpg
