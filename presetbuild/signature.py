"""Whether a detached OpenPGP signature over some bytes is good: bytes in, a `Signature` or an exception out.

gpg does the arithmetic, one signature packet at a time, over a key ring that holds the pinned keys alone (keys.py). The
judgement is made here. What is accepted, and nothing else:

1. The signature file is an ASCII-armored ``PGP SIGNATURE`` block with nothing but white space around it, or the same in
   binary. Decoded, it is one to eight OpenPGP signature packets and nothing else: each of version 4, type 0x00 (over a
   binary document) and of definite length. A text signature (0x01) is refused, because it leaves line endings open and
   so does not cover the bytes that are parsed. The packets that are looked at here are the ones that gpg is given.
2. gpg's status for a packet, its lines split at the newline byte and nowhere else and its fields taken by position, has
   exactly one ``NEWSIG`` and exactly one verdict.
3. A packet is *good* when that verdict is ``GOODSIG``, together with exactly one ``VALIDSIG`` whose last field, the
   primary key's fingerprint, is pinned, whose hash algorithm is a strong one, whose type is 00, and whose time is at
   most ten minutes after `now`. A subkey may have made it; gpg has then checked that the primary key bound the subkey.
4. A packet is *foreign* when gpg lacks its key (``ERRSIG`` with reason 9). Foreign packets count for nothing: so an
   upstream can sign with two keys while it replaces one.
5. Every other packet (``BADSIG``, ``REVKEYSIG``, ``EXPKEYSIG``, ``EXPSIG``, another ``ERRSIG``, a weak hash, no
   verdict) speaks against a pinned key, and the file is refused, whatever its other packets say.
6. At least one packet is good; the first good one is returned.

Key, subkey and signature are valid or expired *at `now`*; a revoked key is refused whenever it signed. Sources:
RFC 9580 (packets §4.2, signatures §5.2, armor §6); GnuPG's doc/DETAILS, "Format of the --status-fd output".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from shim.errors import FormatError, VerificationError, printable

MAX_SIGNED = 4 << 20  # bytes; a checksum list has some hundreds of lines
MAX_SIGNATURE = 64 << 10  # bytes
MAX_PACKETS = 8
CLOCK_SKEW = timedelta(minutes=10)  # between the upstream's clock and ours

#: Hash algorithms by their OpenPGP number (RFC 9580 §9.5).
HASHES = {
    1: "MD5", 2: "SHA1", 3: "RIPEMD160", 8: "SHA256", 9: "SHA384", 10: "SHA512", 11: "SHA224", 12: "SHA3-256",
    14: "SHA3-512",
}  # fmt: skip
_STRONG = frozenset(HASHES.values()) - {"MD5", "SHA1", "RIPEMD160"}

_SIGNATURE_TAG = 2
_VERDICTS = frozenset({b"GOODSIG", b"EXPSIG", b"EXPKEYSIG", b"REVKEYSIG", b"BADSIG", b"ERRSIG"})
_FAILURES = frozenset({b"NODATA", b"UNEXPECTED", b"ERROR", b"FAILURE"})
_NO_PUBLIC_KEY = b"9"
_ERRSIG_REASONS = {
    b"4": "uses an algorithm that this gpg does not know",
    b"5": "uses a hash algorithm that gpg rejects",
    b"6": "was made by a subkey that its primary key has not bound, or has bound for another purpose",
    b"39": "is older than the key that it claims to be made by",
}
_ARMOR_KINDS = {
    b"PGP SIGNED MESSAGE": "a clear-signed message",
    b"PGP MESSAGE": "an inline-signed or encrypted message",
    b"PGP SIGNATURE": "a signature",
    b"PGP PUBLIC KEY BLOCK": "a public key",
    b"PGP PRIVATE KEY BLOCK": "a secret key",
}
_STREAMED = "has an OpenPGP packet of open length, as only an inline-signed or encrypted message has"
_TAG_KINDS = {4: "an inline-signed message", 5: "a secret key", 6: "a public key", 8: "a compressed message"}
_HEX = re.compile(rb"[0-9A-F]{16,64}")


class PinnedKeys(Protocol):
    """What is needed of `presetbuild.keys.Keyring`."""

    @property
    def fingerprints(self) -> frozenset[str]: ...
    @property
    def retired(self) -> frozenset[str]: ...
    def check(self, data: bytes, packet: bytes, now: datetime) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Signature:
    """A good signature: the pinned primary key, the key that signed (it or a subkey), the time, the hash algorithm."""

    primary: str
    signing_key: str
    made: datetime
    hash: str


@dataclass(frozen=True, slots=True)
class Packet:
    """An OpenPGP packet: its type, its content, and all of its bytes."""

    tag: int
    body: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A signature by a key that is not in the ring: its fingerprint, or its key ID where the packet has no more."""

    key: str


