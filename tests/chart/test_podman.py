"""The rendered pod as real containers. A stand-in for the shim's image writes down what each of them can do."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.charts import one, render
from tests.chart.podman import Podman, unavailable

pytestmark = pytest.mark.system

IMAGE = "registry.example.org/shim:stand-in"
# Bits of CapEff, of what the chart adds to a runtime's own set.
SYS_ADMIN, SYS_BOOT = 1 << 21, 1 << 22
SHIM = """#!/bin/sh
report=/mnt/rootfs/$1
env >"$report.env"
cat /proc/self/status >"$report.status"
ls / /provisioning /registry-credentials >"$report.files" 2>/dev/null
touch /written 2>/dev/null && touch "$report.writes"
echo "$1" >>/mnt/rootfs/order
[ "$1" != boot ] || exec sleep 600
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if reason := unavailable():
        pytest.skip(reason)
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed")
    directory = tmp_path_factory.mktemp("podman")
    root = directory / "image"
    for name in ("bin", "mnt/rootfs", "provisioning", "registry-credentials", "proc", "sys", "dev", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    for name in ("sh", "cat", "env", "ls", "touch", "sleep"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "bin/shim").write_text(SHIM)
    (root / "bin/shim").chmod(0o755)
    subprocess.run(["tar", "-C", root, "-cf", directory / "image.tar", "."], check=True)
    machine = Podman(directory)
    machine.run("import", "--change", "ENV PATH=/bin", str(directory / "image.tar"), IMAGE)
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def reports(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root filesystem's claim after a start, with what each container wrote into it."""
    directory = tmp_path_factory.mktemp("volumes")
    directories = {name: directory / name for name in ("rootfs", "data-data", "provisioning", "registry-credentials")}
    for path in directories.values():
        path.mkdir()
    (directories["provisioning"] / "user").write_text("ada")
    (directories["registry-credentials"] / "config.json").write_text("{}")
    objects = render(
        one(
            {
                "source": {"pullSecretName": "keys"},
                "volumes": {"data": {"mountPath": "/srv", "size": "1Gi"}},
                "cloudInit": {"user": {"value": "ada"}},
            }
        )
    )
    podman.play(objects, directories, IMAGE)
    order = directories["rootfs"] / "order"
    for _ in range(300):
        if order.exists() and "boot" in order.read_text():
            return directories["rootfs"]
        time.sleep(0.1)
    raise AssertionError(podman.run("ps", "--all").stdout)


def status(reports: Path, name: str) -> dict[str, str]:
    lines = (reports / f"{name}.status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def environment(reports: Path, name: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (reports / f"{name}.env").read_text().splitlines())


def test_the_steps_run_in_order_and_once_and_then_the_guest(reports: Path) -> None:
    assert (reports / "order").read_text().split() == ["seed", "prepare", "customize", "provision", "boot"]


@pytest.mark.parametrize("step", ["seed", "prepare", "customize", "provision"])
def test_a_step_runs_confined(reports: Path, step: str) -> None:
    of = status(reports, step)
    assert (of["NoNewPrivs"], of["Seccomp"]) == ("1", "2")
    assert not int(of["CapEff"], 16) & (SYS_ADMIN | SYS_BOOT)
    assert not (reports / f"{step}.writes").exists()


def test_the_guest_has_what_it_needs_to_become_a_machine(reports: Path) -> None:
    of = status(reports, "boot")
    assert (of["NoNewPrivs"], of["Seccomp"]) == ("0", "0")
    assert int(of["CapEff"], 16) & (SYS_ADMIN | SYS_BOOT) == SYS_ADMIN | SYS_BOOT


def test_each_container_sees_its_own_secrets_and_no_others(reports: Path) -> None:
    credentials, material = "config.json", "user"
    for name, seen in {"seed": {credentials}, "provision": {material}, "prepare": set(), "boot": set()}.items():
        files = set((reports / f"{name}.files").read_text().split())
        assert files & {credentials, material} == seen


def test_the_source_reaches_the_seeding_step_through_the_config_map(reports: Path) -> None:
    assert environment(reports, "seed")["SHIM_SOURCE_PRESET"] == "debian-trixie"
    for name in ("prepare", "customize", "provision", "boot"):
        assert not [key for key in environment(reports, name) if key.startswith("SHIM_SOURCE")]


def test_the_guest_knows_its_volumes_and_its_time(reports: Path) -> None:
    of = environment(reports, "boot")
    assert (of["SHIM_VOLUMES"], of["SHIM_STOP_SECONDS"], of["SHIM_HOSTNAME"]) == ("/srv", "120", "pets-web-0")
