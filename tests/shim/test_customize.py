"""The pod's names and resolver arrive in the guest's /etc as regular files, and the guest's links lead nowhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shim import linux
from shim.customize import Customized, customize, write_hostname
from shim.errors import FormatError, NotFound, Refused

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to root")

CANARY = "the host's own\n"
POD_HOSTS = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
10.1.2.3\trex-0.rex.pets.svc.cluster.local\trex-0
"""
POD_RESOLVER = "search pets.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
ALL = ("hostname", "hosts", "resolv.conf")


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "host").mkdir()
    (tmp_path / "host/canary").write_text(CANARY)
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/hosts").write_text(POD_HOSTS)
    (tmp_path / "pod/resolv.conf").write_text(POD_RESOLVER)
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    (tmp_path / "rootfs/.stateful-pods").mkdir()
    (tmp_path / "rootfs/.stateful-pods/provisioned").touch()
    return tmp_path / "rootfs"


def _customize(rootfs: Path, hostname: str = "rex", tell: Callable[[str], None] = lambda _: None) -> Customized:
    pod = rootfs.parent / "pod"
    return customize(
        rootfs, hostname, hosts=pod / "hosts", resolv_conf=pod / "resolv.conf", pod_hostname="rex-0", tell=tell
    )


def test_missing_files_are_made_with_the_modes_that_programs_expect(rootfs: Path) -> None:
    before = os.umask(0o077)
    try:
        assert _customize(rootfs) == Customized(written=ALL, unchanged=(), left=())
    finally:
        os.umask(before)
    assert (rootfs / "etc/hostname").read_text() == "rex\n"
    assert (rootfs / "etc/hosts").read_text() == POD_HOSTS.replace("\trex-0\n", "\trex-0\trex\n")
    assert (rootfs / "etc/resolv.conf").read_text() == POD_RESOLVER
    for name in ALL:
        status = (rootfs / "etc" / name).lstat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o644, 0, 0)
    assert sorted(path.name for path in (rootfs / "etc").iterdir()) == sorted(ALL)


def test_a_second_start_touches_nothing(rootfs: Path) -> None:
    _customize(rootfs)
    before = [(rootfs / "etc" / name).lstat() for name in ALL]
    directory = (rootfs / "etc").stat().st_mtime_ns
    assert _customize(rootfs) == Customized(written=(), unchanged=ALL, left=())
    assert [(rootfs / "etc" / name).lstat().st_ctime_ns for name in ALL] == [status.st_ctime_ns for status in before]
    assert (rootfs / "etc").stat().st_mtime_ns == directory


def test_a_changed_pod_is_followed(rootfs: Path) -> None:
    _customize(rootfs)
    (rootfs.parent / "pod/resolv.conf").write_text("nameserver 10.96.0.11\n")
    assert _customize(rootfs).written == ("resolv.conf",)
    assert (rootfs / "etc/resolv.conf").read_text() == "nameserver 10.96.0.11\n"


LINKS = {
    "absolute, inside the guest": "/run/systemd/resolve/stub-resolv.conf",
    "relative, dangling": "../run/systemd/resolve/stub-resolv.conf",
    "to the host": "HOST/canary",
    "climbing to the host": "../../host/canary",
    "climbing far above": "../../../../../../../../../../../../..HOST/canary",
    "looping": "resolv.conf",
    "to a directory of the host": "HOST",
    "to the process's own root": "/proc/self/root/etc/resolv.conf",
}


@pytest.mark.parametrize("text", LINKS.values(), ids=LINKS)
def test_a_link_is_replaced_by_a_file_and_followed_nowhere(rootfs: Path, text: str) -> None:
    (rootfs / "run/systemd/resolve").mkdir(parents=True)
    (rootfs / "run/systemd/resolve/stub-resolv.conf").write_text("the guest's own\n")
    link = rootfs / "etc/resolv.conf"
    link.symlink_to(text.replace("HOST", str(rootfs.parent / "host")))
    _customize(rootfs)
    assert not link.is_symlink()
    assert link.read_text() == POD_RESOLVER
    assert (rootfs.parent / "host/canary").read_text() == CANARY
    assert [path.name for path in (rootfs.parent / "host").iterdir()] == ["canary"]
    assert (rootfs / "run/systemd/resolve/stub-resolv.conf").read_text() == "the guest's own\n"


def test_an_etc_that_is_a_link_leads_into_the_guest_and_not_to_the_host(rootfs: Path) -> None:
    (rootfs / "etc").rmdir()
    (rootfs / "private/etc").mkdir(parents=True)
    (rootfs / "etc").symlink_to("/private/etc")
    _customize(rootfs)
    assert (rootfs / "private/etc/hostname").read_text() == "rex\n"


