"""Tells whether a root filesystem has cloud-init, and whether its init would start it.

Only what is on the volume can be read here, nothing is asked of the guest. Each init has its own way: systemd's units
are pulled in by a generator or by links in ``*.wants``; OpenRC's and sysvinit's scripts are linked into runlevels.
Sources: cloud-init's documentation, "Boot stages"; systemd.unit(5); systemd.generator(7); rc-update(8).
"""

from __future__ import annotations

import posixpath
import stat

from shim.errors import Refused, printable
from shim.rootdir import RootDir

_PROGRAMS = ("/usr/bin/cloud-init", "/bin/cloud-init", "/usr/local/bin/cloud-init")
_SYSTEMD = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
_UNIT_DIRECTORIES = tuple(f"{above}/systemd/system" for above in ("/etc", "/usr/local/lib", "/usr/lib", "/lib"))
_TARGET, _FIRST_STAGE = "cloud-init.target", "cloud-init-local.service"
_OTHER_STAGES = (
    "cloud-init-main.service",
    "cloud-init-network.service",  # cloud-init.service before 24.3
    "cloud-init.service",
    "cloud-config.service",
    "cloud-final.service",
)
_BOOT_TARGETS = ("sysinit.target", "basic.target", "multi-user.target", "graphical.target", "default.target")
_FIRST_SCRIPT = "cloud-init-local"

_FIX = (
    "Set the machine's provisioning to exec, or seed a new volume from a source with cloud-init (of an LXC image, the "
    "variant `cloud`). Then delete this pod: its StatefulSet does not replace a pod that never became ready"
)


def require(root: RootDir) -> None:
    """Raise `Refused`, with the reason and the remedy, unless a start of this root would start cloud-init."""
    where = printable(str(root.path))
    if not any(_is_program(root, path) for path in _PROGRAMS):
        raise Refused(f"provisioning is cloud-init, but {where} has no cloud-init ({_PROGRAMS[0]}). {_FIX}")
    init = posixpath.basename(root.resolve("/sbin/init"))
    if init == "systemd" or (root.stat("/sbin/init") is None and any(root.stat(path) for path in _SYSTEMD)):
        obstacle = _systemd_obstacle(root)
    else:
        obstacle = _runlevel_obstacle(root)
    if obstacle:
        raise Refused(f"provisioning is cloud-init, and {where} has it, but nothing would start it: {obstacle}. {_FIX}")


def _systemd_obstacle(root: RootDir) -> str | None:
    for unit in (_TARGET, _FIRST_STAGE, *_OTHER_STAGES):
        if _is_masked(root, unit):
            return f"the unit {unit} is masked"
    if not _finds(root, _FIRST_STAGE):
        return f"systemd has no unit {_FIRST_STAGE}"
    if any(_is_wanted(root, _FIRST_STAGE, target) for target in _BOOT_TARGETS):
        return None
    if not _is_wanted(root, _FIRST_STAGE, _TARGET):
        return f"the unit {_FIRST_STAGE} is not enabled"
    if not _has_generator(root) and not any(_is_wanted(root, _TARGET, target) for target in _BOOT_TARGETS):
        return f"neither a generator nor a target that is reached at boot wants {_TARGET}"
    return None


def _runlevel_obstacle(root: RootDir) -> str | None:
    openrc = (f"/etc/runlevels/{level}/{_FIRST_SCRIPT}" for level in ("sysinit", "boot", "default"))
    if any(_is_program(root, path) for path in openrc):
        return None
    for level in "S2345":
        directory = f"/etc/rc{level}.d"
        found = root.stat(directory, follow=True)
        names = root.names(directory) if found and stat.S_ISDIR(found.st_mode) else []
        started = (name for name in names if name[:1] == "S" and name[3:] == _FIRST_SCRIPT)
        if any(_is_program(root, f"{directory}/{name}") for name in started):
            return None
    return f"its init is not systemd, and no runlevel of OpenRC or sysvinit starts {_FIRST_SCRIPT}"


def _is_masked(root: RootDir, unit: str) -> bool:
    """Tell whether the first file of this name, which is the one that counts, is empty or a link to /dev/null."""
    for directory in _UNIT_DIRECTORIES:
        if found := root.stat(f"{directory}/{unit}"):
            return _hides(root, f"{directory}/{unit}", found.st_mode, found.st_size)
    return False


def _has_generator(root: RootDir) -> bool:
    for directory in _UNIT_DIRECTORIES:
        path = f"{directory}-generators/cloud-init-generator"
        if found := root.stat(path):
            return not _hides(root, path, found.st_mode, found.st_size) and _is_program(root, path)
    return False


def _hides(root: RootDir, path: str, mode: int, size: int) -> bool:
    if stat.S_ISLNK(mode):
        return posixpath.normpath(root.resolve(path)) == "/dev/null"
    return stat.S_ISREG(mode) and size == 0


def _finds(root: RootDir, unit: str) -> bool:
    return any(root.stat(f"{directory}/{unit}", follow=True) for directory in _UNIT_DIRECTORIES)


def _is_wanted(root: RootDir, unit: str, target: str) -> bool:
    links = (f"{directory}/{target}.{kind}/{unit}" for directory in _UNIT_DIRECTORIES for kind in ("wants", "requires"))
    return any(root.stat(link) for link in links)


def _is_program(root: RootDir, path: str) -> bool:
    found = root.stat(path, follow=True)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)
