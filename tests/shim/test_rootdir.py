"""Work on a guest's files stays inside the guest's root, whatever links, directories and devices it planted."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shim.errors import NotFound, Refused
from shim.rootdir import RootDir

CANARY = b"the host's own\n"
_OWNER = (os.geteuid(), os.getegid())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A guest's root with a host file beside it that nothing may read or change."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host/canary").write_bytes(CANARY)
    (tmp_path / "root/etc").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def root(tree: Path) -> Iterator[RootDir]:
    with RootDir(tree) as root:
        yield root
    assert (tree.parent / "host/canary").read_bytes() == CANARY
    assert sorted(entry.name for entry in (tree.parent / "host").iterdir()) == ["canary"]


def _write(root: RootDir, path: str, content: bytes = b"new\n", mode: int = 0o644) -> bool:
    return root.write(path, content, mode, _OWNER)


# What a link at /etc/name may say. "HOST" stands for the absolute path of the directory outside.
LINKS = {
    "absolute, to the host": "HOST/canary",
    "relative, climbing out": "../../host/canary",
    "climbing far above": "../" * 40 + "HOST/canary",
    "dangling": "/nowhere/at/all",
    "looping": "name",
    "to a directory": "/etc",
    "to the process's own root": "/proc/self/root/etc/hostname",
}


@pytest.mark.parametrize("text", LINKS.values(), ids=LINKS)
def test_write_replaces_a_link_and_follows_none(tree: Path, root: RootDir, text: str) -> None:
    link = tree / "etc/name"
    link.symlink_to(text.replace("HOST", str(tree.parent / "host")))

    assert _write(root, "/etc/name")

    assert not link.is_symlink()
    assert link.read_bytes() == b"new\n"
    assert sorted(entry.name for entry in (tree / "etc").iterdir()) == ["name"]


@pytest.mark.parametrize("text", LINKS.values(), ids=LINKS)
def test_remove_removes_the_link_itself(tree: Path, root: RootDir, text: str) -> None:
    (tree / "etc/name").symlink_to(text.replace("HOST", str(tree.parent / "host")))

    assert root.remove("/etc/name")
    assert not root.remove("/etc/name")
    assert list((tree / "etc").iterdir()) == []


@pytest.mark.parametrize("text", ["HOST/canary", "../../host/canary", "/nowhere", "../" * 40 + "HOST/canary"])
def test_read_does_not_follow_a_link_out_of_the_root(tree: Path, root: RootDir, text: str) -> None:
    (tree / "etc/name").symlink_to(text.replace("HOST", str(tree.parent / "host")))

    with pytest.raises(NotFound, match=r"cannot open /etc/name in .*/root: No such file or directory"):
        root.read("/etc/name")


def test_read_follows_links_as_the_guest_would(tree: Path, root: RootDir) -> None:
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "usr/lib/os-release").write_bytes(b"ID=debian\n")
    (tree / "etc/os-release").symlink_to("/usr/lib/os-release")

    assert root.read("/etc/os-release") == b"ID=debian\n"
    assert root.read("/../../etc/os-release") == b"ID=debian\n"


def test_read_refuses_a_loop_of_links_in_words(tree: Path, root: RootDir) -> None:
    (tree / "etc/name").symlink_to("name")

    with pytest.raises(Refused, match=r"/etc/name in .*: Too many levels of symbolic links"):
        root.read("/etc/name")


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda root: root.read("/etc/ssh/canary"), NotFound),
        (lambda root: _write(root, "/etc/ssh/canary"), NotFound),
        (lambda root: _write(root, "/etc/ssh/planted"), NotFound),
        (lambda root: root.symlink("x", "/etc/ssh/planted"), NotFound),
        (lambda root: root.make_directories("/etc/ssh/planted", owner=_OWNER), Refused),
        (lambda root: root.names("/etc/ssh"), NotFound),
        (lambda root: root.is_mount_point("/etc/ssh/canary"), NotFound),
    ],
    ids=["read", "write over", "write new", "symlink", "make_directories", "names", "is_mount_point"],
)
def test_a_link_planted_on_the_way_leads_nowhere_outside(
    tree: Path, root: RootDir, operation: Callable[[RootDir], object], expected: type[Refused]
) -> None:
    (tree / "etc/ssh").symlink_to(tree.parent / "host")

    with pytest.raises(expected):
        operation(root)
    assert not root.remove("/etc/ssh/canary")
    assert root.stat("/etc/ssh/canary") is None


def test_an_absolute_link_on_the_way_is_walked_inside_the_root(tree: Path, root: RootDir) -> None:
    (tree / "usr/etc").mkdir(parents=True)
    (tree / "config").symlink_to("/usr/etc")

    _write(root, "/config/hostname")

    assert (tree / "usr/etc/hostname").read_bytes() == b"new\n"


def test_a_magic_link_of_proc_is_not_followed(tree: Path) -> None:
    (tree / "etc/name").symlink_to("/proc/self/root/etc/passwd")
    with RootDir(Path("/")) as host, pytest.raises(Refused):
        host.read(str(tree / "etc/name"))


@pytest.mark.parametrize("name", ["/", "/etc/..", "/etc/.", "", ".."])
def test_a_path_that_ends_in_no_name_is_refused(root: RootDir, name: str) -> None:
    with pytest.raises(Refused, match="its last part must be a name"):
        _write(root, name)
    with pytest.raises(Refused, match="its last part must be a name"):
        root.remove(name)


def test_a_directory_in_place_of_a_file_is_refused_and_left(tree: Path, root: RootDir) -> None:
    (tree / "etc/resolv.conf").mkdir()
    (tree / "etc/resolv.conf/kept").touch()

    with pytest.raises(Refused, match=r"/etc/resolv.conf in .* is a directory; expected a file, or nothing"):
        _write(root, "/etc/resolv.conf")
    with pytest.raises(Refused, match=r"/etc/resolv.conf in .* is a directory; expected a regular file"):
        root.read("/etc/resolv.conf")
    with pytest.raises(Refused, match=r"cannot remove /etc/resolv.conf"):
        root.remove("/etc/resolv.conf")
    assert (tree / "etc/resolv.conf/kept").exists()


def test_a_file_in_place_of_a_directory_is_refused(tree: Path, root: RootDir) -> None:
    (tree / "var").write_bytes(b"a file\n")

    with pytest.raises(Refused, match=r"/var in .* is a regular file; expected a directory, or nothing"):
        root.make_directories("/var/lib/cloud", owner=_OWNER)
    with pytest.raises(Refused, match="Not a directory"):
        _write(root, "/var/file")
    assert (tree / "var").read_bytes() == b"a file\n"


def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(tree: Path, root: RootDir) -> None:
    os.mkfifo(tree / "etc/passwd")

    with pytest.raises(Refused, match=r"/etc/passwd in .* is a pipe; expected a regular file"):
        root.read("/etc/passwd")


def test_a_pipe_is_replaced_by_what_is_written(tree: Path, root: RootDir) -> None:
    os.mkfifo(tree / "etc/passwd")

    _write(root, "/etc/passwd")
    assert root.read("/etc/passwd") == b"new\n"


def test_a_file_larger_than_the_limit_is_refused(tree: Path, root: RootDir) -> None:
    (tree / "etc/passwd").write_bytes(b"12345")

    assert root.read("/etc/passwd", limit=5) == b"12345"
    with pytest.raises(Refused, match="larger than the 4 bytes"):
        root.read("/etc/passwd", limit=4)


def test_write_leaves_the_other_names_of_a_file_as_they_were(tree: Path, root: RootDir) -> None:
    (tree / "etc/name").write_bytes(b"new\n")
    (tree / "etc/other").hardlink_to(tree / "etc/name")

    assert _write(root, "/etc/name")
    _write(root, "/etc/name", b"newer\n")
    assert (tree / "etc/other").read_bytes() == b"new\n"


def test_write_of_what_is_there_changes_nothing(tree: Path, root: RootDir) -> None:
    assert _write(root, "/etc/name")
    before = (tree / "etc/name").stat()

    assert not _write(root, "/etc/name")
    assert (tree / "etc/name").stat() == before or (tree / "etc/name").stat().st_ino == before.st_ino


def test_write_sets_the_mode_whatever_the_umask_and_mends_a_wrong_one(tree: Path, root: RootDir) -> None:
    umask = os.umask(0o077)
    try:
        _write(root, "/etc/name", mode=0o644)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tree / "etc/name").stat().st_mode) == 0o644

    assert _write(root, "/etc/name", mode=0o600)
    assert stat.S_IMODE((tree / "etc/name").stat().st_mode) == 0o600


@pytest.mark.parametrize("leftover", ["file", "link"])
def test_write_is_not_misled_by_what_a_crash_or_a_guest_left_beside(tree: Path, root: RootDir, leftover: str) -> None:
    beside = tree / "etc/.name.stateful-pods"
    if leftover == "file":
        beside.write_bytes(b"half")
    else:
        beside.symlink_to(tree.parent / "host/canary")

    _write(root, "/etc/name")
    assert sorted(entry.name for entry in (tree / "etc").iterdir()) == ["name"]


def test_make_directories_sets_modes_and_follows_links_inside(tree: Path, root: RootDir) -> None:
    (tree / "data").mkdir(mode=0o750)
    (tree / "var").symlink_to("data")

    root.make_directories("/var/lib/cloud", 0o700, _OWNER)
    root.make_directories("/var/lib/cloud", 0o755, _OWNER)

    modes = {name: stat.S_IMODE((tree / name).stat().st_mode) for name in ("data", "data/lib", "data/lib/cloud")}
    assert modes == {"data": 0o750, "data/lib": 0o700, "data/lib/cloud": 0o700}


@pytest.mark.parametrize("text", ["/nowhere", "name"], ids=["dangling", "looping"])
def test_make_directories_refuses_a_link_to_nothing(tree: Path, root: RootDir, text: str) -> None:
    (tree / "name").symlink_to(text)

    with pytest.raises(Refused, match=r"/name in .* is a link to nothing; expected a directory, or nothing"):
        root.make_directories("/name/x", owner=_OWNER)


@pytest.mark.parametrize(
    ("text", "resolved"),
    [("/srv/data", "/srv/data"), ("data", "/etc/data"), ("../x", "/etc/../x"), ("HOST/canary", "HOST/canary")],
)
def test_resolve_says_where_a_link_ends_inside(tree: Path, root: RootDir, text: str, resolved: str) -> None:
    host = str(tree.parent / "host")
    (tree / "etc/name").symlink_to(text.replace("HOST", host))

    assert root.resolve("/etc/name") == resolved.replace("HOST", host)


def test_resolve_ends_at_a_loop(tree: Path, root: RootDir) -> None:
    (tree / "etc/a").symlink_to("b")
    (tree / "etc/b").symlink_to("/etc/a")

    with pytest.raises(Refused, match=r"cannot resolve /etc/[ab]"):
        root.resolve("/etc/a")


def test_a_name_with_control_characters_cannot_forge_a_line(root: RootDir) -> None:
    with pytest.raises(NotFound) as caught:
        root.read("/etc/a\nshim: all is well\x1b[2J")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_names_that_are_not_utf8_are_kept(tree: Path, root: RootDir) -> None:
    (tree / os.fsdecode(b"etc/\xff")).write_bytes(b"x")

    assert root.names("/etc") == [os.fsdecode(b"\xff")]
    assert root.read("/etc/" + os.fsdecode(b"\xff")) == b"x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_mount_point_is_told_and_never_replaced(tree: Path, root: RootDir, kind: str) -> None:
    source, target = tree.parent / "source", tree / "etc/name"
    for path in (source, target):
        path.touch() if kind == "file" else path.mkdir()
    (tree / "etc/link").symlink_to("name")
    assert not root.is_mount_point("/etc/name")

    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        assert root.is_mount_point("/etc/name")
        assert not root.is_mount_point("/etc/link")
        assert root.is_mount_point(root.resolve("/etc/link"))
        message = "is a mount point" if kind == "file" else "is a directory"
        with pytest.raises(Refused, match=message):
            _write(root, "/etc/name")
        with pytest.raises(Refused, match="cannot remove /etc/name"):
            root.remove("/etc/name")
    finally:
        subprocess.run(["umount", target], check=True)
