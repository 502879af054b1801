"""What the repository itself promises: small text files, signed bytes untouched, no host or path of one machine."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
LARGEST = 100_000  # bytes

# Written so that this file does not match them. Packages are named; where they come from, each machine decides.
REGISTRY_HOSTS = re.compile(
    r"pyp[i][.]|pythonhoste[d]|(de[b]|securit[y])[.]debia[n]|npmj[s][.]|prox[y][.]golan[g]|crate[s][.]i"
)
MACHINE_PATHS = re.compile(r"/wor[k]/(main|steering|shared)|/far[m]/in|/tm[p]/w/")

SIGNED = {
    "tests/data/linuxcontainers/SHA256SUMS": "01e47a8d84ad6213b275a273895113c6f93b0438bbe60e9aa91b265b501775d4",
    "tests/data/linuxcontainers/SHA256SUMS.asc": "3faa098c126be058cebe12b4ce941374bb427f552db9de58775a6f8a2aba755c",
    "signing-keys/linuxcontainers.asc": "6194af6b34e0bf510fc446907618a829c2d497cf458b27ba872d3834e396f74f",
}


def tracked_files() -> Iterator[Path]:
    """Yield the files that are, or with the next commit would be, in the repository."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive, or no git
        ignored = {".git", ".venv", "build", "dist", "preset-images", "__pycache__", ".hypothesis"}
        paths = (path for path in ROOT.rglob("*") if not ignored & set(path.relative_to(ROOT).parts))
        yield from (path for path in paths if path.is_file() and "_cache" not in str(path))
        return
    yield from (path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file())


def test_no_file_is_large() -> None:
    large = {path: path.stat().st_size for path in tracked_files() if path != LOCK and path.stat().st_size > LARGEST}
    assert not large


def test_every_file_is_text_and_names_neither_a_registry_host_nor_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if REGISTRY_HOSTS.search(line) or MACHINE_PATHS.search(line)
    ]
    assert not found


def test_the_lock_pins_every_package_by_version_and_hash_and_names_no_place() -> None:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    for entry in text.splitlines():
        assert re.fullmatch(r"[a-z0-9.-]+==\S+( ; .+?)?( +--hash=sha256:[0-9a-f]{64})+\s*", entry), entry
    assert not [line for line in lines if "/" in line or " @ " in line]


@pytest.mark.parametrize(("name", "digest"), SIGNED.items())
def test_signed_bytes_are_unchanged(name: str, digest: str) -> None:
    assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == digest


def test_the_changelog_begins_with_the_version_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    heading = re.search(r"^## .*$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    assert project["version"] in re.findall(r"\d+\.\d+\.\d+", heading[0])


def test_the_pinned_key_is_the_one_beside_the_real_signed_list() -> None:
    pinned = ROOT / "signing-keys" / "linuxcontainers.asc"
    assert pinned.read_bytes() == (ROOT / "tests/data/linuxcontainers/linuxcontainers.asc").read_bytes()


def test_every_shell_script_of_the_project_is_read_by_sh() -> None:
    scripts = [ROOT / ".ci/run", ROOT / "tests/install-tools", *(ROOT / "shim/guest").glob("*.sh")]
    for script in scripts:
        subprocess.run(["sh", "-n", str(script)], check=True)
    # A quote in a table of words ends the table, and what follows would be run.
    listed = subprocess.run(["sh", str(scripts[1]), "none"], capture_output=True, text=True, check=True)
    assert (listed.stdout, listed.stderr) == ("", "")
