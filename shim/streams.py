"""Readers between where bytes come from and who unpacks them: measured, told apart, kept for a second reading."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shim.errors import FormatError, Unavailable, printable
from shim.image.archive import decompressed, sniff
from shim.image.digest import CHUNK, Digest, VerifyingReader
from shim.image.model import Descriptor
from shim.image.progress import Progress
from shim.image.repository import Repository
from shim.image.tar import MAX_UNPACKED
from shim.run import Reader

_HEAD = 512  # bytes that tell how something is compressed


class Metered:
    """A reader that tells how far it is, and ends what never does."""

    def __init__(self, reader: Reader, name: str, total: int | None, progress: Progress) -> None:
        self._reader, self._name, self._total, self._progress = reader, name, total, progress
        self._count = 0

    def read(self, amount: int, /) -> bytes:
        data = self._reader.read(amount)
        self._count += len(data)
        if self._count > MAX_UNPACKED:
            raise FormatError(f"{self._name} is longer than {MAX_UNPACKED} bytes")
        if data:
            self._progress(self._name, self._count, self._total)
        return data


class Rejoined:
    """A reader of which the beginning was read already. It has a `close`, for `VerifyingReader`, that does nothing."""

    def __init__(self, head: bytes, rest: Reader) -> None:
        self._head, self._rest = head, rest

    def read(self, amount: int, /) -> bytes:
        data, self._head = self._head[:amount], self._head[amount:]
        return data or self._rest.read(amount)

    def close(self) -> None:
        pass


@contextmanager
def decoded(reader: Reader, name: str) -> Iterator[Rejoined]:
    """Give a reader of what `reader` holds compressed; raises `FormatError` if it holds no tar archive."""
    head = b""
    while len(head) < _HEAD and (more := reader.read(CHUNK)):
        head += more
    compression = sniff(head)
    if compression is None:
        while reader.read(CHUNK):  # wrong bytes have a better explanation, at their end
            pass
        raise FormatError(f"{name} is no tar archive, compressed or not; it begins with '{printable(head[:40])}'")
    with decompressed(Rejoined(head, reader), compression, name) as uncompressed:
        yield Rejoined(b"", uncompressed)


class Kept:
    """Blobs of a repository, each fetched once: what was read to its end is read again from an unnamed file."""

    def __init__(self, repository: Repository, directory: Path) -> None:
        self._repository, self._directory = repository, directory
        self._files: dict[Digest, IO[bytes]] = {}

    def open_blob(self, descriptor: Descriptor) -> VerifyingReader:
        """Return a reader of the blob; see `Repository`."""
        file = self._files.get(descriptor.digest)
        name = f"{self._repository.name}@{descriptor.digest}"
        if file is not None:
            file.seek(0)
            return VerifyingReader(Rejoined(b"", file), descriptor.digest, descriptor.size, name)
        source = _Copying(self._repository.open_blob(descriptor), self._directory, name)
        self._files[descriptor.digest] = source.file
        return VerifyingReader(source, descriptor.digest, descriptor.size, name)

    def close(self) -> None:
        """Give the space back."""
        for file in self._files.values():
            file.close()


class _Copying:
    """A reader that writes what it reads into an unnamed file."""

    def __init__(self, reader: VerifyingReader, directory: Path, name: str) -> None:
        self._reader, self._name = reader, name
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115

    def read(self, amount: int, /) -> bytes:
        data = self._reader.read(amount)
        left = memoryview(data)
        try:
            while left:
                left = left[self.file.write(left) :]
        except OSError as error:
            raise Unavailable(f"cannot keep {self._name} on the volume: {error.strerror}; make room there") from error
        return data

    def close(self) -> None:
        self._reader.close()
