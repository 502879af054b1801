"""Signatures: made by the real gpg, judged by us, and cross-checked by gpgv, which shares no code with ours."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from presetbuild.catalog import KeyPin
from presetbuild.keys import Keyring, default_signing_keys, open_keyring
from presetbuild.signature import MAX_SIGNATURE, MAX_SIGNED, Signature, verify_signature
from shim.errors import VerificationError
from tests.presetbuild.pgp import Signer

BORN = datetime(2026, 1, 1, tzinfo=UTC)
MADE = datetime(2026, 5, 31, 12, 30, 15, tzinfo=UTC)
NOW = datetime(2026, 6, 1, tzinfo=UTC)
DATA = b"c2eed8f2bf4fe70287ba9244161f30aefdb86328f5759d7efcdbf2b8a92288d6  rootfs.tar.xz\n"
REAL = Path(__file__).parents[1] / "data" / "linuxcontainers"
REAL_FINGERPRINT = "E7FB0CAEC8173D669066514CBAEFF88C22F6E216"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pgp")


@pytest.fixture(scope="session")
def signer(home: Path) -> Signer:
    return Signer.create(home, at=BORN)


@pytest.fixture(scope="session")
def stranger(home: Path) -> Signer:
    return Signer.create(home, "Stranger <stranger@example.org>", at=BORN)


@pytest.fixture(scope="session")
def with_subkey(home: Path) -> tuple[Signer, str]:
    owner = Signer.create(home, "Owner <owner@example.org>", at=BORN)
    return owner, owner.add_subkey(at=BORN)


@contextmanager
def pinned(directory: Path, *signers: Signer, retired: Sequence[Signer] = ()) -> Iterator[Keyring]:
    pins = []
    directory.mkdir(exist_ok=True)
    for number, signer in enumerate((*signers, *retired)):
        (directory / f"{number}.asc").write_bytes(signer.public_key())
        pins.append(KeyPin(f"{number}.asc", signer.fingerprint, signer in retired))
    with open_keyring(directory, pins) as keyring:
        yield keyring


def verify(
    tmp_path: Path,
    signature: bytes,
    *signers: Signer,
    data: bytes = DATA,
    now: datetime = NOW,
    gpgv: bool | None = None,
) -> Signature:
    """Verify, and where `gpgv` says what Debian's gpgv must find, hold it to that first."""
    if gpgv is not None and shutil.which("gpgv"):
        assert gpgv_accepts(tmp_path, signature, signers, data) is gpgv
    with pinned(tmp_path / "keys", *signers) as keyring:
        return verify_signature(data, signature, keyring, now=now, what="SHA256SUMS")


def gpgv_accepts(tmp_path: Path, signature: bytes, signers: Sequence[Signer], data: bytes) -> bool:
    files = {"ring": b"".join(signer.public_key(armor=False) for signer in signers), "sig": signature, "signed": data}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    ring, sig, signed = (str(tmp_path / name) for name in files)
    command = ["gpgv", "--homedir", str(tmp_path), "--keyring", ring, sig, signed]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def both(*signatures: bytes) -> bytes:
    """Put binary signatures into one armored file, without the checksum that gpgv insists on and RFC 9580 does not."""
    encoded = base64.encodebytes(b"".join(signatures))
    return b"-----BEGIN PGP SIGNATURE-----\n\n" + encoded + b"-----END PGP SIGNATURE-----\n"


# What is accepted


@pytest.mark.parametrize("digest", ["SHA224", "SHA256", "SHA384", "SHA512"])
def test_good_signature_names_key_time_and_hash(tmp_path: Path, signer: Signer, digest: str) -> None:
    signature = signer.sign(DATA, digest=digest, at=MADE)
    assert verify(tmp_path, signature, signer, gpgv=True) == Signature(
        signer.fingerprint, signer.fingerprint, MADE, digest
    )


def test_binary_signature_is_accepted_like_an_armored_one(tmp_path: Path, signer: Signer) -> None:
    signature = signer.sign(DATA, at=MADE, armor=False)
    assert signature[0] & 0x80
    assert verify(tmp_path, signature, signer, gpgv=True).made == MADE


