"""From the shim to the machine: mount what its root needs, change into it, and become its own init.

Nothing of the shim's image can be reached afterwards, so what a probe runs is installed on the volume first. Every
check that can be made before a mount is made before one, and nothing is started after a failure.

The root is not what `pivot_root` changes to. That is a small tmpfs which nobody sees: it holds a deleted file of the
volume, and the machine's root is moved on top of it, as an initramfs does. While that file is held, the kernel answers
EBUSY to every attempt to make the volume's file system read-only. The seccomp filter cannot stop them all: ``umount
/``, which does that too and which busybox init runs on its way down, looks like any other umount.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
import re
import signal
import stat
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shim import linux, volume
from shim.errors import NotFound, Refused, printable
from shim.linux import MountFlag, Namespace, UnmountFlag
from shim.mounts import Mount, device_plan, devices_in, execute, guest_plan, link_devices
from shim.rootdir import RootDir
from shim.seccomp import shutdown_filter
from shim.terminal import STOPPING

HELPERS = "/.stateful-pods/bin"
"""Where ready.sh and stop.sh are on the volume."""

BOOTED = "/run/stateful-pods/booted"
"""What tells whoever enters that the root has changed."""

_INITS = ("/sbin/init", "/usr/sbin/init", "/lib/systemd/systemd", "/usr/lib/systemd/systemd", "/bin/init", "/etc/init")
_SCRIPTS = ("init.sh", "ready.sh", "stop.sh")
_HELD = "/.stateful-pods/held"
_CGROUP = "/sys/fs/cgroup"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TERMINAL = re.compile(r"[A-Za-z0-9+._-]{1,32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Guest:
    """What `enter` boots: the root, what is to be mounted into it, and the name it goes by."""

    rootfs: Path
    devices: Sequence[Mount]
    hostname: str | None = None
    volumes: Sequence[str] = ()
    shown: str | None = None  # what messages call the root, where that is not `rootfs`


def boot(rootfs: Path, *, hostname: str | None = None, volumes: Sequence[str] = ()) -> NoReturn:
    """Become the init of the machine on `rootfs`. This process must be PID 1 of a container; it does not return.

    `hostname` is set unless it is None. `volumes` are paths of the guest's that must be mount points inside its root.
    What the guest prints while it boots appears on the container's output if that is a terminal (``tty: true``).
    Raises `Refused` in words, naming the mount, if anything is not as it must be, and for a volume that is not seeded.
    """
    if os.getpid() != 1:
        raise Refused(
            f"boot turns this process into the machine's init and changes its root, so it must be PID 1 of a container "
            f"(it is {os.getpid()}); to try a machine on this host: shim run {printable(str(rootfs))}"
        )
    # The volume's lock is not held: no descriptor of ours outlives this. systemd closes what it did not open, and other
    # inits would hand it on to all of their services. In a cluster ReadWriteOncePod keeps other pods away.
    volume.require_seeded(rootfs)
    guest = Guest(rootfs, device_plan(devices_in(Path("/dev"))), hostname, volumes)
    init = prepare_helpers(rootfs)
    linux.unshare(Namespace.CGROUP)  # some runtimes leave the node's whole hierarchy in view
    enter(guest, init)


def prepare_helpers(rootfs: Path) -> str:
    """Find the guest's init, install what probes run, and return the init's path; nothing is mounted yet.

    Raises `Refused` when there is no init, or a guest's file is in the way of ours.
    """
    with RootDir(rootfs) as root:
        init = find_init(root)
        for directory in (posixpath.dirname(HELPERS), HELPERS):
            found = root.stat(directory)
            if found and not stat.S_ISDIR(found.st_mode):
                raise Refused(
                    f"{directory} in {printable(str(rootfs))} is not a directory; it is the shim's own, remove it"
                )
            root.make_directories(directory)
        for script in _SCRIPTS:
            content = Path(__file__).with_name("guest").joinpath(script).read_bytes()
            root.write(f"{HELPERS}/{script}", content, mode=0o755)
    return init


def find_init(root: RootDir) -> str:
    """Return the path of the guest's init: the first usual place with an executable file, links resolved inside.

    Raises `Refused` when there is none.
    """
    for path in _INITS:
        found = root.stat(path, follow=True)
        if found and stat.S_ISREG(found.st_mode) and found.st_mode & 0o111:
            return path
    raise Refused(
        f"{printable(str(root.path))} holds no init: none of {', '.join(_INITS)} is an executable file. A machine "
        "needs a whole operating system, and application images have no init: seed from an image that was made to boot"
    )


def enter(guest: Guest, init: str) -> NoReturn:
    """Mount, change root and execute `init`, as `boot` says. The namespaces are this process's own already."""
    linux.mount(None, "none", "/", MountFlag.REC | MountFlag.SLAVE)
    keeper = _keeper(guest.rootfs)
    with RootDir(keeper / "root", guest.shown or str(guest.rootfs)) as root:
        volumes = _prove(root, guest.volumes)
        execute(guest_plan(), root)
        execute(guest.devices, root)
        link_devices(root)
        _check_cgroup(root)
        if hidden := [path for path, identity in volumes.items() if _identity(root, path) != identity]:
            raise Refused(
                f"the data volume {hidden[0]} is hidden: the machine has its own /dev, /proc, /run, /sys and /tmp"
            )
        root.make_directories(posixpath.dirname(BOOTED))
        root.write(BOOTED, b"")
    if guest.hostname is not None:
        linux.sethostname(guest.hostname)
    _change_root(keeper)
    linux.set_seccomp_filter(shutdown_filter())
    _execute(init)


