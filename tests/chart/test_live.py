"""Where there is a cluster, the chart looks at what is there: what never changes, and what is pending."""

from __future__ import annotations

import copy
import json
from typing import Any

import helm_python as helm
import pytest

from tests.chart.charts import (
    CHART,
    NAMESPACE,
    RELEASE,
    SHIM,
    Object,
    Values,
    find,
    load,
    merged,
    one,
    render,
    sentences,
)
from tests.chart.cluster import FakeCluster
from tests.chart.helms import Helm

VOLUMES = {"data": {"mountPath": "/srv", "size": "10Gi"}}
BASE: dict[str, Any] = {"rootfs": {"storageClassName": "fast"}, "volumes": VOLUMES}
AGAIN = (
    "Or let the StatefulSet be made again, while machine and claims stay: `kubectl --namespace zoo delete statefulset "
    "pets-web --cascade=orphan`, then repeat this command"
)
FOR_EVER = "a machine's claim keeps it for ever: for another one, add a machine (or a volume) under another name."


def living(values: Values) -> list[Object]:
    """Return what a cluster holds after `values` were installed and the machine was started."""
    objects = copy.deepcopy(render(values))
    for item in objects:
        item["metadata"]["annotations"] = {
            "meta.helm.sh/release-name": RELEASE,
            "meta.helm.sh/release-namespace": NAMESPACE,
        }
    template = copy.deepcopy(find(objects, "StatefulSet")["spec"]["template"])
    template["metadata"] |= {"name": "pets-web-0", "namespace": NAMESPACE}
    return [*objects, {"apiVersion": "v1", "kind": "Pod", **template}]


def upgrade(before: Values, after: Values, cluster: list[Object] | None = None) -> dict[str, str]:
    """Return what `after` render to where `before` are installed."""
    with (
        FakeCluster("1.36.0", living(before) if cluster is None else cluster) as fake,
        helm.Config(kubeconfig_content=fake.kubeconfig, namespace=NAMESPACE) as config,
    ):
        return config.render(load(), after, name=RELEASE, namespace=NAMESPACE, is_upgrade=True)


def notes_of(before: Values, after: Values, cluster: list[Object] | None = None) -> str:
    return upgrade(before, after, cluster)["stateful-pods/templates/NOTES.txt"]