def test_rsa_key_is_accepted(tmp_path: Path, home: Path) -> None:
    rsa = Signer.create(home, "RSA <rsa@example.org>", algorithm="rsa2048", at=BORN)
    assert verify(tmp_path, rsa.sign(DATA, at=MADE), rsa, gpgv=True).primary == rsa.fingerprint


def test_empty_data_can_be_signed(tmp_path: Path, signer: Signer) -> None:
    assert verify(tmp_path, signer.sign(b"", at=MADE), signer, data=b"", gpgv=True).made == MADE


@pytest.mark.parametrize("change", [
    pytest.param(lambda armor: armor.replace(b"\n", b"\r\n"), id="line ends of DOS"),
    pytest.param(lambda armor: b"\n \n" + armor + b"\n\n", id="white space around"),
    pytest.param(lambda armor: armor.replace(b"-----\n\n", b"-----\nVersion: GnuPG v1\n\n", 1), id="armor header"),
    pytest.param(lambda armor: re.sub(rb"\n=.{4}\n", b"\n", armor), id="no checksum, as RFC 9580 allows"),
])  # fmt: skip
def test_armor_that_means_the_same_is_accepted(
    tmp_path: Path, signer: Signer, change: Callable[[bytes], bytes]
) -> None:
    assert verify(tmp_path, change(signer.sign(DATA, at=MADE)), signer).made == MADE


def test_subkey_of_a_pinned_primary_key_may_sign(tmp_path: Path, with_subkey: tuple[Signer, str]) -> None:
    owner, subkey = with_subkey
    found = verify(tmp_path, owner.sign(DATA, at=MADE, key=subkey), owner, gpgv=True)
    assert (found.primary, found.signing_key) == (owner.fingerprint, subkey)


def test_large_list_is_verified_whole(tmp_path: Path, signer: Signer) -> None:
    data = b"x" * MAX_SIGNED
    signature = signer.sign(data, at=MADE)
    assert verify(tmp_path, signature, signer, data=data).made == MADE
    with pytest.raises(VerificationError, match="data was changed"):
        verify(tmp_path, signature, signer, data=data[:-1] + b"y")


@pytest.mark.parametrize("first", ["known", "unknown"])
def test_key_rollover_one_known_and_one_unknown_signer_is_accepted(
    tmp_path: Path, signer: Signer, stranger: Signer, first: str
) -> None:
    signatures = [signer.sign(DATA, at=MADE, armor=False), stranger.sign(DATA, at=MADE, armor=False)]
    found = verify(tmp_path, both(*(signatures if first == "known" else reversed(signatures))), signer)
    assert found.primary == signer.fingerprint


def test_key_rollover_the_weak_hash_of_an_unknown_signer_does_not_matter(
    tmp_path: Path, signer: Signer, stranger: Signer
) -> None:
    weak = stranger.sign(DATA, at=MADE, armor=False, digest="SHA1")
    assert verify(tmp_path, both(weak, signer.sign(DATA, at=MADE, armor=False)), signer).hash == "SHA512"


def test_two_good_signatures_by_pinned_keys_give_the_first(tmp_path: Path, signer: Signer, stranger: Signer) -> None:
    signatures = signer.sign(DATA, at=MADE, armor=False) + stranger.sign(DATA, at=NOW, armor=False)
    assert verify(tmp_path, signatures, stranger, signer, gpgv=True) == Signature(
        signer.fingerprint, signer.fingerprint, MADE, "SHA512"
    )


# The real list


def real_pin() -> KeyPin:
    return KeyPin("linuxcontainers.asc", REAL_FINGERPRINT)


def test_real_signed_list_of_linuxcontainers() -> None:
    with open_keyring(default_signing_keys(), [real_pin()]) as keyring:
        found = verify_signature(
            (REAL / "SHA256SUMS").read_bytes(), (REAL / "SHA256SUMS.asc").read_bytes(), keyring,
            now=datetime(2026, 9, 1, tzinfo=UTC), what="SHA256SUMS",
        )  # fmt: skip
    assert found == Signature(
        REAL_FINGERPRINT, REAL_FINGERPRINT, datetime(2026, 8, 29, 7, 43, 59, tzinfo=UTC), "SHA512"
    )


