"""Throwaway OpenPGP keys and signatures for tests, made by the real gpg in home directories of their own.

Nothing here touches the user's key ring, and no agent outlives the call that started it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_LONGEST_HOME = 80  # an agent's socket lies in the home, and its path must stay below the kernel's 108 bytes


@dataclass(frozen=True, slots=True)
class Signer:
    """A key pair in a gpg home of its own."""

    home: Path
    fingerprint: str

    @classmethod
    def create(
        cls,
        tmp: Path,
        name: str = "Test Signer <signer@example.org>",
        *,
        algorithm: str = "ed25519",
        usage: str = "sign,cert",
        expires: str = "never",
        at: datetime | None = None,
        options: Iterable[str] = (),
    ) -> Signer:
        """Make a key. `expires` is gpg's (``never``, ``seconds=60``, ``2021-01-01``), `at` the time of its creation,
        `options` more of gpg's own, such as ``--cert-digest-algo SHA1``.
        """
        home = Path(tempfile.mkdtemp(prefix="g", dir=tmp if len(str(tmp)) <= _LONGEST_HOME else None))
        gpg(home, *_at(at), *options, "--quick-generate-key", name, algorithm, usage, expires)
        return cls(home, _fingerprints(home)[0])

    def public_key(self, *, armor: bool = True) -> bytes:
        """Return the public key as it is now, with its subkeys and revocations."""
        return gpg(self.home, *(["--armor"] if armor else []), "--export", self.fingerprint)

    def secret_key(self) -> bytes:
        """Return the armored secret key."""
        return gpg(self.home, "--armor", "--export-secret-keys", self.fingerprint)

    def sign(
        self,
        data: bytes,
        *,
        digest: str = "SHA512",
        at: datetime | None = None,
        how: str = "--detach-sign",
        armor: bool = True,
        key: str | None = None,
        options: Iterable[str] = (),
    ) -> bytes:
        """Return a signature of `data`: detached and armored unless `how` and `armor` say otherwise.

        `key` is the fingerprint of a subkey; without it the primary key signs.
        """
        return gpg(
            self.home, *_at(at), "--digest-algo", digest, "--allow-weak-digest-algos", *options,
            *(["--armor"] if armor else []), "--local-user", f"{key or self.fingerprint}!", how,
            stdin=data,
        )  # fmt: skip

    def add_subkey(self, usage: str = "sign", *, expires: str = "never", at: datetime | None = None) -> str:
        """Add a subkey and return its fingerprint."""
        gpg(self.home, *_at(at), "--quick-add-key", self.fingerprint, "ed25519", usage, expires)
        return _fingerprints(self.home)[-1]

    def revoke(self) -> None:
        """Revoke the key."""
        certificate = self.home / "openpgp-revocs.d" / f"{self.fingerprint}.rev"
        # gpg writes a colon before the armor, so that nobody imports the certificate by mistake.
        gpg(self.home, "--import", stdin=certificate.read_bytes().replace(b"\n:-----", b"\n-----"))

    def revoke_subkey(self, position: int = 1) -> None:
        """Revoke the subkey at `position`, counted from 1."""
        self._edit(f"key {position}", "revkey", "y", "0", "", "y")

    def expire(self, seconds: int, *, at: datetime | None = None) -> None:
        """Let the primary key expire `seconds` after `at` (now)."""
        gpg(self.home, *_at(at), "--quick-set-expire", self.fingerprint, f"seconds={seconds}")

    def _edit(self, *answers: str) -> None:
        gpg(
            self.home, "--command-fd", "0", "--edit-key", self.fingerprint,
            stdin="".join(f"{answer}\n" for answer in (*answers, "save")).encode(),
        )  # fmt: skip


def gpg(home: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run gpg in `home` and return its standard output; an error of gpg's raises with what gpg said."""
    environment = {**os.environ, "GNUPGHOME": str(home), "LC_ALL": "C.UTF-8"}
    command = [
        "gpg", "--no-options", "--homedir", str(home), "--batch", "--yes", "--quiet", "--no-tty",
        "--pinentry-mode", "loopback", "--passphrase", "", "--trust-model", "always", *arguments,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, env=environment, check=False)
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def _at(moment: datetime | None) -> list[str]:
    return [] if moment is None else ["--faked-system-time", f"{moment.astimezone(UTC):%Y%m%dT%H%M%S}!"]


def _fingerprints(home: Path) -> list[str]:
    listing = gpg(home, "--with-colons", "--with-subkey-fingerprint", "--list-secret-keys")
    return [line.split(b":")[9].decode() for line in listing.split(b"\n") if line.startswith(b"fpr:")]
