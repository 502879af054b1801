"""Machines boot for real: Debian with systemd, and every other init that ready.sh and stop.sh know."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import shim
from shim import local
from shim.cgroup import own_cgroup, this_cgroup
from shim.errors import Refused, Unavailable
from shim.linux import Capability
from shim.local import Ending, LocalGuest
from shim.rootdir import RootDir
from tests.system import debian, guests
from tests.system.guests import inside, script, until, until_ended, until_ready

if REASON := guests.unavailable():
    pytest.skip(REASON, allow_module_level=True)

needs_busybox = pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox-static is not installed")
REPOSITORY = Path(shim.__file__).parent.parent
HANG = "sleep 12345"


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with guests.own_tmpfs(tmp_path / "volume") as volume:
        yield volume


@pytest.fixture
def machine(volume: Path) -> Path:
    """The smallest machine there is, on a volume of its own."""
    guests.busybox(volume)
    script(volume / "etc/init.d/rcS", "#!/bin/sh\n")
    return guests.seeded(volume)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that gives the archive of a Debian with some init."""
    if reason := debian.unavailable():
        pytest.skip(reason)
    cache = os.environ.get("STATEFUL_PODS_TEST_CACHE")
    directory = Path(cache) if cache else tmp_path_factory.mktemp("inits")
    return lambda init: guests.debian_with(init, directory)


# --- Debian with systemd ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[False, True], ids=["privileged", "userns"])
def pet(
    request: pytest.FixtureRequest,
    debian_filesystems: Mapping[str, debian.RootFilesystem],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalGuest]:
    """A running Debian that is ready, with a data volume on /srv/data."""
    with guests.own_tmpfs(tmp_path_factory.mktemp("pet") / "volume") as volume:
        guests.extract(debian_filesystems["amd64"].tar, volume)
        (volume / "etc/hostname").write_text("pet\n")
        with (
            guests.own_tmpfs(volume / "srv/data"),
            LocalGuest(volume, hostname="pet", volumes=["/srv/data"], userns=request.param) as guest,
        ):
            until_ready(guest)
            yield guest


def test_systemd_reaches_its_target(pet: LocalGuest) -> None:
    assert inside(pet, "systemctl is-system-running").stdout.strip() in ("running", "degraded")
    assert inside(pet, "/.stateful-pods/bin/ready.sh").stdout.startswith("ready: systemd is ")


def test_a_shell_entered_from_outside_is_the_machines(pet: LocalGuest) -> None:
    assert inside(pet, "hostname; id -u; . /etc/os-release; echo $VERSION_CODENAME").stdout.split() == [
        "pet",
        "0",
        "trixie",
    ]
    assert inside(pet, "readlink /proc/1/exe").stdout == "/usr/lib/systemd/systemd\n"
    assert inside(pet, "tr '\\0' '\\n' </proc/1/environ | grep ^container=").stdout == "container=lxc\n"
    assert inside(pet, "test -e /run/stateful-pods/booted").returncode == 0


def test_nothing_of_the_host_is_mounted_in_the_machine(pet: LocalGuest) -> None:
    mounted = inside(pet, "cut -d' ' -f5 /proc/self/mountinfo").stdout.split()
    expected = ("/dev", "/proc", "/run", "/srv/data", "/sys", "/tmp", "/var")  # noqa: S108
    assert [path for path in mounted if path != "/" and not path.startswith(expected)] == []
    assert mounted.count("/") == 1


def test_an_unprivileged_user_gets_a_terminal(pet: LocalGuest) -> None:
    done = inside(pet, "su -s /bin/sh nobody -c 'script -qec tty /dev/null'")
    assert done.stdout.strip().startswith("/dev/pts/"), done.stderr


def test_the_hosts_sysctls_cannot_be_changed(pet: LocalGuest) -> None:
    for name in ("kernel/panic", "vm/swappiness", "kernel/core_pattern"):
        before = Path("/proc/sys", name).read_bytes()
        assert inside(pet, f"echo 7 >/proc/sys/{name}").returncode != 0
        assert Path("/proc/sys", name).read_bytes() == before
    assert inside(pet, "echo b >/proc/sysrq-trigger").returncode != 0