@pytest.mark.parametrize("position", [0, 64, 66, -1])
def test_real_list_with_one_flipped_bit_is_refused(position: int) -> None:
    data = bytearray((REAL / "SHA256SUMS").read_bytes())
    data[position] ^= 1
    with (
        open_keyring(default_signing_keys(), [real_pin()]) as keyring,
        pytest.raises(VerificationError, match="the data was changed after signing"),
    ):
        verify_signature(
            bytes(data), (REAL / "SHA256SUMS.asc").read_bytes(), keyring,
            now=datetime(2026, 9, 1, tzinfo=UTC), what="SHA256SUMS",
        )  # fmt: skip


# Keys and signatures that do not count


def test_key_that_is_not_pinned_is_named(tmp_path: Path, signer: Signer, stranger: Signer) -> None:
    with pytest.raises(VerificationError) as caught:
        verify(tmp_path, stranger.sign(DATA, at=MADE), signer, gpgv=False)
    assert str(caught.value) == (
        f"the signature of SHA256SUMS was made by a key that is not pinned (fingerprint {stranger.fingerprint}); "
        f"pinned here: {signer.fingerprint}"
    )


def test_retired_key_proves_no_new_build(tmp_path: Path, signer: Signer, stranger: Signer) -> None:
    with (
        pinned(tmp_path / "keys", signer, retired=[stranger]) as keyring,
        pytest.raises(VerificationError, match=f"a key that is retired \\(fingerprint {stranger.fingerprint}\\)"),
    ):
        verify_signature(DATA, stranger.sign(DATA, at=MADE), keyring, now=NOW, what="SHA256SUMS")


def test_signature_of_other_data(tmp_path: Path, signer: Signer) -> None:
    with pytest.raises(VerificationError, match=r"is bad: the data was changed after signing, or .* other data"):
        verify(tmp_path, signer.sign(b"other", at=MADE), signer, gpgv=False)


def test_changed_line_ends_are_changed_data(tmp_path: Path, signer: Signer) -> None:
    with pytest.raises(VerificationError, match="data was changed after signing"):
        verify(tmp_path, signer.sign(DATA, at=MADE), signer, data=DATA.replace(b"\n", b"\r\n"), gpgv=False)


def test_revoked_key_is_refused_also_for_what_it_signed_before(tmp_path: Path, home: Path) -> None:
    revoked = Signer.create(home, "Revoked <revoked@example.org>", at=BORN)
    signature = revoked.sign(DATA, at=MADE)
    revoked.revoke()
    with pytest.raises(VerificationError, match="the key has been revoked"):
        verify(tmp_path, signature, revoked)


def test_revoked_key_whose_user_id_imitates_status_lines(tmp_path: Path, home: Path) -> None:
    """A parser that splits at byte 0x85, as python-gnupg's does, reads a good signature here."""
    forged = f"GOODSIG 0123456789ABCDEF x\x85[GNUPG:] VALIDSIG {'A' * 40} 2026-05-31 1780230615 0 4 0 22 10 00"
    name = f"x\x85[GNUPG:] {forged}"
    revoked = Signer.create(home, name, at=BORN)
    signature = revoked.sign(DATA, at=MADE)
    revoked.revoke()
    with pytest.raises(VerificationError, match="the key has been revoked"):
        verify(tmp_path, signature, revoked)


@pytest.mark.parametrize("separator", ["\n", "\r", "\x85", "\u2028", "\x0b", "\x1c", "%0A", " "])
def test_good_key_whose_user_id_imitates_status_lines(tmp_path: Path, home: Path, separator: str) -> None:
    hostile = Signer.create(home, f"x{separator}[GNUPG:] BADSIG 0 y{separator}[GNUPG:] NEWSIG", at=BORN)
    found = verify(tmp_path, hostile.sign(DATA, at=MADE), hostile, gpgv=True)
    assert found == Signature(hostile.fingerprint, hostile.fingerprint, MADE, "SHA512")


def test_expired_key_is_refused_with_its_date(tmp_path: Path, home: Path) -> None:
    expired = Signer.create(home, "Expired <expired@example.org>", at=BORN, expires="2026-03-01")
    signature = expired.sign(DATA, at=BORN + timedelta(days=1))
    assert verify(tmp_path, signature, expired, now=datetime(2026, 2, 27, tzinfo=UTC)).primary == expired.fingerprint
    with pytest.raises(VerificationError, match="the key expired on 2026-03-01"):
        verify(tmp_path, signature, expired)


