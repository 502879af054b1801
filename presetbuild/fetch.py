"""Read the files of an upstream: over https or http (download.py), or from a directory.

What is handed out is what was served, and no more bytes than the caller's limit. No more is promised: signatures and
checksums are for verify.py to judge.
"""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol, Self
from urllib.parse import quote, unquote, urlsplit

from shim.errors import FormatError, NotFound, Refused, StatefulPodsError, Unavailable, printable
from shim.image.digest import CHUNK
from shim.image.download import Download, Patience, check_url
from shim.image.progress import Progress, silent
from shim.image.session import Session


class _Raw(Protocol):
    name: str
    size: int | None

    def read(self, amount: int, /) -> bytes: ...
    def close(self) -> None: ...


class Reader:
    """A file that is being read, within its limit; a context manager."""

    def __init__(self, raw: _Raw, limit: int, what: str, progress: Progress) -> None:
        self._raw = raw
        self._limit = limit
        self._what = what
        self._progress = progress
        self._count = 0
        self._check_limit(raw.size or 0)

    @property
    def size(self) -> int | None:
        """The length of the file in bytes, None where the far end did not announce it."""
        return self._raw.size

    def read(self, amount: int = CHUNK, /) -> bytes:
        """Return up to `amount` bytes (all that is left for a negative `amount`), ``b""`` at the end of the file.

        Raises `Refused` for a file that is longer than the limit, `Unavailable` for one that ends early or changes.
        """
        if amount < 0:
            return b"".join(iter(self.read, b""))
        if amount == 0 or self._count == self._raw.size:
            return b""
        data = self._raw.read(min(amount, self._limit + 1 - self._count))
        self._count += len(data)
        self._check_limit(self._count)
        self._progress(self._what, self._count, self._raw.size)
        return data

    def close(self) -> None:
        """Let go of the file, wherever it stands."""
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_limit(self, size: int) -> None:
        if size > self._limit:
            self.close()
            raise Refused(f"{self._raw.name} is longer than the {self._limit} bytes that such a file may have")


class Source(ABC):
    """A tree of files that are read by their paths relative to `url`, a URL or a directory with no slash at its end."""

    url: str

    @abstractmethod
    def open(self, path: str, limit: int, what: str | None = None) -> Reader:
        """Open the file at `path`, of which no more than `limit` bytes are read.

        `what` names the file to the progress callback (None: its path does). Raises `NotFound`, `Refused` where access
        is denied or what is there is no such file, `Unavailable` for what a later try may cure, and `FormatError` for
        a `path` that could leave the tree.
        """

    def read(self, path: str, limit: int, what: str | None = None) -> bytes:
        """Return the whole file at `path`; arguments and errors are those of `open` and of `Reader.read`."""
        with self.open(path, limit, what) as reader:
            return reader.read(-1)


def open_source(url: str, *, progress: Progress = silent, patience: Patience | None = None) -> Source:
    """Return the tree at `url`: ``https://``, ``http://``, ``file://``, or the path of a directory.

    Raises `FormatError` for a URL that is malformed or holds credentials, `NotFound` for a directory that is not there,
    `Refused` for one that must not be looked at.
    """
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if scheme in ("http", "https"):
        check_url(url)
        if "?" in url or "#" in url:
            raise FormatError(f"{printable(url)!r} has a query or a fragment; expected the URL of a directory")
        return _HttpSource(url, progress, patience or Patience())
    if scheme == "file":
        return _DirectorySource(_file_url(url), progress)
    if "://" in url:
        raise FormatError(f"cannot read {printable(url)!r}: expected https://, http://, file://, or a directory")
    return _DirectorySource(url, progress)


def url_of(base: str, path: str) -> str:
    """Return the URL of `path` below the URL `base`; raises `FormatError` for a path that could leave it."""
    return f"{base.rstrip('/')}/{quote(_check_path(path), safe='/:@+~=,')}"


class _HttpSource(Source):
    def __init__(self, url: str, progress: Progress, patience: Patience) -> None:
        self.url = url.rstrip("/")
        self._session = Session()
        self._progress = progress
        self._patience = patience

    def open(self, path: str, limit: int, what: str | None = None) -> Reader:
        download = Download(self._session, url_of(self.url, path), self._patience)
        return Reader(download, limit, what or path, self._progress)


class _DirectorySource(Source):
    """A directory of the operator's. Its symlinks are followed, wherever they lead: they are the operator's own."""

    def __init__(self, directory: str, progress: Progress) -> None:
        try:
            found = directory and "\0" not in directory and Path(directory).is_dir()
        except OSError as error:
            raise Refused(f"cannot read an upstream from {printable(directory)!r}: {error.strerror}") from error
        if not found:
            raise NotFound(f"there is no directory {printable(directory)!r} to read an upstream from")
        self.url = directory.rstrip("/") or "/"
        self._progress = progress

    def open(self, path: str, limit: int, what: str | None = None) -> Reader:
        return Reader(_File(Path(self.url, _check_path(path))), limit, what or path, self._progress)


class _File:
    """A regular file that stays as long as it was when it was opened."""

    def __init__(self, path: Path) -> None:
        self.name = printable(str(path), 500)
        self.size: int | None
        try:
            # A FIFO in place of the file would otherwise be waited for, without end.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise self._error(error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise Refused(f"cannot read {self.name}: it is no regular file")
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._left = self.size = status.st_size

    def read(self, amount: int, /) -> bytes:
        try:
            data = self._file.read(min(amount, self._left))
        except OSError as error:
            raise self._error(error) from error
        if not data and self._left:
            raise Unavailable(f"{self.name} became shorter while it was read; {self._left} bytes are missing")
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._file.close()

    def _error(self, error: OSError) -> StatefulPodsError:
        message = f"cannot read {self.name}: {error.strerror}"
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return NotFound(message)
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO):
            return Refused(message)
        return Unavailable(message)


def _file_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise FormatError(f"malformed URL {printable(url)!r}: {printable(str(error))}") from error
    if (
        not url.isprintable()
        or parts.netloc not in ("", "localhost")
        or parts.query
        or parts.fragment
        or not parts.path.startswith("/")
    ):
        raise FormatError(f"malformed URL {printable(url)!r}: expected file:///DIRECTORY")
    return unquote(parts.path, errors="surrogateescape")


def _check_path(path: str) -> str:
    # A slash at the end names a directory: its URL may be formed, though opening it fails.
    parts = path.removesuffix("/").split("/")
    if any(part in ("", ".", "..") for part in parts) or not (path.isascii() and path.isprintable()):
        raise FormatError(f"the path {printable(path)!r} is refused: expected plain names, joined by single slashes")
    return path