@pytest.mark.parametrize(
    "command",
    ["mount -o remount,ro /", "mount -i -o remount,ro,size=1g /", "umount /", "mount -o remount,ro /srv/data"],
)
def test_what_an_init_does_on_its_way_down_leaves_the_volumes_writable(pet: LocalGuest, command: str) -> None:
    done = inside(pet, f"systemd-run --quiet --wait --pipe {command}")
    assert done.returncode != 0
    assert inside(pet, "touch /srv/written /srv/data/written && rm /srv/written /srv/data/written").returncode == 0


def test_a_remount_of_a_bind_mount_still_works(pet: LocalGuest) -> None:
    command = "mount --bind /opt /mnt && mount -o remount,bind,ro /mnt && ! touch /mnt/x; umount /mnt"
    assert inside(pet, f"systemd-run --quiet --wait --pipe /bin/sh -c '{command}'").returncode == 0


def test_the_init_has_the_charts_capabilities_and_the_filter_and_may_gain_privileges(pet: LocalGuest) -> None:
    status = dict(line.split(":\t", 1) for line in inside(pet, "cat /proc/1/status").stdout.splitlines())
    assert int(status["CapBnd"], 16) == sum(1 << capability for capability in Capability)
    assert status["Seccomp"] == "2"
    assert status["NoNewPrivs"] == "0"  # set-user-ID programs work


def test_a_user_namespace_can_be_made_inside(pet: LocalGuest) -> None:
    # The kernel refuses that to a process that was merely put into another root with chroot.
    assert inside(pet, "unshare --user --map-root-user --mount true").returncode == 0


def test_a_data_volume_is_where_it_should_be(pet: LocalGuest) -> None:
    assert inside(pet, "findmnt --noheadings --output FSTYPE /srv/data").stdout == "tmpfs\n"


def test_the_machine_sees_its_own_cgroup_only(pet: LocalGuest) -> None:
    assert inside(pet, "cat /proc/1/cgroup").stdout.splitlines()[-1] == "0::/init.scope"
    assert inside(pet, "test -d /sys/fs/cgroup/system.slice").returncode == 0


@pytest.mark.parametrize("userns", [False, True], ids=["privileged", "userns"])
@pytest.mark.parametrize("how", ["stop.sh", "systemctl poweroff"])
def test_debian_powers_off(
    debian_filesystems: Mapping[str, debian.RootFilesystem], volume: Path, userns: bool, how: str
) -> None:
    guests.extract(debian_filesystems["amd64"].tar, volume)
    with LocalGuest(volume, userns=userns) as guest:
        until_ready(guest)
        if how == "stop.sh":
            guest.stop(30)
        else:
            inside(guest, how)
        assert until_ended(guest) is Ending.POWERED_OFF
    (volume / "writable").touch()


def test_debian_reboots_as_a_restart(debian_filesystems: Mapping[str, debian.RootFilesystem], volume: Path) -> None:
    guests.extract(debian_filesystems["amd64"].tar, volume)
    with LocalGuest(volume) as guest:
        until_ready(guest)
        inside(guest, "systemctl reboot")
        assert until_ended(guest) is Ending.RESTART


# --- Other inits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop.sh", "poweroff"])
@pytest.mark.parametrize("init", guests.PACKAGES)
def test_a_debian_with_another_init_boots_and_powers_off(
    archives: Callable[[str], Path], volume: Path, init: str, how: str
) -> None:
    guests.extract(archives(init), volume)
    with LocalGuest(volume, hostname="pet") as guest:
        printed = until_ready(guest)
        assert printed.strip(), "what it prints while it boots is seen on its console"
        if how == "stop.sh":
            guest.stop(30)
        else:
            inside(guest, how)
        assert until_ended(guest) is Ending.POWERED_OFF
    (volume / "writable").touch()


