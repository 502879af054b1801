"""What a volume says about itself: its state, its record, and the lock under which it is filled.

Everything of ours is in ``/.stateful-pods`` on the volume. A crash at any moment leaves one of two things, because
every step is on the disk before the next one begins:

1. `begin_seeding` writes ``seeding``, before the first byte of the tree: INTERRUPTED;
2. the tree is written, by whoever holds the `lock`;
3. `write_record` flushes the whole file system, then writes ``provisioned``, the record: SEEDED;
4. ``seeding`` is removed. Where a crash left both, the record counts.

What a volume may be stands in README.md, too.
"""

from __future__ import annotations

import enum
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from shim import linux
from shim.errors import FormatError, NotFound, Refused, Unavailable, printable
from shim.removal import remove_all
from shim.rootdir import RootDir
from shim.spec import Machine, Source

SCHEMA_VERSION = 1

_OURS = "/.stateful-pods"
_SEEDING = f"{_OURS}/seeding"
_RECORD = f"{_OURS}/provisioned"
_PREPARED = f"{_OURS}/prepared"
_KEPT = frozenset({"lost+found", _OURS[1:]})  # what an empty volume may hold, and what clearing leaves
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_POLL = 0.2  # seconds between two tries to get the lock


class State(enum.StrEnum):
    """What a volume holds, and so what seeding does with it."""

    SEEDED = "seeded"  # a record exists: nothing, ever
    INTERRUPTED = "interrupted"  # a seed began and did not end: clear, and start again
    EMPTY = "empty"  # seed
    FOREIGN = "foreign"  # somebody else's files: refuse, and touch nothing


_UNSEEDED = {
    State.INTERRUPTED: "a seed of it began and did not end; seed it again (shim seed), which starts from the beginning",
    State.EMPTY: "seed it first (shim seed)",
    State.FOREIGN: "it holds files that this program did not put there, and it is left as it is",
}


@dataclass(frozen=True, slots=True)
class Record:
    """What a volume was seeded with, when (in UTC, whole seconds), and for which machine.

    `cloned_from` is the machine whose volume this one is a copy of.
    """

    source: Source
    seeded_at: datetime
    machine: Machine
    chart_version: str | None = None
    cloned_from: Machine | None = None

    def to_json(self) -> dict[str, object]:
        """Return the record as a JSON object; what is not known is left out."""
        members = {
            "schemaVersion": SCHEMA_VERSION,
            "source": self.source.to_json(),
            "seededAt": self.seeded_at.astimezone(UTC).strftime(_TIME),
            "chartVersion": self.chart_version,
            "machine": self.machine.to_json(),
            "clonedFrom": self.cloned_from and self.cloned_from.to_json(),
        }
        return {name: value for name, value in members.items() if value is not None}

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Return the record that `to_json` wrote; raises `FormatError`. Members that are not known are ignored."""
        if not isinstance(document, dict):
            raise FormatError("expected a JSON object")
        version = document.get("schemaVersion")
        if type(version) is not int or version < 1:  # True is an int too
            raise FormatError(f"expected a schemaVersion, found {printable(repr(version))}")
        if version > SCHEMA_VERSION:
            raise FormatError(f"it has schema version {version}, and this shim knows {SCHEMA_VERSION} at most")
        written, chart = document.get("seededAt"), document.get("chartVersion")
        if not isinstance(written, str) or not isinstance(chart, str | None):
            raise FormatError("expected seededAt, and chartVersion if there is one, to be strings")
        try:
            seeded_at = datetime.strptime(written, _TIME).replace(tzinfo=UTC)
        except ValueError as error:
            raise FormatError(f"seededAt is {printable(written)!r}, not a time such as 2026-11-30T12:00:00Z") from error
        original = document.get("clonedFrom")
        return cls(
            source=Source.from_json(document.get("source")),
            seeded_at=seeded_at,
            machine=Machine.from_json(document.get("machine")),
            chart_version=chart,
            cloned_from=None if original is None else Machine.from_json(original),
        )


def state(rootfs: Path) -> State:
    """Return the state of the volume at `rootfs`. Nothing is changed, and no record is read.

    Raises `NotFound`, `Refused` or `Unavailable` when the volume cannot be looked at: that is no state.
    """
    with RootDir(rootfs) as root:
        return _state(root)


def require_seeded(rootfs: Path) -> None:
    """Raise `Refused`, saying what it is instead, unless the volume is SEEDED. Nothing is changed, no record is read.

    For whoever works on what was seeded: half a root filesystem is never started, and nobody else's files are changed.
    """
    found = state(rootfs)
    if found is not State.SEEDED:
        raise Refused(f"the volume {printable(str(rootfs))} is {found}, not seeded: {_UNSEEDED[found]}")


def read_record(rootfs: Path) -> Record:
    """Return the volume's record. Raises `NotFound` if there is none, `FormatError` if it cannot be understood."""
    with RootDir(rootfs) as root:
        if _state(root) is not State.SEEDED:
            raise NotFound(f"{printable(str(rootfs))} has no record: it was not seeded, or not to the end")
        try:
            found = root.stat(_RECORD)
            if not found or not stat.S_ISREG(found.st_mode):
                raise FormatError("expected a regular file")
            return Record.from_json(json.loads(root.read(_RECORD)))
        except (Refused, ValueError, RecursionError) as error:
            # ValueError: not UTF-8, not JSON, a number beyond all measure.
            raise FormatError(
                f"the record {printable(str(rootfs))}{_RECORD} cannot be understood: {printable(str(error), 500)}. "
                "The volume counts as seeded all the same, and nothing on it was changed. If a later version wrote it, "
                "use that version again; if it is damaged, restore the file from a backup"
            ) from error


