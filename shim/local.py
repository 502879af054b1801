"""A machine on this host: fresh namespaces, what a container runtime would prepare in them, and the same boot.

Three processes take part. The caller holds the console and the cgroup; a keeper has made the namespaces and waits; its
child is PID 1 of them and becomes the guest's init. Each is killed when the one above it ends. The network namespace
holds a loopback interface and nothing else.
"""

from __future__ import annotations

import enum
import fcntl
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn, Self

from shim import linux, volume
from shim.boot import HELPERS, PATH, Guest, enter, prepare_helpers
from shim.cgroup import delegate, own_cgroup
from shim.customize import write_hostname
from shim.errors import Refused, printable
from shim.linux import Capability, MountFlag, Namespace
from shim.mounts import device_plan, execute, masks, runtime_plan
from shim.rootdir import RootDir
from shim.seccomp import shutdown_filter
from shim.terminal import STOPPING, Relay, keys_at_once, stop_wishes

_DEVICES = tuple(Path("/dev", name) for name in ("full", "null", "random", "tty", "urandom", "zero"))
_STAGE = Path("/mnt")  # in a mount namespace of our own; every system has it, and every user may pass through it
_FIRST_ID, _IDS, _TTY_GROUP = 0x80000, 0x10000, 5  # who a guest's users are on this host, in a user namespace
_NAMESPACES = Namespace.MOUNT | Namespace.UTS | Namespace.IPC | Namespace.NET | Namespace.PID
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_SYSTEMD_RESTART = 133  # what systemd ends with in a container, where it may not restart the machine


class Ending(enum.Enum):
    """How a guest ended."""

    POWERED_OFF = "powered off"
    RESTART = "asked for a restart"
    KILLED = "killed"


_ENDINGS = {
    0: Ending.POWERED_OFF,
    -signal.SIGINT: Ending.POWERED_OFF,  # reboot(2) in a PID namespace kills its init: SIGINT for halt and power-off
    -signal.SIGHUP: Ending.RESTART,
    _SYSTEMD_RESTART: Ending.RESTART,
    -signal.SIGKILL: Ending.KILLED,
}


