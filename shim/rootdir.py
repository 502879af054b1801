"""Safe work on the files of another system: every path is resolved inside its root, through its own links only.

A guest owns every name on its volume. It may plant an absolute link to the host's files, a loop, a directory where a
file belongs, a pipe that never answers. Here the kernel resolves paths as if the root were ``/`` (openat2 with
RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS), the last component is never followed when something is written, and what
is read must be a regular file.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from shim import linux
from shim.errors import NotFound, Refused, StatefulPodsError, Unavailable, printable

_RESOLVE = linux.Resolve.IN_ROOT | linux.Resolve.NO_MAGICLINKS
_LINKS_FOLLOWED = 40  # as the kernel
_PASSING = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_OBSTRUCTING = {errno.EISDIR, errno.EBUSY, errno.EPERM}  # a directory, a mount point, a protected file
_SIZE_LIMIT = 1 << 20  # bytes; a guest's text file is smaller


class RootDir:
    """A root directory held open, to be used in a ``with`` block. Paths are the guest's, such as ``/etc/hostname``.

    Every method raises `NotFound` when the path, or a directory on its way, does not exist; `Unavailable` when the
    disk is full or fails; `Refused` for all else that stands in the way: a loop of links, a directory in place of a
    file, a mount point that would have to be replaced.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Open `path`. `name` is what messages call it, if that is something else."""
        self.path = path
        self.name = name or str(path)
        with self._naming("/", "open"):
            self._root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the root directory."""
        os.close(self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Open what is there, following links inside the root, and return the descriptor. Nothing is created.

        With O_NOFOLLOW a link at the end of `path` is not followed.
        """
        with self._naming(path, "open"):
            return linux.openat2(self._root, path, flags, resolve=_RESOLVE)

    def read(self, path: str, limit: int = _SIZE_LIMIT) -> bytes:
        """Return the content of the regular file at `path`, links followed inside the root, at most `limit` bytes."""
        # O_NONBLOCK: a pipe that was planted is told from a file, not waited for.
        descriptor = self.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Refused(f"{self._at(path)} is a {_kind(found.st_mode)}; expected a regular file")
            content = bytearray()
            with self._naming(path, "read"):
                while piece := os.read(descriptor, limit + 1 - len(content)):
                    content += piece
        finally:
            os.close(descriptor)
        if len(content) > limit:
            raise Refused(f"{self._at(path)} is larger than the {limit} bytes that are expected there")
        return bytes(content)

    def write(self, path: str, content: bytes, mode: int = 0o644, owner: tuple[int, int] = (0, 0)) -> bool:
        """Make `path` a regular file with this content, mode and owner; tell whether it was not so before.

        The file is written beside and renamed, so that `path` is the old or the new one at every moment. A link that is
        there is replaced, never followed. Raises `Refused` for a directory or a mount point, which are left alone.
        """
        with self._parent(path, "write") as (parent, name):
            found = _lstat(parent, name)
            if found and stat.S_ISDIR(found.st_mode):
                raise Refused(f"{self._at(path)} is a directory; expected a file, or nothing")
            if found and self.is_mount_point(path):
                raise Refused(f"{self._at(path)} is a mount point, and cannot be replaced by a file of its own")
            if found and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                as_wanted = stat.S_IMODE(found.st_mode) == mode and (found.st_uid, found.st_gid) == owner
                if as_wanted and found.st_size == len(content) and _content(parent, name) == content:
                    return False
            beside = f".{name}.stateful-pods"
            self._clear_way(parent, beside, path)
            try:
                _create(parent, beside, content, mode, owner)
                os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(beside, dir_fd=parent)
                raise
        return True

    def _clear_way(self, parent: int, beside: str, path: str) -> None:
        """Remove what a crash left under the name of our temporary file for `path`; name what cannot be removed."""
        try:
            os.unlink(beside, dir_fd=parent)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in _OBSTRUCTING:
                raise
            obstacle = self._at(posixpath.join(posixpath.dirname(path.rstrip("/")), beside))
            raise Refused(
                f"cannot write {printable(path)}: {obstacle} is in the way of the temporary file and cannot be removed "
                f"({error.strerror}); remove it yourself"
            ) from error

    def remove(self, path: str) -> bool:
        """Remove the file or the link at `path`, not what it points to; tell whether there was one."""
        try:
            with self._parent(path, "remove") as (parent, name):
                os.unlink(name, dir_fd=parent)
        except NotFound:
            return False
        return True

    def symlink(self, target: str, path: str) -> None:
        """Make a link at `path` whose text is `target`. Raises `Refused` if anything is there."""
        with self._parent(path, "make a link at") as (parent, name):
            os.symlink(target, name, dir_fd=parent)

    def readlink(self, path: str) -> str:
        """Return the text of the link at `path`. Raises `Refused` if there is something else."""
        with self._parent(path, "read the link") as (parent, name):
            return os.readlink(name, dir_fd=parent)

    def make_directories(self, path: str, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> None:
        """Make sure that `path` is a directory, those above it too; what is made gets this mode and owner.

        Links to directories are followed inside the root. Raises `Refused` where something else is in the way.
        """
        made = "/"
        for part in filter(None, path.split("/")):
            made = posixpath.join(made, part)
            with self._parent(made, "make the directory") as (parent, name):
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=parent)
                    os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
                    os.chmod(name, mode, dir_fd=parent)
                found = self.stat(made, follow=True)
                if not found or not stat.S_ISDIR(found.st_mode):
                    what = _kind(found.st_mode) if found else "link to nothing"
                    raise Refused(f"{self._at(made)} is a {what}; expected a directory, or nothing")

    def stat(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        """Return the attributes of what is at `path`, or None. A link at its end is followed only when told to.

        A loop of links counts as nothing, as it does for whoever would follow it.
        """
        flags = os.O_PATH if follow else os.O_PATH | os.O_NOFOLLOW
        try:
            descriptor = linux.openat2(self._root, path, flags, resolve=_RESOLVE)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise self._worded(error, path, "look at") from error
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def names(self, path: str) -> list[str]:
        """Return the sorted names in the directory at `path`."""
        descriptor = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return sorted(os.listdir(descriptor))  # noqa: PTH208 - a descriptor, not a path
        finally:
            os.close(descriptor)

    def resolve(self, path: str) -> str:
        """Return `path` with the links at its end replaced by what they say; nothing need be there.

        Links on the way stay: they are the root's own, and every method walks them.
        """
        for _ in range(_LINKS_FOLLOWED):
            found = self.stat(path)
            if not found or not stat.S_ISLNK(found.st_mode):
                return path
            path = posixpath.join(posixpath.dirname(path.rstrip("/")), self.readlink(path))
        raise Refused(f"cannot resolve {self._at(path)}: {os.strerror(errno.ELOOP)}")

    def is_mount_point(self, path: str) -> bool:
        """Tell whether something is mounted on `path` itself. A link at its end is not followed."""
        descriptor = self.open(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            return linux.is_mount_point(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _parent(self, path: str, doing: str) -> Iterator[tuple[int, str]]:
        """Open the directory of `path`, and name the last component, which is not followed."""
        directory, name = posixpath.split(path.rstrip("/"))
        if name in ("", ".", ".."):
            raise Refused(f"cannot {doing} {self._at(path)}: its last part must be a name")
        with self._naming(path, doing):
            parent = linux.openat2(self._root, directory or "/", os.O_PATH | os.O_DIRECTORY, resolve=_RESOLVE)
            try:
                yield parent, name
            finally:
                os.close(parent)

    @contextmanager
    def _naming(self, path: str, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._worded(error, path, doing) from error

    def _worded(self, error: OSError, path: str, doing: str) -> StatefulPodsError:
        message = f"cannot {doing} {self._at(path)}: {error.strerror}"
        if error.errno == errno.ENOENT:
            return NotFound(message)
        return Unavailable(message) if error.errno in _PASSING else Refused(message)

    def _at(self, path: str) -> str:
        return f"{printable(path)} in {printable(self.name)}"


def _lstat(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _content(parent: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _create(parent: int, name: str, content: bytes, mode: int, owner: tuple[int, int]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode)  # after the owner: a change of owner takes set-user-ID away
        os.fsync(descriptor)


def _kind(mode: int) -> str:
    names = {stat.S_IFDIR: "directory", stat.S_IFLNK: "link", stat.S_IFREG: "regular file", stat.S_IFIFO: "pipe"}
    names |= {stat.S_IFSOCK: "socket", stat.S_IFBLK: "block device", stat.S_IFCHR: "character device"}
    return names.get(stat.S_IFMT(mode), "something else")
