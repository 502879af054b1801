"""Empties a directory, however deep and whatever its names, and never beyond a mount point."""

from __future__ import annotations

import errno
import os
from collections.abc import Set

from shim import linux
from shim.errors import Refused, printable

_HINTS = {
    errno.EBUSY: "it is a mount point; unmount it first",
    errno.EPERM: "it, or its directory, is immutable or append-only (see lsattr); chattr -i -a takes that away",
}


def remove_all(directory: int, where: str, keep: Set[str] = frozenset()) -> None:
    """Remove what is in the directory behind the descriptor `directory`, but for the names in `keep`, and close it.

    `where` is its path, for messages. Nobody else may write there meanwhile. Links are removed, not followed. Raises
    `Refused`, naming the path, at a mount point and at a file that cannot be removed; what came before it is gone.
    """
    # The way back up is `..`: a descriptor for each level of a deep tree would be too many, and recursion too deep.
    # What `..` leads to is compared with what was left, because the tree could have been moved.
    current, path = directory, [where]
    try:
        levels = [(os.fstat(current), _unlink_files(current, keep))]
        while True:
            _, subdirectories = levels[-1]
            if subdirectories:
                name = subdirectories.pop()
                current = _move(current, name)
                path.append(name)
                if linux.is_mount_point(current):
                    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
                levels.append((os.fstat(current), _unlink_files(current)))
            elif len(levels) > 1:
                levels.pop()
                current = _move(current, "..")
                left, _ = levels[-1]
                if not os.path.samestat(os.fstat(current), left):
                    raise OSError(errno.ESTALE, "it was moved meanwhile")
                os.rmdir(path.pop(), dir_fd=current)
            else:
                return
    except OSError as error:
        path += [error.filename] if error.filename else []
        reason = _HINTS.get(error.errno or 0, error.strerror)
        raise Refused(f"cannot remove {printable('/'.join(path), 500)}: {reason}") from error
    finally:
        os.close(current)


def _move(current: int, name: str) -> int:
    """Return a descriptor of the directory `name` in the directory `current`, which is closed."""
    there = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
    os.close(current)
    return there


def _unlink_files(directory: int, keep: Set[str] = frozenset()) -> list[str]:
    """Remove all but the directories in `directory`, and return the names of those."""
    subdirectories = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name in keep:
                continue
            if entry.is_dir(follow_symlinks=False):
                subdirectories.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=directory)
    return subdirectories
