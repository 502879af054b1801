"""Podman with storage and settings of its own: nothing of this machine's configuration, nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chart.charts import Object
from tests.chart.kubeplay import as_pod

# The runtime takes what this machine allows: podman asks for more open files than a container's root may have.
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "none"
"""


def unavailable() -> str | None:
    """Return why podman cannot run containers here, or None."""
    if os.geteuid() != 0:
        return "podman runs the pod as root, and these tests do not run as root"
    missing = [program for program in ("podman", "runc", "catatonit") if shutil.which(program) is None]
    return f"{' and '.join(missing)} are not installed" if missing else None


class Podman:
    """Containers, images and pods below `directory`. `close` ends every one of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "containers.conf").write_text(_CONFIGURATION)
        self._driver = "overlay"
        if self.run("info", check=False).returncode:
            self._driver = "vfs"  # several times slower, and on every file system

    def run(self, *arguments: str, input: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run it; raise `AssertionError` with what it said if it fails and `check` is set."""
        return self._run(["podman"], arguments, input=input, check=check)

    def build(self, *arguments: str) -> None:
        """Let buildah build an image, which is then here; raise `AssertionError` with what it said if it fails."""
        self._run(["buildah"], ("bud", "--isolation=chroot", *arguments))

    def _run(
        self, program: list[str], arguments: Sequence[str], *, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        root = self.directory / self._driver
        storage = [f"--storage-driver={self._driver}", f"--root={root}/root", f"--runroot={root}/run"]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "CONTAINERS_CONF": str(self.directory / "containers.conf"),
        }
        done = subprocess.run(
            [*program, *storage, *arguments], input=input, capture_output=True, text=True, timeout=300, env=environment
        )
        assert not check or done.returncode == 0, f"{program[-1]} {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done

    def play(
        self, objects: list[Object], directories: dict[str, Path], image: str, network: Path | None = None
    ) -> None:
        """Run the only machine of `objects` with `image`, which is here, as the shim's.

        `network` is the namespace that the pod is in; None is one of its own, without a connection.
        """
        text = as_pod(objects, directories)
        (shim,) = {each["image"] for each in _containers(objects)}
        # Podman knows no pod in a given namespace, only in its own.
        program = ["nsenter", f"--net={network}", "podman"] if network else ["podman"]
        play = ("kube", "play", f"--network={'host' if network else 'none'}", "-")
        self._run(program, play, input=text.replace(shim, image))

    def execute(self, container: str, command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
        """Run `command` in a running container, as the kubelet runs probes and hooks; it may fail."""
        return self.run("exec", *options, container, *command, check=False)

    def close(self) -> None:
        """End and remove every pod."""
        self.run("pod", "rm", "--force", "--all", "--time=1", check=False)
        self.run("rmi", "--all", "--force", check=False)


def _containers(objects: list[Object]) -> list[dict[str, Any]]:
    (spec,) = (item["spec"]["template"]["spec"] for item in objects if item["kind"] == "StatefulSet")
    return [*spec["initContainers"], *spec["containers"]]