@needs_busybox
@pytest.mark.parametrize("how", ["stop.sh", "poweroff"])
@pytest.mark.parametrize(
    "inittab", [None, "::sysinit:/etc/init.d/rcS\n::respawn:/bin/sleep 99\n::shutdown:/bin/umount -ar\n"]
)
def test_busybox_boots_and_powers_off(machine: Path, inittab: str | None, how: str) -> None:
    # Without an inittab, and with this one, it unmounts all on its way down, / too.
    if inittab:
        (machine / "etc/inittab").write_text(inittab)
    with LocalGuest(machine) as guest:
        until_ready(guest)
        if how == "stop.sh":
            guest.stop(30)
        else:
            inside(guest, how)
        assert until_ended(guest) is Ending.POWERED_OFF
    (machine / "writable").touch()


@needs_busybox
def test_busybox_reboots_as_a_restart(machine: Path) -> None:
    with LocalGuest(machine) as guest:
        until_ready(guest)
        inside(guest, "reboot")
        assert until_ended(guest) is Ending.RESTART


@needs_busybox
def test_an_init_that_is_not_known_is_started_stopped_and_named(machine: Path) -> None:
    (machine / "bin/sh").unlink()
    shutil.copy(machine / "bin/busybox", machine / "bin/sh")  # so that PID 1 runs /bin/sh, and no busybox
    (machine / "sbin/init").unlink()
    script(machine / "sbin/init", "#!/bin/sh\ntrap 'exit 0' TERM USR2\nwhile :; do sleep 0.1; done\n")
    with LocalGuest(machine) as guest:
        said = inside(guest, "/.stateful-pods/bin/ready.sh")
        assert said.stdout == "ready: sh is an init that is not known here, so this only says that it was started\n"
        said = inside(guest, "/.stateful-pods/bin/stop.sh 10")
        assert said.stderr.startswith(
            "stop: sh is an init that is not known here; it is asked with its own poweroff, or"
        )
        assert until_ended(guest) is Ending.POWERED_OFF


@needs_busybox
@pytest.mark.parametrize(("seconds", "left"), [("3", "1"), ("1", "0"), ("0", "0")])
def test_a_stop_ends_its_wait_before_the_grace_period(machine: Path, seconds: str, left: str) -> None:
    script(machine / "etc/init.d/rcS", "#!/bin/sh\n")
    (machine / "etc/inittab").write_text(f"::respawn:/bin/sleep 99\n::shutdown:/bin/{HANG}\n")
    with LocalGuest(machine) as guest:
        until_ready(guest)
        said = inside(guest, f"SHIM_STOP_SECONDS={seconds} /.stateful-pods/bin/stop.sh")
        assert said.stderr == f"stop: the machine has not ended within {left} seconds\n"
        assert said.returncode == 1
        assert guest.ended() is None


def _hang_systemd(root: Path) -> None:
    unit = f"[Service]\nType=oneshot\nExecStart=/bin/{HANG}\n"
    (root / "etc/systemd/system/hang.service").write_text(unit)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "hang.service").symlink_to("/etc/systemd/system/hang.service")


def _hang_first(name: str, condition: str = "true") -> Callable[[Path], None]:
    def change(root: Path) -> None:
        with RootDir(root) as opened:
            text = opened.read(name)
            opened.write(name, f"#!/bin/sh\nif {condition}; then {HANG}; fi\n".encode() + text, 0o755)

    return change


def _hang_openrc(root: Path) -> None:
    script(root / "etc/init.d/hang", f"#!/sbin/openrc-run\nstart() {{\n{HANG}\n}}\n")
    (root / "etc/runlevels/default/hang").symlink_to("/etc/init.d/hang")


