"""What provisioning writes is what the real cloud-init takes, without an error, a warning or a deprecation."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shim import volume
from shim.errors import Refused
from shim.provision import provision
from shim.spec import Machine, Source
from shim.volume import Record
from tests.system import debian

MACHINE = Machine("pets", "zoo", "rex")
SHA512 = "$6$" + "s" * 16 + "$" + "a" * 86
YESCRYPT = "$y$j9T$" + "s" * 22 + "$" + "a" * 43
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA ada@home"
SEED = "var/lib/cloud/seed/nocloud"

MATERIAL = {
    "nothing": {},
    "a named user": {"user": "ada", "password": YESCRYPT, "ssh-authorized-keys": KEY},
    "a named user without a password": {"user": "ada", "ssh-authorized-keys": KEY},
    "the default user": {"password": SHA512, "ssh-authorized-keys": KEY},
    "everything": {
        "user": "ada",
        "password": SHA512,
        "packages": "vim\nnginx=1.26.*\n",
        "runcmd": "echo 'a: b' \U0001f600 \x85 > /x\n",
        "package-upgrade": "true",
    },
}


@pytest.fixture(scope="module")
def rootfs(debian_filesystems: Mapping[str, debian.RootFilesystem], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cloud-init")
    with tarfile.open(debian_filesystems["amd64"].tar) as tar:
        tar.extractall(root, filter="fully_trusted")  # noqa: S202 - made by mmdebstrap, just now
    (root / ".stateful-pods").mkdir()
    (root / ".stateful-pods/seeding").touch()
    source = Source.oci("registry.example.org/debian-cloud:trixie")
    volume.write_record(root, Record(source, datetime(2026, 11, 30, tzinfo=UTC), MACHINE))
    return root


def _in_guest(rootfs: Path, *command: str) -> str:
    done = subprocess.run(
        ["chroot", str(rootfs), *command], capture_output=True, text=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("files", MATERIAL.values(), ids=MATERIAL)
def test_cloud_init_finds_nothing_wrong_with_what_is_rendered(
    rootfs: Path, tmp_path: Path, files: Mapping[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    provision(rootfs, "cloud-init", tmp_path, "1", MACHINE)
    assert not (rootfs / "etc/cloud/cloud-init.disabled").exists()
    output = _in_guest(rootfs, "cloud-init", "schema", "--annotate", "--config-file", f"/{SEED}/user-data")
    assert "Valid schema" in output
    assert "deprecat" not in output.lower()
    assert "warning" not in output.lower()


READ_SEED = """
import json
from cloudinit import sources, stages
init = stages.Init([sources.DEP_FILESYSTEM])
init.read_cfg()
source = init.fetch(existing="check")
init.instancify()
network, by = init._find_networking_config()
print(json.dumps({
    "source": type(source).__name__, "id": source.get_instance_id(), "seed": source.seed,
    "keep hosts": init.cfg["manage_etc_hosts"], "network": network, "by": str(by),
}))
"""


def test_cloud_init_takes_our_seed_for_its_datasource(rootfs: Path, tmp_path: Path) -> None:
    done = provision(rootfs, "cloud-init", tmp_path, "1", MACHINE)
    found = json.loads(_in_guest(rootfs, "python3", "-c", READ_SEED).splitlines()[-1])
    assert found == {
        "source": "DataSourceNoCloud",
        "id": done.instance_id,
        "seed": f"/{SEED}",
        "keep hosts": False,
        "network": None,
        "by": "system_cfg",
    }


def test_a_debian_without_cloud_init_is_refused_before_anything_is_written(rootfs: Path, tmp_path: Path) -> None:
    program = rootfs / "usr/bin/cloud-init"
    away = program.rename(program.with_name("away"))
    try:
        with pytest.raises(Refused, match="has no cloud-init"):
            provision(rootfs, "cloud-init", tmp_path, "2", MACHINE)
    finally:
        away.rename(program)
