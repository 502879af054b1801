"""Content digests, and the reader that verifies bytes against one while they stream.

A `Digest` exists only in a well-formed state, so that a digest which came from outside can be put into a path or a URL
without a further check. Source: OCI image specification, descriptor.md, "Digests".
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from io import RawIOBase
from typing import Protocol, Self

from shim.errors import FormatError, VerificationError, printable

CHUNK = 1 << 20  # bytes that one read moves; larger ones gain nothing, smaller ones cost calls

_HEX_LENGTH = {"sha256": 64, "sha512": 128}
_LOWER_HEX = re.compile(r"[0-9a-f]+", re.ASCII)


class Hasher(Protocol):
    """The part of a `hashlib` object that is used here."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


class Source(Protocol):
    """The part of a binary file that a `VerifyingReader` reads from."""

    def read(self, amount: int, /) -> bytes: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """An algorithm and the hash in lower-case hexadecimal, such as ``sha256:2c26…``.

    Raises `FormatError` for an algorithm other than sha256 and sha512, and for anything but the exact number of
    lower-case hexadecimal digits.
    """

    algorithm: str
    encoded: str

    def __post_init__(self) -> None:
        length = _HEX_LENGTH.get(self.algorithm)
        if length is None:
            raise FormatError(f"digest algorithm {printable(self.algorithm)!r} is not supported; sha256 and sha512 are")
        if len(self.encoded) != length or not _LOWER_HEX.fullmatch(self.encoded):
            raise FormatError(
                f"malformed {self.algorithm} digest {printable(self.encoded)!r}: "
                f"expected {length} lower-case hexadecimal digits"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the digest that `text` writes as ``algorithm:encoded``; raises `FormatError`."""
        algorithm, colon, encoded = text.partition(":")
        if not colon:
            raise FormatError(f"malformed digest {printable(text)!r}: expected algorithm:hexadecimal")
        return cls(algorithm, encoded)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return the sha256 digest of `data`."""
        return cls("sha256", hashlib.sha256(data).hexdigest())

    def hasher(self) -> Hasher:
        """Return a fresh `hashlib` object of this digest's algorithm."""
        return hashlib.new(self.algorithm)

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.encoded}"


class HashingWriter:
    """Writes to `file`, which must be unbuffered, and takes the sha256 digest of what it wrote.

    Unbuffered, so that a full disk is met in `write` and not once more when the file is closed. Raises `OSError`.
    """

    def __init__(self, file: RawIOBase) -> None:
        self._file = file
        self._hasher = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append all of `data`."""
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self._hasher.update(data)
        self.size += len(data)

    @property
    def digest(self) -> Digest:
        """The digest of what was written so far."""
        return Digest("sha256", self._hasher.hexdigest())


class VerifyingReader:
    """A reader that hands out the bytes of `source` and raises unless they are the ones that were promised.

    `read` returns ``b""`` only after both the size (in bytes) and the digest were found right, so whoever reads to the
    end holds verified bytes, and whoever stops early must not use what they have; `finish` reads the rest. `size` may
    be None where nothing states one. `what` names the content in messages. Raises `VerificationError`.
    """

    def __init__(self, source: Source, digest: Digest, size: int | None, what: str) -> None:
        self._source = source
        self._digest = digest
        self._size = size
        self._what = what
        self._hasher = digest.hasher()
        self._count = 0
        self._done = False

    def read(self, amount: int = CHUNK) -> bytes:
        """Return up to `amount` bytes (all that is left for a negative `amount`), ``b""`` at the verified end."""
        if amount < 0:
            return b"".join(iter(self.read, b""))
        if self._done or amount == 0:
            return b""
        data = self._source.read(amount)
        if not data:
            self._check_end()
            return b""
        self._count += len(data)
        if self._size is not None and self._count > self._size:
            raise VerificationError(f"{self._what} is longer than the {self._size} bytes that its descriptor states")
        self._hasher.update(data)
        return data

    def finish(self) -> None:
        """Read what is left and check the whole; raises `VerificationError`."""
        while self.read(CHUNK):
            pass

    def close(self) -> None:
        """Close the source. Nothing is checked: `read` to the end, or `finish`, does that."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_end(self) -> None:
        if self._size is not None and self._count != self._size:
            raise VerificationError(f"{self._what} ended after {self._count} bytes; its descriptor states {self._size}")
        found = self._hasher.hexdigest()
        if found != self._digest.encoded:
            raise VerificationError(
                f"{self._what} does not match its digest: expected {self._digest}, "
                f"found {self._digest.algorithm}:{found} over {self._count} bytes"
            )
        self._done = True