@contextmanager
def lock(rootfs: Path, pod: str, *, wait: float = 0, tell: Callable[[str], None] = lambda _: None) -> Iterator[int]:
    """Hold the volume's lock, alone among all pods and processes, and give its descriptor.

    `pod` is what others are told about the holder, and `tell` what this process has to wait for, up to `wait` seconds.
    A child that writes to the volume should inherit the descriptor: the lock then lasts until it too has ended, however
    its parent did. Raises `Unavailable`, naming the holder, when the lock is not free in time; `Refused` for a
    volume in FOREIGN state, which is not touched.
    """
    with _ours(rootfs) as (_, directory):
        descriptor = _open_lock(rootfs, directory)
    try:
        _acquire(descriptor, rootfs, wait, tell)
        holder = f"{pod} on {os.uname().nodename}, process {os.getpid()}, since {datetime.now(UTC).strftime(_TIME)}"
        with suppress(OSError):  # a full disk: the lock holds without its holder's name too
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode("utf-8", "surrogateescape"), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _open_lock(rootfs: Path, directory: int) -> int:
    what = f"the lock {printable(str(rootfs))}{_OURS}/lock"
    try:
        # O_NONBLOCK: a pipe or a device that was planted is told from a file, not waited for.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open("lock", flags, 0o600, dir_fd=directory)
    except OSError as error:
        raise Refused(f"cannot open {what}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"cannot open {what}: it is no regular file; remove it")
    return descriptor


def _acquire(descriptor: int, rootfs: Path, wait: float, tell: Callable[[str], None]) -> None:
    deadline, told = time.monotonic() + wait, False
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = printable(os.pread(descriptor, 1000, 0)) or "a process that has not said its name yet"
        except OSError as error:
            raise Refused(f"cannot lock the volume {printable(str(rootfs))}: {error.strerror}") from error
        if time.monotonic() >= deadline:
            raise Unavailable(
                f"the volume {printable(str(rootfs))} is in use by {holder}. Wait until that has ended, or stop it; "
                "two machines cannot share a volume"
            )
        if not told:
            tell(f"the volume is in use by {holder}; waiting for it up to {wait:.0f} s")
            told = True
        time.sleep(_POLL)


def begin_seeding(rootfs: Path) -> None:
    """Mark the volume as being seeded, on the disk, before the first byte of the tree is written.

    For whoever holds the lock. Raises `Refused` for a volume that is SEEDED or FOREIGN.
    """
    with _ours(rootfs) as (root, directory):
        if _state(root) is State.SEEDED:
            raise Refused(f"{printable(str(rootfs))} is seeded; a volume is seeded once")
        root.remove(_PREPARED)  # says nothing about the tree that comes
        root.write(_SEEDING, b"A seed of this volume began and has not ended. The next one starts again.\n", 0o600)
        os.fsync(directory)
        top = root.open("/", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(top)
        finally:
            os.close(top)


def write_record(rootfs: Path, record: Record) -> None:
    """Make the volume SEEDED, or replace its record, after everything else on it has reached the disk.

    For whoever holds the lock, or starts the machine. Raises `Unavailable` or `linux.SystemCallFailed` when the disk is
    full or fails: the volume is then in the state that it was in.
    """
    content = json.dumps(record.to_json(), indent=2, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"
    with _ours(rootfs) as (root, directory):
        _write_durably(root, directory, _RECORD, content)
        if root.remove(_SEEDING):
            os.fsync(directory)


def is_prepared(rootfs: Path) -> bool:
    """Tell whether `mark_prepared` was called since the volume was seeded."""
    with RootDir(rootfs) as root:
        return _state(root) is State.SEEDED and root.stat(_PREPARED) is not None


def mark_prepared(rootfs: Path) -> None:
    """Note that the identity which came with the source is gone, after that has reached the disk.

    The record cannot say so: seeding writes it, and a crash may come between the two stages.
    """
    with _ours(rootfs) as (root, directory):
        _write_durably(root, directory, _PREPARED, b"")


def clear(rootfs: Path) -> None:
    """Remove an interrupted seed: everything but ``lost+found`` and ``.stateful-pods``.

    For whoever holds the lock. Raises `Refused` for a volume in any other state than INTERRUPTED, and for a mount
    point or a file that the kernel protects, by name; the volume stays INTERRUPTED.
    """
    with _ours(rootfs) as (root, _):
        if _state(root) is not State.INTERRUPTED:
            raise Refused(f"{printable(str(rootfs))} is {_state(root)}; only an interrupted seed is cleared")
        remove_all(root.open("/", os.O_RDONLY | os.O_DIRECTORY), str(rootfs), _KEPT)


def _state(root: RootDir) -> State:
    ours = root.stat(_OURS)
    if ours and stat.S_ISDIR(ours.st_mode):
        if root.stat(_RECORD):
            return State.SEEDED
        if root.stat(_SEEDING):
            return State.INTERRUPTED
    foreign = set(root.names("/")) - _KEPT or any(
        (found := root.stat(f"/{name}")) and not stat.S_ISDIR(found.st_mode) for name in _KEPT
    )
    return State.FOREIGN if foreign else State.EMPTY


@contextmanager
def _ours(rootfs: Path) -> Iterator[tuple[RootDir, int]]:
    """Open the volume and our directory on it, which is made if need be, but never among somebody else's files."""
    with RootDir(rootfs) as root:
        if _state(root) is State.FOREIGN:
            names = sorted(set(root.names("/")) - _KEPT) or sorted(_KEPT)
            shown = ", ".join(printable(name, 40) for name in names[:5]) + (", …" if len(names) > 5 else "")
            raise Refused(
                f"the volume {printable(str(rootfs))} holds files that this program did not put there ({shown}), so it "
                "is left as it is. Give the machine an empty volume, or empty this one yourself if nothing on it is "
                "needed"
            )
        root.make_directories(_OURS, 0o700)
        directory = root.open(_OURS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchmod(directory, 0o700)
            yield root, directory
        except OSError as error:
            raise Unavailable(f"cannot write {_OURS} on {printable(str(rootfs))}: {error.strerror}") from error
        finally:
            os.close(directory)


def _write_durably(root: RootDir, directory: int, path: str, content: bytes) -> None:
    """Write one of our files so that it is on the disk only after everything that was written before it."""
    linux.syncfs(directory)
    root.write(path, content, 0o600)  # which flushes the file before it gets its name
    os.fsync(directory)
