"""OCI image layouts: a directory of blobs, and an index that gives some of them names.

What a writer promises: nothing is visible under its final name before its bytes are on the disk; a tag never moves to
a manifest that is not there; two writers at once lose nothing; a killed one leaves nothing but a temporary file, which
the next one removes. Modes do not depend on the umask.

Source: OCI image specification v1.1, image-layout.md.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Self

from shim.errors import FormatError, NotFound, Refused, Unavailable, VerificationError, printable
from shim.image.digest import Digest, HashingWriter, VerifyingReader
from shim.image.model import (
    MAX_MANIFEST,
    OCI_INDEX,
    Descriptor,
    Index,
    Manifest,
    canonical_json,
    check_raw,
    parse_manifest,
)
from shim.image.reference import check_tag, is_tag

_MARKER = "oci-layout"
_INDEX = "index.json"
_VERSION = "1.0.0"
_REF_NAME = "org.opencontainers.image.ref.name"
_TEMPORARY = ".stateful-pods-"  # prefix of what is being written
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)


class Layout:
    """A `Repository` in a directory.

    With `create`, a directory that is missing or empty becomes a layout. Raises `NotFound` without `create` if there
    is none, and `FormatError` for a directory that is something else, or a layout of another version.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.name = f"oci:{path}"
        self._path = path
        self._shown = printable(self.name)
        if create:
            self._create()
        self._check_marker()

    def manifest(self, at: Descriptor | Digest | str) -> Manifest | Index:
        """Return the manifest or index at a descriptor, a digest or a tag; see `Repository`."""
        if isinstance(at, str):
            what = f"{self._shown}:{at}"
            found = self._tagged(at)
            if found is None:
                raise NotFound(f"{self._shown} has no tag {printable(at)}; it has: {', '.join(self.tags()) or 'none'}")
            at = found
        else:
            what = f"{self._shown}@{at if isinstance(at, Digest) else at.digest}"
        digest = at if isinstance(at, Digest) else at.digest
        if isinstance(at, Descriptor) and at.size > MAX_MANIFEST:
            raise FormatError(f"{what} has {at.size} bytes; a manifest has {MAX_MANIFEST} at most")
        raw = self._small(self._blob(digest), what, f"{what} does not exist")
        check_raw(raw, at if isinstance(at, Descriptor) else Descriptor("", at, len(raw)), what)
        return parse_manifest(raw, at.media_type if isinstance(at, Descriptor) else None, what)

    def resolve(self, tag: str) -> Digest | None:
        """Return the digest that `tag` names, None if there is no such tag."""
        found = self._tagged(tag)
        return found.digest if found else None

    def has_blob(self, descriptor: Descriptor) -> bool:
        """Say whether the blob is there in the right size."""
        try:
            status = self._blob(descriptor.digest).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _failed(f"look for {descriptor.digest} in {self._shown}", error) from error
        return stat.S_ISREG(status.st_mode) and status.st_size == descriptor.size

    def open_blob(self, descriptor: Descriptor) -> VerifyingReader:
        """Return a reader of the blob."""
        what = f"{self._shown}@{descriptor.digest}"
        file = self._open(self._blob(descriptor.digest), f"{what} does not exist")
        if file.size != descriptor.size:
            file.close()
            raise VerificationError(f"{what} has {file.size} bytes; its descriptor states {descriptor.size}")
        return VerifyingReader(file, descriptor.digest, descriptor.size, what)

    @contextmanager
    def new_blob(self) -> Iterator[_Writer]:
        """Return a blob to write, in a temporary file of the layout itself."""
        with self._temporary() as (file, temporary):
            yield _Writer(self, file, temporary)

    def put_blob(self, data: bytes, media_type: str) -> Descriptor:
        """Store a small blob that is at hand whole."""
        with self.new_blob() as blob:
            blob.write(data)
            return blob.commit(media_type)

    def put_manifest(self, manifest: Manifest | Index, tag: str | None = None) -> None:
        """Store the raw bytes of `manifest` and, with `tag`, make that tag name it, and nothing else."""
        if tag is not None:
            check_tag(tag)
        self.put_blob(manifest.raw, manifest.media_type)
        if tag is None:
            return
        entry = manifest.descriptor.to_json() | {"annotations": {_REF_NAME: tag}}
        with _writing(self, f"tag {tag}"), self._locked():
            document = json.loads(self._index().raw)  # as it stands, so that what it says beyond us is kept
            entries = [old for old in document["manifests"] if _ref_name(old) != tag]
            document["manifests"] = sorted([*entries, entry], key=canonical_json)
            raw = canonical_json(document)
            if len(raw) > MAX_MANIFEST:
                raise Refused(f"{self._shown} cannot take the tag {tag}: its {_INDEX} may have {MAX_MANIFEST} bytes")
            self._replace(_INDEX, raw)

    def tags(self) -> list[str]:
        """Return all tags, sorted. A reference name that no registry would take as a tag is not one."""
        names = {entry.annotations.get(_REF_NAME, "") for entry in self._index().manifests}
        return sorted(filter(is_tag, names))

    def manifests(self) -> tuple[Descriptor, ...]:
        """Return the entries of index.json: manifests and indexes, those without a tag too."""
        return self._index().manifests

    def _tagged(self, tag: str) -> Descriptor | None:
        check_tag(tag)
        found = [entry for entry in self._index().manifests if entry.annotations.get(_REF_NAME) == tag]
        if len({entry.digest for entry in found}) > 1:
            there = ", ".join(str(entry.digest) for entry in found)
            raise FormatError(
                f"{self._shown} gives the tag {tag} to several manifests: {there}; name one by its digest"
            )
        return found[0] if found else None

    def _index(self) -> Index:
        parsed = parse_manifest(self._top(_INDEX), OCI_INDEX, f"{_INDEX} of {self._shown}")
        if not isinstance(parsed, Index):
            raise FormatError(f"{_INDEX} of {self._shown} is an image, not an index")
        return parsed

    def _check_marker(self) -> None:
        try:
            version = json.loads(self._top(_MARKER))["imageLayoutVersion"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise FormatError(f"{_MARKER} of {self._shown} is malformed: expected imageLayoutVersion") from error
        if version != _VERSION:
            raise FormatError(
                f"{self._shown} is an image layout of version {printable(str(version))}; {_VERSION} is understood"
            )

    def _top(self, name: str) -> bytes:
        missing = f"{self._shown} is no image layout: it has no {name}"
        return self._small(self._path / name, f"{name} of {self._shown}", missing)

    def _small(self, path: Path, what: str, missing: str) -> bytes:
        with self._open(path, missing) as file:
            raw = file.read(MAX_MANIFEST + 1)
        if len(raw) > MAX_MANIFEST:
            raise FormatError(f"{what} is longer than {MAX_MANIFEST} bytes, which is all that such a file may have")
        return raw

    def _blob(self, digest: Digest) -> Path:
        return self._path / "blobs" / digest.algorithm / digest.encoded

    def _open(self, path: Path, missing: str) -> _File:
        shown = printable(str(path))
        try:
            # Without O_NONBLOCK a FIFO under that name would wait for its writer for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(missing) from error
        except OSError as error:
            raise _failed(f"open {shown}", error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise FormatError(f"{shown} is not a regular file")
        return _File(os.fdopen(descriptor, "rb"), status.st_size, shown)

    def _create(self) -> None:
        with _writing(self, "the layout"):
            _make_directory(self._path)
            with self._locked():
                there = {entry.name for entry in self._path.iterdir() if not entry.name.startswith(_TEMPORARY)}
                if _MARKER in there:
                    return
                if there - {_INDEX, "blobs"}:  # these two are ours, from a creation that was interrupted
                    raise FormatError(f"{self._shown} is a directory that is neither empty nor an image layout")
                _make_directory(self._path / "blobs" / "sha256")
                if _INDEX not in there:
                    empty = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}
                    self._replace(_INDEX, canonical_json(empty))
                self._replace(_MARKER, canonical_json({"imageLayoutVersion": _VERSION}))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock on the index. It is on the directory itself, so it needs no file and ends with its holder."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _replace(self, name: str, data: bytes) -> None:
        with self._temporary() as (file, temporary):
            HashingWriter(file).write(data)
            _move(file, temporary, self._path / name)

    @contextmanager
    def _temporary(self) -> Iterator[tuple[FileIO, Path]]:
        """Return a temporary file, which is locked while its writer lives, and gone afterwards."""
        with _writing(self, "a temporary file"):
            self._sweep()
            file, temporary = self._temporary_file()
        try:
            with file:
                yield file, temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _temporary_file(self) -> tuple[FileIO, Path]:
        while True:
            descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._path)
            file = FileIO(descriptor, "w")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                os.fchmod(descriptor, 0o644)
                return file, Path(name)
            file.close()  # swept between its creation and the lock

    def _sweep(self) -> None:
        """Remove what killed writers left: temporary files that nobody holds a lock on."""
        for path in self._path.glob(f"{_TEMPORARY}*"):
            with suppress(OSError):  # gone meanwhile, or somebody else's: no reason to fail
                descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(descriptor)


