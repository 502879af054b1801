"""An upgrade of the chart by itself restarts nothing, and the API server never refuses it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.charts import EXAMPLES, Values, find, one, pod_of, render
from tests.chart.conftest import ChangedChart

OLD_SHIM, NEW_SHIM = (f"registry.example.org/shim@sha256:{digit * 64}" for digit in "12")
MATERIAL, VALUES = "stateful-pods.io/material", "stateful-pods.io/values"


def released(changed_chart: ChangedChart, version: str, shim: str, digit: str) -> Path:
    """Return the chart as a release would have it: its own version, shim and presets."""

    def presets(text: str) -> str:
        table = yaml.safe_load(text)
        for name, preset in table.items():
            preset["reference"] = f"registry.example.org/{name}@sha256:{digit * 64}"
        return yaml.safe_dump(table)

    return changed_chart(
        {
            "Chart.yaml": lambda text: text.replace("ersion: 0.1.0", f"ersion: {version}"),
            "presets.yaml": presets,
            "values.yaml": lambda text: text.replace('image: ""', f"image: {shim}"),
        }
    )


@pytest.fixture
def old(changed_chart: ChangedChart) -> Path:
    return released(changed_chart, "1.2.3", OLD_SHIM, "a")


@pytest.fixture
def new(changed_chart: ChangedChart) -> Path:
    return released(changed_chart, "4.5.6+build.7", NEW_SHIM, "b")


def documents(path: Path) -> Values:
    values = yaml.safe_load(path.read_text())
    assert isinstance(values, dict)
    return values


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_two_versions_of_the_chart_render_the_same_pods_and_claims_but_for_the_shims_image(
    path: Path, old: Path, new: Path
) -> None:
    before, after = (render(documents(path), chart=chart) for chart in (old, new))
    assert before != after  # they are two versions
    assert [(item["kind"], item["metadata"]["name"]) for item in before] == [
        (item["kind"], item["metadata"]["name"]) for item in after
    ]
    for one_before, one_after in zip(before, after, strict=True):
        if one_before["kind"] == "ConfigMap":
            continue
        assert canonical(one_before["spec"] if "spec" in one_before else one_before["data"]) == canonical(
            one_after["spec"] if "spec" in one_after else one_after["data"]
        ).replace(NEW_SHIM, OLD_SHIM)


def canonical(document: Any) -> str:
    return json.dumps(document)


def test_the_source_and_the_charts_version_do_change(old: Path, new: Path) -> None:
    values = {"machines": one()["machines"]}
    before, after = (find(render(values, chart=chart), "ConfigMap") for chart in (old, new))
    assert before["metadata"]["name"] == after["metadata"]["name"]
    assert {key for key in before["data"] if before["data"][key] != after["data"][key]} == {
        "SHIM_CHART_VERSION",
        "SHIM_SOURCE_REFERENCE",
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_version_stands_in_a_pod_a_claim_or_a_selector(path: Path, new: Path) -> None:
    for item in render(documents(path), chart=new):
        if item["kind"] == "StatefulSet":
            text = canonical(item["spec"])
            assert "4.5.6" not in text
            assert "helm.sh/chart" not in text
            assert "app.kubernetes.io/version" not in text
            assert "b" * 64 not in text.replace(NEW_SHIM, "")


def test_another_spelling_of_the_templates_restarts_nothing(changed_chart: ChangedChart) -> None:
    other = changed_chart(
        {"templates/_guest.tpl": lambda text: text.replace("  tty: true #", "  # a comment\n  tty:  true #")}
    )
    assert canonical(pod_of(one())) == canonical(pod_of(one(), chart=other))


# What a change of the owner's values does to the pod


def changed(over: dict[str, Any], base: dict[str, Any] | None = None) -> set[str]:
    """Return which parts of the pod template `over` changes: annotations by name, and ``spec``."""
    before, after = pod_of(one(base or {})), pod_of(one({**copy.deepcopy(base or {}), **over}))
    parts = {"spec"} if before["spec"] != after["spec"] else set()
    old, new = (template["metadata"]["annotations"] for template in (before, after))
    return parts | {name for name in old | new if old.get(name) != new.get(name)}


@pytest.mark.parametrize(
    "over",
    [
        {"restart": "automatic"},
        {"running": False},
        {"disruptionBudget": True},
        {"network": {"ingress": "declared"}},
        {"source": {"kind": "oci", "name": ..., "reference": "registry.example.org/a:b"}},
        {"rootfs": {"size": "9Gi"}},
    ],
    ids=lambda over: next(iter(over)),
)
def test_what_the_pod_does_not_depend_on_leaves_it_alone(over: dict[str, Any]) -> None:
    assert changed(over) == set()


@pytest.mark.parametrize(
    "over",
    [
        {"hostname": "db"},
        {"guest": {"provisioningRevision": "2"}},
        {"placement": {"node": "node-3"}},
        {"network": {"ports": {"http": {"port": 80}}}},
        {"terminationGracePeriodSeconds": 300},
        {"security": {"mode": "userns"}},
    ],
    ids=lambda over: next(iter(over)),
)
def test_a_value_that_changes_the_pod_is_a_pending_change(over: dict[str, Any]) -> None:
    assert changed(over) == {"spec", VALUES}


@pytest.mark.parametrize("restart", ["manual", "automatic"])
def test_other_inline_material_is_a_pending_change_of_its_own(restart: str) -> None:
    base = {"restart": restart, "cloudInit": {"user": {"value": "ada"}}}
    assert changed({"cloudInit": {"user": {"value": "bob"}}}, base) == {MATERIAL}


def test_the_digest_of_the_material_is_too_short_to_be_an_oracle() -> None:
    annotations = pod_of(one({"cloudInit": {"user": {"value": "ada"}}}))["metadata"]["annotations"]
    assert len(annotations[MATERIAL]) == 8


def test_labels_and_annotations_of_the_owner_count_as_values() -> None:
    assert changed({"labels": {"example.org/team": "a"}}) == {VALUES}
    assert VALUES in changed({"annotations": {"example.org/owner": "ada"}})


def test_defaults_that_are_written_out_change_nothing() -> None:
    over = {"rootfs": {"size": "8Gi", "storageClassName": None}, "guest": {"provisioning": "cloud-init"}, "volumes": {}}
    assert changed(over) == set()