HANGS: Mapping[str, tuple[str, Callable[[Path], None], str]] = {
    "systemd": ("systemd", _hang_systemd, "not ready: systemd is starting\n"),
    "sysvinit's first scripts": (
        "sysvinit",
        _hang_first("etc/init.d/rcS"),
        "not ready: sysvinit has entered no runlevel\n",
    ),
    "sysvinit's runlevel": (
        "sysvinit",
        _hang_first("etc/init.d/rc", "[ $1 = 2 ]"),
        "not ready: sysvinit waits for /etc/init.d/rc 2\n",
    ),
    "runit's first stage": (
        "runit",
        _hang_first("etc/runit/1"),
        "not ready: runit has not reached its second stage\n",
    ),
    "runit's second stage": (
        "runit",
        _hang_first("etc/runit/2"),
        "not ready: runit has not reached its second stage\n",
    ),
    "OpenRC before it begins": (
        "openrc",
        _hang_first("etc/init.d/rcS"),
        "not ready: sysvinit has entered no runlevel\n",
    ),
    "OpenRC's default runlevel": ("openrc", _hang_openrc, "not ready: OpenRC is entering the runlevel default\n"),
}


@pytest.mark.parametrize("case", HANGS)
def test_a_boot_that_hangs_is_not_ready(
    request: pytest.FixtureRequest, archives: Callable[[str], Path], volume: Path, case: str
) -> None:
    init, hang, said = HANGS[case]
    if init == "systemd":
        guests.extract(request.getfixturevalue("debian_filesystems")["amd64"].tar, volume)
    else:
        guests.extract(archives(init), volume)
    hang(volume)
    _assert_hangs(volume, said)


@needs_busybox
def test_a_busybox_that_hangs_is_not_ready(machine: Path) -> None:
    script(machine / "etc/init.d/rcS", f"#!/bin/sh\n{HANG}\n")
    _assert_hangs(machine, "not ready: busybox waits for /etc/init.d/rcS\n")


def _assert_hangs(volume: Path, said: str) -> None:
    with LocalGuest(volume) as guest:
        looking = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q '[s]leep 12345'"
        until(guest, lambda: inside(guest, looking).returncode == 0, "the boot reaches what hangs")
        answer = inside(guest, "/.stateful-pods/bin/ready.sh")
        assert (answer.returncode, answer.stdout) == (1, said)


# --- Refusals: nothing is started, and nothing is left --------------------------------------------------------------


@needs_busybox
def test_a_cgroup_that_cannot_be_written_is_refused_in_words(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "delegate", lambda cgroup, user: None)  # a node that delegates nothing
    with pytest.raises(Refused) as caught:
        LocalGuest(machine, userns=True)
    assert "the machine's cgroup cannot be written" in str(caught.value)
    assert "was answered with Permission denied" in str(caught.value)
    assert "cgroup_writable = true" in str(caught.value)


@needs_busybox
@pytest.mark.parametrize("kind", ["a directory", "nothing", "a link out of the machine", "a link inside", "a loop"])
def test_a_data_volume_that_is_no_mount_point_inside_is_refused(machine: Path, tmp_path: Path, kind: str) -> None:
    place = machine / "data"
    (tmp_path / "outside").mkdir()
    match kind:
        case "a directory":
            place.mkdir()
        case "a link out of the machine":
            place.symlink_to(tmp_path / "outside")
        case "a link inside":
            place.symlink_to("/etc")
        case "a loop":
            place.symlink_to("data")
    with (
        guests.own_tmpfs(tmp_path / "outside"),
        pytest.raises(Refused, match=r"the data volume /data|cannot resolve /data"),
    ):
        LocalGuest(machine, volumes=["/data"])


@needs_busybox
@pytest.mark.parametrize("path", ["/", "/srv/..", "/self", "/.", "//"])
def test_a_data_volume_that_is_the_root_itself_is_refused(machine: Path, path: str) -> None:
    (machine / "srv").mkdir()
    (machine / "self").symlink_to("/")
    with pytest.raises(Refused, match="is the same directory as the machine's own root"):
        LocalGuest(machine, volumes=[path])


@needs_busybox
@pytest.mark.parametrize("other", ["/data", "/data/", "/srv/../data", "/link", "/bound"])
def test_two_names_of_one_data_volume_are_refused(machine: Path, other: str) -> None:
    for name in ("srv", "bound"):
        (machine / name).mkdir()
    (machine / "link").symlink_to("data")
    with guests.own_tmpfs(machine / "data") as data:
        if other == "/bound":
            subprocess.run(["mount", "--bind", data, machine / "bound"], check=True)
        try:
            with pytest.raises(Refused, match=rf"{other} is the same directory as the data volume /data; each"):
                LocalGuest(machine, volumes=["/data", other])
        finally:
            subprocess.run(["umount", machine / "bound"], check=other == "/bound", capture_output=True)


