"""The system calls that python does not have. A failure names the call, every argument, and what usually causes it.

Sources: the manual pages of the calls; their numbers and constants from Linux's user-space headers.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import platform
import signal
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from shim.errors import Refused, printable

_libc = ctypes.CDLL(None, use_errno=True)

# Calls that the C library has no name for, or has not everywhere. From 424 on every architecture has the same numbers.
_NUMBERS = {"x86_64": {"pivot_root": 155, "statx": 332}, "aarch64": {"pivot_root": 41, "statx": 291}}
_COMMON_NUMBERS = {"open_tree": 428, "move_mount": 429, "openat2": 437, "mount_setattr": 442}

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_OPEN_TREE_CLONE = 0x1
_MOUNT_ATTR_IDMAP = 0x00100000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 22, 24
_SECCOMP_MODE_FILTER = 2
_STATX_SIZE, _STATX_ATTRIBUTES, _STATX_ATTRIBUTES_MASK = 256, 8, 56  # bytes; offsets in struct statx
_STATX_ATTR_MOUNT_ROOT = 0x2000


class MountFlag(enum.IntFlag):
    """Flags of mount(2)."""

    RDONLY = 0x1
    NOSUID = 0x2
    NODEV = 0x4
    NOEXEC = 0x8
    REMOUNT = 0x20
    BIND = 0x1000
    MOVE = 0x2000
    REC = 0x4000
    PRIVATE = 0x40000
    SLAVE = 0x80000
    STRICTATIME = 0x1000000


class UnmountFlag(enum.IntFlag):
    """Flags of umount2(2)."""

    DETACH = 0x2
    NOFOLLOW = 0x8


class Namespace(enum.IntFlag):
    """Kinds of namespaces: the flags of unshare(2)."""

    MOUNT = 0x00020000
    CGROUP = 0x02000000
    UTS = 0x04000000
    IPC = 0x08000000
    USER = 0x10000000
    PID = 0x20000000
    NET = 0x40000000


class Capability(enum.IntEnum):
    """Capabilities by name; those that a machine is given in one mode or another."""

    CHOWN = 0
    DAC_OVERRIDE = 1
    FOWNER = 3
    FSETID = 4
    KILL = 5
    SETGID = 6
    SETUID = 7
    SETPCAP = 8
    NET_BIND_SERVICE = 10
    NET_RAW = 13
    SYS_CHROOT = 18
    SYS_ADMIN = 21
    SYS_BOOT = 22
    MKNOD = 27
    AUDIT_WRITE = 29
    SETFCAP = 31


class Resolve(enum.IntFlag):
    """How openat2(2) walks a path."""

    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    IN_ROOT = 0x10


class SystemCallFailed(Refused):
    """A system call was refused; `errno` holds the reason as a number."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.errno = number


_NO_PRIVILEGE = (
    "this process lacks CAP_SYS_ADMIN, or a seccomp or AppArmor profile of the container denies the call; "
    "see the chart's privileged mode"
)
_OLD_KERNEL = "the kernel is too old (5.12 or later is needed), or a seccomp profile hides the call"
_CAUSES: Mapping[tuple[str, int], str] = {
    ("mount", errno.EPERM): _NO_PRIVILEGE,
    ("mount", errno.EACCES): "an AppArmor or SELinux profile denies it; in a user namespace, a device's own mode may",
    ("mount", errno.EINVAL): "the kernel does not know one of the options, or the source is tied to mounts above it",
    ("mount", errno.ENODEV): "this kernel has no such file system type",
    ("mount", errno.ENOENT): "the source or the target does not exist",
    ("mount", errno.ENOTDIR): "one of source and target is a directory, and the other is not",
    ("mount", errno.EBUSY): "the hierarchy is in use with other options",
    ("mount", errno.ENOSPC): "the namespace has too many mounts (sysctl fs.mount-max)",
    ("pivot_root", errno.EPERM): _NO_PRIVILEGE,
    ("pivot_root", errno.EINVAL): "the new root is no mount point, or a mount of either root is shared",
    ("pivot_root", errno.EBUSY): "the new root is on the mount of the old one",
    ("unshare", errno.EPERM): "not root, or this machine forbids user namespaces (kernel.unprivileged_userns_clone)",
    ("unshare", errno.ENOSPC): "the limit of namespaces is reached (sysctl user.max_*_namespaces)",
    ("unshare", errno.EINVAL): "the kernel was built without one of these namespaces, or the process has threads",
    ("sethostname", errno.EPERM): _NO_PRIVILEGE,
    ("sethostname", errno.EINVAL): "a host name has at most 64 bytes",
    ("seccomp", errno.EACCES): _NO_PRIVILEGE,
    ("seccomp", errno.EINVAL): "the kernel was built without seccomp filters",
    ("openat2", errno.EPERM): _OLD_KERNEL,
    ("mount_setattr", errno.EINVAL): "the file system cannot be mounted with mapped owners; ext4, xfs, btrfs and, "
    "since Linux 6.3, tmpfs can",
    ("mount_setattr", errno.EPERM): "mapping the owners of a file system needs root outside of any user namespace",
}