def verify_signature(data: bytes, signature: bytes, keyring: PinnedKeys, *, now: datetime, what: str) -> Signature:
    """Return the good signature over `data` that `signature`, a detached one, holds.

    `now` has a time zone; `what` names the signed file in messages. Raises `VerificationError` for everything that this
    module's rules do not accept.
    """
    if len(data) > MAX_SIGNED:
        raise VerificationError(f"{what} has {len(data)} bytes; a signed list has at most {MAX_SIGNED}")
    try:
        packets = _signature_packets(signature, f"the signature of {what}")
    except FormatError as error:
        raise VerificationError(f"{error}; nothing was verified") from error
    verdicts = [_judge(keyring.check(data, packet.raw, now), keyring, now, what) for packet in packets]
    for verdict in verdicts:
        if isinstance(verdict, Signature):
            return verdict
    foreign = [verdict.key for verdict in verdicts if isinstance(verdict, _Foreign)]
    raise VerificationError(_not_pinned(foreign, keyring, what))


def _signature_packets(signature: bytes, what: str) -> list[Packet]:
    if len(signature) > MAX_SIGNATURE:
        raise FormatError(f"{what} has {len(signature)} bytes; at most {MAX_SIGNATURE} are read")
    binary = bool(signature) and signature[0] & 0x80 != 0  # every packet begins with that bit, and no armor does
    packets = read_packets(signature if binary else dearmor(signature, b"PGP SIGNATURE", what), what)
    if len(packets) > MAX_PACKETS:
        raise FormatError(f"{what} holds {len(packets)} packets; at most {MAX_PACKETS} are accepted")
    for packet in packets:
        if packet.tag != _SIGNATURE_TAG:
            kind = _TAG_KINDS.get(packet.tag, f"an OpenPGP packet of type {packet.tag}")
            raise FormatError(f"{what} is or contains {kind}; expected a detached signature")
        version, type_ = (*packet.body[:2], 0, 0)[:2]
        if version != 4:
            raise FormatError(f"{what} is an OpenPGP signature of version {version}; only version 4 is accepted")
        if type_ == 0x01:
            raise FormatError(
                f"{what} is a text signature, which leaves line endings open; expected one over a binary document"
            )
        if type_ != 0x00:
            raise FormatError(f"{what} is of type 0x{type_:02x}, which is no signature of a document")
    return packets


def _judge(status: bytes, keyring: PinnedKeys, now: datetime, what: str) -> Signature | _Foreign:
    """Apply rules 2 to 5 to gpg's status lines for one signature packet."""
    prefix = b"[GNUPG:] "
    lines = [line[len(prefix) :].split(b" ") for line in status.split(b"\n") if line.startswith(prefix)]
    verdicts = [fields for fields in lines if fields[0] in _VERDICTS]
    valid = [fields for fields in lines if fields[0] == b"VALIDSIG"]
    if len(verdicts) != 1 or len(valid) > 1 or sum(fields[0] == b"NEWSIG" for fields in lines) != 1:
        found = ", ".join(printable(fields[0]) for fields in lines) or "nothing"
        raise VerificationError(f"gpg gave no clear verdict on the signature of {what}; its status was: {found}")
    verdict = verdicts[0]
    if verdict[0] == b"ERRSIG":
        return _errsig(verdict, what)
    if verdict[0] == b"BADSIG":
        raise VerificationError(
            f"the signature of {what} by the key {_hex(verdict, 1)} is bad: the data was changed after signing, or the "
            "signature belongs to other data"
        )
    if not valid or len(valid[0]) != 11:
        raise VerificationError(f"gpg named no key that made the signature of {what}")
    fields = valid[0]
    signing_key, primary = _hex(fields, 1), _hex(fields, 10)
    key = f"the key {primary}" if signing_key == primary else f"the key {signing_key}, a subkey of {primary}"
    if verdict[0] == b"REVKEYSIG":
        raise VerificationError(
            f"{what} is signed by {key}, and the key has been revoked; find out from the upstream which key replaces it"
        )
    if verdict[0] == b"EXPKEYSIG":
        raise VerificationError(
            f"{what} is signed by {key}, and the key expired{_expiry(lines, now)}; the upstream may have published it "
            "with a later date"
        )
    if verdict[0] == b"EXPSIG":
        expired = _moment(fields, 4, what)
        raise VerificationError(f"the signature of {what} by {key} expired on {expired:%Y-%m-%d %H:%M} UTC")
    if any(line[0] in _FAILURES for line in lines):
        raise VerificationError(f"gpg reported a failure beside a good signature of {what} by {key}")
    return _good(fields, signing_key, primary, keyring, now, what)


