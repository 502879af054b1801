"""ready.sh and stop.sh: they are POSIX sh, and ready.sh judges every init by what it leaves in /proc and /run.

ready.sh runs in a root of its own with busybox and a /proc made of files. What stop.sh does can be seen only in a PID
namespace, so it is tested by the real boots of tests/system/test_boot.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import shim

SCRIPTS = sorted((Path(shim.__file__).parent / "guest").glob("*.sh"))
BUSYBOX = shutil.which("busybox")
APPLETS = ("cat", "grep", "readlink", "sh", "tr")
INITTAB = (
    "::sysinit:/etc/init.d/rcS\n# ::wait:/bin/commented\n::wait:-/bin/slow --first >/dev/null\ntty1::respawn:/bin/sh\n"
)
SYSVINIT = (
    "id:2:initdefault:\nsi::sysinit:/etc/init.d/rcS\nl2:2:wait:/etc/init.d/rc 2\n1:2345:respawn:/sbin/getty tty1\n"
)
needs_chroot = pytest.mark.skipif(
    os.geteuid() != 0 or BUSYBOX is None, reason="needs root, to change its root, and busybox-static"
)


@pytest.mark.parametrize("shell", ["dash -n", "busybox sh -n", "bash --posix -n", "shellcheck -x -P SCRIPTDIR/../.."])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_posix_sh(script: Path, shell: str) -> None:
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell.split()[0]} is not installed")
    done = subprocess.run([*shell.split(), script], capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


def process(parent: int, *argv: str) -> dict[str, str]:
    return {"status": f"Name:\tx\nState:\tS\nPPid:\t{parent}\nUid:\t0\n", "cmdline": "".join(f"{a}\0" for a in argv)}


@dataclass(frozen=True)
class State:
    """What a guest looks like at some moment, and what ready.sh says of it."""

    verdict: str
    program: str
    processes: Sequence[Mapping[str, str]] = ()
    title: str = "init"
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Make a root that looks so, with busybox and the scripts in it."""
        assert BUSYBOX is not None
        (directory / "bin").mkdir()
        shutil.copy(BUSYBOX, directory / "bin/busybox")
        for applet in APPLETS:
            (directory / "bin" / applet).symlink_to("busybox")
        shutil.copytree(SCRIPTS[0].parent, directory / "helpers")
        processes = enumerate([process(0, self.title), *self.processes], 1)
        files = {f"proc/{pid}/{name}": text for pid, files in processes for name, text in files.items()}
        for name, text in {"dev/null": "", **files, **self.files}.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        (directory / "proc/1/exe").symlink_to(self.program)
        (directory / "proc/99").mkdir()  # a process that has ended meanwhile


