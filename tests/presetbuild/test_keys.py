"""The directory of keys: what may stand in a key file, and what a reviewer is told of it."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from presetbuild.catalog import Catalog, KeyPin, Upstream, load_catalog
from presetbuild.keyreport import KeyReport, describe_keys
from presetbuild.keys import MAX_KEY, default_signing_keys, open_keyring
from shim.errors import FormatError, NotFound, Refused, VerificationError
from tests.presetbuild.pgp import Signer

BORN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 6, 1, tzinfo=UTC)
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


def armored(binary: bytes, kind: bytes = b"PGP PUBLIC KEY BLOCK") -> bytes:
    return b"-----BEGIN %s-----\n\n%s-----END %s-----\n" % (kind, base64.encodebytes(binary), kind)


def open_one(directory: Path, content: bytes, fingerprint: str) -> None:
    (directory / "key.asc").write_bytes(content)
    with open_keyring(directory, [KeyPin("key.asc", fingerprint)]):
        pass


def reports(directory: Path, *pins: KeyPin) -> list[KeyReport]:
    upstream = Upstream("example", "lxc", "https://images.example.org", pins)
    return describe_keys(directory, Catalog("zstd", "https://example.org", {"example": upstream}, {}), now=NOW)


def report(directory: Path, signer: Signer, *, retired: bool = False) -> KeyReport:
    (directory / "key.asc").write_bytes(signer.public_key())
    return reports(directory, KeyPin("key.asc", signer.fingerprint, retired))[0]


# What a key file must be


def test_ring_holds_the_pinned_keys_alone(tmp_path: Path, signer: Signer, stranger: Signer) -> None:
    (tmp_path / "a.asc").write_bytes(signer.public_key())
    (tmp_path / "b.asc").write_bytes(stranger.public_key())
    with open_keyring(tmp_path, [KeyPin("a.asc", signer.fingerprint)]) as keyring:
        listing = keyring.listing().decode()
    assert signer.fingerprint in listing
    assert stranger.fingerprint not in listing
    assert keyring.fingerprints == {signer.fingerprint}


def test_retired_key_is_in_the_ring_only_when_asked_for(tmp_path: Path, signer: Signer, stranger: Signer) -> None:
    (tmp_path / "a.asc").write_bytes(signer.public_key())
    (tmp_path / "b.asc").write_bytes(stranger.public_key())
    pins = [KeyPin("a.asc", signer.fingerprint), KeyPin("b.asc", stranger.fingerprint, retired=True)]
    with open_keyring(tmp_path, pins) as keyring:
        assert set(keyring.fingerprints) == {signer.fingerprint}
        assert set(keyring.retired) == {stranger.fingerprint}
    with open_keyring(tmp_path, pins, include_retired=True) as keyring:
        assert set(keyring.fingerprints) == {signer.fingerprint, stranger.fingerprint}
        assert not keyring.retired


def test_pins_that_are_all_retired_prove_no_new_build(tmp_path: Path, signer: Signer) -> None:
    with (
        pytest.raises(Refused, match="no key that is pinned here may prove a new build"),
        open_keyring(tmp_path, [KeyPin("a.asc", signer.fingerprint, retired=True)]),
    ):
        pass


def test_another_key_in_the_file_is_named_beside_the_pinned_one(
    tmp_path: Path, signer: Signer, stranger: Signer
) -> None:
    with pytest.raises(VerificationError) as caught:
        open_one(tmp_path, stranger.public_key(), signer.fingerprint)
    assert f"{tmp_path}/key.asc holds another key" in str(caught.value)
    assert f"expected {signer.fingerprint}, found {stranger.fingerprint}" in str(caught.value)


def test_subkey_of_another_key_is_not_the_pinned_primary_key(tmp_path: Path, home: Path) -> None:
    owner = Signer.create(home, "Owner <owner@example.org>", at=BORN)
    subkey = owner.add_subkey(at=BORN)
    with pytest.raises(VerificationError, match=f"expected {subkey}, found {owner.fingerprint}"):
        open_one(tmp_path, owner.public_key(), subkey)


TRUST_PACKET = b"\xb0\x06\x00\x03gpg\x00"  # gpg's note that the signature before it was found good

BAD_FILES: dict[str, tuple[Callable[[Signer, Signer], bytes], str]] = {
    "empty": (lambda s, o: b"", "key.asc is empty"),
    "text": (lambda s, o: b"hello\n", "something else, which begins with 'hello'"),
    "HTML": (lambda s, o: b"<html></html>", "HTML"),
    "binary key": (lambda s, o: s.public_key(armor=False), "expected a public key, ASCII-armored"),
    "signature": (lambda s, o: s.sign(b"x", at=BORN), "is a signature; expected a public key"),
    "signature in the armor of a key": (
        lambda s, o: armored(s.sign(b"x", at=BORN, armor=False)), "holds 0 primary keys"
    ),
    "two keys in one block": (
        lambda s, o: armored(s.public_key(armor=False) + o.public_key(armor=False)), "holds 2 primary keys"
    ),
    "two blocks": (lambda s, o: s.public_key() + o.public_key(), "has more behind its armor"),
    "the same key twice": (lambda s, o: s.public_key() * 2, "has more behind its armor"),
    "text before": (lambda s, o: b"pub ed25519\n" + s.public_key(), "something else"),
    "text after": (lambda s, o: s.public_key() + b"x", "has more behind its armor"),
    "secret key": (lambda s, o: s.secret_key(), "holds a secret key; remove it at once"),
    "secret key behind the public one": (lambda s, o: s.public_key() + s.secret_key(), "holds a secret key"),
    "secret key in the armor of a public one": (
        lambda s, o: s.secret_key().replace(b"PRIVATE", b"PUBLIC"), "holds a secret key"
    ),
    "trust packet": (lambda s, o: armored(s.public_key(armor=False) + TRUST_PACKET), "packet of type 12"),
    "marker first": (lambda s, o: armored(b"\xca\x03PGP" + s.public_key(armor=False)), "at its beginning"),
    "data behind the key": (
        lambda s, o: armored(s.public_key(armor=False) + b"\xcb\x08b\x00\x00\x00\x00\x00hi"), "packet of type 11"
    ),
    "cut off": (lambda s, o: armored(s.public_key(armor=False)[:-1]), "is cut off"),
    "no end": (lambda s, o: s.public_key()[:-30], "is cut off: its armor has no end"),
    "damaged": (lambda s, o: s.public_key().replace(b"\n=", b"\n=AAAA\n=", 1), "malformed armor"),
    "another version": (lambda s, o: armored(b"\x98\x06\x03\0\0\0\0\0"), "a key of version 3"),
    "empty key packet": (lambda s, o: armored(b"\x98\x00"), r"a key of version \?"),
    "too long": (lambda s, o: s.public_key() + b"\n" * MAX_KEY, f"longer than {MAX_KEY} bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FILES)
def test_file_that_is_not_one_public_key_is_refused(
    tmp_path: Path, signer: Signer, stranger: Signer, case: str
) -> None:
    make, message = BAD_FILES[case]
    with pytest.raises(FormatError, match=message) as caught:
        open_one(tmp_path, make(signer, stranger), signer.fingerprint)
    assert str(tmp_path / "key.asc") in str(caught.value)


def test_missing_file_is_named(tmp_path: Path, signer: Signer) -> None:
    with (
        pytest.raises(NotFound, match=f"{tmp_path}/none.asc: there is no such key file"),
        open_keyring(tmp_path, [KeyPin("none.asc", signer.fingerprint)]),
    ):
        pass


def test_directory_in_the_place_of_a_file_is_refused(tmp_path: Path, signer: Signer) -> None:
    (tmp_path / "key.asc").mkdir()
    with (
        pytest.raises(Refused, match=r"key\.asc: the key file cannot be read"),
        open_keyring(tmp_path, [KeyPin("key.asc", signer.fingerprint)]),
    ):
        pass


def test_missing_gpg_is_named_with_its_package(tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    content = signer.public_key()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="install the package gnupg"):
        open_one(tmp_path, content, signer.fingerprint)


def test_error_of_the_caller_passes_through_unchanged(tmp_path: Path, signer: Signer) -> None:
    (tmp_path / "key.asc").write_bytes(signer.public_key())
    with (
        pytest.raises(ConnectionError, match="theirs"),
        open_keyring(tmp_path, [KeyPin("key.asc", signer.fingerprint)]),
    ):
        raise ConnectionError("theirs")


def test_moment_without_a_time_zone_is_a_mistake_of_the_caller(tmp_path: Path, signer: Signer) -> None:
    (tmp_path / "key.asc").write_bytes(signer.public_key())
    with (
        open_keyring(tmp_path, [KeyPin("key.asc", signer.fingerprint)]) as keyring,
        pytest.raises(ValueError, match="time zone"),
    ):
        keyring.check(b"", b"", datetime(2026, 1, 1))


# What a reviewer is told


def test_real_key_is_the_pinned_one_and_its_self_signatures_are_reported_as_sha1() -> None:
    (found,) = describe_keys(default_signing_keys(), load_catalog(), now=NOW)
    assert found.key
    assert (found.file, found.upstreams, found.pinned, found.retired) == (
        "linuxcontainers.asc", ("linuxcontainers",), True, False,
    )  # fmt: skip
    assert (found.key.fingerprint, found.key.algorithm, found.key.bits) == (REAL_FINGERPRINT, "RSA", 4096)
    assert (found.key.created, found.key.expires) == (datetime(2014, 1, 11, 3, 48, 28, tzinfo=UTC), None)
    assert (found.key.capabilities, found.key.revoked, found.key.expired) == (("certify", "sign"), False, False)
    assert found.user_ids == ("LXC pre-built images <lxc-devel@lists.linuxcontainers.org>",)
    assert found.self_signature_hashes == ("SHA1",)
    assert any("use SHA1, which is too weak" in note and "its fingerprint is pinned" in note for note in found.notes)
    assert any(note.startswith("never expires") for note in found.notes)


def test_sound_key_has_nothing_to_note(tmp_path: Path, home: Path) -> None:
    sound = Signer.create(
        home, "Sound <sound@example.org>", at=BORN, expires="2028-01-01", options=["--cert-digest-algo", "SHA256"]
    )
    found = report(tmp_path, sound)
    assert found.key
    assert found.notes == ()
    assert (found.key.algorithm, found.key.bits) == ("EdDSA ed25519", 255)
    assert found.key.expires == datetime(2028, 1, 1, 12, tzinfo=UTC)
    assert found.self_signature_hashes == ("SHA256",)


def test_revoked_key_is_reported(tmp_path: Path, home: Path) -> None:
    revoked = Signer.create(home, "Revoked <revoked@example.org>", at=BORN)
    revoked.revoke()
    found = report(tmp_path, revoked)
    assert found.key
    assert found.key.revoked
    assert "revoked: every signature by it is refused" in found.notes
    assert "no part of it can sign now" in found.notes


@pytest.mark.parametrize(("days", "expired", "note"), [
    (30, True, "expired: every signature by it is refused"),
    (200, False, "expires within 90 days"),
])  # fmt: skip
def test_expiry_is_reported(tmp_path: Path, home: Path, days: int, expired: bool, note: str) -> None:
    limited = Signer.create(home, "Limited <limited@example.org>", at=BORN, expires=f"seconds={days * 86400}")
    found = report(tmp_path, limited)
    assert found.key
    assert (found.key.expires, found.key.expired) == (BORN + timedelta(days=days), expired)
    assert any(text.startswith(note) for text in found.notes)


def test_weak_algorithms_are_reported(tmp_path: Path, home: Path) -> None:
    weak = Signer.create(
        home, "Weak <weak@example.org>", algorithm="rsa2048", at=BORN, options=["--cert-digest-algo", "SHA1"]
    )
    found = report(tmp_path, weak)
    assert found.self_signature_hashes == ("SHA1",)
    assert "RSA of 2048 bits is weak by today's measure" in found.notes


def test_subkeys_are_reported_with_their_use_expiry_and_revocation(tmp_path: Path, home: Path) -> None:
    owner = Signer.create(home, "Subkeys <subkeys@example.org>", at=BORN)
    revoked, limited = owner.add_subkey(at=BORN), owner.add_subkey("auth", at=BORN, expires="seconds=86400")
    owner.revoke_subkey(1)
    found = {subkey.fingerprint: subkey for subkey in report(tmp_path, owner).subkeys}
    assert list(found) == [revoked, limited]
    assert (found[revoked].capabilities, found[revoked].revoked) == (("sign",), True)
    assert (found[limited].capabilities, found[limited].expired) == (("authenticate",), True)
    assert found[limited].expires == BORN + timedelta(days=1)


@pytest.mark.parametrize(("name", "shown"), [
    ("a\npub:u:1::: <x@y.example>", "a\\npub:u:1::: <x@y.example>"),
    ("a\x85pub:u:1:1:A:1:::: <x@y.example>", "a\\x85pub:u:1:1:A:1:::: <x@y.example>"),
    ("a\u202eb <x@y.example>", "a\\u202eb <x@y.example>"),
    ("a\x1b[2Jb <x@y.example>", "a\\x1b[2Jb <x@y.example>"),
    ("Jörg: 100% <x@y.example>", "Jörg: 100% <x@y.example>"),
])  # fmt: skip
def test_hostile_user_id_is_one_printable_line_of_the_report(tmp_path: Path, home: Path, name: str, shown: str) -> None:
    found = report(tmp_path, Signer.create(home, name, at=BORN))
    assert found.user_ids == (shown,)
    assert found.subkeys == ()
    assert all(line.isprintable() for line in found.to_text().split("\n"))


def test_retired_key_is_reported_as_such(tmp_path: Path, signer: Signer) -> None:
    found = report(tmp_path, signer, retired=True)
    assert found.retired
    assert "retired: it proves old evidence, and no new build" in found.notes


def test_file_that_no_upstream_pins_is_reported(tmp_path: Path, signer: Signer, stranger: Signer) -> None:
    (tmp_path / "key.asc").write_bytes(signer.public_key())
    (tmp_path / "left.asc").write_bytes(stranger.public_key())
    (tmp_path / "junk\n.bin").write_bytes(b"\x00")
    (tmp_path / "README.md").write_text("Keys.")
    first, junk, left = reports(tmp_path, KeyPin("key.asc", signer.fingerprint))
    assert first.pinned
    assert (junk.file, junk.pinned, junk.key) == ("junk\\n.bin", False, None)
    assert left.key
    assert (left.file, left.pinned, left.key.fingerprint) == ("left.asc", False, stranger.fingerprint)
    assert "no upstream pins this file, so it verifies nothing; pin it or remove it" in left.notes


def test_describing_refuses_a_file_that_is_not_the_pinned_key(tmp_path: Path, signer: Signer, stranger: Signer) -> None:
    (tmp_path / "key.asc").write_bytes(stranger.public_key())
    with pytest.raises(VerificationError, match=f"expected {signer.fingerprint}, found {stranger.fingerprint}"):
        reports(tmp_path, KeyPin("key.asc", signer.fingerprint))


def test_report_as_json_and_as_text(tmp_path: Path, signer: Signer) -> None:
    found = report(tmp_path, signer)
    fields = json.loads(found.to_json())
    assert fields["pinned"] is True
    assert fields["key"]["fingerprint"] == signer.fingerprint
    assert fields["key"]["created"] == "2026-01-01T00:00:00Z"
    assert "\n" not in found.to_json()
    assert found.to_text().split("\n")[0] == "key.asc: pinned by example"
    assert found.to_text().split("\n")[1] == (
        f"  key      {signer.fingerprint}  EdDSA ed25519 255 bits, certify/sign, created 2026-01-01, never expires"
    )


# Where the keys are


def test_keys_are_found_beside_a_checkout() -> None:
    assert (default_signing_keys() / "linuxcontainers.asc").is_file()


def test_keys_are_found_inside_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "presetbuild"
    shutil.copytree(default_signing_keys(), package / "signing-keys")
    monkeypatch.setattr("presetbuild.keys.__file__", str(package / "keys.py"))
    assert default_signing_keys() == package / "signing-keys"


def test_missing_keys_are_an_error_that_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presetbuild.keys.__file__", str(tmp_path / "presetbuild" / "keys.py"))
    with pytest.raises(NotFound, match="--signing-keys"):
        default_signing_keys()
