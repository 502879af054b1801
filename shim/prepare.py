"""Makes the tree on a volume this machine's own: its identity, and the directories that boot mounts over.

An identity belongs to one machine. The one that came with an image is removed before the first start, and the
original's from a clone; a volume that was restored for its own machine keeps it. The guest then makes a new one.
Sources: machine-id(5); https://systemd.io/BUILDING_IMAGES/.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from shim import volume
from shim.errors import Refused, printable
from shim.rootdir import RootDir
from shim.spec import Machine

IDENTITIES = ("new", "keep")

_RUNTIME_DIRECTORIES = {"/dev": 0o755, "/proc": 0o555, "/sys": 0o555, "/run": 0o755, "/tmp": 0o1777}  # noqa: S108
_MACHINE_ID = "/etc/machine-id"
_DBUS_MACHINE_ID = "/var/lib/dbus/machine-id"
_HOST_KEYS = (
    "/etc/ssh/ssh_host_*_key",
    "/etc/ssh/ssh_host_*_key.pub",
    "/etc/ssh/ssh_host_*_key-cert.pub",
    "/etc/dropbear/dropbear_*_host_key",
)
# Two machines must not start with one state of the random generator. systemd's credential.secret, on the other hand,
# stays on a clone: what the owner encrypted with it could never be read again.
_RANDOM_SEEDS = (
    "/var/lib/systemd/random-seed",
    "/var/lib/urandom/random-seed",  # Debian's sysvinit
    "/var/lib/misc/random-seed",  # OpenRC, before seedrng
    "/var/lib/seedrng/seed.credit",
    "/var/lib/seedrng/seed.no-credit",
    "/var/lib/random-seed",  # Void's runit
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was done: `identity` is ``new`` if the identity was removed at this start, and else ``kept``."""

    machine: Machine
    identity: str
    removed: tuple[str, ...] = ()  # paths in the guest
    cloned_from: Machine | None = None


def prepare(
    rootfs: Path, machine: Machine, identity: str = "new", *, tell: Callable[[str], None] = lambda _: None
) -> Prepared:
    """Prepare the seeded volume at `rootfs` to be `machine`; a second call changes nothing.

    `identity` is for a volume that was seeded for another machine: ``new`` if it is a clone, ``keep`` if the machine
    has moved. `tell` is told what was found and done. The record comes last, so that a crash repeats the work, before
    the guest has run. Raises `Refused` for a volume that is not seeded or a tree that cannot be prepared,
    `FormatError` for a record that cannot be understood.
    """
    if identity not in IDENTITIES:
        raise Refused(f"the identity is {printable(identity)!r}; expected {' or '.join(IDENTITIES)} (SHIM_IDENTITY)")
    record = volume.read_record(rootfs)
    first, moved = not volume.is_prepared(rootfs), record.machine != machine
    clone = moved and identity == "new"
    removed: tuple[str, ...] = ()
    if moved:
        tell(_about_the_move(record.machine, machine, clone))
    with RootDir(rootfs) as root:
        _make_runtime_directories(root)
        if first or clone:
            removed = (*_forget_machine_id(root), *_remove(root, _HOST_KEYS))
            # A first start leaves the image's alone: README.md lists all that a seeded tree may differ in.
            removed += _remove(root, _RANDOM_SEEDS) if clone else ()
            tell(f"a new identity: the guest makes what was removed, {', '.join(removed) or 'nothing'}")
    if moved:
        original = record.machine if clone else record.cloned_from
        if not (first or clone):  # it stays what it was at first in its own eyes, wherever it moves
            before = record.machine.identity
            machine = replace(machine, moved_from=None if before == machine else before)
        record = replace(record, machine=machine, cloned_from=original)
        volume.write_record(rootfs, record)
    if first:
        volume.mark_prepared(rootfs)
    return Prepared(machine, "new" if first or clone else "kept", removed, record.cloned_from)


def _about_the_move(original: Machine, machine: Machine, clone: bool) -> str:
    if clone:
        return (
            f"ATTENTION: this volume is a CLONE. It was seeded for {original}, and this is {machine}. It gets an "
            "identity of its own; SHIM_IDENTITY=keep would have said that the machine has moved"
        )
    return (
        f"ATTENTION: this machine has MOVED. Its volume was seeded for {original}, and this is {machine}. It keeps its "
        "identity (SHIM_IDENTITY=keep), so the original must never start again"
    )


def _make_runtime_directories(root: RootDir) -> None:
    """Make those that are missing. Others keep their modes: they are the distribution's, and boot mounts over them."""
    for path, mode in _RUNTIME_DIRECTORIES.items():
        found = root.stat(path)
        if found and not stat.S_ISDIR(found.st_mode):
            raise Refused(
                f"{path} in {printable(str(root.path))} is no directory, and boot would mount over what it points to; "
                "replace it by an empty directory"
            )
        if not found:
            root.make_directories(path, mode)


def _forget_machine_id(root: RootDir) -> list[str]:
    """Remove the machine ID so that the guest makes a new one, and return the paths that were changed.

    For systemd the file stays and is empty. If it were missing or said ``uninitialized``, systemd would take this for
    the machine's very first boot: it would set every unit to its preset and may ask for a locale on the console. For
    others it goes: ``dbus-uuidgen --ensure`` makes a missing file, and fails on an empty one.
    """
    systemd = any(root.stat(f"{directory}/systemd/systemd", follow=True) for directory in ("/usr/lib", "/lib"))
    if not systemd:
        return [path for path in (_MACHINE_ID, _DBUS_MACHINE_ID) if root.remove(path)]
    changed = []
    found = root.stat(_MACHINE_ID)
    if not found or not stat.S_ISREG(found.st_mode) or found.st_size:
        root.write(_MACHINE_ID, b"", 0o444)  # the mode that systemd gives it
        changed.append(_MACHINE_ID)
    if not _is_link_to(root, _DBUS_MACHINE_ID, _MACHINE_ID) and root.remove(_DBUS_MACHINE_ID):
        changed.append(_DBUS_MACHINE_ID)
    return changed


def _is_link_to(root: RootDir, path: str, target: str) -> bool:
    found, there, wanted = root.stat(path), root.stat(path, follow=True), root.stat(target, follow=True)
    is_link = found is not None and stat.S_ISLNK(found.st_mode)
    return is_link and there is not None and wanted is not None and os.path.samestat(there, wanted)


def _remove(root: RootDir, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Remove the files that match `patterns`, whose last part alone may have wildcards, and return their paths."""
    removed = []
    for pattern in patterns:
        directory, last = posixpath.split(pattern)
        found = root.stat(directory, follow=True)
        if found and stat.S_ISDIR(found.st_mode):
            paths = [f"{directory}/{name}" for name in root.names(directory) if fnmatchcase(name, last)]
            removed += [path for path in paths if root.remove(path)]
    return tuple(removed)