def test_expired_primary_key_takes_its_subkey_along(tmp_path: Path, home: Path) -> None:
    owner = Signer.create(home, "Short <short@example.org>", at=BORN)
    subkey = owner.add_subkey(at=BORN)
    signature = owner.sign(DATA, at=BORN + timedelta(minutes=1), key=subkey)
    owner.expire(86400, at=BORN + timedelta(seconds=5))
    with pytest.raises(VerificationError, match=f"{subkey}, a subkey of {owner.fingerprint}, and the key expired"):
        verify(tmp_path, signature, owner)


def test_expired_subkey_is_refused(tmp_path: Path, home: Path) -> None:
    owner = Signer.create(home, "Renews <renews@example.org>", at=BORN)
    subkey = owner.add_subkey(at=BORN, expires="seconds=86400")
    with pytest.raises(VerificationError, match=f"a subkey of {owner.fingerprint}, and the key expired on 2026-01-02"):
        verify(tmp_path, owner.sign(DATA, at=BORN + timedelta(minutes=1), key=subkey), owner)


def test_revoked_subkey_is_refused_and_its_primary_key_is_not(tmp_path: Path, home: Path) -> None:
    owner = Signer.create(home, "Replaces <replaces@example.org>", at=BORN)
    subkey = owner.add_subkey(at=BORN)
    by_subkey, by_primary = owner.sign(DATA, at=MADE, key=subkey), owner.sign(DATA, at=MADE)
    owner.revoke_subkey()
    assert verify(tmp_path, by_primary, owner).signing_key == owner.fingerprint
    with pytest.raises(VerificationError, match=f"the key {subkey}, a subkey of .*, and the key has been revoked"):
        verify(tmp_path, by_subkey, owner)


def test_expired_signature_is_refused_with_its_date(tmp_path: Path, signer: Signer) -> None:
    signature = signer.sign(DATA, at=MADE, options=["--default-sig-expire", "seconds=3600"])
    assert verify(tmp_path, signature, signer, now=MADE + timedelta(minutes=30)).made == MADE
    with pytest.raises(VerificationError, match=r"the signature of SHA256SUMS by .* expired on 2026-05-31 13:30 UTC"):
        verify(tmp_path, signature, signer)


def test_signature_from_the_future_is_refused_and_a_clock_that_is_a_little_off_is_not(
    tmp_path: Path, signer: Signer
) -> None:
    signature = signer.sign(DATA, at=MADE)
    assert verify(tmp_path, signature, signer, now=MADE - timedelta(minutes=10)).made == MADE
    with pytest.raises(VerificationError, match="in the future"):
        verify(tmp_path, signature, signer, now=MADE - timedelta(minutes=10, seconds=1))


def test_signature_older_than_its_key_is_refused(tmp_path: Path, signer: Signer) -> None:
    signature = signer.sign(DATA, at=BORN - timedelta(days=1), options=["--ignore-time-conflict"])
    with pytest.raises(VerificationError, match="is older than the key"):
        verify(tmp_path, signature, signer, gpgv=False)


@pytest.mark.parametrize("digest", ["SHA1", "RIPEMD160", "MD5"])
def test_weak_hash_in_the_signature_is_refused_by_name(tmp_path: Path, signer: Signer, digest: str) -> None:
    with pytest.raises(VerificationError, match=f"{signer.fingerprint} uses the hash algorithm {digest}, .* too weak"):
        verify(tmp_path, signer.sign(DATA, at=MADE, digest=digest), signer)


@pytest.mark.parametrize("bad_first", [True, False])
def test_bad_signature_by_a_pinned_key_beside_a_good_one_is_refused(
    tmp_path: Path, signer: Signer, stranger: Signer, bad_first: bool
) -> None:
    signatures = [signer.sign(b"other", at=MADE, armor=False), stranger.sign(DATA, at=MADE, armor=False)]
    with pytest.raises(VerificationError, match="is bad"):
        verify(tmp_path, b"".join(signatures[:: 1 if bad_first else -1]), signer, stranger, gpgv=False)