def mount(kind: str | None, source: str | None, target: str, flags: int = 0, options: str = "") -> None:
    """Mount `source` on `target`, as mount(2) does; raises `SystemCallFailed`."""
    words = [_bytes(word) for word in (source, target, kind, options or None)]
    result = _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    names = _names(MountFlag(flags))
    _check(result, "mount", type=kind, source=source, target=target, flags=names, options=options)


def unmount(target: str, flags: int = 0) -> None:
    """Unmount what is mounted on `target`, as umount2(2) does; raises `SystemCallFailed`."""
    result = _libc.umount2(_bytes(target), ctypes.c_int(flags))
    _check(result, "umount2", target=target, flags=_names(UnmountFlag(flags)))


def pivot_root(new: str, old: str) -> None:
    """Make `new` this mount namespace's root and put the old one on `old`; raises `SystemCallFailed`."""
    _check(_syscall("pivot_root", _bytes(new), _bytes(old)), "pivot_root", new=new, old=old)


def unshare(namespaces: Namespace) -> None:
    """Give this process namespaces of its own; a PID namespace begins with its next child. `SystemCallFailed`."""
    _check(_libc.unshare(ctypes.c_int(namespaces)), "unshare", namespaces=_names(namespaces))


def sethostname(name: str) -> None:
    """Set the host name of this UTS namespace; raises `SystemCallFailed`."""
    try:
        socket.sethostname(name)
    except OSError as error:
        raise _failure("sethostname", error.errno or 0, name=name) from error


