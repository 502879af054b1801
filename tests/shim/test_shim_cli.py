"""The command `shim`: options and their environment, exit codes, last words, and what a pod's log shows."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shim import cli, volume
from shim.console import Console
from shim.image.layout import Layout
from shim.volume import State
from tests.shim.sources import ROOTFS, push

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to root")

VARIABLES = {
    "seed": {
        "SHIM_ROOTFS", "SHIM_MACHINE", "SHIM_RELEASE", "SHIM_NAMESPACE", "SHIM_CHART_VERSION", "SHIM_SOURCE_KIND",
        "SHIM_SOURCE_REFERENCE", "SHIM_SOURCE_PRESET", "SHIM_SOURCE_URL", "SHIM_SOURCE_SHA256",
    },
    "prepare": {"SHIM_ROOTFS", "SHIM_MACHINE", "SHIM_RELEASE", "SHIM_NAMESPACE", "SHIM_IDENTITY"},
    "customize": {"SHIM_ROOTFS", "SHIM_HOSTNAME"},
    "provision": {
        "SHIM_ROOTFS", "SHIM_MACHINE", "SHIM_PROVISIONING", "SHIM_PROVISIONING_REVISION", "SHIM_PROVISIONING_DIR",
    },
    "boot": {"SHIM_ROOTFS", "SHIM_HOSTNAME", "SHIM_VOLUMES"},
    "run": {"SHIM_ROOTFS", "SHIM_HOSTNAME", "SHIM_VOLUMES", "SHIM_STOP_SECONDS"},
    "state": {"SHIM_ROOTFS"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def termination_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's termination log, as the kubelet makes it."""
    path = tmp_path / "termination-log"
    path.write_text("something longer than what follows, from an earlier run" * 20)
    monkeypatch.setattr(cli, "TERMINATION_LOG", path)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return path


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    directory = tmp_path / "rootfs"
    directory.mkdir()
    return directory


@pytest.fixture
def image(tmp_path: Path) -> str:
    layout = Layout(tmp_path / "images", create=True)
    push(layout, [ROOTFS], "trixie")
    return f"{layout.name}:trixie"


def run(*argv: str | Path) -> int:
    """Run the command, and return its exit code."""
    try:
        cli.main([str(word) for word in argv])
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


@pytest.mark.parametrize(("command", "variables"), VARIABLES.items(), ids=VARIABLES.keys())
def test_each_command_takes_the_variables_of_the_design(command: str, variables: set[str]) -> None:
    taken = {variable for param in cli.commands.commands[command].params for variable in [param.envvar] if variable}
    assert variables <= taken


