"""A volume's state is never guessed, its record never lost, and nothing but an interrupted seed is ever cleared."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shim import linux, volume
from shim.errors import FormatError, NotFound, Refused, StatefulPodsError, Unavailable
from shim.image.digest import Digest
from shim.spec import Machine, Source
from shim.volume import Record, State

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to root")

MACHINE = Machine("pets", "zoo", "rex")
DIGEST = "sha256:" + "ab" * 32
RECORD = Record(
    source=Source(
        "oci", reference="registry.example.org/debian:trixie", preset="debian-trixie", digest=Digest.parse(DIGEST)
    ),
    seeded_at=datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC),
    machine=MACHINE,
    chart_version="0.1.0",
)
RECORD_TEXT = """\
{
  "schemaVersion": 1,
  "source": {
    "kind": "oci",
    "reference": "registry.example.org/debian:trixie",
    "digest": "DIGEST",
    "preset": "debian-trixie"
  },
  "seededAt": "2026-11-30T12:00:00Z",
  "chartVersion": "0.1.0",
  "machine": {
    "namespace": "pets",
    "release": "zoo",
    "name": "rex"
  }
}
""".replace("DIGEST", DIGEST)

Layout = Callable[[Path], object]


def _files(*names: str) -> Layout:
    """Make these, each a directory if its name ends in a slash."""

    def make(root: Path) -> None:
        for name in names:
            path = root / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.touch()

    return make


def _ours_linked_to_a_seeded_one(root: Path) -> None:
    _files("elsewhere/provisioned")(root.parent)
    (root / ".stateful-pods").symlink_to(root.parent / "elsewhere")


def _record_is_a_dangling_link(root: Path) -> None:
    _files(".stateful-pods/seeding", "etc/")(root)
    (root / ".stateful-pods/provisioned").symlink_to("/nowhere")


LAYOUTS: dict[str, tuple[State, Layout]] = {
    "nothing": (State.EMPTY, _files()),
    "a fresh ext4": (State.EMPTY, _files("lost+found/")),
    "lost+found with a recovered file": (State.EMPTY, _files("lost+found/#12")),
    "our directory alone": (State.EMPTY, _files(".stateful-pods/")),
    "a lock from before": (State.EMPTY, _files("lost+found/", ".stateful-pods/lock")),
    "a seed that wrote nothing yet": (State.INTERRUPTED, _files(".stateful-pods/seeding")),
    "a seed that wrote something": (State.INTERRUPTED, _files(".stateful-pods/seeding", "usr/bin/true")),
    "a record": (State.SEEDED, _files(".stateful-pods/provisioned", "usr/bin/true")),
    "a record, and a marker that a crash left": (
        State.SEEDED,
        _files(".stateful-pods/seeding", ".stateful-pods/provisioned"),
    ),
    "a record and no tree": (State.SEEDED, _files(".stateful-pods/provisioned")),
    "a record that is a directory": (State.SEEDED, _files(".stateful-pods/provisioned/", "etc/")),
    "a record that is a link to nothing": (State.SEEDED, _record_is_a_dangling_link),
    "somebody's files": (State.FOREIGN, _files("data")),
    "one hidden file": (State.FOREIGN, _files("lost+found/", ".keep")),
    "files beside our directory, and neither record nor marker": (State.FOREIGN, _files(".stateful-pods/lock", "etc/")),
    "a file called lost+found": (State.FOREIGN, _files("lost+found")),
    "a file called as our directory": (State.FOREIGN, _files(".stateful-pods")),
    "a link called as our directory": (State.FOREIGN, _ours_linked_to_a_seeded_one),
}
FOREIGN = {name: layout for name, (found, layout) in LAYOUTS.items() if found is State.FOREIGN}


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "rootfs").mkdir()
    return tmp_path / "rootfs"


def _snapshot(top: Path) -> dict[str, object]:
    """Everything that a change would show in, but for the times at which something was read."""
    found: dict[str, object] = {}
    for path in (top, *sorted(top.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, content)
    return found


def _contents(top: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(top.rglob("*"))}


@pytest.mark.parametrize(("expected", "layout"), LAYOUTS.values(), ids=LAYOUTS)
def test_state_is_told_without_a_change(rootfs: Path, expected: State, layout: Layout) -> None:
    layout(rootfs)
    before = _snapshot(rootfs)
    assert volume.state(rootfs) is expected
    assert _snapshot(rootfs) == before


def test_a_volume_that_is_not_there_has_no_state(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="missing"):
        volume.state(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="file"):
        volume.state(tmp_path / "file")


# The record


def test_the_record_is_written_in_its_fixed_form_and_read_back(rootfs: Path) -> None:
    volume.begin_seeding(rootfs)
    volume.write_record(rootfs, RECORD)
    file = rootfs / ".stateful-pods/provisioned"
    assert file.read_text() == RECORD_TEXT
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert volume.read_record(rootfs) == RECORD
    assert not (file.parent / "seeding").exists()


def test_an_lxc_source_and_a_clone_survive_the_round_trip(rootfs: Path) -> None:
    source = Source.lxc("https://images.example.org/rootfs.tar.xz", "cd" * 32)
    record = Record(source, RECORD.seeded_at, MACHINE, None, Machine("pets", "zoo", "original"))
    volume.begin_seeding(rootfs)
    volume.write_record(rootfs, record)
    assert volume.read_record(rootfs) == record
    document = json.loads((rootfs / ".stateful-pods/provisioned").read_text())
    assert document["source"] == {"kind": "lxc", "url": "https://images.example.org/rootfs.tar.xz", "sha256": "cd" * 32}
    assert document["clonedFrom"] == {"namespace": "pets", "release": "zoo", "name": "original"}
    assert "chartVersion" not in document


def test_members_that_a_later_version_added_are_ignored() -> None:
    document = {**json.loads(RECORD_TEXT), "comment": {"deep": [1]}}
    assert Record.from_json(document) == RECORD


def _changed(**members: object) -> bytes:
    return json.dumps({**json.loads(RECORD_TEXT), **members}).encode()


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "Expecting value"),
    "cut short": (RECORD_TEXT[:40].encode(), "cannot be understood"),
    "not UTF-8": (b'{"\xff": 1}', "utf-8"),
    "no object": (b"[]", "JSON object"),
    "nested beyond all measure": (b"[" * 100_000, "cannot be understood"),
    "a number beyond all measure": (b'{"schemaVersion": ' + b"1" * 5000 + b"}", "cannot be understood"),
    "larger than any record": (b" " * (2 << 20), "larger"),
    "no schema": (b"{}", "schemaVersion"),
    "a schema that is true": (_changed(schemaVersion=True), "schemaVersion"),
    "a later schema": (_changed(schemaVersion=2), "schema version 2, and this shim knows 1"),
    "no machine": (_changed(machine=None), "machine"),
    "a machine that is no name": (_changed(machine={"namespace": "a", "release": "b", "name": "../c"}), "../c"),
    "no time": (_changed(seededAt=None), "seededAt"),
    "a time that is none": (_changed(seededAt="yesterday"), "yesterday"),
    "a time in another zone": (_changed(seededAt="2026-11-30T12:00:00+01:00"), "seededAt"),
    "a chart version that is a number": (_changed(chartVersion=1), "chartVersion"),
    "a source of no kind": (_changed(source={"kind": "magnet"}), "magnet"),
    "a digest that is none": (
        _changed(source={"kind": "oci", "reference": "a.example.org/b", "digest": "x"}),
        "digest",
    ),
    "control characters": (_changed(seededAt="\x1b[2J"), r"\x1b"),
}


@pytest.mark.parametrize(("content", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_record_that_cannot_be_read_is_a_seeded_volume_and_a_sentence(
    rootfs: Path, content: bytes, reason: str
) -> None:
    _files(".stateful-pods/provisioned", ".stateful-pods/seeding", "etc/hostname")(rootfs)
    (rootfs / ".stateful-pods/provisioned").write_bytes(content)
    before = _contents(rootfs)
    with pytest.raises(FormatError) as caught:
        volume.read_record(rootfs)
    message = str(caught.value)
    assert reason in message
    assert "counts as seeded all the same, and nothing on it was changed" in message
    assert "\x1b" not in message
    for refuses in (volume.begin_seeding, volume.clear):
        with pytest.raises(Refused):
            refuses(rootfs)
    assert volume.state(rootfs) is State.SEEDED
    assert _contents(rootfs) == before


@pytest.mark.parametrize("kind", ["link to the host", "pipe", "directory"])
def test_a_record_that_is_no_file_is_not_read(rootfs: Path, kind: str) -> None:
    record = rootfs / ".stateful-pods/provisioned"
    record.parent.mkdir()
    (rootfs.parent / "host").write_text(RECORD_TEXT)
    make: dict[str, Callable[[], object]] = {
        "link to the host": lambda: record.symlink_to(rootfs.parent / "host"),
        "pipe": lambda: os.mkfifo(record),
        "directory": record.mkdir,
    }
    make[kind]()
    with pytest.raises(FormatError, match="regular file"):
        volume.read_record(rootfs)


@pytest.mark.parametrize("name", ["nothing", "a seed that wrote something", "somebody's files"])
def test_only_a_seeded_volume_has_a_record(rootfs: Path, name: str) -> None:
    LAYOUTS[name][1](rootfs)
    with pytest.raises(NotFound, match="no record"):
        volume.read_record(rootfs)


# Durability


class Crash(BaseException):
    """Nothing after this moment happens."""


class Kernel:
    """Passes on what the kernel is asked to do to the disk, notes it in order, and stops before the step `crash_at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.crash_at: str | None = None
        for owner, name, describe in (
            (os, "fsync", lambda descriptor: f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}"),
            (linux, "syncfs", lambda _: "syncfs"),
            (os, "rename", lambda _, target: f"rename {target}"),
            (os, "unlink", lambda path: f"unlink {path}"),
        ):
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name), describe))

    def _watched(self, call: Callable[..., None], describe: Callable[..., str]) -> Callable[..., None]:
        def watched(*arguments: object, **options: object) -> None:
            step = describe(*arguments)
            if step == self.crash_at:
                raise Crash
            call(*arguments, **options)
            self.steps.append(step)

        return watched


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


WRITING_A_RECORD = (
    "syncfs",
    "fsync .provisioned.stateful-pods",
    "rename provisioned",
    "fsync .stateful-pods",
    "unlink seeding",
    "fsync .stateful-pods",
)


def test_the_marker_is_on_the_disk_before_seeding_begins(rootfs: Path, kernel: Kernel) -> None:
    volume.begin_seeding(rootfs)
    assert kernel.steps == ["fsync .seeding.stateful-pods", "rename seeding", "fsync .stateful-pods", "fsync rootfs"]
    assert volume.state(rootfs) is State.INTERRUPTED


def test_the_record_appears_only_after_the_data_is_on_the_disk(rootfs: Path, kernel: Kernel) -> None:
    volume.begin_seeding(rootfs)
    kernel.steps.clear()
    volume.write_record(rootfs, RECORD)
    assert kernel.steps == list(WRITING_A_RECORD)


@pytest.mark.parametrize("step", dict.fromkeys(WRITING_A_RECORD))
def test_a_crash_at_any_step_leaves_an_interrupted_or_a_whole_volume(rootfs: Path, kernel: Kernel, step: str) -> None:
    volume.begin_seeding(rootfs)
    kernel.crash_at = step
    with pytest.raises(Crash):
        volume.write_record(rootfs, RECORD)
    kernel.crash_at = None
    if volume.state(rootfs) is State.INTERRUPTED:
        assert WRITING_A_RECORD.index(step) <= WRITING_A_RECORD.index("rename provisioned")
        volume.write_record(rootfs, RECORD)
    assert volume.read_record(rootfs) == RECORD


def test_a_new_seed_takes_no_word_of_an_earlier_tree(rootfs: Path) -> None:
    _files(".stateful-pods/seeding", ".stateful-pods/prepared")(rootfs)
    volume.begin_seeding(rootfs)
    volume.write_record(rootfs, RECORD)
    assert not volume.is_prepared(rootfs)
    volume.mark_prepared(rootfs)
    assert volume.is_prepared(rootfs)


@contextmanager
def _mounted(kind: str | None, source: str, target: Path, flags: int = 0, options: str = "") -> Iterator[None]:
    try:
        linux.mount(kind, source, str(target), flags, options)
    except linux.SystemCallFailed:
        pytest.skip("this machine does not allow mounting")
    try:
        yield
    finally:
        linux.unmount(str(target), linux.UnmountFlag.DETACH)


def test_a_full_disk_is_named_and_leaves_no_record(rootfs: Path) -> None:
    with _mounted("tmpfs", "tmpfs", rootfs, options="size=64k"):
        volume.begin_seeding(rootfs)
        filler = os.open(rootfs / "filler", os.O_CREAT | os.O_WRONLY)
        with pytest.raises(OSError, match="No space"):
            while True:
                os.write(filler, bytes(4096))
        os.close(filler)
        with pytest.raises(Unavailable, match=r"provisioned in .*No space left on device"):
            volume.write_record(rootfs, RECORD)
        assert volume.state(rootfs) is State.INTERRUPTED
        volume.clear(rootfs)
        volume.write_record(rootfs, RECORD)
        assert volume.state(rootfs) is State.SEEDED


# The lock


def test_who_comes_second_is_told_who_holds_the_volume(rootfs: Path) -> None:
    with volume.lock(rootfs, "rex-0\x1b[2J"), pytest.raises(Unavailable) as caught, volume.lock(rootfs, "rex-1"):
        pass
    message = str(caught.value)
    assert f"in use by rex-0\\x1b[2J on {os.uname().nodename}, process {os.getpid()}, since 20" in message
    assert volume.state(rootfs) is State.EMPTY


def test_who_waits_says_so_once_and_goes_on_when_the_holder_has_ended(rootfs: Path) -> None:
    told: list[str] = []
    with ExitStack() as holder:
        holder.enter_context(volume.lock(rootfs, "rex-0"))

        def tell(message: str) -> None:
            told.append(message)
            holder.close()

        with volume.lock(rootfs, "rex-1", wait=60, tell=tell):
            assert (rootfs / ".stateful-pods/lock").read_text().startswith("rex-1 on ")
    assert len(told) == 1
    assert "rex-0" in told[0]
    assert "up to 60 s" in told[0]


HOLDER = """
import pathlib, subprocess, sys
from shim import volume
with volume.lock(pathlib.Path(sys.argv[1]), "other") as descriptor:
    if sys.argv[2] == "with a child":
        subprocess.Popen(["sleep", "600"], pass_fds=[descriptor], stdout=2).pid
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _holder(rootfs: Path, child: str = "alone") -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HOLDER, str(rootfs), child]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_killed_holder_leaves_the_volume_free(rootfs: Path) -> None:
    with _holder(rootfs) as process:
        with pytest.raises(Unavailable, match=f"other on .*, process {process.pid}"), volume.lock(rootfs, "me"):
            pass
        process.kill()
        process.wait()
        with volume.lock(rootfs, "me"):
            pass


def test_a_child_that_writes_on_after_its_parent_was_killed_keeps_the_lock(rootfs: Path) -> None:
    with _holder(rootfs, "with a child") as process:
        process.kill()
        process.wait()
        with pytest.raises(Unavailable, match="other"), volume.lock(rootfs, "me"):
            pass


@pytest.mark.parametrize("layout", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_volume_is_refused_and_untouched_to_the_byte(rootfs: Path, layout: Layout) -> None:
    layout(rootfs)
    before = _snapshot(rootfs.parent)
    with pytest.raises(Refused, match="left as it is"), volume.lock(rootfs, "rex-0"):
        pass
    for refuses in (volume.begin_seeding, volume.clear, volume.mark_prepared):
        with pytest.raises(Refused, match="left as it is"):
            refuses(rootfs)
    with pytest.raises(Refused, match="left as it is"):
        volume.write_record(rootfs, RECORD)
    assert _snapshot(rootfs.parent) == before


def test_a_refusal_names_some_of_the_files(rootfs: Path) -> None:
    _files("a", "b\n", "c", "d", "e", "f", "lost+found/")(rootfs)
    with pytest.raises(Refused, match=r"\(a, b\\n, c, d, e, …\)"):
        volume.begin_seeding(rootfs)


@pytest.mark.parametrize("kind", ["link", "directory", "pipe", "device"])
def test_a_lock_that_was_planted_is_neither_followed_nor_waited_for(rootfs: Path, kind: str) -> None:
    lock, canary = rootfs / ".stateful-pods/lock", rootfs.parent / "host"
    lock.parent.mkdir()
    canary.write_text("the host's own\n")
    make: dict[str, Callable[[], object]] = {
        "link": lambda: lock.symlink_to(canary),
        "directory": lock.mkdir,
        "pipe": lambda: os.mkfifo(lock),
        "device": lambda: os.mknod(lock, 0o666 | stat.S_IFCHR, os.makedev(1, 3)),
    }
    make[kind]()
    with pytest.raises(Refused, match="cannot open the lock"), volume.lock(rootfs, "rex-0"):
        pass
    assert canary.read_text() == "the host's own\n"


# Clearing


@pytest.fixture
def interrupted(rootfs: Path) -> Path:
    """An interrupted seed, with a canary beside the volume and something that an fsck has found on it."""
    _files("lost+found/#12", ".stateful-pods/lock", ".stateful-pods/seeding", "usr/bin/true", "etc/")(rootfs)
    (rootfs.parent / "canary").mkdir()
    (rootfs.parent / "canary/file").write_text("the host's own\n")
    return rootfs


def _left(rootfs: Path) -> list[str]:
    return sorted(str(path.relative_to(rootfs)) for path in rootfs.rglob("*"))


KEPT = [".stateful-pods", ".stateful-pods/lock", ".stateful-pods/seeding", "lost+found", "lost+found/#12"]


def test_clearing_leaves_lost_and_found_and_our_own_directory(interrupted: Path) -> None:
    _files("usr/lost+found/x", "usr/.stateful-pods/x")(interrupted)
    volume.clear(interrupted)
    assert _left(interrupted) == KEPT
    assert volume.state(interrupted) is State.INTERRUPTED


def test_clearing_removes_every_kind_of_file_and_follows_no_link(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = interrupted.parent / "canary"
    (interrupted / "etc/up").symlink_to("../../canary")
    (interrupted / "absolute").symlink_to(canary)
    (interrupted / "loop").symlink_to("loop")
    os.mkfifo(interrupted / "etc/pipe")
    os.mknod(interrupted / "etc/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    monkeypatch.chdir(interrupted)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    (interrupted / os.fsdecode(b"\xff\n\x1b")).mkdir()
    (interrupted / "etc").chmod(0)
    volume.clear(interrupted)
    assert _left(interrupted) == KEPT
    assert (canary / "file").read_text() == "the host's own\n"


def test_clearing_a_tree_that_is_deeper_than_descriptors_stack_and_paths_reach(interrupted: Path) -> None:
    current = os.open(interrupted, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("directory", dir_fd=current)
        below = os.open("directory", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.close(current)
    volume.clear(interrupted)
    assert sorted(path.name for path in interrupted.iterdir()) == [".stateful-pods", "lost+found"]


@pytest.mark.parametrize("what", ["another file system", "a directory of the same one", "a file"])
def test_clearing_stops_at_a_mount_point_and_names_it(interrupted: Path, what: str) -> None:
    canary = interrupted.parent / "canary"
    (interrupted / "srv/data").mkdir(parents=True)
    (interrupted / "srv/file").touch()
    bind = linux.MountFlag.BIND
    source, name, kind, flags = {
        "another file system": ("tmpfs", "srv/data", "tmpfs", 0),
        "a directory of the same one": (str(canary), "srv/data", None, bind),
        "a file": (str(canary / "file"), "srv/file", None, bind),
    }[what]
    with _mounted(kind, source, interrupted / name, flags):
        if what == "another file system":
            (interrupted / name / "precious").touch()
        with pytest.raises(Refused, match=f"cannot remove {interrupted}/{name}: it is a mount point; unmount it first"):
            volume.clear(interrupted)
        if what == "another file system":
            assert (interrupted / name / "precious").exists()
    assert (canary / "file").read_text() == "the host's own\n"
    assert volume.state(interrupted) is State.INTERRUPTED
    volume.clear(interrupted)
    assert _left(interrupted) == KEPT


def test_clearing_names_a_file_that_is_immutable(interrupted: Path) -> None:
    get_flags, set_flags, immutable = 0x80086601, 0x40086602, 0x10  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
    file = os.open(interrupted / "usr/bin/true", os.O_RDONLY)
    flags = array.array("l", [0])
    try:
        fcntl.ioctl(file, get_flags, flags)
        flags[0] |= immutable
        fcntl.ioctl(file, set_flags, flags)
    except OSError:
        pytest.skip("this file system has no immutable files")
    try:
        with pytest.raises(Refused, match=r"usr/bin/true: .*immutable or append-only .* chattr -i -a"):
            volume.clear(interrupted)
    finally:
        flags[0] &= ~immutable
        fcntl.ioctl(file, set_flags, flags)
        os.close(file)
    volume.clear(interrupted)
    assert _left(interrupted) == KEPT


@pytest.mark.parametrize("name", [name for name, (found, _) in LAYOUTS.items() if found in (State.SEEDED, State.EMPTY)])
def test_nothing_but_an_interrupted_seed_is_cleared(rootfs: Path, name: str) -> None:
    LAYOUTS[name][1](rootfs)
    before = _left(rootfs)
    with pytest.raises(Refused, match="only an interrupted seed is cleared"):
        volume.clear(rootfs)
    assert set(before) <= set(_left(rootfs))


def test_no_call_leaks_a_descriptor(interrupted: Path) -> None:
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    volume.clear(interrupted)
    volume.begin_seeding(interrupted)
    volume.write_record(interrupted, RECORD)
    with volume.lock(interrupted, "rex-0"):
        pass
    with pytest.raises(StatefulPodsError):
        volume.clear(interrupted)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


# What may be worked on


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (_files(), r"is empty, not seeded: seed it first \(shim seed\)"),
        (_files(".stateful-pods/seeding", "etc/"), "is interrupted, not seeded: a seed of it began and did not end"),
        (_files("etc/"), "is foreign, not seeded: it holds files that this program did not put there"),
    ],
)
def test_what_is_not_seeded_is_refused_in_a_sentence(rootfs: Path, layout: Layout, sentence: str) -> None:
    layout(rootfs)
    before = sorted(rootfs.rglob("*"))
    with pytest.raises(Refused, match=sentence):
        volume.require_seeded(rootfs)
    assert sorted(rootfs.rglob("*")) == before


@pytest.mark.parametrize("text", ["", "{", RECORD_TEXT])
def test_what_has_a_record_is_seeded_also_if_the_record_cannot_be_understood(rootfs: Path, text: str) -> None:
    (rootfs / ".stateful-pods").mkdir()
    (rootfs / ".stateful-pods/provisioned").write_text(text)
    volume.require_seeded(rootfs)