@needs_busybox
def test_a_data_volume_behind_the_machines_own_link_is_accepted(machine: Path) -> None:
    (machine / "var/lib").mkdir(parents=True)
    (machine / "data").symlink_to("var/lib/data")
    with guests.own_tmpfs(machine / "var/lib/data") as data, LocalGuest(machine, volumes=["/data"]) as guest:
        inside(guest, "echo kept >/data/file")
        assert (data / "file").read_text() == "kept\n"


@needs_busybox
@pytest.mark.parametrize("place", ["run/data", "tmp/data", "dev/data"])
def test_a_data_volume_that_the_machines_own_mounts_hide_is_refused(machine: Path, place: str) -> None:
    (machine / place).parent.mkdir()
    with guests.own_tmpfs(machine / place), pytest.raises(Refused, match=f"the data volume /{place} is hidden"):
        LocalGuest(machine, volumes=[f"/{place}"])


@needs_busybox
@pytest.mark.parametrize("place", ["dev", "proc", "run", "sys", "tmp"])
def test_a_mount_point_that_leads_out_of_the_machine_is_not_followed(machine: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "outside").mkdir()
    (machine / place).symlink_to(tmp_path / "outside")
    with pytest.raises(Refused, match=rf"/{place} in {machine} is a link to nothing"):
        LocalGuest(machine)
    assert list((tmp_path / "outside").iterdir()) == []


@needs_busybox
def test_an_init_of_another_machine_type_is_told_as_such(machine: Path) -> None:
    (machine / "sbin/init").unlink()
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (0xF3).to_bytes(2, "little")
    (machine / "sbin/init").write_bytes(header + bytes(200))
    (machine / "sbin/init").chmod(0o755)
    with pytest.raises(Refused, match=r"cannot execute /sbin/init: .*: it is made for another machine type"):
        LocalGuest(machine)


@needs_busybox
def test_an_init_whose_loader_is_missing_is_told_as_such(machine: Path) -> None:
    (machine / "sbin/init").unlink()
    script(machine / "sbin/init", "#!/lib/no-such-loader\n")
    with pytest.raises(Refused, match="its interpreter or loader is missing"):
        LocalGuest(machine)


@needs_busybox
def test_a_container_in_the_hosts_root_cgroup_is_refused(machine: Path) -> None:
    root = this_cgroup()
    if (root / "cgroup.type").exists():
        pytest.skip("this host's root cgroup is not in view")
    command = [*guests.CONTAINER, guests.AS_A_POD, str(machine), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=guests.PATIENCE)
    assert "this process is in the root cgroup of its host" in done.stderr


@needs_busybox
def test_a_refusal_leaves_no_process_no_mount_and_no_cgroup(machine: Path) -> None:
    before = _traces()
    with pytest.raises(Refused):
        LocalGuest(machine, volumes=["/nowhere"])
    assert _traces() == before


# --- The rest of running here ----------------------------------------------------------------------------------------


@needs_busybox
@pytest.mark.parametrize("userns", [False, True], ids=["privileged", "userns"])
def test_leaving_the_block_ends_everything_and_removes_what_was_made(machine: Path, userns: bool) -> None:
    before = _traces()
    with LocalGuest(machine, userns=userns) as guest:
        until_ready(guest)
        inside(guest, "mkdir -p /sys/fs/cgroup/some/group")
        pid = guest.pid
    assert not Path("/proc", str(pid)).exists()
    assert _traces() == before


