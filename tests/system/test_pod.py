"""The pod that the chart renders, run as real containers: four steps of the shim's image, then a Debian machine.

The preset that presetbuild publishes lies in a real registry. The registry is in the pod's network, which has nothing
else in it: what a step fetches, it fetches from there.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.charts import CHART, Object, container, environment, example, find, merged, render
from tests.chart.kubeplay import readiness_command, stop_command
from tests.chart.podman import Podman, unavailable
from tests.system import debian, guests
from tests.system import test_build_debian as builds

STEPS = ("seed", "prepare", "customize", "provision")
REGISTRY = "127.0.0.1:5000"  # in a network of its own, where every port is free
PYTHON = "3.13"  # trixie's
BASE, IMAGE = "localhost/base:1", "localhost/shim:1"
RECORD = ".stateful-pods/provisioned"
# Neither a package nor a route is to be had in this network.
OFFLINE = {
    "cloudInit": {"packages": ..., "packageUpgrade": ..., "runcmd": {"value": ["echo ran >>/root/runs"]}},
    "volumes": {"data": {"mountPath": "/srv/data", "size": "1Gi"}},
    "hostname": "rex",
    "terminationGracePeriodSeconds": 60,
}


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Podman with the image of the shim, which buildah built from the Containerfile."""
    if reason := unavailable() or guests.unavailable("buildah", "docker-registry", "mmdebstrap", "busybox"):
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("podman")
    podman = Podman(directory)
    try:
        path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        podman.run("import", "--change", path, str(base(directory)), BASE)
        tried = podman.run("run", "--rm", BASE, "true", check=False)
        if tried.returncode:
            pytest.skip("podman cannot run containers here")
        podman.build(*offline(directory), f"--build-arg=BASE={BASE}", f"--tag={IMAGE}", "--file=shim/Containerfile",
                     str(CHART.parent))  # fmt: skip
        yield podman
    finally:
        podman.close()


def base(directory: Path) -> Path:
    """Return a Debian with what the Containerfile asks of its base, made here unless a cache has it (30 s)."""
    if cache := os.environ.get("STATEFUL_PODS_TEST_CACHE"):
        directory = Path(cache)
    tar = directory / "trixie-python.tar"
    if not tar.exists():
        made = tar.with_suffix(".part")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3-venv,xz-utils", "--format=tar"]
        subprocess.run([*command, "trixie", made], check=True, stdin=subprocess.DEVNULL)
        made.rename(tar)
    return tar


def offline(directory: Path) -> list[str]:
    """Return the options with which pip finds in the build what this machine's pip fetched, by the same hashes."""
    wheels, settings = directory / "wheels", directory / "pip.conf"
    platforms = [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in (28, 17)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:",
         f"--python-version={PYTHON}", *platforms, f"--dest={wheels}", "-r", "requirements.shim.lock"],
        check=True, cwd=CHART.parent,
    )  # fmt: skip
    settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    return [f"--volume={wheels}:/wheels:ro", f"--volume={settings}:/etc/pip.conf:ro"]


@contextmanager
def network_with_registry(directory: Path) -> Iterator[Path]:
    """Give a network namespace that nothing is in but an empty registry, and that ends with it."""
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(directory / "storage")}},
        "http": {"addr": REGISTRY, "secret": "throwaway"},
    }
    (directory / "config.yml").write_text(json.dumps(settings))  # JSON is YAML
    serve = "busybox ip link set lo up && exec docker-registry serve config.yml"
    with (directory / "log").open("w") as log:
        registry = subprocess.Popen(["unshare", "--net", "sh", "-c", serve], cwd=directory, stdout=log, stderr=log)
    try:
        while "listening on" not in (said := (directory / "log").read_text()):
            assert registry.poll() is None, said
            time.sleep(0.02)
        yield Path(f"/proc/{registry.pid}/ns/net")
    finally:
        registry.kill()
        registry.wait()


def publish(site: builds.Site, network: Path) -> str:
    """Let presetbuild publish the preset to the registry in `network`, and return it by digest."""
    command = ["nsenter", f"--net={network}", *site.command(f"{REGISTRY}/"), "--platform=linux/amd64"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=builds.environment())
    return done.stdout.removesuffix("\n").split("\t")[2]


