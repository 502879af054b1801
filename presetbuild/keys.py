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
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

try:
    import gnupg
except ModuleNotFoundError as missing:
    raise ImportError("presetbuild needs its extra: pip install 'stateful-pods[build]'") from missing

from presetbuild.catalog import Catalog, KeyPin
from presetbuild.signature import HASHES, dearmor, read_packets
from shim.errors import FormatError, NotFound, Refused, Unavailable, VerificationError, printable

MAX_KEY = 1 << 20  # bytes of a key file

_PRIMARY = 6
_PARTS = {_PRIMARY, 2, 13, 14, 17}  # and signatures, user IDs, subkeys, user attributes
_SECRET = (5, 7)
_ALGORITHMS = {"1": "RSA", "16": "Elgamal", "17": "DSA", "18": "ECDH", "19": "ECDSA", "22": "EdDSA"}
_CAPABILITIES = {"c": "certify", "s": "sign", "e": "encrypt", "a": "authenticate"}
_UNPINNED = "no upstream pins this file, so it verifies nothing; pin it or remove it"
_EXPIRES_SOON = timedelta(days=90)
_SMALLEST_RSA = 3072  # bits; NIST SP 800-57 part 1, table 2: what 128 bits of security ask for

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


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What gpg says of a primary key or a subkey. Times are in UTC; `expires` is None for never."""

    fingerprint: str
    algorithm: str
    bits: int
    capabilities: tuple[str, ...]
    created: datetime
    expires: datetime | None
    revoked: bool
    expired: bool


@dataclass(frozen=True, slots=True)
class KeyReport:
    """What a reviewer must know of a file in the directory of keys.

    `upstreams` pin it (none: it verifies nothing); `key` is None for a file that is no single public key, which only an
    unpinned one can be. `self_signature_hashes` are the hash algorithms of the key's signatures over itself. `notes`
    are sentences.
    """

    file: str
    upstreams: tuple[str, ...]
    retired: bool
    key: KeyFacts | None
    user_ids: tuple[str, ...] = ()
    subkeys: tuple[KeyFacts, ...] = ()
    self_signature_hashes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pinned(self) -> bool:
        """Whether an upstream of the catalog pins the key."""
        return bool(self.upstreams)

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        fields = {**asdict(self), "pinned": self.pinned}
        return json.dumps(fields, default=lambda moment: f"{moment:%Y-%m-%dT%H:%M:%SZ}")

    def to_text(self) -> str:
        """Return the report as lines for a person."""
        pinned = f"pinned by {', '.join(self.upstreams)}" if self.pinned else "not pinned"
        lines = [f"{self.file}: {pinned}{', retired' if self.retired else ''}"]
        lines += [f"  key      {_describe(key)}" for key in (self.key,) if key]
        lines += [f"  user ID  {user_id}" for user_id in self.user_ids]
        lines += [f"  subkey   {_describe(subkey)}" for subkey in self.subkeys]
        lines += [f"  hash     {name}, in its signatures over itself" for name in self.self_signature_hashes]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


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
    keys = b"".join(_pinned_key(directory, pin) for pin in used)
    fingerprints = frozenset(pin.fingerprint for pin in used)
    with _gpg_with(keys) as (home, gpg):
        yield Keyring(fingerprints, frozenset(pin.fingerprint for pin in pins) - fingerprints, home, gpg)


def describe_keys(directory: Path, catalog: Catalog, *, now: datetime | None = None) -> list[KeyReport]:
    """Return a report on each file that `catalog` pins, in its order, then on each other file in `directory`.

    Raises what `open_keyring` raises when a pinned file is not the pinned key.
    """
    now = now or datetime.now(UTC)
    pins: dict[KeyPin, tuple[str, ...]] = {}
    for upstream in catalog.upstreams.values():
        for pin in upstream.keys:
            pins[pin] = (*pins.get(pin, ()), upstream.name)
    reports = [
        _report(_pinned_key(directory, pin), KeyReport(pin.file, names, pin.retired, None), now)
        for pin, names in pins.items()
    ]
    pinned_files = {pin.file for pin in pins}
    for path in sorted(directory.iterdir()):
        if path.name in pinned_files or path.name.startswith((".", "README")):
            continue
        report = KeyReport(printable(path.name), (), False, None, notes=(_UNPINNED,))
        try:
            reports.append(_report(_read_key(path)[0], report, now))
        except Refused as error:
            reports.append(replace(report, notes=(*report.notes, str(error))))
    return reports


def _pinned_key(directory: Path, pin: KeyPin) -> bytes:
    path = directory / pin.file
    key, found = _read_key(path)
    if found != pin.fingerprint:
        raise VerificationError(
            f"{printable(str(path))} holds another key than the pinned one: expected {pin.fingerprint}, found {found}; "
            "trust the new one only after the upstream has announced it"
        )
    return key


def _read_key(path: Path) -> tuple[bytes, str]:
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
def _gpg_with(keys: bytes) -> Iterator[tuple[Path, Any]]:
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


def _report(key: bytes, report: KeyReport, now: datetime) -> KeyReport:
    with _gpg_with(key) as (home, gpg):
        listing = Keyring(frozenset(), frozenset(), home, gpg).listing()
    # At the newline byte and nowhere else; gpg escapes colons and newlines in user IDs.
    records = [line.decode("utf-8", "backslashreplace").split(":") for line in listing.split(b"\n")]
    keys = [
        _facts(record, following[9], now)
        for record, following in pairwise(records)
        if record[0] in ("pub", "sub") and following[0] == "fpr"
    ]
    if not keys:
        raise FormatError(f"{report.file}: gpg lists no key in it")
    own = [record for record in records if record[0] == "sig" and record[4] == keys[0].fingerprint[-16:]]
    described = replace(
        report,
        key=keys[0],
        user_ids=tuple(printable(_unescaped(record[9])) for record in records if record[0] == "uid"),
        subkeys=tuple(keys[1:]),
        self_signature_hashes=tuple(sorted({HASHES.get(int(record[15] or 0), "unknown") for record in own})),
    )
    return replace(described, notes=(*report.notes, *_notes(described, keys[0], now)))


def _facts(record: list[str], fingerprint: str, now: datetime) -> KeyFacts:
    expires = datetime.fromtimestamp(int(record[6]), UTC) if record[6] else None
    algorithm, curve = _ALGORITHMS.get(record[3], f"algorithm {record[3]}"), record[16] if len(record) > 16 else ""
    return KeyFacts(
        fingerprint=fingerprint,
        algorithm=f"{algorithm} {curve}".strip(),
        bits=int(record[2]),
        capabilities=tuple(word for letter, word in _CAPABILITIES.items() if letter in record[11]),
        created=datetime.fromtimestamp(int(record[5]), UTC),
        expires=expires,
        revoked=record[1] == "r",
        expired=expires is not None and expires <= now,
    )


def _notes(report: KeyReport, key: KeyFacts, now: datetime) -> Iterator[str]:
    if report.retired:
        yield "retired: it proves old evidence, and no new build"
    if key.revoked:
        yield "revoked: every signature by it is refused"
    if key.expired:
        yield "expired: every signature by it is refused; ask the upstream for its successor, or for a later date"
    elif key.expires is None:
        yield "never expires: nothing but a revocation or a change of the pin ends it"
    elif key.expires - now < _EXPIRES_SOON:
        yield f"expires within {_EXPIRES_SOON.days} days: pin its successor beside it before then"
    weak = [name for name in report.self_signature_hashes if name in ("MD5", "SHA1", "RIPEMD160")]
    if weak:
        yield (
            f"its signatures over itself use {', '.join(weak)}, which is too weak to prove who a key belongs to: it is "
            "trusted because its fingerprint is pinned, and stricter tools (sqv, gpg --weak-digest) may refuse it"
        )
    if (key.algorithm == "RSA" and key.bits < _SMALLEST_RSA) or key.algorithm == "DSA":
        yield f"{key.algorithm} of {key.bits} bits is weak by today's measure"
    if not any("sign" in one.capabilities and not one.revoked and not one.expired for one in (key, *report.subkeys)):
        yield "no part of it can sign now"


def _describe(key: KeyFacts) -> str:
    expires = f"expires {key.expires:%Y-%m-%d}" if key.expires else "never expires"
    state = (", revoked" if key.revoked else "") + (", expired" if key.expired else "")
    use = "/".join(key.capabilities) or "no use"
    return (
        f"{key.fingerprint}  {key.algorithm} {key.bits} bits, {use}, created {key.created:%Y-%m-%d}, {expires}{state}"
    )


def _unescaped(text: str) -> str:
    r"""Undo gpg's ``\xNN``, so that `printable` alone decides how a user ID is shown."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
