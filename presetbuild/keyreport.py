"""What a reviewer must know of each signing key: whose it is, how long it lasts, what it signs with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from presetbuild.catalog import Catalog, KeyPin
from presetbuild.keys import Keyring, gpg_with, pinned_key, read_key
from presetbuild.signature import HASHES
from shim.errors import FormatError, Refused, printable

_ALGORITHMS = {"1": "RSA", "16": "Elgamal", "17": "DSA", "18": "ECDH", "19": "ECDSA", "22": "EdDSA"}
_CAPABILITIES = {"c": "certify", "s": "sign", "e": "encrypt", "a": "authenticate"}
_UNPINNED = "no upstream pins this file, so it verifies nothing; pin it or remove it"
_EXPIRES_SOON = timedelta(days=90)
_SMALLEST_RSA = 3072  # bits; NIST SP 800-57 part 1, table 2: what 128 bits of security ask for


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
        _report(pinned_key(directory, pin), KeyReport(pin.file, names, pin.retired, None), now)
        for pin, names in pins.items()
    ]
    pinned_files = {pin.file for pin in pins}
    for path in sorted(directory.iterdir()):
        if path.name in pinned_files or path.name.startswith((".", "README")):
            continue
        report = KeyReport(printable(path.name), (), False, None, notes=(_UNPINNED,))
        try:
            reports.append(_report(read_key(path)[0], report, now))
        except Refused as error:
            reports.append(replace(report, notes=(*report.notes, str(error))))
    return reports


def _report(key: bytes, report: KeyReport, now: datetime) -> KeyReport:
    with gpg_with(key) as (home, gpg):
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