def ready(directory: Path) -> tuple[int, str, str]:
    """Run ready.sh in the root `directory`; return its exit code, and what it wrote to both streams."""
    command = [shutil.which("chroot") or "chroot", str(directory), "/bin/sh", "/helpers/ready.sh"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/bin"})
    return done.returncode, done.stdout, done.stderr


RCS = process(1, "/bin/sh", "/etc/init.d/rcS")
BUSYBOX_TAB = {"etc/inittab": INITTAB}
SYSV_TAB = {"etc/inittab": SYSVINIT}
STAGE_1 = process(1, "/bin/sh", "/etc/runit/1")
DEFAULT = {"run/openrc/softlevel": "default"}
STATES = {
    "busybox has started nothing": State("not ready: busybox has started nothing", "/bin/busybox"),
    "busybox runs its first script": State(
        "not ready: busybox waits for /etc/init.d/rcS",
        "/bin/busybox",
        [RCS, process(2, "sleep", "9")],
        files=BUSYBOX_TAB,
    ),
    "busybox without an inittab": State("not ready: busybox waits for /etc/init.d/rcS", "/bin/busybox", [RCS]),
    "busybox waits for what a shell read": State(
        "not ready: busybox waits for /bin/slow",
        "/bin/busybox",
        [process(1, "/bin/slow", "--first")],
        files=BUSYBOX_TAB,
    ),
    "busybox is up": State(
        "ready: the boot scripts of busybox have ended",
        "/bin/busybox.static",
        [process(1, "/bin/sh")],
        files=BUSYBOX_TAB,
    ),
    "a script of that name below another process": State(
        "ready: the boot scripts of busybox have ended",
        "/bin/busybox",
        [process(1, "/bin/sh"), process(2, "/bin/sh", "/etc/init.d/rcS")],
        files=BUSYBOX_TAB,
    ),
    "sysvinit in its first level": State(
        "not ready: sysvinit has entered no runlevel", "/sbin/init", [RCS], "init [S]", SYSV_TAB
    ),
    "sysvinit between its levels": State(
        "not ready: sysvinit has entered no runlevel", "/sbin/init", [process(1, "daemon")], "/sbin/init", SYSV_TAB
    ),
    "sysvinit enters its level": State(
        "not ready: sysvinit waits for /etc/init.d/rc 2",
        "/sbin/init",
        [process(1, "/bin/sh", "/etc/init.d/rc", "2")],
        "init [2]",
        SYSV_TAB,
    ),
    "sysvinit is up, and was upgraded": State(
        "ready: the boot scripts of sysvinit have ended",
        "/sbin/init (deleted)",
        [process(1, "/sbin/getty", "tty1")],
        "init [2]",
        SYSV_TAB,
    ),
    "sysvinit goes down": State(
        "not ready: sysvinit has entered no runlevel", "/sbin/init", [process(1, "rc", "0")], "init [0]", SYSV_TAB
    ),
    "runit in stage 1": State("not ready: runit has not reached its second stage", "/sbin/runit", [STAGE_1]),
    "runit in stage 1, a user's runsvdir": State(
        "not ready: runit has not reached its second stage", "/sbin/runit", [STAGE_1, process(2, "runsvdir", "/home/x")]
    ),
    "runit is up": State(
        "ready: runit supervises its services", "/usr/bin/runit", [process(1, "runsvdir", "-P", "/etc/service")]
    ),
    "OpenRC has not begun": State(
        "not ready: OpenRC has entered no runlevel",
        "/bin/busybox",
        [process(1, "/bin/sh")],
        files={"etc/inittab": "::sysinit:/sbin/openrc sysinit\n"},
    ),
    "OpenRC has begun, and has no level": State(
        "not ready: OpenRC has entered no runlevel", "/sbin/openrc-init", files={"run/openrc/deptree": ""}
    ),
    "OpenRC in its boot level": State(
        "not ready: OpenRC is in the runlevel boot", "/sbin/openrc-init", files={"run/openrc/softlevel": "boot\n"}
    ),
    "OpenRC enters the last level": State(
        "not ready: OpenRC is entering the runlevel default",
        "/bin/busybox",
        files={**DEFAULT, "run/openrc/rc.starting/x": ""},
    ),
    "OpenRC starts a service": State(
        "not ready: OpenRC is starting sshd", "/bin/busybox", files={**DEFAULT, "run/openrc/starting/sshd": ""}
    ),
    "OpenRC is up": State("ready: OpenRC is in the runlevel default", "/bin/busybox", files=DEFAULT),
    "OpenRC below sysvinit is up": State("ready: OpenRC is in the runlevel default", "/sbin/init", files=DEFAULT),
    "OpenRC goes down": State(
        "not ready: OpenRC is in the runlevel shutdown", "/bin/busybox", files={"run/openrc/softlevel": "shutdown"}
    ),
    "systemd does not answer": State("not ready: systemd is not answering", "/usr/lib/systemd/systemd"),
    "another init": State(
        "ready: dinit is an init that is not known here, so this only says that it was started",
        "/sbin/dinit",
        files={"run/stateful-pods/booted": ""},
    ),
    "another init, before the root changed": State("not ready: the machine's root has not changed yet", "/sbin/dinit"),
}


@needs_chroot
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_ready_judges_an_init_by_what_it_has_done(tmp_path: Path, state: State) -> None:
    state.write(tmp_path)
    assert ready(tmp_path) == (int(state.verdict.startswith("not")), f"{state.verdict}\n", "")


@needs_chroot
@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("running", "ready"),
        ("degraded", "ready"),
        ("initializing", "not ready"),
        ("starting", "not ready"),
        ("maintenance", "not ready"),
        ("stopping", "not ready"),
    ],
)
def test_ready_believes_systemd(tmp_path: Path, answer: str, verdict: str) -> None:
    State("", "/usr/lib/systemd/systemd").write(tmp_path)
    systemctl = tmp_path / "bin/systemctl"
    systemctl.write_text(f"#!/bin/sh\n[ $1 = is-system-running ] && echo {answer}\n")
    systemctl.chmod(0o755)
    assert ready(tmp_path) == (int(verdict == "not ready"), f"{verdict}: systemd is {answer}\n", "")
