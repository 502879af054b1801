"""System calls that fail say which call, with what, and what usually causes it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shim import linux
from shim.errors import Refused
from shim.linux import MountFlag, Namespace, Resolve, SystemCallFailed

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def _failure(work: Callable[[], object]) -> SystemCallFailed:
    with pytest.raises(SystemCallFailed) as caught:
        work()
    return caught.value


@needs_root
def test_a_failed_mount_names_every_argument_and_the_usual_cause(tmp_path: Path) -> None:
    flags = MountFlag.NOSUID | MountFlag.NODEV
    error = _failure(lambda: linux.mount("tmpfs", "scratch", str(tmp_path / "gone"), flags, "mode=0755"))

    assert error.errno == errno.ENOENT
    assert str(error) == (
        f"mount failed (type tmpfs, source scratch, target {tmp_path}/gone, flags NOSUID|NODEV, options mode=0755): "
        "No such file or directory (ENOENT). The usual cause: the source or the target does not exist"
    )


@needs_root
@pytest.mark.parametrize(
    ("kind", "options", "number", "cause"),
    [
        ("no-such-type", "", errno.ENODEV, "this kernel has no such file system type"),
        ("tmpfs", "no-such-option", errno.EINVAL, "does not know one of the options"),
    ],
)
def test_a_refused_mount_says_what_usually_causes_it(
    tmp_path: Path, kind: str, options: str, number: int, cause: str
) -> None:
    error = _failure(lambda: linux.mount(kind, "none", str(tmp_path), 0, options))
    assert error.errno == number
    assert cause in str(error)


@needs_root
def test_a_file_bound_on_a_directory_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = _failure(lambda: linux.mount(None, str(tmp_path / "file"), str(tmp_path), MountFlag.BIND))
    assert "one of source and target is a directory, and the other is not" in str(error)


def test_a_failed_unmount_names_its_target_and_flags(tmp_path: Path) -> None:
    error = _failure(lambda: linux.unmount(str(tmp_path), linux.UnmountFlag.DETACH))
    assert str(error).startswith(f"umount2 failed (target {tmp_path}, flags DETACH): ")


@needs_root
def test_pivot_root_to_what_is_no_mount_point_says_so(tmp_path: Path) -> None:
    error = _failure(lambda: linux.pivot_root(str(tmp_path), str(tmp_path)))
    assert str(error).startswith(f"pivot_root failed (new {tmp_path}, old {tmp_path}): ")
    assert "The usual cause: the new root is" in str(error)


def test_a_host_name_that_is_too_long_is_refused_in_words() -> None:
    error = _failure(lambda: linux.sethostname("x" * 65))
    assert "a host name has at most 64 bytes" in str(error) or error.errno == errno.EPERM


def test_namespaces_are_named() -> None:
    error = _failure(lambda: linux.unshare(Namespace.UTS | Namespace.MOUNT | 0x1))
    assert "namespaces MOUNT|UTS|0x1" in str(error)


def test_control_characters_of_a_path_do_not_reach_the_message() -> None:
    error = _failure(lambda: linux.unmount("/no\nway\x1b[2J"))
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)


def test_a_nul_byte_is_refused_rather_than_cutting_the_path() -> None:
    with pytest.raises(Refused, match="NUL byte"):
        linux.unmount("/proc\0/x")


def test_openat2_stays_inside_its_root(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    directory = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(FileNotFoundError):
            linux.openat2(directory, "link", os.O_RDONLY, resolve=Resolve.IN_ROOT)
        with pytest.raises(OSError, match="symbolic links"):
            linux.openat2(directory, "link", os.O_RDONLY, resolve=Resolve.NO_SYMLINKS)
        inside = linux.openat2(directory, "../../..", os.O_PATH, resolve=Resolve.IN_ROOT)
        assert os.path.samestat(os.fstat(inside), tmp_path.stat())
        assert not os.get_inheritable(inside)
        os.close(inside)
    finally:
        os.close(directory)


@pytest.mark.parametrize(("path", "expected"), [("/proc", True), ("/", True), ("/proc/self", False)])
def test_a_mount_point_is_told(path: str, expected: bool) -> None:
    descriptor = os.open(path, os.O_PATH)
    try:
        assert linux.is_mount_point(descriptor) is expected
    finally:
        os.close(descriptor)


def test_syncfs_syncs_and_says_when_it_cannot(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    linux.syncfs(descriptor)
    os.close(descriptor)
    error = _failure(lambda: linux.syncfs(descriptor))
    assert error.errno == errno.EBADF


def test_a_machine_type_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(Refused, match="pivot_root is not known for the machine type riscv64; supported are x86_64"):
        linux.pivot_root("/", "/")
