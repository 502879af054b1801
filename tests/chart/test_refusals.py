"""Every wrong value ends in the sentence for it, while the chart renders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from tests.chart.charts import MACHINE, RELEASED, Values, load, merged, one, refusal, sentences
from tests.chart.cluster import FakeCluster
from tests.chart.helms import Helm

REFUSALS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "refusals.yaml").read_text())
OF_MACHINES = [row for row in REFUSALS if "machine" in row]


def values_of(row: dict[str, Any]) -> Values:
    if "machine" in row:
        return one(row["machine"])
    over = row["values"]
    return one(**over) if "machines" not in over else {**RELEASED, **over}


@pytest.mark.parametrize("row", REFUSALS, ids=[row["refused"] for row in REFUSALS])
def test_a_wrong_value_ends_in_one_sentence(row: dict[str, Any]) -> None:
    (sentence,) = sentences(refusal(values_of(row), release=row.get("release", "pets")))
    assert sentence.partition("\n")[0] == row["says"]


def all_at_once() -> tuple[Values, set[str]]:
    """Return values with a machine for each refusal, and the sentences that are expected."""
    machines = {f"m{number}": merged(MACHINE, row["machine"]) for number, row in enumerate(OF_MACHINES)}
    expected = {
        row["says"].replace("machines.web", f"machines.m{number}", 1).replace("-web", f"-m{number}")
        for number, row in enumerate(OF_MACHINES)
    }
    return {**RELEASED, "machines": machines}, expected


def test_the_faults_of_all_machines_are_reported_together() -> None:
    values, expected = all_at_once()
    text = refusal(values)
    assert set(sentences(text)) == expected
    assert f"because of these {len(OF_MACHINES)} faults" in text


def test_real_helm_refuses_the_same_in_the_same_words(helm_binary: Helm) -> None:
    values, expected = all_at_once()
    assert set(sentences(helm_binary.refusal(values))) == expected


def test_that_no_machine_is_declared_shows_what_one_looks_like() -> None:
    (sentence,) = sentences(refusal({**RELEASED, "machines": {}}))
    _, _, shown = sentence.partition("\n\n")
    assert yaml.safe_load(shown) == {"machines": {"web": MACHINE}}


def test_defaults_alone_are_refused_for_the_shim_and_for_the_machines() -> None:
    assert [sentence.split(":")[0] for sentence in sentences(refusal({}))] == ["shim.image", "machines"]


def test_a_machine_without_anything_is_told_everything_that_it_needs() -> None:
    assert [sentence.split(":")[0] for sentence in sentences(refusal({**RELEASED, "machines": {"web": None}}))] == [
        "machines.web.security",
        "machines.web.source",
    ]


def test_a_secret_is_never_shown() -> None:
    for name in ("user", "password", "userData", "vendorData"):
        assert "hunter2" not in refusal(one({"cloudInit": {name: "hunter2"}}))
    for name in ("password", "userData", "vendorData"):
        assert "hunter2" not in refusal(one({"cloudInit": {name: {"value": "hunter2"}}}))
    for name in ("sshAuthorizedKeys", "packages"):
        assert "hunter2" not in refusal(one({"cloudInit": {name: {"value": ["- hunter2"]}}}))
    assert "hunter2" not in refusal(one({"source": {"password": "hunter2"}}))


@pytest.mark.parametrize(
    "over",
    [
        {"hostname": "a\n\n* machines.web: fine"},
        {"a\n\n* machines.web": 1},
        {"labels": {"a\n\n* machines.web": "b"}},
        {"volumes": {"a\n\n* machines.web": {"mountPath": "/srv", "size": "1Gi"}}},
        {"cloudInit": {"user": {"a\n\n* machines.web": 1}}},
        {"resources": {"limits": {"a\x1b[2J": "b"}}},
    ],
    ids=lambda over: next(iter(over)).partition("\n")[0],
)
def test_text_of_the_owner_cannot_forge_a_line(over: dict[str, Any]) -> None:
    (sentence,) = sentences(refusal(one(over)))
    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("size", "refused"), [("1Gi", True), ("1073741825", False), ("1500M", False), ("1.5Gi", False)]
)
def test_a_claim_below_what_the_preset_unpacks_to_is_refused(size: str, refused: bool, changed_chart: Any) -> None:
    chart = changed_chart({"presets.yaml": lambda text: text.replace("unpackedSize: null", "unpackedSize: 1073741825")})
    values = one({"rootfs": {"size": size}, "source": {"name": "alpine-3.24"}})
    chart = changed_chart(
        {"presets.yaml": lambda text: text.replace('reference: ""', f"reference: {RELEASED['shim']['image']}")}, chart
    )
    if refused:
        (sentence,) = sentences(refusal(values, chart=chart))
        assert sentence == (
            "machines.web.rootfs.size: 1Gi was given, and the preset alpine-3.24 takes 1073741825 bytes when it is "
            "unpacked; accepted is more than that. Leave room for what the machine will hold: a claim does not shrink, "
            "and not every one grows"
        )
    else:
        with pytest.raises(AssertionError, match="it renders"):
            refusal(values, chart=chart)


def userns_refusal(version: str) -> str:
    return (
        f"machines.web.security.mode: userns was given, and this cluster runs Kubernetes v{version}; accepted is "
        "userns from 1.33 on, where user namespaces are enabled by default. Set it to privileged, or upgrade "
        "the cluster"
    )


def test_a_user_namespace_is_refused_by_an_old_cluster() -> None:
    with (
        FakeCluster("1.32.9") as cluster,
        helm.Config(kubeconfig_content=cluster.kubeconfig) as config,
        pytest.raises(helm.HelmError) as refused,
    ):
        config.install(load(), "pets", one({"security": {"mode": "userns"}}), dry_run="server")
    assert list(sentences(str(refused.value))) == [userns_refusal("1.32.9")]


def test_an_old_cluster_is_refused_by_the_chart() -> None:
    with (
        FakeCluster("1.29.9") as cluster,
        helm.Config(kubeconfig_content=cluster.kubeconfig) as config,
        pytest.raises(helm.HelmError, match=r"requires kubeVersion: >=1.30.0-0"),
    ):
        config.install(load(), "pets", one(), dry_run="server")


def test_real_helm_refuses_a_user_namespace_below_1_33(helm_binary: Helm) -> None:
    text = helm_binary.refusal(one({"security": {"mode": "userns"}}), "--kube-version", "1.32.0")
    assert list(sentences(text)) == [userns_refusal("1.32.0")]


def test_a_user_namespace_renders_from_1_33_on_also_in_a_preview(helm_binary: Helm) -> None:
    assert helm_binary.render(one({"security": {"mode": "userns"}}), "--kube-version", "1.33.0-alpha.1")
