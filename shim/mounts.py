"""What a guest's root is mounted from: a plan of objects that describe themselves, and are executed one by one.

The plan is data, so a test, a log or a person can read what will be mounted before anything is. Targets are the guest's
paths; they are resolved inside its root when their turn comes, so that no link of the guest's leads a mount elsewhere.
The machine gets the same mounts in a pod and on this host.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shim import linux
from shim.errors import Refused, printable
from shim.linux import MountFlag
from shim.rootdir import RootDir

_NO_FLAGS = MountFlag(0)
_SAFE = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC
_RECURSIVE_BIND = MountFlag.BIND | MountFlag.REC
_OWN_IN_DEV = {"mqueue", "ptmx", "pts", "shm"}  # the guest has its own of these
_DEV_LINKS = {
    "/dev/ptmx": "pts/ptmx",  # of this devpts, mode 0666: any user of the guest gets a terminal
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
_CGROUP = "/sys/fs/cgroup"

# What container runtimes hide and make read-only; nothing of the list need exist.
_MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: what, from where, on what, and how; `otherwise` is tried when the kernel refuses it."""

    target: str
    source: str
    kind: str | None = None
    flags: MountFlag = _NO_FLAGS
    options: str = ""
    otherwise: Self | None = None

    def __str__(self) -> str:
        """Return the mount in the words of mount(8), for messages and logs."""
        names = [flag.name.lower() for flag in MountFlag if flag in self.flags and flag.name]
        options = ",".join([*names, *filter(None, [self.options])])
        words = f"{self.kind or 'bind'} {self.source} on {self.target}" + (f" ({options})" if options else "")
        return f"{words}, or else {self.otherwise}" if self.otherwise else words

    def execute(self, root: RootDir) -> None:
        """Mount, on the target as it resolves inside `root`; the target exists. Raises `Refused` in words."""
        target = root.open(self.target, os.O_PATH)
        try:
            linux.mount(self.kind, self.source, f"/proc/self/fd/{target}", self.flags, self.options)
        except Refused as error:
            if not self.otherwise:
                raise Refused(f"cannot mount {self} of {printable(root.name)}: {error}") from error
            self.otherwise.execute(root)
        finally:
            os.close(target)


def guest_plan() -> tuple[Mount, ...]:
    """Return the mounts that every guest gets, in order; the devices come after them, see `bind_devices`."""
    own_cgroup = Mount(_CGROUP, _CGROUP, flags=_RECURSIVE_BIND)
    return (
        # Bound, not fresh: what the runtime masks and makes read-only stays so, the node's /proc/sys above all.
        Mount("/proc", "/proc", flags=_RECURSIVE_BIND),
        Mount("/sys", "/sys", flags=_RECURSIVE_BIND),
        Mount(_CGROUP, "cgroup2", "cgroup2", _SAFE, "nsdelegate", otherwise=own_cgroup),
        Mount("/dev", "tmpfs", "tmpfs", MountFlag.NOSUID | MountFlag.STRICTATIME, "mode=0755,size=4m"),
        Mount(
            "/dev/pts",
            "devpts",
            "devpts",
            MountFlag.NOSUID | MountFlag.NOEXEC,
            "newinstance,ptmxmode=0666,mode=0620,gid=5",
        ),
        Mount("/dev/shm", "tmpfs", "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "mode=1777"),  # noqa: S108
        Mount("/run", "tmpfs", "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "mode=0755"),
        Mount("/tmp", "tmpfs", "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "mode=1777"),  # noqa: S108
    )


def runtime_plan() -> tuple[Mount, ...]:
    """Return what a container runtime mounts before it starts a container: /proc and /sys of the new namespaces."""
    read_only = MountFlag.RDONLY | _SAFE
    # In a user namespace a fresh sysfs may be refused; then it is the host's, and just as read-only.
    sys = Mount("/sys", "sysfs", "sysfs", read_only, otherwise=Mount("/sys", "/sys", flags=_RECURSIVE_BIND))
    return (Mount("/proc", "proc", "proc", _SAFE), sys, _read_only_again("/sys"))


def masks(root: RootDir) -> tuple[Mount, ...]:
    """Return what hides or makes read-only those parts of /proc and /sys that reach the host; runtimes do the same."""
    plan: list[Mount] = []
    for path in _MASKED:
        if found := root.stat(path):
            empty = Mount(path, "tmpfs", "tmpfs", MountFlag.RDONLY | _SAFE)
            plan.append(empty if stat.S_ISDIR(found.st_mode) else Mount(path, "/dev/null", flags=MountFlag.BIND))
    for path in filter(root.stat, _READ_ONLY):
        plan += [Mount(path, path, flags=_RECURSIVE_BIND), _read_only_again(path)]
    return tuple(plan)


def device_plan(devices: Iterable[Path], console: Path | None = None) -> tuple[Mount, ...]:
    """Return the binds of device nodes below /dev, each under its own name, and of `console` as /dev/console."""
    plan = [Mount(str(node), str(node), flags=MountFlag.BIND) for node in devices]
    return (*plan, *([Mount("/dev/console", str(console), flags=MountFlag.BIND)] if console else []))


def devices_in(directory: Path) -> list[Path]:
    """Return every device node below `directory`, in order, but those that a guest has its own of."""
    found = []
    for entry in sorted(directory.iterdir()):
        mode = entry.lstat().st_mode
        if entry.name in _OWN_IN_DEV:
            continue
        if stat.S_ISDIR(mode):
            found += devices_in(entry)
        elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            found.append(entry)
    return found


def execute(plan: Iterable[Mount], root: RootDir) -> None:
    """Make each mount of `plan`, and what it goes on where that is missing. The first failure ends it: `Refused`."""
    for mount in plan:
        if not root.stat(mount.target, follow=True):
            if mount.target.startswith("/dev/") and mount.flags & MountFlag.BIND:
                root.make_directories(posixpath.dirname(mount.target))
                root.write(mount.target, b"", mode=0)
            else:
                root.make_directories(mount.target)
        mount.execute(root)


def link_devices(root: RootDir) -> None:
    """Make the links that every /dev has."""
    for path, text in _DEV_LINKS.items():
        root.symlink(text, path)


def _read_only_again(path: str) -> Mount:
    return Mount(path, path, flags=MountFlag.REMOUNT | MountFlag.BIND | MountFlag.RDONLY | _SAFE)