def grows(path: str, claim: str, now: str, was: str) -> str:
    return (
        f"{path}: {now} was given, and the machine exists with {was}; a StatefulSet never changes it. Put it back to "
        f"{was}, and if the machine needs more room, grow the claim itself, where its class allows that: `kubectl "
        f"--namespace zoo patch pvc {claim} --patch "
        f'\'{{"spec":{{"resources":{{"requests":{{"storage":"{now}"}}}}}}}}\'`. {AGAIN}'
    )


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({"rootfs": {"size": "20Gi"}}, grows("machines.web.rootfs.size", "rootfs-pets-web-0", "20Gi", "8Gi")),
        ({"rootfs": {"size": "4Gi"}}, grows("machines.web.rootfs.size", "rootfs-pets-web-0", "4Gi", "8Gi")),
        (
            {"volumes": {"data": {"size": "11Gi"}}},
            grows("machines.web.volumes.data.size", "data-data-pets-web-0", "11Gi", "10Gi"),
        ),
        (
            {"rootfs": {"storageClassName": "slow"}},
            'machines.web.rootfs.storageClassName: "slow" was given, and the machine exists with "fast"; '
            f'{FOR_EVER} Put it back to "fast"',
        ),
        (
            {"rootfs": {"storageClassName": ...}},
            'machines.web.rootfs.storageClassName: unset was given, and the machine exists with "fast"; '
            f'{FOR_EVER} Put it back to "fast"',
        ),
        (
            {"rootfs": {"accessMode": "ReadWriteOncePod"}},
            "machines.web.rootfs.accessMode: ReadWriteOncePod was given, and the machine exists with ReadWriteOnce; "
            f"{FOR_EVER} Put it back to ReadWriteOnce",
        ),
        (
            {"rootfs": {"dataSource": {"volumeSnapshotName": "yesterday"}}},
            "machines.web.rootfs.dataSource: yesterday was given, and the machine exists with unset; "
            f"{FOR_EVER} Put it back to unset",
        ),
        (
            {"volumes": {"more": {"mountPath": "/more", "size": "1Gi"}}},
            "machines.web.volumes.more: the machine exists without it, and a StatefulSet never gets another claim. "
            f"Make a claim yourself and name it in existingClaim. {AGAIN}",
        ),
        (
            {"volumes": {"data": ...}},
            "machines.web.volumes.data: the machine has a claim for it, which a StatefulSet never gives up or renames. "
            f"Put it back as it was. {AGAIN}; the claim data-data-pets-web-0 stays behind",
        ),
    ],
)
def test_what_a_stateful_set_never_changes_is_refused_with_what_it_needs(over: dict[str, Any], expected: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        upgrade(one(BASE), one(merged(BASE, over)))
    assert list(sentences(str(refused.value))) == [expected]


@pytest.mark.parametrize(
    "over",
    [
        {"rootfs": {"size": "8192Mi"}},
        {"volumes": {"more": {"mountPath": "/more", "existingClaim": "mine"}}},
        {"volumes": {"data": {"mountPath": "/var", "readOnly": True}}},
        {"rootfs": {"identity": "keep"}},
        {"hostname": "db"},
    ],
)
def test_what_can_be_changed_is(over: dict[str, Any]) -> None:
    assert upgrade(one(BASE), one(merged(BASE, over)))


def test_other_faults_come_first_because_what_is_faulty_cannot_be_compared() -> None:
    with pytest.raises(helm.HelmError) as refused:
        upgrade(one(BASE), one(merged(BASE, {"rootfs": {"size": "8 GB"}, "volumes": {"data": ...}})))
    (sentence,) = sentences(str(refused.value))
    assert sentence.startswith("machines.web.rootfs.size:")


def test_real_helm_refuses_it_too(helm_binary: Helm) -> None:
    with FakeCluster("1.36.0", living(one(BASE))) as fake:
        config = helm_binary.home / "kubeconfig"
        config.write_text(fake.kubeconfig)
        values = helm_binary.home / "values.json"
        values.write_text(json.dumps(one(merged(BASE, {"rootfs": {"size": "20Gi"}}))))
        done = helm_binary.run(
            "install", RELEASE, CHART, "--namespace", NAMESPACE, "--values", values, "--dry-run=server",
            KUBECONFIG=str(config),
        )  # fmt: skip
    assert "machines.web.rootfs.size: 20Gi was given, and the machine exists with 8Gi" in done.stderr


# What is pending


def test_nothing_is_pending_when_nothing_changed() -> None:
    text = notes_of(one(BASE), one(BASE))
    assert "PENDING" not in text
    assert "restarts" not in text.partition("Where a machine is")[0]


@pytest.mark.parametrize(
    ("over", "what"),
    [
        ({"hostname": "db"}, "values of its pod"),
        ({"guest": {"provisioningRevision": "2"}}, "values of its pod"),
        ({"cloudInit": {"user": {"value": "bob"}}}, "the first-boot material"),
        ({"cloudInit": {"user": {"value": "bob"}}, "hostname": "db"}, "the first-boot material, values of its pod"),
    ],
)
def test_a_machine_that_only_its_owner_restarts_is_told_what_is_pending(over: dict[str, Any], what: str) -> None:
    base = {"cloudInit": {"user": {"value": "ada"}}}
    text = notes_of(one(base), one(merged(base, over)))
    assert f"PENDING     {what} changed since its pod was made. Nothing restarts it but you:" in text
    assert "kubectl --namespace zoo delete pod pets-web-0" in text


def test_another_shim_is_pending() -> None:
    text = notes_of(one(), one(shim={"image": SHIM.replace("1" * 64, "9" * 64)}))
    assert "PENDING     the shim's image changed since its pod was made." in text


def test_a_machine_that_changes_restart_says_so() -> None:
    text = notes_of(one({"restart": "automatic"}), one({"restart": "automatic", "hostname": "db"}))
    assert "restarts    now, because values of its pod changed (restart: automatic)" in text
    assert "PENDING" not in text


def test_a_change_that_is_taken_back_is_not_pending() -> None:
    """The pod is what counts, not the StatefulSet as it stands between the two upgrades."""
    cluster = living(one({"hostname": "db"}))
    pod = find(living(one()), "Pod")
    cluster = [pod if item["kind"] == "Pod" else item for item in cluster]
    assert "PENDING" not in notes_of(one(), one(), cluster)


def test_a_machine_that_is_switched_off_has_nothing_pending() -> None:
    assert "PENDING" not in notes_of(one(), one({"running": False, "hostname": "db"}))


def test_a_first_installation_finds_nothing() -> None:
    assert "PENDING" not in notes_of(one(), one(), [])


def test_the_chart_reads_the_machines_own_objects_and_nothing_else() -> None:
    with (
        FakeCluster("1.36.0", []) as fake,
        helm.Config(kubeconfig_content=fake.kubeconfig, namespace=NAMESPACE) as config,
    ):
        config.render(load(), one(), name=RELEASE, namespace=NAMESPACE)
    asked = {path for _, path in fake.requests if "/namespaces/" in path}
    assert asked == {
        "/apis/apps/v1/namespaces/zoo/statefulsets/pets-web",
        "/api/v1/namespaces/zoo/pods/pets-web-0",
    }
