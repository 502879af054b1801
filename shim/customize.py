"""Writes what the pod owns in the guest's /etc, on every start: the host name, the hosts file, the resolver.

The pod's own copies are right for its network, the guest's are not. A guest that wants to keep one of these files for
itself says so with a marker beside it, ``/etc/.stateful-pods-ignore.NAME``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shim import volume
from shim.errors import FormatError, NotFound, Refused, printable
from shim.rootdir import RootDir

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII | re.IGNORECASE)  # RFC 1123, section 2.1
_HOSTNAME_LENGTH = 64  # bytes; sethostname(2)
_MARKER = "/etc/.stateful-pods-ignore."


@dataclass(frozen=True, slots=True)
class Customized:
    """The names of the files that were `written`, were `unchanged`, and are `left` to the guest by a marker."""

    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    left: tuple[str, ...]


def customize(
    rootfs: Path,
    hostname: str,
    *,
    hosts: Path = Path("/etc/hosts"),
    resolv_conf: Path = Path("/etc/resolv.conf"),
    pod_hostname: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Customized:
    """Write ``hostname``, ``hosts`` and ``resolv.conf`` into the guest's /etc.

    `hosts` and `resolv_conf` are the pod's own files, `pod_hostname` the name that its hosts file gives it (None: the
    one that this process sees). Each becomes a regular file, whatever was there; one that is right already is not
    touched. Raises `FormatError` for a `hostname` that is none; `Refused`, naming the marker that would help, for a
    directory or a mount point in a file's place, and for a volume that is not seeded; `NotFound` where there is no
    /etc.
    """
    check_hostname(hostname)
    volume.require_seeded(rootfs)
    contents = {
        "hostname": _line(hostname),
        "hosts": _with_name(_read(hosts), pod_hostname or os.uname().nodename, hostname),
        "resolv.conf": _read(resolv_conf),
    }
    written: list[str] = []
    unchanged: list[str] = []
    left: list[str] = []
    with RootDir(rootfs) as root:
        for name, content in contents.items():
            changed = _write(root, name, content, tell)
            (left if changed is None else written if changed else unchanged).append(name)
    return Customized(tuple(written), tuple(unchanged), tuple(left))


def write_hostname(rootfs: Path, hostname: str, *, tell: Callable[[str], None] = lambda _: None) -> None:
    """Write the guest's ``/etc/hostname`` alone, as `customize` does; systemd takes its name from there."""
    check_hostname(hostname)
    with RootDir(rootfs) as root:
        _write(root, "hostname", _line(hostname), tell)


def check_hostname(hostname: str) -> None:
    """Raise `FormatError` unless `hostname` is one that Linux and the Internet's host rules take."""
    if len(hostname) > _HOSTNAME_LENGTH or not all(_LABEL.fullmatch(label) for label in hostname.split(".")):
        raise FormatError(
            f"the host name is {printable(hostname)!r}; expected letters, digits, - and . inside, at most "
            f"{_HOSTNAME_LENGTH} characters (SHIM_HOSTNAME)"
        )


def _line(hostname: str) -> bytes:
    return f"{hostname}\n".encode("ascii")


def _write(root: RootDir, name: str, content: bytes, tell: Callable[[str], None]) -> bool | None:
    """Write a file of /etc and tell whether it was changed; None if a marker leaves it to the guest."""
    marker = f"{_MARKER}{name}"
    if root.stat(marker):
        tell(f"/etc/{name} is left to the guest, because of {marker}")
        return None
    try:
        return root.write(f"/etc/{name}", content)
    except NotFound:
        raise  # there is no /etc, and no marker would help
    except Refused as error:
        raise Refused(f"{error}. If the guest shall keep what it has, create {marker} beside it") from error


def _with_name(hosts: bytes, pod_hostname: str, hostname: str) -> bytes:
    """Return the hosts file with `hostname` in it: on the pod's own line, whose canonical name stays the first."""
    wanted, own = (name.lower().encode("utf-8", "surrogateescape") for name in (hostname, pod_hostname))
    lines = hosts.splitlines()
    names = [line.partition(b"#")[0].lower().split()[1:] for line in lines]
    if any(wanted in line for line in names):
        return hosts
    for index, line in enumerate(names):
        if own in line:
            entry, mark, comment = lines[index].partition(b"#")
            lines[index] = entry.rstrip() + b"\t" + wanted + (b"  " + mark + comment if mark else b"")
            break
    else:
        lines.append(b"127.0.1.1\t" + wanted)  # Debian's convention for a name without an address of its own
    return b"".join(line + b"\n" for line in lines)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"cannot read the pod's own {printable(str(path))}: {error.strerror}") from error