@needs_root
def test_a_pod_seeds_by_its_environment_alone(
    rootfs: Path, image: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {
        "ROOTFS": str(rootfs), "MACHINE": "rex", "RELEASE": "zoo", "NAMESPACE": "pets", "CHART_VERSION": "0.1.0",
        "SOURCE_KIND": "oci", "SOURCE_REFERENCE": image, "SOURCE_PRESET": "debian-trixie", "SOURCE_URL": "",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(f"SHIM_{name}", value)
    assert run("seed") == 0
    record = volume.read_record(rootfs)
    assert (str(record.machine), record.chart_version) == ("rex (release zoo, namespace pets)", "0.1.0")
    assert (record.source.reference, record.source.preset) == (image, "debian-trixie")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1] == f"seeded from {image}"


@needs_root
def test_on_a_seeded_volume_the_source_is_not_even_read(
    rootfs: Path, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("seed", rootfs, "--source-reference", image) == 0
    assert run("seed", rootfs, "--source-kind", "lxc", "--source-sha256", "nonsense") == 0
    assert "there is nothing to do" in capsys.readouterr().err


@needs_root
def test_an_archive_is_taken_by_path_and_checksum(rootfs: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(ROOTFS)
    checksum = hashlib.sha256(ROOTFS).hexdigest().upper()
    assert run("seed", rootfs, "--source-url", tmp_path / "a.tar", "--source-sha256", checksum) == 0


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "name one source"),
        (["--source-reference", "oci:x", "--source-url", "y"], "name one source"),
        (["--source-url", "x.tar"], "needs the SHA-256"),
        (["--source-url", "x.tar", "--source-sha256", "12"], "malformed sha256 digest"),
        (["--source-reference", "debian"], "names no registry"),
        (["--source-reference", "oci:x", "--source-platform", "amd64"], "malformed platform"),
        (["--source-reference", "oci:x", "--machine", "No Name"], "the machine's name"),
        (["--source-kind", "zip"], "zip"),
    ],
)
def test_wrong_usage_is_2_and_says_why(
    argv: list[str], sentence: str, rootfs: Path, termination_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("seed", rootfs, *argv) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert sentence in termination_log.read_text()


@needs_root
def test_a_refusal_is_1_and_its_sentence_comes_last(
    rootfs: Path, image: str, termination_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (rootfs / "photo\n\x1b[31m.jpg").touch()
    assert run("seed", rootfs, "--source-reference", image) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("the volume ")
    assert "photo\\n\\x1b[31m.jpg" in last
    assert termination_log.read_text() == last


@needs_root
def test_what_a_later_try_may_cure_is_4(rootfs: Path) -> None:
    assert run("seed", rootfs, "--source-reference", "127.0.0.1:1/a@sha256:" + "00" * 32) == 4


def test_a_missing_termination_log_is_not_made(rootfs: Path, termination_log: Path) -> None:
    termination_log.unlink()
    assert run("seed", rootfs) == 2
    assert not termination_log.exists()


def test_a_rootfs_that_is_not_there_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("state", tmp_path / "nowhere") == 1
    assert "nowhere" in capsys.readouterr().err


@needs_root
def test_state_of_a_seeded_volume(rootfs: Path, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("seed", rootfs, "--source-reference", image, "--machine", "rex", "--chart-version", "0.1.0")
    record = volume.read_record(rootfs)
    capsys.readouterr()
    assert run("state", rootfs) == 0
    assert capsys.readouterr().out.splitlines() == [
        "state    seeded",
        f"source   {image}",
        f"digest   {record.source.digest}",
        f"seeded   {record.seeded_at:%Y-%m-%dT%H:%M:%SZ}",
        "machine  rex (release local, namespace local)",
        "chart    0.1.0",
    ]
    assert run("state", rootfs, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"state": "seeded", "record": record.to_json()}


def test_state_of_a_volume_without_a_record(rootfs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("state", rootfs) == 0
    assert capsys.readouterr().out == "state    empty\n"
    (rootfs / "photo.jpg").touch()
    assert run("state", rootfs, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"state": State.FOREIGN.value, "record": None}


def test_state_of_a_damaged_record_is_seeded_and_an_error(rootfs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rootfs / ".stateful-pods").mkdir()
    (rootfs / ".stateful-pods/provisioned").write_text("{")
    assert run("state", rootfs) == 1
    shown = capsys.readouterr()
    assert shown.out == "state    seeded\n"
    assert "cannot be understood" in shown.err


@needs_root
def test_all_stages_on_a_seeded_volume_use_no_network(rootfs: Path, image: str) -> None:
    """Each in a process of its own, as in a pod, in a network namespace that holds nothing."""
    assert run("seed", rootfs, "--source-reference", image) == 0
    script = (
        "import socket, sys\n"
        "def refuse(*args, **more): raise AssertionError('the network was used')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from shim.cli import main; main(sys.argv[1:])\n"
        "loaded = {'oras', 'requests', 'zstandard', 'shim.image.registry'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    for stage in ("seed", "prepare", "customize", "provision"):
        done = subprocess.run(
            [sys.executable, "-c", script, stage, rootfs], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_is_a_line_at_the_beginning_at_the_end_and_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, "plain", clock)
    for step in range(101):
        console.progress("layer 1 of 1", step * 1_000_000, 100_000_000)
        clock.now += 0.125
    assert stream.getvalue().splitlines() == [
        "fetching layer 1 of 1: 0.0 MB of 100.0 MB (0 %)",
        "fetching layer 1 of 1: 40.0 MB of 100.0 MB (40 %), 8.0 MB/s",
        "fetching layer 1 of 1: 80.0 MB of 100.0 MB (80 %), 8.0 MB/s",
        "fetching layer 1 of 1: 100.0 MB of 100.0 MB (100 %), 8.0 MB/s",
    ]


def test_progress_without_a_known_size() -> None:
    stream, clock = io.StringIO(), Clock()
    Console(stream, "plain", clock).progress("an archive", 1_500_000, None)
    assert stream.getvalue() == "fetching an archive: 1.5 MB\n"


def test_json_lines_for_machines() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, "json", clock)
    console.tell("a sentence with\na break")
    console.progress("x", 5, 10)
    console.fail("bad")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all(line.pop("time").endswith("Z") for line in lines)
    assert lines == [
        {"level": "info", "message": "a sentence with\\na break"},
        {
            "level": "info", "message": "fetching x: 0.0 MB of 0.0 MB (50 %)",
            "done": 5, "total": 10, "bytesPerSecond": None,
        },
        {"level": "error", "message": "bad"},
    ]  # fmt: skip


def test_nothing_can_forge_a_line() -> None:
    stream = io.StringIO()
    Console(stream, "plain").tell("a\r\x1b[2K\u2028\u202eb\n\x85seeded")
    assert stream.getvalue() == "a\\r\\x1b[2K\\u2028\\u202eb\\n\\x85seeded\n"


@needs_root
@pytest.mark.parametrize("stage", ["customize", "provision", "run"])
@pytest.mark.parametrize("found", ["empty", "interrupted", "foreign"])
def test_a_stage_leaves_alone_what_is_not_seeded(
    rootfs: Path, stage: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if found != "empty":
        (rootfs / "sbin").mkdir()
        (rootfs / "sbin/init").write_text("#!/bin/sh\n")
        (rootfs / "sbin/init").chmod(0o755)
    if found == "interrupted":
        (rootfs / ".stateful-pods").mkdir()
        (rootfs / ".stateful-pods/seeding").touch()
    before = sorted(rootfs.rglob("*"))
    assert run(stage, rootfs) == 1
    assert f"the volume {rootfs} is {found}, not seeded: " in capsys.readouterr().err
    assert sorted(rootfs.rglob("*")) == before


@pytest.mark.parametrize("seconds", ["-1", "soon"])
def test_a_stop_takes_no_such_number_of_seconds(rootfs: Path, seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIM_STOP_SECONDS", seconds)
    assert run("run", rootfs) == 2


@pytest.mark.parametrize(
    ("command", "default"),
    [("customize", "the machine's name"), ("boot", "the machine's name"), ("run", "what its /etc/hostname says")],
)
def test_the_help_tells_where_the_host_name_comes_from(
    command: str, default: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "--help") == 0
    assert f"[default: {default}]" in " ".join(capsys.readouterr().out.split())