def _keeper(rootfs: Path) -> Path:
    """Mount the tmpfs that will be below the root, attach the root in it, and hold a deleted file of the volume."""
    tree = linux.clone_mount(str(rootfs))
    linux.mount("tmpfs", "tmpfs", str(rootfs), MountFlag.NOSUID | MountFlag.NODEV, "mode=0755,size=64k")
    for name in ("root", "old"):
        (rootfs / name).mkdir()
    (rootfs / "held").touch()
    linux.attach_mount(tree, str(rootfs / "root"))
    os.close(tree)
    with RootDir(rootfs / "root") as root:
        root.write(_HELD, b"", mode=0)
        held = root.open(_HELD, os.O_PATH | os.O_NOFOLLOW)
        linux.mount(None, f"/proc/self/fd/{held}", str(rootfs / "held"), MountFlag.BIND)
        os.close(held)
        root.remove(_HELD)
    return rootfs


def _prove(root: RootDir, volumes: Sequence[str]) -> Mapping[str, tuple[int, int]]:
    """Return the data volumes, each proved to be a mount point inside the root, with what tells them apart."""
    for path in volumes:
        try:
            found = root.is_mount_point(root.resolve(path))
        except NotFound:
            found = False
        if not found:
            raise Refused(
                f"the data volume {printable(path)} is no mount point inside the machine's root, so what the machine "
                "writes there would not reach the volume. A link on the way, in the machine's own file system, leads "
                "somewhere else than where the pod mounted it: remove the link, or mount the volume where it leads"
            )
    known = {_identity(root, "/"): "the machine's own root"}
    for path in volumes:
        identity = _identity(root, path)
        if identity in known:
            raise Refused(
                f"the data volume {printable(path)} is the same directory as {known[identity]}; each data volume needs "
                "a directory of its own, below the root"
            )
        known[identity] = f"the data volume {printable(path)}"
    return {path: _identity(root, path) for path in volumes}


def _identity(root: RootDir, path: str) -> tuple[int, int]:
    found = root.stat(path, follow=True)
    return (found.st_dev, found.st_ino) if found else (0, 0)


def _check_cgroup(root: RootDir) -> None:
    """Find a hierarchy that the guest could not use while that can still be said in words."""
    if not root.stat(f"{_CGROUP}/cgroup.controllers"):
        raise Refused(
            "the machine's /sys/fs/cgroup is not a cgroup v2 hierarchy, which its init needs: this node runs cgroup "
            "v1, or the runtime mounts none; use a node with cgroup v2"
        )
    if not root.stat(f"{_CGROUP}/cgroup.type"):  # every group has it but the root of the hierarchy
        raise Refused(
            "this process is in the root cgroup of its host, and the machine's init would take all of it over: start "
            "it in a cgroup of its own, as every container runtime does"
        )
    directory = root.open(_CGROUP, os.O_PATH | os.O_DIRECTORY)
    probe = ".stateful-pods"
    try:
        with suppress(FileExistsError):
            os.mkdir(probe, dir_fd=directory)
        os.rmdir(probe, dir_fd=directory)
    except OSError as error:
        raise Refused(
            "the machine's cgroup cannot be written, and its init (systemd above all) does not run without one: making "
            f"a group in /sys/fs/cgroup was answered with {error.strerror}. In the userns mode the node must delegate "
            "the pod's cgroup to it: containerd 2.1 and later with cgroup_writable = true in the runtime's settings; "
            "otherwise use the privileged mode"
        ) from error
    finally:
        os.close(directory)


def _change_root(keeper: Path) -> None:
    linux.pivot_root(str(keeper), str(keeper / "old"))
    os.chdir("/root")
    linux.unmount("/old", UnmountFlag.DETACH)
    linux.mount(None, ".", "/", MountFlag.MOVE)
    os.chroot(".")
    os.chdir("/")


def _execute(init: str) -> NoReturn:
    _leave_terminal()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *STOPPING):
        signal.signal(number, signal.SIG_DFL)  # python ignores the first two, and exec would hand that on
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    terminal = os.environ.get("TERM", "")
    # The name that the LXC images' own generators and cloud-init look for.
    environment = {"container": "lxc", "PATH": PATH, "TERM": terminal if _TERMINAL.fullmatch(terminal) else "linux"}
    try:
        os.execve(init, [init], environment)  # noqa: S606 - the point of it all
    except OSError as error:
        causes = {
            errno.ENOEXEC: ": it is made for another machine type than this node's",
            errno.ENOENT: ": its interpreter or loader is missing, which also happens on another machine type",
        }
        raise Refused(f"cannot execute {init}: {error.strerror}{causes.get(error.errno or 0, '')}") from error


def _leave_terminal() -> None:
    """Give up the controlling terminal: a console getty calls vhangup, which would hang up the machine's init too."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # giving it up sends one
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return  # there is none
    with suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
    os.close(terminal)
