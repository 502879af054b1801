"""Each example renders, lints, and is valid, strictly, for every Kubernetes: by the SDK and by real helm 3 and 4."""

from __future__ import annotations

import json
from pathlib import Path

import helm_python as helm
import pytest

from tests.chart.charts import CHART, EXAMPLES, KUBERNETES, KUBERNETES_USERNS, Values, example, one, render, validate
from tests.chart.helms import Helm, as_yaml
from tests.chart.test_render import EVERYTHING

NAMES = {
    "cloud-init-by-reference", "cloud-init-inline", "confined", "lxc", "oci", "placement", "ports", "preset",
    "two-machines", "volumes",
}  # fmt: skip
each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def test_there_is_an_example_of_each_kind() -> None:
    assert {path.stem for path in EXAMPLES} == NAMES


@each_example
def test_an_example_renders_and_is_valid(path: Path) -> None:
    assert {"ConfigMap", "Service", "StatefulSet"} <= {item["kind"] for item in render(example(path))}


@each_example
def test_an_example_lints(path: Path) -> None:
    report = helm.lint(CHART, example(path), strict=True)
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize(
    "values",
    [*map(example, EXAMPLES), one(EVERYTHING)],
    ids=[*(path.stem for path in EXAMPLES), "everything"],
)
def test_real_helm_renders_the_same_for_every_kubernetes(values: Values, helm_binary: Helm) -> None:
    expected = as_yaml(render(values))
    modes = {machine["security"]["mode"] for machine in values["machines"].values()}
    for version in KUBERNETES_USERNS if "userns" in modes else KUBERNETES:
        objects = helm_binary.render(values, "--kube-version", f"{version}.0")
        validate(objects, version)
        assert as_yaml(objects) == expected


@each_example
def test_real_helm_lints_it(path: Path, helm_binary: Helm) -> None:
    values = helm_binary.home / "values.json"
    values.write_text(json.dumps(example(path)))
    done = helm_binary.run("lint", CHART, "--strict", "--kube-version", "1.33.0", "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


def test_real_helm_takes_values_from_the_command_line(helm_binary: Helm) -> None:
    """There numbers are integers, and not floats as in files."""
    values = example(CHART / "examples/preset.yaml")
    port = (
        "--set",
        "machines.web.network.ports.http.port=80",
        "--set",
        "machines.web.terminationGracePeriodSeconds=60",
    )
    file = {**values, "machines": {"web": {**values["machines"]["web"], "terminationGracePeriodSeconds": 60}}}
    file["machines"]["web"]["network"] = {"ports": {"http": {"port": 80}}}
    assert as_yaml(helm_binary.render(values, *port)) == as_yaml(render(file))