@pytest.mark.parametrize("text", ["HOST", "/", "../host"], ids=["absolute", "the root", "relative"])
def test_an_etc_that_points_to_the_host_reaches_nothing_there(rootfs: Path, text: str) -> None:
    (rootfs / "etc").rmdir()
    (rootfs / "etc").symlink_to(text.replace("HOST", str(rootfs.parent / "host")))
    if text == "/":  # the guest's own
        _customize(rootfs)
        assert (rootfs / "hostname").exists()
    else:
        with pytest.raises(NotFound, match="/etc/hostname"):
            _customize(rootfs)
    assert [path.name for path in (rootfs.parent / "host").iterdir()] == ["canary"]


def test_a_hard_link_to_another_file_of_the_guest_is_broken_and_not_written_through(rootfs: Path) -> None:
    (rootfs / "etc/shadow").write_text("secret\n")
    (rootfs / "etc/hosts").hardlink_to(rootfs / "etc/shadow")
    _customize(rootfs)
    assert (rootfs / "etc/shadow").read_text() == "secret\n"


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_would_never_answer_is_replaced_without_being_opened(rootfs: Path, kind: str) -> None:
    path = rootfs / "etc/hosts"
    os.mkfifo(path) if kind == "pipe" else os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    _customize(rootfs)
    assert stat.S_ISREG(path.lstat().st_mode)


def test_a_directory_in_a_files_place_is_left_alone_and_named(rootfs: Path) -> None:
    (rootfs / "etc/resolv.conf").mkdir()
    (rootfs / "etc/resolv.conf/precious").touch()
    with pytest.raises(Refused) as caught:
        _customize(rootfs)
    assert "/etc/resolv.conf in" in str(caught.value)
    assert "is a directory" in str(caught.value)
    assert "create /etc/.stateful-pods-ignore.resolv.conf beside it" in str(caught.value)
    assert (rootfs / "etc/resolv.conf/precious").exists()


def test_a_mount_point_in_a_files_place_is_left_alone_and_named(rootfs: Path) -> None:
    (rootfs / "etc/resolv.conf").write_text("below\n")
    try:
        linux.mount(None, str(rootfs.parent / "host/canary"), str(rootfs / "etc/resolv.conf"), linux.MountFlag.BIND)
    except linux.SystemCallFailed:
        pytest.skip("this machine does not allow mounting")
    try:
        with pytest.raises(Refused, match=r"/etc/resolv\.conf in .* is a mount point.*stateful-pods-ignore"):
            _customize(rootfs)
    finally:
        linux.unmount(str(rootfs / "etc/resolv.conf"))
    assert (rootfs / "etc/resolv.conf").read_text() == "below\n"
    assert (rootfs.parent / "host/canary").read_text() == CANARY


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", ["file", "link to nothing", "directory"])
def test_a_marker_of_any_kind_gives_a_file_back_to_the_guest(rootfs: Path, name: str, kind: str) -> None:
    told: list[str] = []
    marker = rootfs / f"etc/.stateful-pods-ignore.{name}"
    {"file": marker.touch, "link to nothing": lambda: marker.symlink_to("/x"), "directory": marker.mkdir}[kind]()
    (rootfs / "etc" / name).symlink_to("/the/guests/own")
    done = _customize(rootfs, tell=told.append)
    assert done.left == (name,)
    assert set(done.written) == set(ALL) - {name}
    assert (rootfs / "etc" / name).readlink() == Path("/the/guests/own")
    assert told == [f"/etc/{name} is left to the guest, because of /etc/.stateful-pods-ignore.{name}"]


HOSTS = {
    "has the name already": ("10.0.0.1 rex.example.org rex\n", "10.0.0.1 rex.example.org rex\n"),
    "has the name in capitals": ("10.0.0.1 REX\n", "10.0.0.1 REX\n"),
    "has the name in a comment alone": (
        "# rex\n10.0.0.1 rex-0 # rex\n",
        "# rex\n10.0.0.1 rex-0\trex  # rex\n",
    ),
    "has the name as a part alone": ("10.0.0.1 rex-0 rex.example.org\n", "10.0.0.1 rex-0 rex.example.org\trex\n"),
    "has the pod's name twice": ("10.0.0.1 rex-0\nfd00::1 rex-0\n", "10.0.0.1 rex-0\trex\nfd00::1 rex-0\n"),
    "does not name the pod": ("127.0.0.1 localhost\n", "127.0.0.1 localhost\n127.0.1.1\trex\n"),
    "ends without a line feed": ("10.0.0.1 rex-0", "10.0.0.1 rex-0\trex\n"),
    "is empty": ("", "127.0.1.1\trex\n"),
    "is not UTF-8": ("10.0.0.1 \udcff rex-0\n", "10.0.0.1 \udcff rex-0\trex\n"),
}


