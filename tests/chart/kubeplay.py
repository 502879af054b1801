"""Wraps the pod template of a rendered StatefulSet as a Pod that `podman kube play` runs: a cluster of one node.

Podman 4.3 runs no init container in order unless it is told to, knows neither seccomp fields nor probes nor hooks, and
stops at volumes of Secrets and projections. So the first two are said in annotations, volumes become directories, and
the caller runs the commands of probe and hook itself, through `podman exec`. It plays the privileged mode alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.chart.charts import Object, container, find


def as_pod(objects: list[Object], directories: Mapping[str, Path]) -> str:
    """Return what `podman kube play -` reads for the only machine of `objects`, its ConfigMap included.

    `directories` are what the volumes of the pod hold, by volume name, claims too: ``rootfs``, ``data-NAME``,
    ``provisioning``, ``registry-credentials``. Raises `KeyError` for one that is missing.
    """
    stateful_set = find(objects, "StatefulSet")
    template = copy.deepcopy(stateful_set["spec"]["template"])
    spec, annotations = template["spec"], template["metadata"]["annotations"]
    for each in (*spec["initContainers"], *spec["containers"]):
        each["securityContext"].pop("appArmorProfile", None)
        if each["securityContext"].pop("seccompProfile")["type"] == "Unconfined":
            annotations[f"container.seccomp.security.alpha.kubernetes.io/{each['name']}"] = "unconfined"
    annotations["io.podman.annotations.init.container.type"] = "always"
    spec["restartPolicy"] = "Never"  # or podman starts a step that has ended again, for ever
    claims = [claim["metadata"]["name"] for claim in stateful_set["spec"]["volumeClaimTemplates"]]
    names = [*claims, *(volume["name"] for volume in spec.get("volumes", []))]
    spec["volumes"] = [
        {"name": name, "hostPath": {"path": str(directories[name]), "type": "Directory"}} for name in names
    ]
    name = f"{stateful_set['metadata']['name']}-0"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]}, "spec": spec}
    return yaml.safe_dump_all([find(objects, "ConfigMap"), pod], sort_keys=False)


def readiness_command(objects: list[Object]) -> list[str]:
    """Return what the kubelet would run in the guest to learn whether the machine is ready."""
    guest = container(find(objects, "StatefulSet")["spec"]["template"], "guest")
    return list(guest["readinessProbe"]["exec"]["command"])


def stop_command(objects: list[Object]) -> list[str]:
    """Return what the kubelet would run in the guest before it stops it."""
    guest = container(find(objects, "StatefulSet")["spec"]["template"], "guest")
    return list(guest["lifecycle"]["preStop"]["exec"]["command"])