class _File:
    """A regular file of `size` bytes that is read, with our errors: a disk may fail, or a symlink lead anywhere."""

    def __init__(self, file: BufferedReader, size: int, shown: str) -> None:
        self._file = file
        self.size = size
        self._shown = shown

    def read(self, amount: int, /) -> bytes:
        try:
            return self._file.read(amount)
        except OSError as error:
            raise _failed(f"read {self._shown}", error) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Writer:
    """A blob in a temporary file; see `BlobWriter`."""

    def __init__(self, layout: Layout, file: FileIO, temporary: Path) -> None:
        self._layout = layout
        self._file = file
        self._temporary = temporary
        self._writer = HashingWriter(file)

    def write(self, data: bytes) -> None:
        """Append `data`."""
        with _writing(self._layout, "a blob"):
            self._writer.write(data)

    def commit(self, media_type: str) -> Descriptor:
        """Move the blob to its digest, durably, and return its descriptor."""
        descriptor = Descriptor(media_type, self._writer.digest, self._writer.size)
        path = self._layout._blob(descriptor.digest)
        with _writing(self._layout, f"blob {descriptor.digest}"):
            _make_directory(path.parent)
            # One that is there already is replaced all the same: these bytes were hashed now, those were not.
            _move(self._file, self._temporary, path)
        return descriptor


@contextmanager
def _writing(layout: Layout, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failed(f"write {what} in {printable(layout.name)}", error) from error


def _move(file: FileIO, temporary: Path, path: Path) -> None:
    os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def _make_directory(path: Path) -> None:
    """Make `path` and what it lacks above, each with mode 0755, durably."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
        path.chmod(0o755)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ref_name(entry: dict[str, Any]) -> object:
    return (entry.get("annotations") or {}).get(_REF_NAME)


def _failed(what: str, error: OSError) -> Refused | Unavailable:
    message = f"cannot {what}: {error.strerror or error}"
    if error.errno in _PASSING:
        return Unavailable(f"{message}; try again once that is cured")
    return Refused(f"{message}; name another directory, or run as its owner")
