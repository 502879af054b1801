"""What podman is given is what was rendered, but for what podman cannot take."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from tests.chart.charts import container, find, one, render
from tests.chart.kubeplay import as_pod, readiness_command, stop_command
from tests.chart.test_render import EVERYTHING, STEPS

OBJECTS = render(one({**EVERYTHING, "security": {"mode": "privileged"}}))


@pytest.fixture
def directories(tmp_path: Path) -> dict[str, Path]:
    return {
        name: tmp_path / name for name in ("rootfs", "data-data", "data-old", "provisioning", "registry-credentials")
    }


def test_every_volume_is_a_directory(directories: dict[str, Path]) -> None:
    _, pod = yaml.safe_load_all(as_pod(OBJECTS, directories))
    assert {volume["name"]: volume["hostPath"]["path"] for volume in pod["spec"]["volumes"]} == {
        name: str(path) for name, path in directories.items()
    }


def test_a_volume_without_a_directory_is_an_error(directories: dict[str, Path]) -> None:
    del directories["data-data"]
    with pytest.raises(KeyError, match="data-data"):
        as_pod(OBJECTS, directories)


def test_containers_keep_what_the_chart_gave_them(directories: dict[str, Path]) -> None:
    config_map, pod = yaml.safe_load_all(as_pod(OBJECTS, directories))
    template = find(OBJECTS, "StatefulSet")["spec"]["template"]
    assert config_map == find(OBJECTS, "ConfigMap")
    assert pod["metadata"]["name"] == "pets-web-0"
    for name in [*STEPS, "guest"]:
        given, rendered = container(pod, name), copy.deepcopy(container(template, name))
        for profile in ("seccompProfile", "appArmorProfile"):
            rendered["securityContext"].pop(profile, None)
        assert given == rendered


def test_the_guest_alone_is_unconfined_and_the_steps_run_each_time(directories: dict[str, Path]) -> None:
    _, pod = yaml.safe_load_all(as_pod(OBJECTS, directories))
    annotations = pod["metadata"]["annotations"]
    assert [name for name in annotations if name.startswith("container.seccomp")] == [
        "container.seccomp.security.alpha.kubernetes.io/guest"
    ]
    assert annotations["io.podman.annotations.init.container.type"] == "always"


def test_probe_and_hook_are_those_that_were_rendered() -> None:
    assert readiness_command(OBJECTS) == ["/.stateful-pods/bin/ready.sh"]
    assert stop_command(OBJECTS) == ["/.stateful-pods/bin/stop.sh"]