@needs_busybox
def test_the_guest_dies_with_whoever_started_it(machine: Path) -> None:
    program = (
        "import sys, time, pathlib; from shim.local import LocalGuest\n"
        "with LocalGuest(pathlib.Path(sys.argv[1])) as guest:\n"
        "    print(guest.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(machine)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert Path("/proc", str(pid)).exists()
        parent.kill()
    end = time.monotonic() + guests.PATIENCE
    while Path("/proc", str(pid)).exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    for left in this_cgroup().glob(f"stateful-pods-{parent.pid}-*"):
        left.rmdir()


@needs_busybox
def test_run_shows_the_console_takes_keys_and_ctrl_c_powers_off(machine: Path) -> None:
    (machine / "etc/inittab").write_text("::sysinit:/etc/init.d/rcS\n::respawn:/bin/sh\n")
    script(machine / "etc/init.d/rcS", "#!/bin/sh\necho the boot prints this\n")
    command = [sys.executable, "-c", RUN, str(machine)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=REPOSITORY, bufsize=0) as run:
        assert run.stdin and run.stdout
        run.stdin.write(b"echo key''board\n")
        shown = b""
        while b"keyboard" not in shown:
            piece = run.stdout.read(1000)
            assert piece, shown
            shown += piece
        run.send_signal(signal.SIGINT)
        rest, errors = run.communicate(timeout=guests.PATIENCE)
    assert b"the boot prints this" in shown
    assert rest.endswith(b"powered off\n"), errors
    (machine / "writable").touch()


RUN = """
import pathlib, sys
from shim.local import run_guest
print(run_guest(pathlib.Path(sys.argv[1]), hostname=sys.argv[2] if sys.argv[2:] else None).value)
"""


@contextmanager
def _on_a_terminal(machine: Path) -> Iterator[tuple[int, int, Callable[[bytes], bytes]]]:
    """Run a machine as the foreground of a terminal: its pid, the terminal, and what waits until something is shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(REPOSITORY)
        os.execv(sys.executable, [sys.executable, "-c", RUN, str(machine)])  # noqa: S606 - below the terminal
    shown = b""

    def wait_for(text: bytes) -> bytes:
        nonlocal shown
        end = time.monotonic() + guests.PATIENCE
        while text not in shown:
            assert time.monotonic() < end, shown
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096)
        return shown

    try:
        yield pid, terminal, wait_for
    finally:
        with suppress(OSError):
            os.close(terminal)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _leave_marks(machine: Path) -> None:
    (machine / "etc/inittab").write_text(
        "::sysinit:/etc/init.d/rcS\n::respawn:/bin/sh\n::shutdown:/bin/sh -c 'sleep 0.3; echo clean >/shutdown'\n"
    )
    script(machine / "etc/init.d/rcS", "#!/bin/sh\necho it 'boots'\n")


def _groups(pid: int) -> list[Path]:
    return list(this_cgroup().glob(f"stateful-pods-{pid}-*"))


@needs_busybox
def test_ctrl_c_on_a_terminal_powers_the_machine_off_cleanly(machine: Path) -> None:
    # The terminal sends SIGINT to its whole foreground, not to one process.
    _leave_marks(machine)
    with _on_a_terminal(machine) as (pid, terminal, wait_for):
        wait_for(b"it boots")
        os.write(terminal, b"\x03")
        wait_for(b"powered off\r\n")
        assert os.waitpid(pid, 0)[1] == 0
    assert (machine / "shutdown").read_text() == "clean\n"
    assert _groups(pid) == []


@needs_busybox
def test_no_process_of_a_guest_is_in_the_session_of_who_started_it(machine: Path) -> None:
    with LocalGuest(machine) as guest:
        status = Path(f"/proc/{guest.pid}/status").read_text(encoding="ascii")
        keeper = int(status.partition("\nPPid:")[2].split()[0])
        assert os.getsid(keeper) == keeper
        assert os.getsid(guest.pid) != os.getsid(0)
        child = guest.spawn(["/bin/sleep", "99"])
        until(guest, lambda: os.getsid(child) == child, "the child has a session of its own")


@needs_busybox
def test_a_second_ctrl_c_ends_the_machine_at_once(machine: Path) -> None:
    (machine / "etc/inittab").write_text(f"::sysinit:/bin/echo it boots\n::shutdown:/bin/sh -c 'echo going; {HANG}'\n")
    with _on_a_terminal(machine) as (pid, terminal, wait_for):
        wait_for(b"it boots")
        os.write(terminal, b"\x03")
        wait_for(b"going")
        os.write(terminal, b"\x03")
        wait_for(b"killed\r\n")
        assert os.waitpid(pid, 0)[1] == 0
    assert _groups(pid) == []


@needs_busybox
def test_a_terminal_that_goes_away_powers_the_machine_off_cleanly(machine: Path) -> None:
    _leave_marks(machine)
    with _on_a_terminal(machine) as (pid, terminal, wait_for):
        wait_for(b"it boots")
        os.close(terminal)
        os.waitpid(pid, 0)
    assert (machine / "shutdown").read_text() == "clean\n"
    assert _groups(pid) == []


@needs_busybox
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("times", [1, 2])
def test_a_supervisors_signal_powers_the_machine_off_cleanly(machine: Path, number: signal.Signals, times: int) -> None:
    _leave_marks(machine)
    command = [sys.executable, "-c", RUN, str(machine)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd=REPOSITORY, bufsize=0
    ) as run:
        assert run.stdout
        shown = b""
        while b"it boots" not in shown:
            shown += run.stdout.read(1000) or pytest.fail(f"it ended: {shown!r}")
        for _ in range(times):
            run.send_signal(number)
            time.sleep(0.05)
        rest, errors = run.communicate(timeout=guests.PATIENCE)
    assert (run.returncode, rest.splitlines()[-1:]) == (0, [b"powered off"]), errors
    assert (machine / "shutdown").read_text() == "clean\n"
    assert _groups(run.pid) == []


@needs_busybox
def test_an_output_that_nobody_reads_any_more_powers_the_machine_off(machine: Path) -> None:
    _leave_marks(machine)
    (machine / "etc/init.d/rcS").write_text("#!/bin/sh\nyes &\n")
    command = [sys.executable, "-c", RUN, str(machine)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd=REPOSITORY) as run:
        assert run.stdout
        run.stdout.read(100)
        run.stdout.close()
        run.wait(timeout=guests.PATIENCE)
    assert (machine / "shutdown").read_text() == "clean\n"


@needs_busybox
def test_ctrl_c_counts_while_neither_side_reads(machine: Path) -> None:
    (machine / "etc/inittab").write_text("::sysinit:/bin/yes\n")
    command = [sys.executable, "-c", RUN, str(machine)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=REPOSITORY) as run:
        assert run.stdin and run.stdout
        run.stdout.read(100)
        os.set_blocking(run.stdin.fileno(), False)
        with suppress(BlockingIOError):
            while os.write(run.stdin.fileno(), b"x" * 4096):
                pass
        end = time.monotonic() + guests.PATIENCE
        while _groups(run.pid):
            assert time.monotonic() < end
            run.send_signal(signal.SIGINT)
            time.sleep(0.1)
        run.communicate(timeout=guests.PATIENCE)


@needs_busybox
def test_a_second_run_of_a_volume_is_told_who_has_it(machine: Path) -> None:
    _leave_marks(machine)
    with _on_a_terminal(machine) as (pid, terminal, wait_for):
        wait_for(b"it boots")
        with pytest.raises(Unavailable, match=rf"in use by shim run on .*, process {pid}, since"):
            local.run_guest(machine)
        os.write(terminal, b"\x03")
        wait_for(b"powered off")
    with shim.volume.lock(machine, "whoever comes next"):
        pass


@needs_busybox
@pytest.mark.parametrize("left", [[], [".stateful-pods/seeding"]], ids=["foreign", "interrupted"])
@pytest.mark.parametrize("how", ["run", "boot"])
def test_a_machine_that_is_not_seeded_is_not_started(machine: Path, left: list[str], how: str) -> None:
    shutil.rmtree(machine / ".stateful-pods")
    for name in left:
        (machine / name).parent.mkdir()
        (machine / name).touch()
    before = sorted(machine.rglob("*"))
    if how == "run":
        command = [sys.executable, "-c", RUN, str(machine), "pet"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=guests.PATIENCE)
    else:
        with own_cgroup() as cgroup:
            command = [*guests.CONTAINER, guests.AS_A_POD, str(machine), str(cgroup)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=guests.PATIENCE)
    assert f"the volume {machine} is {'interrupted' if left else 'foreign'}, not seeded" in done.stderr
    assert sorted(machine.rglob("*")) == before


def test_debian_run_with_a_host_name_has_it(
    debian_filesystems: Mapping[str, debian.RootFilesystem], volume: Path
) -> None:
    guests.extract(debian_filesystems["amd64"].tar, guests.seeded(volume))
    (volume / "etc/hostname").write_text("debian\n")
    unit = "[Unit]\nAfter=systemd-hostnamed.service\n[Service]\nType=oneshot\nStandardOutput=file:/named\n"
    (volume / "etc/systemd/system/name.service").write_text(
        f"{unit}ExecStart=/bin/uname -n\nExecStart=/bin/systemctl poweroff\n"
    )
    wants = volume / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "name.service").symlink_to("/etc/systemd/system/name.service")
    command = [sys.executable, "-c", RUN, str(volume), "rex"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, cwd=REPOSITORY, timeout=guests.PATIENCE
    )
    assert done.stdout.endswith(b"powered off\n"), done.stderr
    assert (volume / "named").read_text() == "rex\n"


@needs_busybox
def test_boot_as_pid_1_of_a_container_without_a_terminal(machine: Path) -> None:
    script(machine / "etc/init.d/rcS", "#!/bin/sh\nhostname; ls /dev; cat /proc/self/cgroup | tail -n 1; poweroff -f\n")
    with own_cgroup() as cgroup:
        command = [*guests.CONTAINER, guests.AS_A_POD, str(machine), str(cgroup)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=guests.PATIENCE)
    assert done.stderr == ""
    devices = ["fd", "null", "ptmx", "pts", "shm", "stderr", "stdin", "stdout", "urandom", "zero"]
    assert done.stdout.split() == ["pet", *devices, "0::/"]


def test_debian_boots_as_pid_1_of_a_container_and_shows_it_on_the_terminal(
    debian_filesystems: Mapping[str, debian.RootFilesystem], volume: Path
) -> None:
    guests.extract(debian_filesystems["amd64"].tar, guests.seeded(volume))
    (volume / "etc/hostname").write_text("pet\n")
    console, terminal = os.openpty()
    shown = bytearray()
    end = time.monotonic() + guests.PATIENCE

    def drain() -> None:
        assert time.monotonic() < end, shown.decode(errors="replace")
        if select.select([console], [], [], 0.05)[0]:
            with suppress(OSError):  # a getty hangs it up
                shown.extend(os.read(console, 1 << 16))

    with (
        own_cgroup() as cgroup,
        subprocess.Popen(
            [*guests.CONTAINER, guests.AS_A_POD, str(volume), str(cgroup)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=REPOSITORY,
        ) as container,
    ):
        try:
            children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
            while not children.read_text(encoding="ascii"):
                drain()
            init = int(children.read_text(encoding="ascii"))
            while guests.entered(init, "/.stateful-pods/bin/ready.sh", drain).returncode != 0:
                drain()
            assert b"Welcome to" in shown
            # A hang-up of its console must not reach the init: its controlling terminal is none.
            assert guests.entered(init, "cut -d' ' -f7 /proc/1/stat", drain).stdout == "0\n"
            assert guests.entered(init, "hostname", drain).stdout == "pet\n"
            guests.entered(init, "/.stateful-pods/bin/stop.sh 30", drain)
            while container.poll() is None:
                drain()
        finally:
            container.kill()  # and its init with it
    for descriptor in (console, terminal):
        os.close(descriptor)
    (volume / "writable").touch()


def _traces() -> tuple[list[str], list[str], list[str]]:
    """Return what a guest could leave behind: mounts, cgroups, children of this process."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    cgroups = sorted(path.name for path in this_cgroup().glob(f"stateful-pods-{os.getpid()}-*"))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    return mounts, cgroups, children
