"""The command: one line of result, the sentence that says why not, and the exit code that scripts rely on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from presetbuild import catalog as catalog_module
from presetbuild.cli import commands
from tests.presetbuild.upstreams import BUILD, OLDER, PRESET, Upstream, rootfs_tar

SECOND = """
[presets.pet-two]
upstream = "example"
distribution = "pet"
release = "two"
variant = "cloud"
repository = "pet-cloud"
provisioning = ["exec"]
os-release = { ID = "pet" }
platforms = ["linux/amd64"]
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def honest(upstream: Upstream) -> list[str]:
    """The options that make a command read the test's upstream."""
    return [
        "--catalog",
        str(upstream.catalog_file),
        "--signing-keys",
        str(upstream.keys),
        "--mirror",
        str(upstream.mirror),
    ]


def call(*words: str) -> Done:
    result = CliRunner().invoke(commands, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def test_a_first_word_that_is_no_command_is_built(honest: list[str], tmp_path: Path) -> None:
    done = call(*honest, "--to", f"oci:{tmp_path}/out", PRESET)
    assert done.code == 0
    name, build, reference = done.out.removesuffix("\n").split("\t")
    assert (name, build) == (PRESET, BUILD)
    assert reference.startswith(f"oci:{tmp_path}/out/pet-cloud@sha256:")


@pytest.mark.parametrize("order", ["preset first", "options first", "build named", "build after options"])
def test_options_may_stand_anywhere(honest: list[str], tmp_path: Path, order: str) -> None:
    options = [*honest, "--to", f"oci:{tmp_path}/out"]
    words = {
        "preset first": [PRESET, *options],
        "options first": [*options, PRESET],
        "build named": ["build", PRESET, *options],
        "build after options": [*options, "build", PRESET],
    }[order]
    assert call(*words).out.count("@sha256:") == 1


def test_json_lines_hold_what_a_script_needs(honest: list[str], tmp_path: Path) -> None:
    words = (*honest, "--to", f"oci:{tmp_path}/out", "--json", PRESET)
    first, second = (json.loads(call(*words).out) for _ in range(2))
    assert first == {
        "preset": PRESET,
        "build": BUILD,
        "repository": f"oci:{tmp_path}/out/pet-cloud",
        "digest": second["digest"],
        "tags": ["one-20260829_0524", "one"],
        "published": True,
    }
    assert second == first | {"published": False}


def test_refused_is_1_and_the_last_line_is_the_sentence(upstream: Upstream, honest: list[str], tmp_path: Path) -> None:
    upstream.add("amd64", tar=rootfs_tar("amd64", cloud_init=False))
    done = call(*honest, "--to", f"oci:{tmp_path}/out", PRESET)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith(f"refused: {PRESET}: {upstream.mirror}/images/pet/one/amd64/")
    assert "holds no cloud-init" in done.err.splitlines()[-1]


def test_not_ready_is_3_and_lists_each_platform(upstream: Upstream, honest: list[str], tmp_path: Path) -> None:
    upstream.add("arm64", OLDER)
    done = call(*honest, "--to", f"oci:{tmp_path}/out", PRESET)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(f"not ready: {PRESET} ")
    assert "linux/amd64" in done.err and BUILD in done.err and OLDER in done.err


def test_unavailable_is_4(honest: list[str], tmp_path: Path) -> None:
    done = call(*honest[:4], "--mirror", "http://127.0.0.1:9", "--to", f"oci:{tmp_path}/out", PRESET)
    assert (done.code, done.out) == (4, "")
    assert done.err.splitlines()[-1].startswith("unavailable: ")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["build"],
        ["--platform", "nonsense", PRESET],
        ["--no-such-option", PRESET],
        ["verify"],
        ["--to"],
    ],
    ids=" ".join,
)
def test_usage_is_2(words: list[str]) -> None:
    assert call(*words).code == 2


def test_all_presets_are_tried_and_the_gravest_code_wins(upstream: Upstream, honest: list[str], tmp_path: Path) -> None:
    upstream.write_catalog(extra=SECOND)
    done = call(*honest, "--to", f"oci:{tmp_path}/out", "pet-two", PRESET, "missing")
    assert done.code == 1
    assert done.out.startswith(f"{PRESET}\t")
    assert "not ready: pet-two" in done.err
    assert "missing" in done.err.splitlines()[-1]


def test_an_unknown_preset_lists_the_ones_that_exist(honest: list[str]) -> None:
    done = call(*honest, "pet-onee")
    assert done.code == 1
    assert "pet-onee" in done.err and PRESET in done.err


def test_a_catalog_that_is_malformed_is_refused_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").write_text('compression = "zstd"\nsource = "https://x.example.org"\nsurprise = 1\n')
    done = call("--catalog", str(tmp_path / "catalog.toml"), "anything")
    assert done.code == 1
    assert "surprise" in done.err


def test_resolve_prints_the_build_and_fetches_nothing(upstream: Upstream, honest: list[str]) -> None:
    for architecture in ("amd64", "arm64"):
        for path in upstream.directory(architecture).iterdir():
            path.unlink()
    done = call("resolve", *honest[:2], *honest[4:], PRESET)
    assert (done.code, done.out) == (0, f"{PRESET}\t{BUILD}\tlinux/amd64,linux/arm64\n")


def test_keys_confirms_the_pin(upstream: Upstream, honest: list[str]) -> None:
    done = call("keys", *honest[:4])
    assert done.code == 0
    assert upstream.signer.fingerprint in done.out


def test_keys_refuses_a_key_that_is_not_the_pinned_one(upstream: Upstream, honest: list[str]) -> None:
    text = upstream.catalog_file.read_text().replace(upstream.signer.fingerprint, "A" * 40)
    upstream.catalog_file.write_text(text)
    done = call("keys", *honest[:4])
    assert done.code == 1
    assert "A" * 40 in done.err and upstream.signer.fingerprint in done.err


def test_every_subcommand_is_reserved_in_the_catalog() -> None:
    assert set(commands.commands) <= set(catalog_module.RESERVED)


def test_options_help_says_what_the_exit_codes_mean() -> None:
    done = call("--help")
    assert done.code == 0
    assert "3 upstream not ready" in done.out


def test_what_a_person_typed_is_escaped_before_it_is_shown(honest: list[str]) -> None:
    done = call(*honest, "\x1b[31mx")
    assert done.code == 1
    assert "\x1b" not in done.err


@pytest.mark.parametrize("words", [["--help"], ["resolve"], ["keys"]], ids=" ".join)
def test_a_result_that_cannot_be_written_is_an_error_in_words(honest: list[str], words: list[str]) -> None:
    options = {"--help": [], "resolve": [*honest[:2], *honest[4:], PRESET], "keys": honest[:4]}[words[0]]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "presetbuild", *words, *options],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "refused: cannot write the result: No space left on device\n"


def test_a_full_standard_error_ends_no_build(honest: list[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "presetbuild", *honest, "--to", f"oci:{tmp_path}/out", PRESET],
            stdout=subprocess.PIPE, stderr=full, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.startswith(f"{PRESET}\t{BUILD}\t")


def test_an_interrupted_build_says_so_and_ends_as_interrupted(honest: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = [*honest[:4], "--mirror", f"http://127.0.0.1:{silent.getsockname()[1]}", PRESET]
        with subprocess.Popen(
            [sys.executable, "-m", "presetbuild", *words], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        ) as build:  # fmt: skip
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)
                build.send_signal(signal.SIGINT)
                _, err = build.communicate()
    assert build.returncode == 130
    assert err.splitlines()[-1].startswith("interrupted: ")
