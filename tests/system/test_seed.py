"""A real root filesystem, real kills, a real full disk, a real file system whose power fails."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shim import volume
from shim.errors import Unavailable
from shim.image.layout import Layout
from shim.image.registry import RegistryRepository
from shim.seed import seed
from shim.spec import Machine, Source
from shim.volume import State
from tests.registries import RegistryAt
from tests.shim import tars
from tests.shim.sources import AMD64, push
from tests.system.debian import RootFilesystem

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to root")

MACHINE = Machine("pets", "zoo", "rex")
RUNTIME = ("dev", "proc", "run", "sys", "tmp")

Tree = Mapping[str, tuple[object, ...]]


def attributes(root: Path) -> Tree:
    """Return all that tells one tree from another, by path; but for what is ours, and what boot mounts over."""
    result = {}
    names: dict[int, str] = {}  # the first name of each hard-linked file
    for directory, directories, files in os.walk(root):
        here = os.path.relpath(directory, root)
        if here == ".":
            directories[:] = [name for name in directories if name != ".stateful-pods"]
        elif here in RUNTIME:
            directories.clear()
            files = []
        directories.sort()
        for path in [Path(directory), *(Path(directory, name) for name in sorted(files))]:
            result[str(path.relative_to(root))] = _attributes(path, root, names)
        for name in directories:
            if (link := Path(directory, name)).is_symlink():
                result[str(link.relative_to(root))] = _attributes(link, root, names)
    return result


def _attributes(path: Path, root: Path, names: dict[int, str]) -> tuple[object, ...]:
    status = path.lstat()
    content: object = None
    if stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)  # noqa: PTH115 - pathlib tidies it up
    xattrs = {
        name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)
    }
    first = names.setdefault(status.st_ino, str(path.relative_to(root))) if not path.is_dir() else ""
    when = status.st_mtime_ns if path != root else 0  # making our directory changed the root's
    return (status.st_mode, status.st_uid, status.st_gid, when, content, first, xattrs)


@pytest.fixture(scope="module")
def debian(debian_filesystems: Mapping[str, RootFilesystem]) -> RootFilesystem:
    return debian_filesystems["amd64"]


@pytest.fixture(scope="module")
def reference(debian: RootFilesystem, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """What GNU tar alone makes of the archive."""
    root = tmp_path_factory.mktemp("reference")
    command = [
        "tar",
        "-xp",
        "--numeric-owner",
        "--xattrs",
        "--xattrs-include=*",
        "-C",
        str(root),
        "-f",
        str(debian.tar),
    ]
    subprocess.run(command, check=True)
    tree = attributes(root)
    assert any("security.capability" in str(shown) for shown in tree.values())
    assert any("posix_acl_default" in str(shown) for shown in tree.values())
    return tree


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    directory = tmp_path / "rootfs"
    directory.mkdir()
    return directory


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_debian_from_an_image_layout(debian: RootFilesystem, reference: Tree, rootfs: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "images", create=True)
    push(layout, [debian.tar.read_bytes()], "trixie")
    seed(rootfs, Source.oci(f"{layout.name}:trixie", platform=AMD64), MACHINE)
    assert attributes(rootfs) == reference
    assert all(not any((rootfs / name).iterdir()) for name in RUNTIME)


def test_debian_from_a_registry(
    debian: RootFilesystem, reference: Tree, rootfs: Path, docker_registry: RegistryAt
) -> None:
    repository = RegistryRepository(docker_registry.host, docker_registry.repository, push=True)
    digest = push(repository, [debian.tar.read_bytes()], "trixie")
    seed(rootfs, Source.oci(f"{docker_registry.name}@{digest}", platform=AMD64), MACHINE)
    assert attributes(rootfs) == reference


def test_debian_in_layers(debian: RootFilesystem, reference: Tree, rootfs: Path, docker_registry: RegistryAt) -> None:
    upper = tars.file(b"bin/.wh.ls") + tars.file(b"sbin/added", b"x", mode=0o4755) + tars.END
    repository = RegistryRepository(docker_registry.host, docker_registry.repository, push=True)
    digest = push(repository, [debian.tar.read_bytes(), upper])
    seed(rootfs, Source.oci(f"{docker_registry.name}@{digest}", platform=AMD64), MACHINE)
    tree = dict(attributes(rootfs))
    assert tree.pop("usr/sbin/added")[0] == stat.S_IFREG | 0o4755
    assert set(reference) - set(tree) == {"usr/bin/ls"}
    assert tree.items() <= reference.items()


@pytest.mark.parametrize("suffix", ["xz", "zst"])
def test_debian_from_an_archive(
    suffix: str, debian: RootFilesystem, reference: Tree, rootfs: Path, tmp_path: Path
) -> None:
    packed = debian.packed
    if suffix == "zst":
        packed = tmp_path / "rootfs.tar.zst"
        subprocess.run(["zstd", "-q", "-1", "-T0", debian.tar, "-o", packed], check=True)
    seed(rootfs, Source.lxc(str(packed), checksum(packed)), MACHINE)
    assert attributes(rootfs) == reference


SMALL = 24 << 20  # bytes of content


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A root filesystem that takes a moment to unpack, in a layout."""
    rng = random.Random(3)
    members = [
        tars.directory(b"./%d/" % (number % 20), mode=0o700 + number % 64, mtime=number)
        + tars.file(b"./%d/%d" % (number % 20, number), rng.randbytes(SMALL // 400), uid=number, mtime=number)
        for number in range(400)
    ]
    layout = Layout(tmp_path_factory.mktemp("small"), create=True)
    push(layout, [tars.rootfs(*members)], "small", compression="none")
    return Source.oci(f"{layout.name}:small", platform=AMD64)


@pytest.fixture(scope="module")
def small_tree(small: Source, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    root = tmp_path_factory.mktemp("whole")
    seed(root, small, MACHINE)
    return attributes(root)


# Seeds the volume, and kills itself, alone or with its process group, at the n-th moment of a kind: a piece that is
# fetched, or a system call that clears, syncs or records.
DOOMED = """\
import itertools, os, pathlib, signal, sys
from shim import linux
from shim.image.model import Platform
from shim.seed import seed
from shim.spec import Machine, Source

rootfs, reference, kind, moment, group = sys.argv[1:]
count = itertools.count()

def reached(*_):
    if next(count) == int(moment):
        (os.killpg if group == "group" else os.kill)(os.getpid(), signal.SIGKILL)

def at(function):
    def doomed(*args, **more):
        reached()
        return function(*args, **more)
    return doomed

if kind == "calls":
    for name in ("fsync", "rename", "unlink", "rmdir", "mkdir"):
        setattr(os, name, at(getattr(os, name)))
    linux.syncfs = at(linux.syncfs)
progress = reached if kind == "pieces" else lambda *_: None
source = Source.oci(reference, platform=Platform("linux", "amd64"))
seed(pathlib.Path(rootfs), source, Machine("pets", "zoo", "rex"), progress=progress)
"""


def doomed(rootfs: Path, source: Source, kind: str, moment: int, whom: str) -> bool:
    """Run a seed that is killed at a moment; say whether that moment came."""
    command = [sys.executable, "-c", DOOMED, str(rootfs), source.reference or "", kind, str(moment), whom]
    done = subprocess.run(command, start_new_session=True, stderr=subprocess.DEVNULL, check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def writers(rootfs: Path) -> list[str]:
    """Return the tar processes that were told to write there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"tar\0" in command and bytes(rootfs) in command:
                found.append(process.name)
    return found


@pytest.mark.parametrize("whom", ["alone", "group"])
def test_a_seed_killed_while_it_unpacks_is_done_again_exactly(
    whom: str, small: Source, small_tree: Tree, rootfs: Path
) -> None:
    moments = range(0, 25, 1) if whom == "alone" else range(0, 25, 2)
    for moment in moments:
        assert doomed(rootfs, small, "pieces", moment, whom)
        assert volume.state(rootfs) in (State.EMPTY, State.INTERRUPTED)
        if moment % 3 == 0:  # the others find what several have left
            seed(rootfs, small, MACHINE)
            assert not writers(rootfs)
            assert attributes(rootfs) == small_tree
            unseed(rootfs)


def unseed(rootfs: Path) -> None:
    """Make a seeded volume one whose seed was interrupted."""
    (rootfs / ".stateful-pods/seeding").touch()
    (rootfs / ".stateful-pods/provisioned").unlink()


def test_a_seed_killed_while_it_clears_is_done_again_exactly(small: Source, small_tree: Tree, rootfs: Path) -> None:
    seed(rootfs, small, MACHINE)
    unseed(rootfs)
    for moment, whom in ((0, "alone"), (1, "group"), (50, "alone"), (100, "group"), (100, "alone")):
        assert doomed(rootfs, small, "calls", moment, whom)
        assert volume.state(rootfs) is State.INTERRUPTED
    seed(rootfs, small, MACHINE)
    assert attributes(rootfs) == small_tree


@pytest.mark.parametrize("whom", ["alone", "group"])
def test_a_seed_killed_while_it_marks_syncs_and_records_is_done_again_exactly(
    whom: str, small: Source, small_tree: Tree, rootfs: Path
) -> None:
    for moment in itertools.count():
        killed = doomed(rootfs, small, "calls", moment, whom)
        if volume.state(rootfs) is State.SEEDED:
            assert attributes(rootfs) == small_tree
            if not killed:
                break
            unseed(rootfs)
        if volume.state(rootfs) is State.INTERRUPTED:
            volume.clear(rootfs)
    assert moment >= 6


def test_debian_after_kills(debian: RootFilesystem, reference: Tree, rootfs: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "images", create=True)
    push(layout, [debian.tar.read_bytes()], "trixie")
    source = Source.oci(f"{layout.name}:trixie", platform=AMD64)
    for moment, whom in ((3, "alone"), (40, "group"), (75, "alone")):
        assert doomed(rootfs, source, "pieces", moment, whom)
    seed(rootfs, source, MACHINE)
    assert attributes(rootfs) == reference


def test_no_tar_outlives_its_parent(small: Source, rootfs: Path) -> None:
    assert doomed(rootfs, small, "pieces", 12, "alone")
    deadline = time.monotonic() + 30
    while writers(rootfs):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _stat(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError):  # tar opens and closes files all the time
        return path.stat()
    return None


def test_tar_holds_the_lock_too(small: Source, rootfs: Path) -> None:
    held = []

    def look(*_: object) -> None:
        lock = (rootfs / ".stateful-pods/lock").stat()
        for process in writers(rootfs):
            found = [_stat(descriptor) for descriptor in Path("/proc", process, "fd").iterdir()]
            held.append(any(status and os.path.samestat(status, lock) for status in found))

    seed(rootfs, small, MACHINE, progress=look)
    assert held
    assert all(held)


def test_the_next_seed_waits_for_whoever_still_holds_the_lock(small: Source, rootfs: Path) -> None:
    with volume.lock(rootfs, "a killed seed") as lock:
        left = subprocess.Popen(["sleep", "1000"], pass_fds=[lock])
    try:
        with pytest.raises(Unavailable, match="by a killed seed"):
            seed(rootfs, small, MACHINE, wait=0)
    finally:
        left.kill()
        left.wait()
    seed(rootfs, small, MACHINE)


@contextmanager
def mounted(source: str | Path, target: Path, kind: str, options: str) -> Iterator[None]:
    done = subprocess.run(
        ["mount", "-t", kind, "-o", options, source, target], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this machine does not allow to mount {kind}")
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


@pytest.mark.parametrize(
    ("options", "room", "sentence"),
    [("size=10m", "size=100m", "the volume is full"), ("nr_inodes=100", "nr_inodes=10000", "has no inode left")],
)
def test_a_full_disk_is_said_and_cured_by_room(
    options: str, room: str, sentence: str, small: Source, small_tree: Tree, rootfs: Path
) -> None:
    with mounted("none", rootfs, "tmpfs", f"{options},mode=755"):
        with pytest.raises(Unavailable, match=sentence):
            seed(rootfs, small, MACHINE)
        assert volume.state(rootfs) is State.INTERRUPTED
        assert {path.name for path in rootfs.iterdir()} == {".stateful-pods"}
        subprocess.run(["mount", "-o", f"remount,{room}", rootfs], check=True)
        seed(rootfs, small, MACHINE)
        assert attributes(rootfs) == small_tree


# Seeds the volume on a file system in a file, and copies that file whenever something was made durable: what would be
# on the disk if the power failed at that moment.
COPYING = """\
import itertools, os, pathlib, shutil, subprocess, sys
from shim import linux
from shim.image.model import Platform
from shim.seed import seed
from shim.spec import Machine, Source

rootfs, reference, image = sys.argv[1:]
count = itertools.count()

def copying(function):
    def synced(*args):
        function(*args)
        subprocess.run(["cp", "--sparse=always", image, f"{image}.{next(count)}"], check=True)
    return synced

os.fsync, linux.syncfs = copying(os.fsync), copying(linux.syncfs)
source = Source.oci(reference, platform=Platform("linux", "amd64"))
seed(pathlib.Path(rootfs), source, Machine("pets", "zoo", "rex"))
"""


def test_after_a_power_loss_the_volume_is_interrupted_or_whole(
    small: Source, small_tree: Tree, rootfs: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    with mounted(image, rootfs, "ext4", "loop"):
        subprocess.run([sys.executable, "-c", COPYING, rootfs, small.reference or "", image], check=True)
        assert without_lost_found(attributes(rootfs)) == small_tree
    states = []
    for copy in sorted(tmp_path.glob("image.*"), key=lambda path: int(path.suffix[1:])):
        with mounted(copy, rootfs, "ext4", "loop"):
            states.append(volume.state(rootfs))
            if states[-1] is State.SEEDED:
                assert without_lost_found(attributes(rootfs)) == small_tree
    assert states == sorted(states, key=[State.EMPTY, State.INTERRUPTED, State.SEEDED].index)
    assert {State.INTERRUPTED, State.SEEDED} <= set(states)


def without_lost_found(tree: Tree) -> Tree:
    return {path: shown for path, shown in tree.items() if path != "lost+found"}