def set_seccomp_filter(program: bytes) -> None:
    """Set a seccomp filter, a BPF program of `struct sock_filter`s, for this thread and all that it starts.

    It needs CAP_SYS_ADMIN, and leaves set-user-ID programs working, which PR_SET_NO_NEW_PRIVS would not. Raises
    `SystemCallFailed`.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(instructions)))
    result = _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, ctypes.c_ulong(0), 0)
    _check(result, "seccomp", instructions=len(program) // 8)


def syncfs(descriptor: int) -> None:
    """Write everything of the file system behind `descriptor` to its disk; raises `SystemCallFailed`."""
    _check(_libc.syncfs(ctypes.c_int(descriptor)), "syncfs", descriptor=descriptor)


def openat2(directory: int, path: str, flags: int, *, mode: int = 0, resolve: Resolve) -> int:
    """Open `path` below the descriptor `directory`, walking it as `resolve` says; the descriptor is close-on-exec.

    Raises `OSError` like `os.open`, since what a name is made of is the caller's to judge, and `SystemCallFailed` where
    the kernel lacks the call (before Linux 5.6).
    """
    how = ctypes.create_string_buffer(struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve), 24)
    descriptor = _syscall("openat2", ctypes.c_int(directory), _bytes(path), how, ctypes.c_size_t(24))
    if descriptor < 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.E2BIG):
            raise _failure("openat2", number, path=path, resolve=_names(resolve))
        raise OSError(number, os.strerror(number), path)
    return descriptor


def is_mount_point(descriptor: int) -> bool:
    """Tell whether something is mounted on exactly what `descriptor` refers to; a bind mount counts.

    Raises `SystemCallFailed`, also where the kernel cannot tell (before Linux 5.8).
    """
    found = ctypes.create_string_buffer(_STATX_SIZE)
    flags = ctypes.c_int(_AT_EMPTY_PATH)
    result = _syscall("statx", ctypes.c_int(descriptor), b"", flags, ctypes.c_uint(0), found)
    _check(result, "statx", descriptor=descriptor)
    (known,) = struct.unpack_from("Q", found, _STATX_ATTRIBUTES_MASK)
    if not known & _STATX_ATTR_MOUNT_ROOT:
        raise _failure("statx", errno.ENOSYS, descriptor=descriptor, asked="is this a mount point")
    (attributes,) = struct.unpack_from("Q", found, _STATX_ATTRIBUTES)
    return bool(attributes & _STATX_ATTR_MOUNT_ROOT)


def clone_mount(source: str) -> int:
    """Return a descriptor of a copy of the mount on `source`, mounts below it too, that is not attached anywhere.

    Raises `SystemCallFailed`.
    """
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC)
    tree = _syscall("open_tree", ctypes.c_int(_AT_FDCWD), _bytes(source), flags)
    _check(tree, "open_tree", source=source)
    return tree


def map_owners(tree: int, user_namespace: int) -> None:
    """Let the unattached mount `tree` show its owners through the map of a user namespace, given as a descriptor.

    So do the mounts below it. Raises `SystemCallFailed`, also where a file system cannot do that.
    """
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
    flags = ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE)
    result = _syscall("mount_setattr", ctypes.c_int(tree), b"", flags, attributes, ctypes.c_size_t(32))
    _check(result, "mount_setattr", tree=tree, attributes="IDMAP")


def attach_mount(tree: int, target: str) -> None:
    """Attach the unattached mount `tree` on `target`; raises `SystemCallFailed`."""
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    result = _syscall("move_mount", ctypes.c_int(tree), b"", ctypes.c_int(_AT_FDCWD), _bytes(target), flags)
    _check(result, "move_mount", tree=tree, target=target)


def set_namespaces(process: int, namespaces: Namespace) -> None:
    """Enter namespaces of the process behind the pidfd `process`, as setns(2) does; raises `SystemCallFailed`."""
    _check(_libc.setns(ctypes.c_int(process), ctypes.c_int(namespaces)), "setns", namespaces=_names(namespaces))


def keep_capabilities(names: Iterable[Capability]) -> None:
    """Take every other capability out of the bounding set, so that no program started from here can have it.

    Raises `SystemCallFailed`.
    """
    for number in set(range(_highest_capability() + 1)).difference(names):
        result = _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
        _check(result, "prctl", operation="PR_CAPBSET_DROP", capability=number)


def die_with_parent() -> None:
    """Have this process killed when the thread that started it ends; raises `SystemCallFailed`."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0), "prctl", operation="PDEATHSIG")


def _highest_capability() -> int:
    return int(Path("/proc/sys/kernel/cap_last_cap").read_bytes())


def _syscall(name: str, *arguments: object) -> int:
    machine = platform.machine()
    number = _COMMON_NUMBERS.get(name) or _NUMBERS.get(machine, {}).get(name)
    if number is None:
        raise Refused(f"{name} is not known for the machine type {machine}; supported are {', '.join(_NUMBERS)}")
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def _bytes(word: str | None) -> bytes | None:
    if word is not None and "\0" in word:
        raise Refused(f"{printable(word)!r} holds a NUL byte, which no path and no option may")
    return None if word is None else os.fsencode(word)


def _names(flags: enum.IntFlag) -> str:
    """Return the flags' names, so that nobody has to take a number apart; what has no name stays a number."""
    names = [flag.name or "" for flag in type(flags) if flag in flags]
    rest = int(flags) & ~sum(flag for flag in type(flags))
    return "|".join(names + ([hex(rest)] if rest else []))


def _check(result: int, call: str, **arguments: object) -> None:
    if result < 0:
        raise _failure(call, ctypes.get_errno(), **arguments)


def _failure(call: str, number: int, **arguments: object) -> SystemCallFailed:
    shown = ", ".join(f"{name} {printable(str(value), 500)}" for name, value in arguments.items() if value)
    cause = _CAUSES.get((call, number)) or (_OLD_KERNEL if number == errno.ENOSYS else "")
    reason = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
    message = f"{call} failed ({shown}): {reason}" + (f". The usual cause: {cause}" if cause else "")
    return SystemCallFailed(message, number)