def test_revoked_pinned_key_beside_a_good_signature_is_refused(tmp_path: Path, home: Path, signer: Signer) -> None:
    revoked = Signer.create(home, "Also <also@example.org>", at=BORN)
    signatures = both(signer.sign(DATA, at=MADE, armor=False), revoked.sign(DATA, at=MADE, armor=False))
    revoked.revoke()
    with pytest.raises(VerificationError, match="revoked"):
        verify(tmp_path, signatures, signer, revoked)


def test_subkey_that_the_pinned_key_never_bound_is_refused(
    tmp_path: Path, signer: Signer, with_subkey: tuple[Signer, str]
) -> None:
    """Whoever can write the key file, and not the catalog, adds a subkey of theirs behind the pinned primary key.

    GnuPG 2.2 keeps such a subkey and says that it is not bound; 2.4 drops it, and then knows no such key.
    """
    owner, subkey = with_subkey
    foreign = owner.public_key(armor=False)
    subkey_packets = foreign[foreign.index(b"\xb8\x33\x04") :]  # from the subkey packet on: ed25519, version 4
    forged = both(signer.public_key(armor=False), subkey_packets).replace(b"SIGNATURE", b"PUBLIC KEY BLOCK")
    (tmp_path / "0.asc").write_bytes(forged)
    with (
        open_keyring(tmp_path, [KeyPin("0.asc", signer.fingerprint)]) as keyring,
        pytest.raises(VerificationError, match=r"a subkey that its primary key has not bound|not pinned"),
    ):
        verify_signature(DATA, owner.sign(DATA, at=MADE, key=subkey), keyring, now=NOW, what="SHA256SUMS")


# Files that are no detached signature


def clear_signed(signer: Signer) -> bytes:
    return signer.sign(DATA, at=MADE, how="--clear-sign")


def inline_signed(signer: Signer) -> bytes:
    return signer.sign(DATA, at=MADE, how="--sign")