def _good(
    fields: Sequence[bytes], signing_key: str, primary: str, keyring: PinnedKeys, now: datetime, what: str
) -> Signature:
    """Apply rule 3 to a VALIDSIG line that came with GOODSIG."""
    if primary not in keyring.fingerprints:
        raise VerificationError(_not_pinned([primary], keyring, what))
    algorithm = _hash(fields[8])
    if algorithm not in _STRONG:
        raise VerificationError(_weak(algorithm, f"the key {primary}", what))
    if fields[9] != b"00":
        raise VerificationError(f"the signature of {what} is of type {printable(fields[9])}; expected 00")
    made = _moment(fields, 3, what)
    if made > now + CLOCK_SKEW:
        raise VerificationError(
            f"the signature of {what} was made on {made:%Y-%m-%d %H:%M:%S} UTC, which is in the future: it is now "
            f"{now.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC; check this machine's clock"
        )
    return Signature(primary, signing_key, made, algorithm)


def _errsig(fields: Sequence[bytes], what: str) -> _Foreign:
    """Judge ``ERRSIG keyid pkalgo hashalgo sig_class time reason fingerprint``."""
    if len(fields) < 7:
        raise VerificationError(f"gpg could not check the signature of {what}, and gave no reason")
    key = _hex(fields, 7) if len(fields) > 7 and fields[7] != b"-" else _hex(fields, 1)
    if fields[6] == _NO_PUBLIC_KEY:
        return _Foreign(key)
    if (algorithm := _hash(fields[3])) not in _STRONG:
        raise VerificationError(_weak(algorithm, f"the key {key}", what))
    reason = _ERRSIG_REASONS.get(fields[6], f"could not be checked (gpg's reason {printable(fields[6])})")
    raise VerificationError(f"the signature of {what} by the key {key} {reason}")


def _not_pinned(foreign: Sequence[str], keyring: PinnedKeys, what: str) -> str:
    made_by = " and ".join(
        f"a key that is retired (fingerprint {key}), and so proves no new build"
        if key in keyring.retired
        else f"a key that is not pinned ({'fingerprint' if len(key) >= 40 else 'key ID'} {key})"
        for key in foreign
    )
    return f"the signature of {what} was made by {made_by}; pinned here: {', '.join(sorted(keyring.fingerprints))}"


def _weak(algorithm: str, key: str, what: str) -> str:
    return (
        f"the signature of {what} by {key} uses the hash algorithm {algorithm}, which is too weak to prove anything; "
        "the upstream must sign with SHA-256 or better"
    )


def _hash(field: bytes) -> str:
    number = int(field) if field.isdigit() else -1
    return HASHES.get(number, f"number {printable(field)}")


def _hex(fields: Sequence[bytes], position: int) -> str:
    field = fields[position] if position < len(fields) else b""
    return field.decode("ascii") if _HEX.fullmatch(field) else "unknown"


def _moment(fields: Sequence[bytes], position: int, what: str) -> datetime:
    if not re.fullmatch(rb"[0-9]{1,11}", fields[position]):
        raise VerificationError(f"gpg gave no time for the signature of {what}: {printable(fields[position])}")
    return datetime.fromtimestamp(int(fields[position]), UTC)