@pytest.mark.parametrize(("pods", "guests"), HOSTS.values(), ids=HOSTS)
def test_the_guests_name_joins_the_pods_own_line(rootfs: Path, pods: str, guests: str) -> None:
    (rootfs.parent / "pod/hosts").write_bytes(os.fsencode(pods))
    _customize(rootfs)
    assert (rootfs / "etc/hosts").read_bytes() == os.fsencode(guests)


BAD_NAMES = ["", "a b", "-rex", "rex-", "rex.", ".rex", "re..x", "rex\n127.0.0.1 bank", "ré", "x" * 64, "a." * 32 + "a"]


@pytest.mark.parametrize("hostname", BAD_NAMES)
def test_a_host_name_that_is_none_is_refused_before_anything_is_written(rootfs: Path, hostname: str) -> None:
    with pytest.raises(FormatError, match="SHIM_HOSTNAME"):
        _customize(rootfs, hostname)
    assert list((rootfs / "etc").iterdir()) == []


@pytest.mark.parametrize("hostname", ["a", "Rex-1.pets.example", "0", "x" * 63, "a." * 31 + "ab"])
def test_a_host_name_that_linux_takes_is_written(rootfs: Path, hostname: str) -> None:
    _customize(rootfs, hostname)
    assert (rootfs / "etc/hostname").read_text() == f"{hostname}\n"


def test_a_pod_without_the_file_is_named_before_anything_is_written(rootfs: Path) -> None:
    (rootfs.parent / "pod/resolv.conf").unlink()
    with pytest.raises(Refused, match=r"the pod's own .*/pod/resolv\.conf: No such file"):
        _customize(rootfs)
    assert list((rootfs / "etc").iterdir()) == []


def test_a_host_name_alone_is_written_by_the_same_rule(rootfs: Path) -> None:
    told: list[str] = []
    write_hostname(rootfs, "rex", tell=told.append)
    assert (rootfs / "etc/hostname").read_text() == "rex\n"
    assert [path.name for path in (rootfs / "etc").iterdir()] == ["hostname"]

    (rootfs / "etc/.stateful-pods-ignore.hostname").touch()
    write_hostname(rootfs, "bello", tell=told.append)
    assert (rootfs / "etc/hostname").read_text() == "rex\n"
    assert told == ["/etc/hostname is left to the guest, because of /etc/.stateful-pods-ignore.hostname"]
    with pytest.raises(FormatError, match="the host name is"):
        write_hostname(rootfs, "a name")


@pytest.mark.parametrize(
    ("left", "state"),
    [([], "empty"), ([".stateful-pods/seeding", "etc/hostname"], "interrupted"), (["etc/hostname"], "foreign")],
)
def test_a_volume_that_is_not_seeded_is_left_as_it_is(tmp_path: Path, left: list[str], state: str) -> None:
    rootfs = tmp_path / "rootfs"
    rootfs.mkdir()
    for name in left:
        (rootfs / name).parent.mkdir(exist_ok=True)
        (rootfs / name).touch()
    before = sorted(rootfs.rglob("*"))
    with pytest.raises(Refused, match=f"is {state}, not seeded"):
        customize(rootfs, "rex")
    assert sorted(rootfs.rglob("*")) == before
    assert all(path.stat().st_size == 0 for path in before if path.is_file())


@pytest.mark.parametrize("kind", ["directory", "mount point"])
def test_what_blocks_the_temporary_file_is_named(rootfs: Path, kind: str) -> None:
    obstacle = rootfs / "etc/.hostname.stateful-pods"
    if kind == "directory":
        obstacle.mkdir()
    else:
        obstacle.touch()
        linux.mount(None, "/dev/null", str(obstacle), linux.MountFlag.BIND)
    try:
        with pytest.raises(Refused, match=r"/etc/\.hostname\.stateful-pods in .* is in the way .*; remove it yourself"):
            _customize(rootfs)
    finally:
        if kind == "mount point":
            linux.unmount(str(obstacle))
    assert not (rootfs / "etc/hostname").exists()


def test_a_temporary_file_that_a_crash_left_is_no_obstacle(rootfs: Path) -> None:
    (rootfs / "etc/.hostname.stateful-pods").write_text("half")
    _customize(rootfs)
    assert sorted(path.name for path in (rootfs / "etc").iterdir()) == sorted(ALL)