NO_SIGNATURE: dict[str, tuple[Callable[[Signer], bytes], str]] = {
    "empty": (lambda s: b"", "is empty"),
    "blank": (lambda s: b"\n\n", "is empty"),
    "clear-signed": (clear_signed, "is a clear-signed message; expected a signature"),
    "inline-signed": (inline_signed, "is an inline-signed or encrypted message"),
    "inline-signed, binary": (
        lambda s: s.sign(DATA, at=MADE, how="--sign", armor=False), "of open length, as only an inline-signed"
    ),
    "inline-signed, binary, not compressed": (
        lambda s: s.sign(DATA, at=MADE, how="--sign", armor=False, options=["--compress-algo", "none"]),
        "is or contains an inline-signed message",
    ),
    "public key": (lambda s: s.public_key(), "is a public key; expected a signature"),
    "public key, binary": (lambda s: s.public_key(armor=False), "is or contains a public key"),
    "public key in the armor of a signature": (lambda s: both(s.public_key(armor=False)), "contains a public key"),
    "secret key": (lambda s: s.secret_key(), "is a secret key"),
    "HTML": (lambda s: b"<html>\x1b[2J404</html>", "is an HTML or XML document"),
    "text": (lambda s: b"oops\x1b[2J", r"something else, which begins with .oops\\\\x1b\[2J"),
    "text before the armor": (lambda s: b"x\n" + s.sign(DATA, at=MADE), "something else"),
    "text after the armor": (lambda s: s.sign(DATA, at=MADE) + b"x\n", "has more behind its armor"),
    "data after the armor": (lambda s: s.sign(DATA, at=MADE) + DATA, "has more behind its armor"),
    "two armor blocks": (lambda s: s.sign(DATA, at=MADE) * 2, "has more behind its armor"),
    "binary after the armor": (
        lambda s: s.sign(DATA, at=MADE) + s.sign(DATA, at=MADE, armor=False), "has more behind its armor"
    ),
    "armor after binary": (lambda s: s.sign(DATA, at=MADE, armor=False) + s.sign(DATA, at=MADE), "begins no packet"),
    "cut off": (lambda s: s.sign(DATA, at=MADE)[:-40], "is cut off"),
    "cut off, binary": (lambda s: s.sign(DATA, at=MADE, armor=False)[:-1], "is cut off"),
    "a header only": (lambda s: b"\x88", "is cut off"),
    "wrong armor checksum": (lambda s: re.sub(rb"\n=.{4}\n", b"\n=AAAA\n", s.sign(DATA, at=MADE)), "is damaged"),
    "armor that is no base64": (lambda s: both(b"").replace(b"\n\n", b"\n\n!!!!\n", 1), "malformed armor"),
    "armor without a blank line": (lambda s: s.sign(DATA, at=MADE).replace(b"\n\n", b"\n", 1), "malformed armor"),
    "armor that holds nothing": (lambda s: both(b""), "is empty"),
    "text signature": (
        lambda s: s.sign(DATA, at=MADE, options=["--textmode"]), "a text signature, which leaves line endings open"
    ),
    "signature of version 3": (lambda s: b"\x88\x02\x03\x05", "version 3; only version 4"),
    "certification": (lambda s: b"\x88\x02\x04\x13", "of type 0x13, which is no signature of a document"),
    "empty packet": (lambda s: b"\x88\x00", "version 0"),
    "indeterminate length": (lambda s: b"\x8b\x04\x00", "of open length"),
    "partial length": (lambda s: b"\xc2\xe1\x04\x00", "of open length"),
    "marker packet beside it": (
        lambda s: b"\xca\x03PGP" + s.sign(DATA, at=MADE, armor=False), "an OpenPGP packet of type 10"
    ),
    "too many": (lambda s: s.sign(DATA, at=MADE, armor=False) * 9, "9 packets; at most 8"),
    "too long": (lambda s: s.sign(DATA, at=MADE) + b"\n" * MAX_SIGNATURE, f"at most {MAX_SIGNATURE} are read"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_SIGNATURE)
def test_file_that_is_no_detached_signature_is_refused_in_words(tmp_path: Path, signer: Signer, case: str) -> None:
    make, message = NO_SIGNATURE[case]
    with pytest.raises(VerificationError, match=message) as caught:
        verify(tmp_path, make(signer), signer)
    assert "the signature of SHA256SUMS" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("make", [clear_signed, inline_signed])
def test_message_that_carries_its_own_data_never_vouches_for_other_data(
    tmp_path: Path, signer: Signer, make: Callable[[Signer], bytes]
) -> None:
    with pytest.raises(VerificationError, match="nothing was verified"):
        verify(tmp_path, make(signer), signer, data=b"other")


def test_list_that_is_too_long_is_refused(tmp_path: Path, signer: Signer) -> None:
    with pytest.raises(VerificationError, match=f"has {MAX_SIGNED + 1} bytes"):
        verify(tmp_path, signer.sign(DATA, at=MADE), signer, data=b"x" * (MAX_SIGNED + 1))


# A gpg that says something odd


@dataclass
class ScriptedGpg:
    """Stands where gpg stands, and answers every packet with the same status."""

    status: bytes
    fingerprints: frozenset[str] = frozenset({"A" * 40})
    retired: frozenset[str] = frozenset()

    def check(self, data: bytes, packet: bytes, now: datetime) -> bytes:
        return self.status


NEWSIG = b"[GNUPG:] NEWSIG\n"
GOODSIG = b"[GNUPG:] GOODSIG AAAAAAAAAAAAAAAA Somebody\n"
VALIDSIG = b"[GNUPG:] VALIDSIG " + b"A" * 40 + b" 2026-05-31 1780230615 0 4 0 22 10 00 " + b"A" * 40 + b"\n"
ERRSIG = b"[GNUPG:] ERRSIG BBBBBBBBBBBBBBBB 22 10 00 1780230615 "


def judge(status: bytes) -> Signature:
    return verify_signature(DATA, b"\x88\x02\x04\x00", ScriptedGpg(status), now=NOW, what="SHA256SUMS")


def test_status_of_a_good_signature() -> None:
    assert judge(NEWSIG + GOODSIG + VALIDSIG) == Signature("A" * 40, "A" * 40, MADE, "SHA512")


@pytest.mark.parametrize(("status", "message"), [
    (b"", "no clear verdict"),
    (NEWSIG, "no clear verdict"),
    (b"gpg: Good signature\n", "no clear verdict"),
    (GOODSIG + VALIDSIG, "no clear verdict"),
    (NEWSIG + NEWSIG + GOODSIG + VALIDSIG, "no clear verdict"),
    (NEWSIG + VALIDSIG, "no clear verdict"),
    (NEWSIG + GOODSIG, "named no key"),
    (NEWSIG + GOODSIG + VALIDSIG + VALIDSIG, "no clear verdict"),
    (NEWSIG + GOODSIG + GOODSIG + VALIDSIG, "no clear verdict"),
    (NEWSIG + GOODSIG + VALIDSIG + b"[GNUPG:] BADSIG AAAAAAAAAAAAAAAA x\n", "no clear verdict"),
    (NEWSIG + GOODSIG + b" " + VALIDSIG, "named no key"),
    (NEWSIG + GOODSIG + b"x" + VALIDSIG, "named no key"),
    (NEWSIG + GOODSIG.replace(b"\n", b"\x85") + VALIDSIG, "named no key"),
    (NEWSIG + GOODSIG.replace(b"\n", b"\r") + VALIDSIG, "named no key"),
    (NEWSIG.replace(b"[GNUPG:] ", b"[GNUPG:]\t") + GOODSIG + VALIDSIG, "no clear verdict"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b" 00 " + b"A" * 40, b" 00"), "named no key"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b"\n", b" more\n"), "named no key"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b"00 " + b"A" * 40, b"00 " + b"B" * 40), "not pinned .fingerprint BBBB"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b"00 " + b"A" * 40, b"00 " + b"a" * 40), "not pinned"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b" 10 00", b" 2 00"), "SHA1"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b" 10 00", b" 99 00"), "hash algorithm number 99"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b" 10 00", b" 10 01"), "type 01; expected 00"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b"1780230615", b"20260531T123015"), "gave no time"),
    (NEWSIG + GOODSIG + VALIDSIG.replace(b"1780230615", b"-1"), "gave no time"),
    (NEWSIG + GOODSIG + VALIDSIG + b"[GNUPG:] FAILURE gpg-exit 33554433\n", "reported a failure"),
    (NEWSIG + GOODSIG + VALIDSIG + b"[GNUPG:] NODATA 4\n", "reported a failure"),
    (NEWSIG + b"[GNUPG:] REVKEYSIG AAAAAAAAAAAAAAAA x\n", "named no key"),
    (NEWSIG + b"[GNUPG:] BADSIG\n", "is bad"),
    (NEWSIG + b"[GNUPG:] ERRSIG\n", "gave no reason"),
    (NEWSIG + ERRSIG + b"9 -\n", "not pinned .key ID BBBBBBBBBBBBBBBB"),
    (NEWSIG + ERRSIG + b"9\n", "not pinned .key ID BBBBBBBBBBBBBBBB"),
    (NEWSIG + ERRSIG + b"4 -\n", "an algorithm that this gpg does not know"),
    (NEWSIG + ERRSIG + b"77 -\n", "gpg's reason 77"),
    (NEWSIG + ERRSIG + b"9 \x1b[2J\n", "not pinned .key ID unknown"),
])  # fmt: skip
def test_odd_status_is_refused(status: bytes, message: str) -> None:
    with pytest.raises(VerificationError, match=message) as caught:
        judge(status)
    assert str(caught.value).isprintable()


# The surroundings


def processes_that_mention(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and process.name != str(os.getpid()):
            found.append(command)
    return found


def test_nothing_is_left_running_and_nothing_is_written_but_below_the_temporary_directory(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent would also write sockets, a user's home and a configured one must stay as they are, and have no say."""
    user, configured, temporary = (tmp_path / name for name in ("user", "configured", "temporary"))
    for directory in (user, configured, temporary):
        directory.mkdir()
    (configured / "gpg.conf").write_text("this-is-no-option\n")
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("GNUPGHOME", str(configured))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pinned(tmp_path / "keys", signer) as keyring:
        (home,) = temporary.iterdir()
        assert (home.stat().st_mode & 0o777, (home / "pinned.gpg").stat().st_mode & 0o777) == (0o700, 0o600)
        signature = signer.sign(DATA, at=MADE)
        assert verify_signature(DATA, signature, keyring, now=NOW, what="SHA256SUMS").made == MADE
        assert processes_that_mention(str(home)) == []
        assert [path.name for path in home.iterdir()] == ["pinned.gpg"]
    assert list(temporary.iterdir()) == []
    assert list(user.iterdir()) == []
    assert [path.name for path in configured.iterdir()] == ["gpg.conf"]
