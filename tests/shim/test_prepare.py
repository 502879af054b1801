"""An identity belongs to one machine: the image's and a clone's original's go, the machine's own stays."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shim import volume
from shim.errors import FormatError, NotFound, Refused
from shim.prepare import Prepared, prepare
from shim.spec import Machine, Source
from shim.volume import Record

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to root")

REX, TOTO = Machine("pets", "zoo", "rex"), Machine("pets", "zoo", "toto")
MACHINE_ID = "0123456789abcdef0123456789abcdef\n"
HOST_KEYS = (
    "etc/ssh/ssh_host_rsa_key",
    "etc/ssh/ssh_host_rsa_key.pub",
    "etc/ssh/ssh_host_ed25519_key",
    "etc/ssh/ssh_host_ed25519_key.pub",
    "etc/ssh/ssh_host_ed25519_key-cert.pub",
    "etc/dropbear/dropbear_ed25519_host_key",
)
RANDOM_SEEDS = ("var/lib/systemd/random-seed", "var/lib/seedrng/seed.credit")
THE_OWNERS = (
    "etc/ssh/sshd_config",
    "etc/ssh/ssh_known_hosts",
    "root/.ssh/id_ed25519",
    "var/lib/systemd/credential.secret",
)
IDENTITY = ("etc/machine-id", "var/lib/dbus/machine-id", *HOST_KEYS)


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """A volume that was just seeded for rex with an image that runs systemd and carries an identity."""
    root = tmp_path / "rootfs"
    root.mkdir()
    volume.begin_seeding(root)
    _put(root, *IDENTITY, *RANDOM_SEEDS, *THE_OWNERS, "usr/lib/systemd/systemd")
    volume.write_record(root, Record(Source.oci("registry.example.org/a:1"), datetime(2026, 11, 30, tzinfo=UTC), REX))
    return root


def _put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(MACHINE_ID)


def _there(root: Path, *names: str) -> list[str]:
    return [name for name in names if os.path.lexists(root / name)]


def _tree(root: Path) -> dict[str, tuple[int, int, int]]:
    paths = (root, *sorted(root.rglob("*")))
    return {str(path): (path.lstat().st_ino, path.lstat().st_mode, path.lstat().st_ctime_ns) for path in paths}


def _boot(root: Path) -> None:
    """Do what a guest does about its identity."""
    _put(root, *IDENTITY)


def test_the_images_identity_is_removed_before_the_first_start(rootfs: Path) -> None:
    told: list[str] = []
    done = prepare(rootfs, REX, tell=told.append)
    assert (rootfs / "etc/machine-id").read_bytes() == b""
    assert stat.S_IMODE((rootfs / "etc/machine-id").stat().st_mode) == 0o444
    assert _there(rootfs, *IDENTITY) == ["etc/machine-id"]
    assert _there(rootfs, *THE_OWNERS) == list(THE_OWNERS)
    assert (done.identity, done.cloned_from) == ("new", None)
    assert set(done.removed) == {f"/{name}" for name in IDENTITY}
    assert len(told) == 1
    assert all(name in told[0] for name in done.removed)


def test_a_first_start_changes_nothing_that_the_list_of_differences_does_not_name(rootfs: Path) -> None:
    prepare(rootfs, REX)
    assert _there(rootfs, *RANDOM_SEEDS) == list(RANDOM_SEEDS)


def test_a_later_start_changes_nothing(rootfs: Path) -> None:
    prepare(rootfs, REX)
    _boot(rootfs)
    before = _tree(rootfs)
    told: list[str] = []
    assert prepare(rootfs, REX, tell=told.append) == Prepared(REX, "kept")
    assert _tree(rootfs) == before
    assert told == []


def test_a_clone_gets_an_identity_of_its_own_and_says_so(rootfs: Path) -> None:
    prepare(rootfs, REX)
    _boot(rootfs)
    told: list[str] = []
    done = prepare(rootfs, TOTO, tell=told.append)
    assert (rootfs / "etc/machine-id").read_bytes() == b""
    assert _there(rootfs, *HOST_KEYS, *RANDOM_SEEDS) == []
    assert _there(rootfs, *THE_OWNERS) == list(THE_OWNERS)
    assert (done.identity, done.cloned_from) == ("new", REX)
    record = volume.read_record(rootfs)
    assert (record.machine, record.cloned_from) == (TOTO, REX)
    assert "CLONE. It was seeded for rex (release zoo, namespace pets), and this is toto" in told[0]
    assert "SHIM_IDENTITY=keep" in told[0]


def test_a_clone_that_has_started_is_a_machine_like_any_other(rootfs: Path) -> None:
    prepare(rootfs, REX)
    prepare(rootfs, TOTO)
    _boot(rootfs)
    before = _tree(rootfs)
    assert prepare(rootfs, TOTO) == Prepared(TOTO, "kept", (), REX)
    assert _tree(rootfs) == before


@pytest.mark.parametrize("other", [Machine("other", "zoo", "rex"), Machine("pets", "other", "rex"), TOTO], ids=str)
def test_each_part_of_the_name_makes_another_machine(rootfs: Path, other: Machine) -> None:
    prepare(rootfs, REX)
    _boot(rootfs)
    assert prepare(rootfs, other).identity == "new"


def test_the_clone_of_a_clone_names_the_one_that_it_was_copied_from(rootfs: Path) -> None:
    for machine in (REX, TOTO, Machine("pets", "zoo", "third")):
        prepare(rootfs, machine)
    assert volume.read_record(rootfs).cloned_from == TOTO


def test_a_machine_that_has_moved_keeps_its_identity_and_says_so(rootfs: Path) -> None:
    prepare(rootfs, REX)
    _boot(rootfs)
    told: list[str] = []
    assert prepare(rootfs, TOTO, "keep", tell=told.append) == Prepared(TOTO, "kept")
    assert _there(rootfs, *IDENTITY, *RANDOM_SEEDS) == [*IDENTITY, *RANDOM_SEEDS]
    assert (rootfs / "etc/machine-id").read_text() == MACHINE_ID
    record = volume.read_record(rootfs)
    assert (record.machine, record.cloned_from) == (TOTO, None)
    assert len(told) == 1
    assert "has MOVED. Its volume was seeded for rex (release zoo, namespace pets), and this is toto" in told[0]


def _identity(root: Path) -> Machine:
    return volume.read_record(root).machine.identity


def test_a_machine_that_has_moved_is_the_first_one_in_its_own_eyes_however_often_it_moves(rootfs: Path) -> None:
    prepare(rootfs, REX)
    assert _identity(rootfs) == REX
    for machine in (TOTO, Machine("pets", "zoo", "third")):
        prepare(rootfs, machine, "keep")
        assert volume.read_record(rootfs).machine == machine
        assert _identity(rootfs) == REX
        prepare(rootfs, machine)
        assert _identity(rootfs) == REX
    prepare(rootfs, REX, "keep")
    assert volume.read_record(rootfs).machine.moved_from is None


def test_the_clone_of_a_machine_that_has_moved_is_itself(rootfs: Path) -> None:
    prepare(rootfs, REX)
    prepare(rootfs, TOTO, "keep")
    clone = Machine("pets", "zoo", "clone")
    prepare(rootfs, clone)
    assert _identity(rootfs) == clone


def test_a_volume_that_never_started_has_no_identity_to_keep(rootfs: Path) -> None:
    assert prepare(rootfs, TOTO, "keep").identity == "new"
    assert _identity(rootfs) == TOTO
    assert (rootfs / "etc/machine-id").read_bytes() == b""


@pytest.mark.parametrize("moment", ["write_record", "mark_prepared"])
def test_a_crash_between_the_steps_is_made_good_by_the_next_start(
    rootfs: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(volume, moment, crash)
        with pytest.raises(Crash):
            prepare(rootfs, TOTO)
    prepare(rootfs, TOTO)
    assert _there(rootfs, *IDENTITY) == ["etc/machine-id"]
    record = volume.read_record(rootfs)
    assert record.machine == TOTO
    assert record.cloned_from in (None, REX)
    _boot(rootfs)
    assert prepare(rootfs, TOTO).identity == "kept"


UNINITIALIZED = {"an id": MACHINE_ID, "the word that means a first boot": "uninitialized\n", "junk": "x"}


@pytest.mark.parametrize("content", UNINITIALIZED.values(), ids=UNINITIALIZED)
def test_systemd_finds_an_empty_file_and_so_no_first_boot(rootfs: Path, content: str) -> None:
    (rootfs / "etc/machine-id").write_text(content)
    prepare(rootfs, REX)
    assert (rootfs / "etc/machine-id").read_bytes() == b""


def test_systemd_finds_an_empty_file_also_where_the_image_has_none(rootfs: Path) -> None:
    (rootfs / "etc/machine-id").unlink()
    prepare(rootfs, REX)
    assert (rootfs / "etc/machine-id").read_bytes() == b""


def test_an_empty_machine_id_stays_as_the_distribution_made_it(rootfs: Path) -> None:
    (rootfs / "etc/machine-id").write_bytes(b"")
    before = (rootfs / "etc/machine-id").stat()
    assert "/etc/machine-id" not in prepare(rootfs, REX).removed
    after = (rootfs / "etc/machine-id").stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


def test_an_init_that_is_not_systemd_finds_no_file_and_so_makes_one(rootfs: Path) -> None:
    (rootfs / "usr/lib/systemd/systemd").unlink()
    prepare(rootfs, REX)
    assert _there(rootfs, *IDENTITY) == []


@pytest.mark.parametrize("text", ["/etc/machine-id", "../../../etc/machine-id"])
def test_the_link_of_dbus_to_systemds_file_stays(rootfs: Path, text: str) -> None:
    dbus = rootfs / "var/lib/dbus/machine-id"
    dbus.unlink()
    dbus.symlink_to(text)
    prepare(rootfs, REX)
    assert str(dbus.readlink()) == text
    assert (rootfs / "etc/machine-id").read_bytes() == b""


def test_links_are_removed_and_what_they_point_to_on_the_host_is_not(rootfs: Path) -> None:
    host = rootfs.parent / "host"
    _put(host, "machine-id", "ssh_host_rsa_key")
    for name in ("etc/machine-id", "var/lib/dbus/machine-id", "etc/ssh/ssh_host_rsa_key"):
        (rootfs / name).unlink()
        (rootfs / name).symlink_to(host / Path(name).name)
    prepare(rootfs, REX)
    assert (host / "machine-id").read_text() == MACHINE_ID
    assert (host / "ssh_host_rsa_key").read_text() == MACHINE_ID
    assert not (rootfs / "etc/machine-id").is_symlink()
    assert _there(rootfs, "etc/ssh/ssh_host_rsa_key", "var/lib/dbus/machine-id") == []


def test_a_directory_of_host_keys_that_points_to_the_host_reaches_nothing_there(rootfs: Path) -> None:
    _put(rootfs.parent / "host", "ssh_host_rsa_key")
    (rootfs / "etc/ssh").rename(rootfs / "etc/ssh-away")
    (rootfs / "etc/ssh").symlink_to(rootfs.parent / "host")
    prepare(rootfs, REX)
    assert (rootfs.parent / "host/ssh_host_rsa_key").exists()


def test_missing_runtime_directories_are_made_with_their_modes(rootfs: Path) -> None:
    before = os.umask(0o077)
    try:
        prepare(rootfs, REX)
    finally:
        os.umask(before)
    modes = {name: oct(stat.S_IMODE((rootfs / name).stat().st_mode)) for name in ("dev", "proc", "sys", "run", "tmp")}
    assert modes == {"dev": "0o755", "proc": "0o555", "sys": "0o555", "run": "0o755", "tmp": "0o1777"}


def test_runtime_directories_that_exist_stay_the_distributions(rootfs: Path) -> None:
    (rootfs / "proc").mkdir(mode=0o755)
    (rootfs / "tmp").mkdir()
    (rootfs / "tmp/file").touch()
    prepare(rootfs, REX)
    assert stat.S_IMODE((rootfs / "proc").stat().st_mode) == 0o755
    assert (rootfs / "tmp/file").exists()


@pytest.mark.parametrize("name", ["run", "tmp"])
def test_a_runtime_directory_that_is_a_link_is_refused_by_name(rootfs: Path, name: str) -> None:
    (rootfs / name).symlink_to(rootfs.parent)
    with pytest.raises(Refused, match=f"/{name} in .* is no directory"):
        prepare(rootfs, REX)
    assert (rootfs / "etc/machine-id").read_text() == MACHINE_ID


def test_a_record_that_cannot_be_read_stops_before_anything_is_changed(rootfs: Path) -> None:
    (rootfs / ".stateful-pods/provisioned").write_text('{"schemaVersion": 2}')
    before = _tree(rootfs)
    with pytest.raises(FormatError, match="schema version 2"):
        prepare(rootfs, TOTO)
    assert _tree(rootfs) == before


def test_a_volume_that_was_not_seeded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="it was not seeded"):
        prepare(tmp_path, REX)
    assert list(tmp_path.iterdir()) == []


def test_an_identity_that_is_neither_new_nor_keep_is_refused(rootfs: Path) -> None:
    before = _tree(rootfs)
    with pytest.raises(Refused, match=r"'kept'; expected new or keep \(SHIM_IDENTITY\)"):
        prepare(rootfs, REX, "kept")
    assert _tree(rootfs) == before