class LocalGuest:
    """A guest that runs on this host, to be used in a ``with`` block: leaving it kills what still runs, and cleans up.

    The process must be root's and should have one thread. The guest has the capabilities of the chart's privileged
    mode. With `userns` its users are 65536 unprivileged ones of this host, from 524288 on, and its file system shows
    their files as theirs, so it must be able to (ext4, xfs, btrfs; tmpfs since Linux 6.3). `volumes` are as in
    `boot.boot`. Raises `Refused` if it does not come as far as its init, and then nothing is left of it.
    """

    pid: int
    """The guest's init, in this host's numbers."""

    console: int
    """The descriptor behind the guest's /dev/console; it does not block."""

    def __init__(
        self, rootfs: Path, *, hostname: str | None = None, volumes: Sequence[str] = (), userns: bool = False
    ) -> None:
        if os.geteuid() != 0:
            raise Refused(f"booting {printable(str(rootfs))} here needs root, for namespaces, mounts and file owners")
        init = prepare_helpers(rootfs)
        self._ending: Ending | None = None
        self._children: list[int] = []
        with ExitStack() as stack:
            cgroup = stack.enter_context(own_cgroup())
            self.console, slave = os.openpty()
            stack.callback(os.close, self.console)
            stack.callback(os.close, slave)
            os.set_blocking(self.console, False)
            guest = Guest(_STAGE, device_plan(_DEVICES, Path(os.ttyname(slave))), hostname, volumes, str(rootfs))
            users = None
            if userns:
                users = stack.enter_context(_user_namespace())
                delegate(cgroup, _FIRST_ID)
                os.fchown(slave, _FIRST_ID, _FIRST_ID + _TTY_GROUP)
            self._keeper, self.pid = _fork_guest(guest, init, rootfs, slave, users, cgroup)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.kill()

    def ended(self) -> Ending | None:
        """Return how it ended, or None while it runs. Raises `Refused` where its init failed."""
        if self._ending is None:
            pid, status = os.waitpid(self._keeper, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                if code > 128 and code != _SYSTEMD_RESTART:
                    code = 128 - code  # killed by a signal; the keeper can only exit
                self._ending = _ENDINGS.get(code, Ending.KILLED)
                if code not in _ENDINGS:
                    raise Refused(f"the machine's init ended with {code}; what it printed on its console says why")
        return self._ending

    def output(self, seconds: float) -> bytes:
        """Return what it prints on its console, after waiting for that for at most so many seconds."""
        readable, _, _ = select.select([self.console], [], [], seconds)
        try:
            return os.read(self.console, 1 << 16) if readable else b""
        except OSError:  # a getty hung the console up, and nobody has it open now
            time.sleep(min(seconds, 0.05))
            return b""

    def stop(self, seconds: int) -> None:
        """Ask it to power off, in the words that its init understands, and return; it has so many seconds."""
        self.spawn([f"{HELPERS}/stop.sh"], {"SHIM_STOP_SECONDS": str(seconds)})

    def spawn(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start a program inside, with this process's streams; return the pid of a child that ends as it does.

        Keys of this process's terminal do not reach it as signals: the child is in a session of its own.
        """
        child = os.fork()
        if child == 0:
            os.setsid()
            _end_with(lambda: _execute_inside(self.pid, argv, environment or {}), 2)
        self._children.append(child)
        return child

    def kill(self) -> None:
        """End it at once, as pulling the plug would."""
        if self._ending is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self._keeper, 0)
            self._ending = Ending.KILLED
        for child in self._children:
            with suppress(ChildProcessError):  # who started it may have waited for it
                os.waitpid(child, 0)
        self._children.clear()


def run_guest(
    rootfs: Path,
    *,
    hostname: str | None = None,
    volumes: Sequence[str] = (),
    userns: bool = False,
    stop_seconds: int = 20,
    tell: Callable[[str], None] = lambda _: None,
) -> Ending:
    """Boot the machine on the seeded `rootfs` with this process's standard streams as its console.

    Returns how it ended. SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT ask it to power off, as does an output that has
    gone away; a second Ctrl-C ends it at once. A `hostname` is written to the machine's /etc too, by the rule of
    `customize.write_hostname`, which `tell` is for. The volume's lock is held meanwhile. Raises `Refused` for a volume
    that is not seeded, `Unavailable` for one that is in use; the rest is `LocalGuest`'s. For the main thread.
    """
    volume.require_seeded(rootfs)
    with volume.lock(rootfs, "shim run"), stop_wishes() as wish:
        if hostname is not None:
            write_hostname(rootfs, hostname, tell=tell)
        with (
            LocalGuest(rootfs, hostname=hostname, volumes=volumes, userns=userns) as guest,
            keys_at_once(guest.console),
        ):
            relay = Relay(guest.console, guest.output)
            asked, more = False, True
            while more and not wish.at_once:
                ended = guest.ended() is not None  # before the last look at what it printed
                more = relay.step(0.1) or not ended
                if (wish.stop or relay.hung_up) and not (asked or ended):
                    guest.stop(stop_seconds)
                    asked = True
            guest.kill()
            return guest.ended() or Ending.KILLED


def _fork_guest(guest: Guest, init: str, rootfs: Path, slave: int, users: int | None, cgroup: Path) -> tuple[int, int]:
    """Start the keeper and the guest's init below it, and return their pids once the guest's own program runs."""
    pids, errors, go = os.pipe(), os.pipe(), os.pipe()
    keeper = os.fork()
    if keeper == 0:
        for end in (pids[0], errors[0], go[1]):
            os.close(end)

        def become_guest() -> NoReturn:
            if not os.read(go[0], 1):
                raise Refused("the machine's init could not be put into its cgroup")
            linux.die_with_parent()
            _prepare(guest, slave)
            enter(guest, init)

        def keep() -> int:
            os.setsid()  # Ctrl-C is for the caller alone; if it ended this process, the guest would be killed
            for number in STOPPING:
                signal.signal(number, signal.SIG_IGN)
            _make_namespaces(rootfs, users)
            child = os.fork()
            if child == 0:
                os.close(pids[1])
                _end_with(become_guest, errors[1])
            os.write(pids[1], str(child).encode())
            for end in (pids[1], errors[1], slave):
                os.close(end)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return code if code >= 0 else 128 - code

        _end_with(keep, errors[1])
    try:
        return keeper, _started(pids, errors, go, cgroup)
    except BaseException as error:
        if not isinstance(error, Refused):  # then it ends by itself, and has waited for its child
            os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
        raise


def _started(pids: tuple[int, int], errors: tuple[int, int], go: tuple[int, int], cgroup: Path) -> int:
    """Put the guest's init into its cgroup, let it go on, and return its pid when its own program runs."""
    for end in (pids[1], errors[1], go[0]):
        os.close(end)
    try:
        pid = _read_all(pids[0])
        with suppress(OSError):  # it may have failed by now
            if pid:
                (cgroup / "cgroup.procs").write_bytes(pid)
                os.write(go[1], b"1")
    finally:
        os.close(go[1])
    if failure := _read_all(errors[0]):
        raise Refused(failure.decode("utf-8", "replace"))
    return int(pid)


def _make_namespaces(rootfs: Path, users: int | None) -> None:
    linux.die_with_parent()
    linux.unshare(Namespace.MOUNT)
    linux.mount(None, "none", "/", MountFlag.REC | MountFlag.PRIVATE)
    tree = linux.clone_mount(str(rootfs))
    if users is not None:
        linux.map_owners(tree, users)
    linux.attach_mount(tree, str(_STAGE))
    os.close(tree)
    if users is not None:
        linux.set_namespaces(users, Namespace.USER)
        _be_root()
        linux.die_with_parent()  # a change of user forgets it
    linux.unshare(_NAMESPACES)


def _prepare(guest: Guest, slave: int) -> None:
    """Do what a container runtime does before it starts PID 1."""
    os.setsid()
    for stream in range(3):
        os.dup2(slave, stream)
    linux.unshare(Namespace.CGROUP)
    with RootDir(Path("/")) as host:
        execute(runtime_plan(), host)
        execute(masks(host), host)
    with socket.socket() as control:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
    linux.keep_capabilities(Capability)


def _execute_inside(pid: int, argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Enter the guest and run a program there as its root, with no more than its init may; return its exit code."""
    namespaces = _NAMESPACES | Namespace.CGROUP
    if Path(f"/proc/{pid}/ns/user").stat().st_ino != Path("/proc/self/ns/user").stat().st_ino:
        namespaces |= Namespace.USER
    linux.set_namespaces(os.pidfd_open(pid), namespaces)
    _be_root()
    os.chdir("/")
    child = os.fork()  # only a child is in the PID namespace
    if child == 0:
        linux.keep_capabilities(Capability)
        linux.set_seccomp_filter(shutdown_filter())
        os.execve(argv[0], list(argv), {"PATH": PATH, **environment})  # noqa: S606 - no shell is wanted
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _end_with(work: Callable[[], int], errors: int) -> NoReturn:
    """End this process with what `work` returns; an exception's text goes to the descriptor `errors`."""
    code = 1
    try:
        code = work()
    except BaseException as error:
        os.write(errors, f"{error}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(code)


def _be_root() -> None:
    """Be root of the user namespace that was entered, without the groups of whoever entered it."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read().rstrip(b"\n")


@contextmanager
def _user_namespace() -> Iterator[int]:
    """Give a descriptor of a new user namespace, with its map in place. A child makes it, and is gone at once."""
    made, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:

        def work() -> int:
            os.close(done[1])
            linux.unshare(Namespace.USER)
            os.close(made[1])
            os.read(done[0], 1)
            return 0

        _end_with(work, made[1])
    os.close(made[1])
    os.close(done[0])
    try:
        if failure := _read_all(made[0]):
            raise Refused(failure.decode())
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {_FIRST_ID} {_IDS}\n", encoding="ascii")
        namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(done[1])
        os.waitpid(child, 0)
    try:
        yield namespace
    finally:
        os.close(namespace)