@dataclass
class Pet:
    """The machine of a release, started as often as a test asks for."""

    podman: Podman
    network: Path
    directories: dict[str, Path]
    reference: str
    objects: list[Object]

    def start(self, chart: Path) -> None:
        """Do what a StatefulSet does for a new pod, and wait until the machine is ready."""
        self.podman.run("pod", "rm", "--force", "--all", "--time=1")
        values = merged(example(CHART / "examples/cloud-init-inline.yaml"), {"machines": {"web": OFFLINE}})
        self.objects = render({**values, "presets": {}}, chart=chart)
        provide(self.objects, self.directories["provisioning"])
        self.podman.play(self.objects, self.directories, IMAGE, self.network)
        end = time.monotonic() + guests.PATIENCE
        while self.run(*readiness_command(self.objects)).returncode:
            assert time.monotonic() < end, self.said("guest")
            time.sleep(0.1)

    def stop(self) -> None:
        """Do what the kubelet does before it would send a signal, and wait for the end."""
        self.run(*stop_command(self.objects))
        self.podman.run("wait", "pets-web-0-guest")

    def run(self, *command: str, tty: bool = False) -> subprocess.CompletedProcess[str]:
        return self.podman.execute("pets-web-0-guest", list(command), *["--tty"] * tty)

    def shell(self, command: str) -> str:
        done = self.run("sh", "-c", command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.removesuffix("\n")

    def provisioned(self) -> tuple[str, list[str]]:
        """Wait for cloud-init; return how it ended, and its errors. It warns that this Debian has no ssh-keygen."""
        status = json.loads(self.run("cloud-init", "status", "--wait", "--format=json").stdout)
        return status["status"], status["errors"]

    def said(self, name: str) -> str:
        done = self.podman.run("logs", f"pets-web-0-{name}")
        return done.stdout + done.stderr

    def given(self, name: str) -> Any:
        """What the runtime was told to give a container (OCI runtime specification, config.json)."""
        path = self.podman.run("inspect", "--format={{.OCIConfigPath}}", f"pets-web-0-{name}").stdout.strip()
        return json.loads(Path(path).read_text())

    def identity(self) -> tuple[str, ...]:
        """What makes it this machine, seen from inside and in the record of its volume."""
        files = "/etc/machine-id /run/cloud-init/.instance-id /root/runs /home/ada/notes /srv/data/notes"
        inside = self.shell(f"cat {files}")
        return inside, (self.directories["rootfs"] / RECORD).read_text()


def provide(objects: list[Object], directory: Path) -> None:
    """Project the provisioning material as the kubelet would."""
    (volume,) = find(objects, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    for source in volume["projected"]["sources"]:
        secret = find(objects, "Secret", source["secret"]["name"])
        for item in source["secret"]["items"]:
            (directory / item["path"]).write_bytes(base64.b64decode(secret["data"][item["key"]]))


def released(directory: Path, version: str, reference: str) -> Path:
    """Return the chart as a release would have it, with that preset."""
    chart = directory / version
    shutil.copytree(CHART, chart)
    for name, changes in {
        "Chart.yaml": {"version": version, "appVersion": version},
        "presets.yaml": {"debian-trixie": {"reference": reference, "provisioning": ["cloud-init"]}},
    }.items():
        (chart / name).write_text(yaml.safe_dump(yaml.safe_load((chart / name).read_text()) | changes))
    return chart


@pytest.fixture(scope="module")
def pet(
    podman: Podman,
    debian_filesystems: Mapping[str, debian.RootFilesystem],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pet]:
    """A machine from a published preset that is ready, started for the first time."""
    directory, registry = tmp_path_factory.mktemp("pet"), tmp_path_factory.mktemp("registry")
    site = builds.Site(tmp_path_factory.mktemp("site"), {"amd64": debian_filesystems["amd64"]})
    with guests.own_tmpfs(directory / "volumes") as volumes, network_with_registry(registry) as network:
        directories = {name: volumes / name for name in ("rootfs", "data-data", "provisioning")}
        for path in directories.values():
            path.mkdir()
        pet = Pet(podman, network, directories, publish(site, network), [])
        try:
            pet.start(released(directory, "1.2.3", pet.reference))
            pet.shell("for home in /home/ada /srv/data; do echo mine >$home/notes; done")
            yield pet
        finally:
            podman.run("pod", "rm", "--force", "--all", "--time=1", check=False)


def test_systemd_has_started_and_cloud_init_is_done(pet: Pet) -> None:
    assert pet.shell("systemctl is-system-running || true") in ("running", "degraded")
    assert pet.provisioned() == ("done", [])
    assert pet.shell("cat /root/runs") == "ran"


def test_the_provisioned_user_is_there(pet: Pet) -> None:
    (key,) = pet.directories["provisioning"].joinpath("ssh-authorized-keys").read_text().splitlines()
    assert pet.shell("id --user --name ada") == "ada"
    assert key in pet.shell("cat /home/ada/.ssh/authorized_keys").splitlines()


def test_a_shell_is_one_inside_the_machine_and_has_a_terminal(pet: Pet) -> None:
    command = "tty; hostname; ls -d /opt/shim; . /etc/os-release; echo $ID; cat /proc/1/comm"
    done = pet.run("bash", "-c", command, tty=True)
    terminal, hostname, shim, *rest = done.stdout.splitlines()
    assert terminal.startswith("/dev/pts/")
    assert hostname == "rex"
    assert "No such file" in shim
    assert rest == ["debian", "systemd"]


def test_data_is_on_the_volume(pet: Pet) -> None:
    assert (pet.directories["data-data"] / "notes").read_text() == "mine\n"
    assert not (pet.directories["rootfs"] / "srv/data/notes").exists()


def test_the_machine_comes_from_the_preset_by_digest(pet: Pet) -> None:
    source = json.loads((pet.directories["rootfs"] / RECORD).read_text())["source"]
    assert (source["reference"], source["preset"]) == (pet.reference, "debian-trixie")


@pytest.mark.parametrize("step", STEPS)
def test_a_step_ran_and_had_no_more_than_the_chart_gave_it(pet: Pet, step: str) -> None:
    state = json.loads(pet.podman.run("inspect", "--format={{json .State}}", f"pets-web-0-{step}").stdout)
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)
    given, rendered = pet.given(step), container(find(pet.objects, "StatefulSet")["spec"]["template"], step)
    assert given["process"]["args"] == rendered["command"] == ["shim", step]
    assert given["process"].get("noNewPrivileges") is True
    assert given["root"].get("readonly") is True
    assert given["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    assert bounding(given) <= bounding(pet.given("guest")) - {"CAP_SYS_ADMIN", "CAP_SYS_BOOT"}  # a runtime's own
    assert shim_environment(given) == environment(rendered) | configuration(pet, rendered)
    assert mounted(pet, given) == mounts(rendered)


def test_the_guest_had_no_more_than_the_chart_gave_it(pet: Pet) -> None:
    given, rendered = pet.given("guest"), container(find(pet.objects, "StatefulSet")["spec"]["template"], "guest")
    assert bounding(given) == {f"CAP_{name}" for name in rendered["securityContext"]["capabilities"]["add"]}
    assert not given["linux"].get("seccomp")
    assert shim_environment(given) == environment(rendered)
    assert mounted(pet, given) == mounts(rendered)


def bounding(given: Any) -> set[str]:
    return set(given["process"]["capabilities"]["bounding"])


def shim_environment(given: Any) -> dict[str, str]:
    variables = dict(entry.split("=", 1) for entry in given["process"]["env"])
    return {name: value for name, value in variables.items() if name.startswith("SHIM_")}


def configuration(pet: Pet, rendered: Object) -> dict[str, str]:
    """Return what a container takes from the machine's ConfigMap."""
    data: dict[str, str] = find(pet.objects, "ConfigMap")["data"] if "envFrom" in rendered else {}
    return data


def mounted(pet: Pet, given: Any) -> list[tuple[str, str, bool]]:
    """Return the volume, the place and whether it is read-only for each mount that is not the runtime's own.

    In the order of their names: podman sorts mounts itself.
    """
    names = {str(path): name for name, path in pet.directories.items()}
    return sorted(
        (names[mount["source"]], mount["destination"], "ro" in mount["options"])
        for mount in given["mounts"]
        if mount["source"] in names
    )


def mounts(rendered: Object) -> list[tuple[str, str, bool]]:
    volume_mounts = rendered["volumeMounts"]
    return sorted((mount["name"], mount["mountPath"], mount.get("readOnly", False)) for mount in volume_mounts)


def test_it_stops_cleanly_and_starts_again_as_the_same_machine_even_when_the_chart_was_upgraded(
    pet: Pet, tmp_path: Path
) -> None:
    before = pet.identity()
    elsewhere = f"registry.example.org/debian@sha256:{'f' * 64}"  # which nobody can reach
    for version, reference in (("1.2.3", pet.reference), ("2.0.0", elsewhere)):
        pet.stop()
        assert pet.said("guest").rstrip().endswith("Halting system.")
        pet.start(released(tmp_path, version, reference))
        assert "there is nothing to do" in pet.said("seed")
        assert find(pet.objects, "ConfigMap")["data"]["SHIM_SOURCE_REFERENCE"] == reference
        assert pet.provisioned() == ("done", [])
        assert pet.identity() == before
