"""Guests that really boot: root filesystems with other inits than systemd, and what a test does with a running one.

Every guest runs on a tmpfs of its own. A shutdown that reaches its host makes the whole file system under a guest
read-only, and that must never be one that anybody else uses.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shim.local import Ending, LocalGuest

PACKAGES = {"runit": "runit,runit-init", "sysvinit": "sysvinit-core", "openrc": "openrc,sysvinit-core"}
"""What Debian's minimal root filesystem needs for each init."""

PATIENCE = 60.0  # seconds that anything may take before a test gives up


def unavailable(*tools: str) -> str | None:
    """Return why no guest can run here, or None."""
    if os.geteuid() != 0:
        return "only root can boot a machine"
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    if " - cgroup2 " not in mounts:
        return "no cgroup v2 hierarchy is mounted"
    missing = [tool for tool in ("nsenter", "tar", *tools) if shutil.which(tool) is None]
    return f"{missing[0]} is not installed" if missing else None


@contextmanager
def own_tmpfs(directory: Path) -> Iterator[Path]:
    """Mount a tmpfs on `directory`, and unmount it however the block ends."""
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--recursive", directory], check=True)


def debian_with(init: str, directory: Path) -> Path:
    """Return the archive of a minimal Debian trixie with `init`, made in `directory` unless it is there (16 s)."""
    tar = directory / f"trixie-{init}.tar"
    if not tar.exists():
        made = tar.with_suffix(".part")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES[init]}", "--format=tar"]
        subprocess.run([*command, "trixie", made], check=True, stdin=subprocess.DEVNULL)
        made.rename(tar)
    return tar


def extract(tar: Path, root: Path) -> None:
    subprocess.run(["tar", "-xpf", tar, "-C", root, "--numeric-owner", "--xattrs", "--xattrs-include=*"], check=True)


def busybox(root: Path) -> None:
    """Make a root with nothing but a static busybox, which is its init too."""
    found = shutil.which("busybox")
    assert found is not None
    for directory in ("bin", "sbin", "etc/init.d"):
        (root / directory).mkdir(parents=True)
    shutil.copy(found, root / "bin/busybox")
    for applet in subprocess.run([found, "--list"], check=True, capture_output=True, text=True).stdout.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("/bin/busybox")
    (root / "sbin/init").symlink_to("/bin/busybox")


def seeded(root: Path) -> Path:
    """Give a root the record without which nothing public starts it; what it says does not matter."""
    (root / ".stateful-pods").mkdir(mode=0o700)
    (root / ".stateful-pods/provisioned").touch()
    return root


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def entered(pid: int, command: str, drain: Callable[[], object]) -> subprocess.CompletedProcess[str]:
    """Run a shell command as `kubectl exec` would: in all namespaces of the process `pid`, as their root.

    `drain` reads the guest's console meanwhile: a console that nobody reads stops an init that writes to it.
    """
    enter = ["nsenter", "--target", str(pid), "--all", "--wdns=/", "/bin/sh", "-c", command]
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        enter, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as process:
        try:
            while process.poll() is None:
                drain()
                # A shutdown stops all processes for a moment; nsenter stops itself then, and would reap nobody.
                process.send_signal(signal.SIGCONT)
            return subprocess.CompletedProcess(enter, process.returncode, *process.communicate())
        except BaseException:
            process.kill()
            raise


def inside(guest: LocalGuest, command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command in a guest; what the guest prints meanwhile is lost."""
    return entered(guest.pid, command, lambda: guest.output(0.005))


CONTAINER = ("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child", sys.executable, "-c")
"""Runs a python program as a container's PID 1. The shim's `boot` finds what `AS_A_POD` prepared."""

AS_A_POD = """
import fcntl, os, pathlib, sys, termios
from shim import linux, mounts
from shim.boot import boot
from shim.linux import MountFlag
from shim.rootdir import RootDir
linux.mount(None, "none", "/", MountFlag.REC | MountFlag.PRIVATE)
pathlib.Path(sys.argv[2], "cgroup.procs").write_text("0")
with RootDir(pathlib.Path("/")) as host:
    mounts.execute(mounts.runtime_plan(), host)
    mounts.execute(mounts.masks(host), host)
linux.mount("tmpfs", "tmpfs", "/mnt")
nodes = {name: f"/dev/{name}" for name in ("null", "urandom", "zero")}
if os.isatty(0):
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    nodes["console"] = os.ttyname(0)
for name, source in nodes.items():
    pathlib.Path("/mnt", name).touch()
    linux.mount(None, source, f"/mnt/{name}", MountFlag.BIND)
linux.mount(None, "/mnt", "/dev", MountFlag.BIND | MountFlag.REC)
linux.unmount("/mnt", linux.UnmountFlag.DETACH)
linux.keep_capabilities(linux.Capability)
boot(pathlib.Path(sys.argv[1]), hostname="pet")
"""
"""What a runtime gives a pod: its cgroup, a masked /proc, a read-only /sys, few devices, a console if it has a tty."""


def until(guest: LocalGuest, condition: Callable[[], bool], what: str) -> str:
    """Wait for `condition` while the guest runs, and return what the guest printed meanwhile."""
    printed = b""
    end = time.monotonic() + PATIENCE
    while not condition():
        printed += guest.output(0.05)
        shown = printed.decode(errors="replace")
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:.0f} s; the guest printed:\n{shown}"
        assert not guest.ended(), f"{what}: the guest ended ({guest.ended()}); it printed:\n{shown}"
    return printed.decode(errors="replace")


def until_ready(guest: LocalGuest) -> str:
    return until(guest, lambda: inside(guest, "/.stateful-pods/bin/ready.sh").returncode == 0, "ready")


def until_ended(guest: LocalGuest) -> Ending:
    """Wait for the guest's end, and return how it ended."""
    end = time.monotonic() + PATIENCE
    printed = b""
    while not (ending := guest.ended()):
        printed += guest.output(0.05)
        assert time.monotonic() < end, f"it did not end; it printed:\n{printed.decode(errors='replace')}"
    return ending
