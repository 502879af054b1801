"""The variables that the chart sets are those that the shim's command reads."""

from __future__ import annotations

from typing import Any

import pytest

from shim.cli import commands
from tests.chart.charts import container, environment, find, one, render
from tests.chart.test_render import EVERYTHING, STEPS

LXC = {"kind": "lxc", "url": "https://images.example.org/rootfs.tar.xz", "sha256": "a" * 64, "name": ...}
MACHINES: dict[str, dict[str, Any]] = {"preset": EVERYTHING, "lxc": {"source": LXC}}
# What others read: the client of the registry, as every other one does, and stop.sh.
OTHERS = {"seed": {"DOCKER_CONFIG"}, "guest": {"SHIM_STOP_SECONDS"}}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("name", [*STEPS, "guest"])
def test_the_command_has_an_option_for_every_variable(machine: dict[str, Any], name: str) -> None:
    objects = render(one(machine))
    rendered = container(find(objects, "StatefulSet")["spec"]["template"], name)
    program, command = rendered["command"]
    variables = environment(rendered) | (find(objects, "ConfigMap")["data"] if "envFrom" in rendered else {})
    assert program == "shim"
    assert variables.keys() <= {option.envvar for option in commands.commands[command].params} | OTHERS.get(name, set())


def test_volumes_are_split_where_the_chart_joins_them(monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = {name: {"mountPath": path, "size": "1Gi"} for name, path in {"one": "/srv/a b", "two": "/data"}.items()}
    guest = container(find(render(one({"volumes": volumes})), "StatefulSet")["spec"]["template"], "guest")
    for name, value in environment(guest).items():
        monkeypatch.setenv(name, value)
    assert commands.commands["boot"].make_context("boot", []).params["volume"] == ("/data", "/srv/a b")