def _expiry(lines: Sequence[Sequence[bytes]], now: datetime) -> str:
    """Return the day that ``KEYEXPIRED`` names. gpg may print it for other subkeys too, so it serves messages only."""
    times = {int(fields[1]) for fields in lines if fields[0] == b"KEYEXPIRED" and fields[1].isdigit()}
    past = [datetime.fromtimestamp(time, UTC) for time in times if 0 < time <= now.timestamp()]
    return f" on {past[0]:%Y-%m-%d}" if len(past) == 1 else ""


def dearmor(text: bytes, kind: bytes, what: str) -> bytes:
    """Return what the one ASCII-armored block of `kind` (such as ``PGP SIGNATURE``) in `text` holds.

    White space may surround the block, and nothing else may. Raises `FormatError`. Source: RFC 9580 §6.2.
    """
    lines = [line.rstrip(b" \t\r") for line in text.strip(b" \t\r\n").split(b"\n")]
    end = b"-----END " + kind + b"-----"
    if lines[0] != b"-----BEGIN " + kind + b"-----":
        raise FormatError(f"{what} is {_looks_like(text)}; expected {_ARMOR_KINDS[kind]}, ASCII-armored")
    if end not in lines:
        raise FormatError(f"{what} is cut off: its armor has no end")
    if lines.index(end) != len(lines) - 1:
        raise FormatError(f"{what} has more behind its armor; expected one armored block and nothing else")
    blank = lines.index(b"") if b"" in lines else len(lines)
    if any(not re.fullmatch(rb"[A-Za-z]+: .*", line) for line in lines[1:blank]):
        raise FormatError(f"{what} has malformed armor: expected headers, a blank line and base64")
    body, check = lines[blank + 1 : -1], b""
    if body and body[-1].startswith(b"="):
        check = body.pop()[1:]
    try:
        data = base64.b64decode(b"".join(body), validate=True)
        intact = not check or base64.b64decode(check, validate=True) == _crc24(data).to_bytes(3, "big")
    except binascii.Error as error:
        raise FormatError(f"{what} has malformed armor: {error}") from error
    if not intact:
        raise FormatError(f"{what} is damaged: the checksum of its armor does not match")
    return data


def read_packets(data: bytes, what: str) -> list[Packet]:
    """Return the OpenPGP packets that `data` consists of, at least one, each of definite length.

    Raises `FormatError`. Source: RFC 9580 §4.2.
    """
    packets = []
    position = 0
    while position < len(data):
        first, rest = data[position], data[position + 1 : position + 6]
        if not first & 0x80:
            raise FormatError(f"{what} is no OpenPGP data: byte {position} begins no packet")
        if first & 0x40:
            tag, width = first & 0x3F, 1
            if rest and 192 <= rest[0] < 224:
                width, size = 2, (rest[0] - 192 << 8) + (rest[1] if len(rest) > 1 else 0) + 192
            elif rest and rest[0] == 255:
                width, size = 5, int.from_bytes(rest[1:5], "big")
            elif rest and rest[0] >= 224:
                raise FormatError(f"{what} {_STREAMED}")
            else:
                size = rest[0] if rest else 0
        else:
            tag, width = first >> 2 & 0x0F, (1, 2, 4, 0)[first & 3]
            if not width:
                raise FormatError(f"{what} {_STREAMED}")
            size = int.from_bytes(rest[:width], "big")
        end = position + 1 + width + size
        if end > len(data):
            raise FormatError(f"{what} is cut off: its last OpenPGP packet is longer than the data")
        packets.append(Packet(tag, data[position + 1 + width : end], data[position:end]))
        position = end
    if not packets:
        raise FormatError(f"{what} is empty")
    return packets


def _looks_like(text: bytes) -> str:
    start = text.strip(b" \t\r\n")
    if not start:
        return "empty"
    if match := re.match(rb"-----BEGIN (PGP [A-Z ]+)-----", start):
        return _ARMOR_KINDS.get(match[1], f"a {printable(match[1])}")
    if start.startswith(b"<"):
        return "an HTML or XML document"
    return f"something else, which begins with {printable(start[:24])!r}"


def _crc24(data: bytes) -> int:
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc
