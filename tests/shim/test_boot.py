"""Boot's checks and its plan, before anything is mounted. Real boots are in tests/system/test_boot.py."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shim import mounts
from shim.boot import boot, find_init, prepare_helpers
from shim.errors import Refused
from shim.linux import MountFlag
from shim.mounts import Mount
from shim.rootdir import RootDir

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write another system's owners")


def _executable(path: Path, mode: int = 0o755) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF")
    path.chmod(mode)


@pytest.mark.parametrize(
    "path",
    ["/sbin/init", "/usr/sbin/init", "/lib/systemd/systemd", "/usr/lib/systemd/systemd", "/bin/init", "/etc/init"],
)
def test_an_init_is_found_in_its_usual_places(tmp_path: Path, path: str) -> None:
    _executable(tmp_path / path.lstrip("/"))
    with RootDir(tmp_path) as root:
        assert find_init(root) == path


def test_an_init_behind_the_guests_own_links_is_found(tmp_path: Path) -> None:
    _executable(tmp_path / "usr/lib/systemd/systemd")
    (tmp_path / "usr/sbin").mkdir()
    (tmp_path / "usr/sbin/init").symlink_to("/lib/systemd/systemd")
    (tmp_path / "sbin").symlink_to("usr/sbin")
    (tmp_path / "lib").symlink_to("usr/lib")
    with RootDir(tmp_path) as root:
        assert find_init(root) == "/sbin/init"


@pytest.mark.parametrize("kind", ["nothing", "link to the host", "loop", "directory", "not executable", "pipe"])
def test_a_root_without_an_init_is_refused_with_that_reason(tmp_path: Path, kind: str) -> None:
    root, init = tmp_path / "root", tmp_path / "root/sbin/init"
    init.parent.mkdir(parents=True)
    match kind:
        case "link to the host":
            _executable(tmp_path / "host/init")
            init.symlink_to(tmp_path / "host/init")
        case "loop":
            init.symlink_to("init")
        case "directory":
            init.mkdir()
        case "not executable":
            _executable(init, 0o644)
        case "pipe":
            os.mkfifo(init, 0o755)
    with (
        RootDir(root) as opened,
        pytest.raises(Refused, match=r"root holds no init: none of /sbin/init, .* is an exec"),
    ):
        find_init(opened)


def test_a_root_without_an_init_gets_no_helpers(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="holds no init"):
        prepare_helpers(tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_helpers_are_installed_whatever_the_umask(tmp_path: Path) -> None:
    _executable(tmp_path / "sbin/init")
    umask = os.umask(0o077)
    try:
        prepare_helpers(tmp_path)
    finally:
        os.umask(umask)

    helpers = tmp_path / ".stateful-pods/bin"
    found = {path.name: path.stat() for path in helpers.iterdir()}
    assert sorted(found) == ["init.sh", "ready.sh", "stop.sh"]
    assert {(stat.S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid) for entry in found.values()} == {(0o755, 0, 0)}


@needs_root
def test_helpers_of_an_older_shim_are_replaced(tmp_path: Path) -> None:
    _executable(tmp_path / "sbin/init")
    _executable(tmp_path / ".stateful-pods/bin/ready.sh")
    prepare_helpers(tmp_path)
    assert (tmp_path / ".stateful-pods/bin/ready.sh").read_bytes().startswith(b"#!/bin/sh\n")


@needs_root
@pytest.mark.parametrize("place", [".stateful-pods", ".stateful-pods/bin"])
@pytest.mark.parametrize("kind", ["link to the host", "link inside", "file"])
def test_helpers_are_not_installed_through_what_the_guest_planted(tmp_path: Path, place: str, kind: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    _executable(root / "sbin/init")
    for directory in (elsewhere, root / "inside", (root / place).parent):
        directory.mkdir(exist_ok=True)
    match kind:
        case "link to the host":
            (root / place).symlink_to(elsewhere)
        case "link inside":
            (root / place).symlink_to("/inside")
        case "file":
            (root / place).touch()

    with pytest.raises(Refused, match=f"/{place} in .* is not a directory; it is the shim's own"):
        prepare_helpers(root)
    assert list(elsewhere.iterdir()) == []
    assert list((root / "inside").iterdir()) == []


@needs_root
def test_a_helper_that_was_replaced_by_a_link_is_a_file_again(tmp_path: Path) -> None:
    (tmp_path / "canary").write_bytes(b"untouched")
    _executable(tmp_path / "root/sbin/init")
    (tmp_path / "root/.stateful-pods/bin").mkdir(parents=True)
    (tmp_path / "root/.stateful-pods/bin/stop.sh").symlink_to(tmp_path / "canary")

    prepare_helpers(tmp_path / "root")
    assert not (tmp_path / "root/.stateful-pods/bin/stop.sh").is_symlink()
    assert (tmp_path / "canary").read_bytes() == b"untouched"


def test_boot_outside_of_a_container_changes_nothing_and_names_the_way(tmp_path: Path) -> None:
    _executable(tmp_path / "sbin/init")
    with pytest.raises(Refused, match=rf"must be PID 1 of a container \(it is {os.getpid()}\).*shim run {tmp_path}"):
        boot(tmp_path)
    assert not (tmp_path / ".stateful-pods").exists()


def test_the_plan_describes_itself() -> None:
    assert [str(mount) for mount in mounts.guest_plan()] == [
        "bind /proc on /proc (bind,rec)",
        "bind /sys on /sys (bind,rec)",
        "cgroup2 cgroup2 on /sys/fs/cgroup (nosuid,nodev,noexec,nsdelegate), "
        "or else bind /sys/fs/cgroup on /sys/fs/cgroup (bind,rec)",
        "tmpfs tmpfs on /dev (nosuid,strictatime,mode=0755,size=4m)",
        "devpts devpts on /dev/pts (nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5)",
        "tmpfs tmpfs on /dev/shm (nosuid,nodev,mode=1777)",
        "tmpfs tmpfs on /run (nosuid,nodev,mode=0755)",
        "tmpfs tmpfs on /tmp (nosuid,nodev,mode=1777)",
    ]


@needs_root
def test_every_device_node_of_the_runtime_is_bound_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "pts").mkdir()
    for name in ("null", "net/tun", "ptmx", "pts/0", "console"):
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(tmp_path / "vdb", stat.S_IFBLK | 0o660, os.makedev(7, 200))
    (tmp_path / "fd").symlink_to("/proc/self/fd")
    (tmp_path / "core").symlink_to("/proc/kcore")
    (tmp_path / "termination-log").touch()

    found = mounts.devices_in(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found] == ["console", "net/tun", "null", "vdb"]
    assert mounts.device_plan([Path("/dev/null")], Path("/dev/pts/3")) == (
        Mount("/dev/null", "/dev/null", flags=MountFlag.BIND),
        Mount("/dev/console", "/dev/pts/3", flags=MountFlag.BIND),
    )


@needs_root
def test_a_mount_that_fails_is_named_with_its_options_and_root(tmp_path: Path) -> None:
    plan = [Mount("/made/here", "none", "no-such-type", MountFlag.NOSUID, "size=1m")]
    with RootDir(tmp_path) as root, pytest.raises(Refused) as caught:
        mounts.execute(plan, root)
    assert f"cannot mount no-such-type none on /made/here (nosuid,size=1m) of {tmp_path}: mount failed (" in str(
        caught.value
    )
    assert "this kernel has no such file system type" in str(caught.value)


@needs_root
def test_a_mount_never_goes_through_a_link_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root/run").symlink_to(tmp_path / "outside")
    with RootDir(tmp_path / "root") as root, pytest.raises(Refused, match=r"/run in .* is a link to nothing"):
        mounts.execute([Mount("/run", "tmpfs", "tmpfs")], root)
    assert not os.path.ismount(tmp_path / "outside")
