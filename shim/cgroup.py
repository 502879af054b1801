"""A cgroup of its own for a machine that runs on this host; in a pod the container runtime makes it.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst, "Delegation".
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shim.errors import Refused

_DELEGATED = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")
_PATIENCE = 2.0  # seconds


@contextmanager
def own_cgroup() -> Iterator[Path]:
    """Make a cgroup for one guest below this process's own, and remove it with all that the guest made in it."""
    cgroup = this_cgroup() / f"stateful-pods-{os.getpid()}-{time.monotonic_ns()}"
    try:
        cgroup.mkdir()
    except OSError as error:
        raise Refused(f"cannot make a cgroup for the machine: {error}; it needs a writable cgroup v2") from error
    try:
        yield cgroup
    finally:
        _remove(cgroup)


def _remove(cgroup: Path) -> None:
    """Remove the group and those below it; what was killed just now is in it until the kernel has come to that."""
    end = time.monotonic() + _PATIENCE
    while cgroup.exists() and time.monotonic() < end:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
        if cgroup.exists():
            time.sleep(0.02)


def this_cgroup() -> Path:
    """Return where this process's own cgroup v2 is mounted. Raises `Refused` where there is none."""
    memberships = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = next((line.removeprefix("0::/") for line in memberships if line.startswith("0::/")), None)
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, kind = line.partition(" - ")
        if own is not None and kind.startswith("cgroup2 ") and fields.split()[3] == "/":
            return Path(fields.split()[4], own)
    raise Refused("no cgroup v2 hierarchy is mounted on this host, and the machine's init needs one of its own")


def delegate(cgroup: Path, user: int) -> None:
    """Let `user` make groups in `cgroup` and move its processes between them."""
    for path in (cgroup, *(cgroup / name for name in _DELEGATED)):
        os.chown(path, user, user)
