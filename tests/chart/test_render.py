"""What values become: the objects of a machine, and what each container of its pod is given."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from tests.chart.charts import (
    DEBIAN,
    NAMESPACE,
    SHIM,
    container,
    environment,
    find,
    notes,
    one,
    pod_of,
    render,
)

STEPS = ["seed", "prepare", "customize", "provision"]
MACHINE_ENVIRONMENT = {"SHIM_MACHINE": "web", "SHIM_RELEASE": "pets", "SHIM_NAMESPACE": NAMESPACE}
SELECTOR = {
    "app.kubernetes.io/name": "stateful-pods",
    "app.kubernetes.io/instance": "pets",
    "stateful-pods.io/machine": "web",
}
PRIVILEGED = [
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT",
]  # fmt: skip
#: Every input that a machine from a preset has.
EVERYTHING: dict[str, Any] = {
    "source": {"pullSecretName": "keys"},
    "security": {"seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/mine.json"}},
    "rootfs": {
        "size": "20Gi",
        "storageClassName": "fast",
        "accessMode": "ReadWriteOncePod",
        "dataSource": {"volumeSnapshotName": "yesterday"},
        "identity": "keep",
    },
    "volumes": {
        "data": {"mountPath": "/srv", "size": "1Gi", "storageClassName": "", "dataSource": {"volumeSnapshotName": "a"}},
        "old": {"mountPath": "/srv/old", "existingClaim": "old", "readOnly": True},
    },
    "hostname": "db",
    "guest": {"provisioning": "cloud-init", "provisioningRevision": 2},
    "cloudInit": {
        "userData": {"valueFrom": {"secretKeyRef": {"name": "house", "key": "user-data"}}},
        "vendorData": {"valueFrom": {"configMapKeyRef": {"name": "house", "key": "vendor-data"}}},
        "user": {"value": "ada"},
        "password": {"value": f"$6$abc${'a' * 86}"},
        "sshAuthorizedKeys": {"value": ["ssh-ed25519 AAAA ada"]},
        "packages": {"value": ["nginx"]},
        "runcmd": {"value": ["reboot"]},
        "packageUpgrade": {"value": True},
    },
    "network": {"ports": {"http": {"port": 80, "protocol": "TCP"}}, "ingress": "declared"},
    "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 2, "memory": "4Gi"}},
    "placement": {
        "node": "node-3",
        "nodeSelector": {"example.org/disk": "ssd"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "tolerations": [
            {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 60}
        ],
        "priorityClassName": "pets",
        "runtimeClassName": "kata",
    },
    "dns": {
        "policy": "None",
        "config": {
            "nameservers": ["192.0.2.53", "2001:db8::53"],
            "searches": ["example.org"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        },
    },
    "running": True,
    "disruptionBudget": True,
    "imagePullSecrets": [{"name": "keys"}],
    "labels": {"example.org/team": "a"},
    "annotations": {"example.org/owner": "ada"},
    "restart": "automatic",
    "terminationGracePeriodSeconds": 300,
}


# The objects


def test_the_least_machine_is_a_stateful_set_a_service_and_a_config_map() -> None:
    assert sorted((item["kind"], item["metadata"]["name"]) for item in render(one())) == [
        ("ConfigMap", "pets-web"),
        ("Service", "pets-web"),
        ("StatefulSet", "pets-web"),
    ]


def test_every_object_is_in_the_namespace_and_carries_the_selector() -> None:
    objects = render(one(EVERYTHING))
    assert {item["kind"] for item in objects} == {
        "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service", "StatefulSet",
    }  # fmt: skip
    for item in objects:
        assert item["metadata"]["namespace"] == NAMESPACE
        assert SELECTOR.items() <= item["metadata"]["labels"].items()


def test_the_selector_is_these_three_labels_and_nothing_else() -> None:
    objects = render(one({**EVERYTHING, "labels": {"example.org/team": "a"}}))
    assert find(objects, "StatefulSet")["spec"]["selector"] == {"matchLabels": SELECTOR}
    assert find(objects, "Service")["spec"]["selector"] == SELECTOR
    assert find(objects, "NetworkPolicy")["spec"]["podSelector"] == {"matchLabels": SELECTOR}
    assert find(objects, "PodDisruptionBudget")["spec"] == {"maxUnavailable": 0, "selector": {"matchLabels": SELECTOR}}


def test_the_stateful_set_keeps_claims_and_restarts_nothing() -> None:
    spec = find(render(one()), "StatefulSet")["spec"]
    assert spec["replicas"] == 1
    assert spec["serviceName"] == "pets-web"
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert spec["updateStrategy"] == {"type": "OnDelete"}


def test_automatic_restart_is_a_rolling_update() -> None:
    spec = find(render(one({"restart": "automatic"})), "StatefulSet")["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}


def test_the_off_switch_takes_the_pod_and_nothing_else() -> None:
    on, off = render(one(EVERYTHING)), render(one({**EVERYTHING, "running": False}))
    assert find(off, "StatefulSet")["spec"].pop("replicas") == 0
    assert find(on, "StatefulSet")["spec"].pop("replicas") == 1
    assert on == off


def test_the_service_is_headless_and_answers_for_a_machine_that_boots() -> None:
    spec = find(render(one()), "Service")["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert "ports" not in spec


def test_ports_are_on_the_service_and_the_guest() -> None:
    objects = render(one({"network": {"ports": {"http": {"port": 80}, "dns": {"port": 53, "protocol": "UDP"}}}}))
    assert find(objects, "Service")["spec"]["ports"] == [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "http", "port": 80, "protocol": "TCP"},
    ]
    guest = container(find(objects, "StatefulSet")["spec"]["template"], "guest")
    assert guest["ports"] == [
        {"name": "dns", "containerPort": 53, "protocol": "UDP"},
        {"name": "http", "containerPort": 80, "protocol": "TCP"},
    ]


def test_declared_ingress_lets_in_the_ports_alone_and_says_nothing_of_egress() -> None:
    ports = {"http": {"port": 80}, "dns": {"port": 53, "protocol": "UDP"}}
    policy = find(render(one({"network": {"ingress": "declared", "ports": ports}})), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 80, "protocol": "TCP"}]}]


def test_declared_ingress_without_ports_lets_in_nothing() -> None:
    policy = find(render(one({"network": {"ingress": "declared"}})), "NetworkPolicy")["spec"]
    assert policy["ingress"] == []
    assert policy["policyTypes"] == ["Ingress"]


# Sources


def source_of(over: dict[str, Any]) -> dict[str, str]:
    data = find(render(one(over)), "ConfigMap")["data"]
    assert isinstance(data, dict)
    return data


def test_a_preset_is_resolved_to_its_image_while_rendering() -> None:
    assert source_of({}) == {
        "SHIM_CHART_VERSION": "0.1.0",
        "SHIM_SOURCE_KIND": "oci",
        "SHIM_SOURCE_PRESET": "debian-trixie",
        "SHIM_SOURCE_REFERENCE": DEBIAN,
    }


def test_an_image_may_go_by_tag() -> None:
    reference = "registry.example.org:5000/os/alma:9"
    source = source_of({"source": {"kind": "oci", "name": ..., "reference": reference}})
    assert source["SHIM_SOURCE_REFERENCE"] == reference
    assert "SHIM_SOURCE_PRESET" not in source


def test_an_archive_goes_by_address_and_checksum() -> None:
    url, sha256 = "https://images.example.org/a/rootfs.tar.xz?x=$(y)", "0" * 63 + "A"
    source = source_of({"source": {"kind": "lxc", "name": ..., "url": url, "sha256": sha256}})
    assert source == {
        "SHIM_CHART_VERSION": "0.1.0",
        "SHIM_SOURCE_KIND": "lxc",
        "SHIM_SOURCE_URL": url,
        "SHIM_SOURCE_SHA256": sha256,
    }


def test_ones_own_preset_lies_over_the_charts_table() -> None:
    mine = f"registry.example.org/mine@sha256:{'4' * 64}"
    values = one(presets={"debian-trixie": {"reference": mine, "provisioning": ["cloud-init"]}})
    assert find(render(values), "ConfigMap")["data"]["SHIM_SOURCE_REFERENCE"] == mine


# The pod


def test_the_steps_come_in_order_and_then_the_guest() -> None:
    spec = pod_of(one())["spec"]
    assert [step["name"] for step in spec["initContainers"]] == STEPS
    assert [step["command"] for step in spec["initContainers"]] == [["shim", step] for step in STEPS]
    assert [guest["command"] for guest in spec["containers"]] == [["shim", "boot"]]
    assert {each["image"] for each in (*spec["initContainers"], *spec["containers"])} == {SHIM}


def test_each_container_gets_the_environment_that_it_needs() -> None:
    pod = pod_of(one({"hostname": "db", "rootfs": {"identity": "keep"}, "guest": {"provisioningRevision": "2"}}))
    assert {name: environment(container(pod, name)) for name in [*STEPS, "guest"]} == {
        "seed": MACHINE_ENVIRONMENT,
        "prepare": {**MACHINE_ENVIRONMENT, "SHIM_IDENTITY": "keep"},
        "customize": {"SHIM_HOSTNAME": "db"},
        "provision": {
            **MACHINE_ENVIRONMENT, "SHIM_PROVISIONING": "cloud-init", "SHIM_PROVISIONING_REVISION": "2",
        },
        "guest": {"SHIM_HOSTNAME": "db", "SHIM_STOP_SECONDS": "120"},
    }  # fmt: skip


def test_source_and_chart_version_reach_the_seeding_step_alone() -> None:
    pod = pod_of(one())
    assert container(pod, "seed")["envFrom"] == [{"configMapRef": {"name": "pets-web"}}]
    for name in [*STEPS[1:], "guest"]:
        assert "envFrom" not in container(pod, name)


def test_without_a_host_name_the_machine_has_its_pods() -> None:
    pod = pod_of(one())
    for name in ("customize", "guest"):
        assert environment(container(pod, name))["SHIM_HOSTNAME"] == "pets-web-0"


@pytest.mark.parametrize(("given", "shown"), [(7, "7"), (20261130, "20261130"), ("1e3", "1e3"), ("", "")])
def test_a_revision_stays_what_was_written(given: object, shown: str) -> None:
    pod = pod_of(one({"guest": {"provisioningRevision": given}}))
    assert environment(container(pod, "provision"))["SHIM_PROVISIONING_REVISION"] == shown


@pytest.mark.parametrize("text", ["$(SHIM_MACHINE)", "$$(SHIM_MACHINE)", "$", '"; reboot', "a\nb: c", "{{ .Values }}"])
def test_kubernetes_expands_nothing_in_what_the_owner_wrote(text: str) -> None:
    pod = pod_of(one({"guest": {"provisioningRevision": text}}))
    given = environment(container(pod, "provision"))["SHIM_PROVISIONING_REVISION"]
    assert "$" not in given.replace("$$", "")
    assert given.replace("$$", "$") == text


def test_credentials_are_mounted_into_the_seeding_step_alone_and_a_start_does_not_wait_for_them() -> None:
    pod = pod_of(one({"source": {"pullSecretName": "keys"}}))
    (volume,) = (volume for volume in pod["spec"]["volumes"] if "secret" in volume)
    assert volume["secret"] == {
        "secretName": "keys",
        "optional": True,
        "defaultMode": 0o400,
        "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
    }
    seed = container(pod, "seed")
    (mount,) = (mount for mount in seed["volumeMounts"] if mount["name"] == volume["name"])
    assert mount == {"name": volume["name"], "mountPath": environment(seed)["DOCKER_CONFIG"], "readOnly": True}
    assert users(pod, volume["name"]) == ["seed"]


def users(pod: dict[str, Any], volume: str) -> list[str]:
    spec = pod["spec"]
    containers = (*spec["initContainers"], *spec["containers"])
    return [each["name"] for each in containers if volume in [mount["name"] for mount in each["volumeMounts"]]]


def test_no_container_gets_a_service_account_token_or_the_addresses_of_services() -> None:
    spec = pod_of(one())["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("mode", ["privileged", "userns"])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_can_do_little(step: str, mode: str) -> None:
    pod = pod_of(one({"security": {"mode": mode}}))
    assert container(pod, step)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_privileged_mode_adds_these_capabilities_and_is_not_privileged() -> None:
    pod = pod_of(one())
    context = container(pod, "guest")["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": PRIVILEGED}
    assert context["privileged"] is False
    assert "hostUsers" not in pod["spec"]


def test_the_userns_mode_has_a_user_namespace_and_adds_two_capabilities() -> None:
    pod = pod_of(one({"security": {"mode": "userns"}}))
    context = container(pod, "guest")["securityContext"]
    assert pod["spec"]["hostUsers"] is False
    assert context["capabilities"] == {"add": ["SYS_ADMIN", "SYS_BOOT"]}
    assert context["privileged"] is False


def test_the_profiles_of_the_guest_are_stated() -> None:
    context = container(pod_of(one()), "guest")["securityContext"]
    assert context["seccompProfile"] == {"type": "Unconfined"}
    assert context["appArmorProfile"] == {"type": "Unconfined"}


def test_a_profile_on_the_node_confines_the_guest() -> None:
    profile = {"type": "Localhost", "localhostProfile": "profiles/stateful-pods-machine.json"}
    context = container(pod_of(one({"security": {"seccompProfile": profile}})), "guest")["securityContext"]
    assert context["seccompProfile"] == profile


def test_nothing_is_on_the_nodes_network_or_in_its_process_table() -> None:
    spec = pod_of(one(EVERYTHING))["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(spec)
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]


def test_the_guest_shows_its_boot_tells_when_it_is_ready_and_is_stopped_in_its_own_words() -> None:
    guest = container(pod_of(one()), "guest")
    assert guest["tty"] is True
    assert guest["readinessProbe"]["exec"] == {"command": ["/.stateful-pods/bin/ready.sh"]}
    assert guest["lifecycle"] == {"preStop": {"exec": {"command": ["/.stateful-pods/bin/stop.sh"]}}}
    assert "livenessProbe" not in guest
    assert "startupProbe" not in guest


def test_stop_sh_knows_the_grace_period_of_the_pod() -> None:
    pod = pod_of(one({"terminationGracePeriodSeconds": 300}))
    assert pod["spec"]["terminationGracePeriodSeconds"] == 300
    assert environment(container(pod, "guest"))["SHIM_STOP_SECONDS"] == "300"


def test_a_shell_lands_in_the_guest_without_naming_it() -> None:
    assert pod_of(one())["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "guest"


def test_volumes_are_mounted_in_the_guest_alone_after_the_root_filesystem_and_in_path_order() -> None:
    volumes = {
        "a": {"mountPath": "/srv/x/y", "size": "1Gi"},
        "b": {"mountPath": "/srv", "existingClaim": "mine", "readOnly": True},
        "c": {"mountPath": "/srv/x", "size": "1Gi", "readOnly": True},
        "d": {"mountPath": "/srv-x", "size": "1Gi"},
    }
    pod = pod_of(one({"volumes": volumes}))
    guest = container(pod, "guest")
    assert guest["volumeMounts"] == [
        {"name": "rootfs", "mountPath": "/mnt/rootfs"},
        {"name": "data-b", "mountPath": "/mnt/rootfs/srv", "readOnly": True},
        {"name": "data-d", "mountPath": "/mnt/rootfs/srv-x"},
        {"name": "data-c", "mountPath": "/mnt/rootfs/srv/x", "readOnly": True},
        {"name": "data-a", "mountPath": "/mnt/rootfs/srv/x/y"},
    ]
    assert environment(guest)["SHIM_VOLUMES"] == "/srv:/srv-x:/srv/x:/srv/x/y"
    for step in STEPS:
        assert container(pod, step)["volumeMounts"] == [{"name": "rootfs", "mountPath": "/mnt/rootfs"}]
    assert pod["spec"]["volumes"] == [
        {"name": "data-b", "persistentVolumeClaim": {"claimName": "mine", "readOnly": True}}
    ]


def test_a_path_may_hold_whatever_a_path_holds() -> None:
    path = '/srv/a "b" \\c\'$(d) ü'
    guest = container(pod_of(one({"volumes": {"a": {"mountPath": path, "size": "1Gi"}}})), "guest")
    assert guest["volumeMounts"][1]["mountPath"] == f"/mnt/rootfs{path}"
    assert environment(guest)["SHIM_VOLUMES"].replace("$$", "$") == path


def test_claim_templates_hold_what_was_asked_for_and_no_labels() -> None:
    rootfs = {
        "size": "20Gi",
        "storageClassName": "fast",
        "accessMode": "ReadWriteOncePod",
        "dataSource": {"volumeSnapshotName": "yesterday"},
    }
    volumes = {
        "a": {"mountPath": "/srv", "size": "1Gi", "storageClassName": ""},
        "b": {"mountPath": "/b", "existingClaim": "c"},
    }
    spec = find(render(one({"rootfs": rootfs, "volumes": volumes})), "StatefulSet")["spec"]
    assert spec["volumeClaimTemplates"] == [
        {
            "metadata": {"name": "rootfs"},
            "spec": {
                "accessModes": ["ReadWriteOncePod"],
                "storageClassName": "fast",
                "dataSource": {
                    "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "yesterday",
                },
                "resources": {"requests": {"storage": "20Gi"}},
            },
        },
        {
            "metadata": {"name": "data-a"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    ]  # fmt: skip


def test_an_unset_storage_class_is_left_to_the_cluster() -> None:
    (claim,) = find(render(one({"rootfs": {"storageClassName": None}})), "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "8Gi"}}}


def test_placement_dns_resources_and_metadata_reach_the_pod() -> None:
    pod = pod_of(one(EVERYTHING))
    spec, placement, dns = pod["spec"], EVERYTHING["placement"], EVERYTHING["dns"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "node-3", "example.org/disk": "ssd"}
    for field in ("affinity", "tolerations", "priorityClassName", "runtimeClassName"):
        assert spec[field] == placement[field]
    assert (spec["dnsPolicy"], spec["dnsConfig"]) == (dns["policy"], dns["config"])
    assert container(pod, "guest")["resources"] == EVERYTHING["resources"]
    assert spec["imagePullSecrets"] == EVERYTHING["imagePullSecrets"]
    assert pod["metadata"]["labels"] == {**SELECTOR, "example.org/team": "a"}
    assert pod["metadata"]["annotations"]["example.org/owner"] == "ada"


def test_what_is_not_asked_for_is_left_to_the_cluster() -> None:
    spec = pod_of(one())["spec"]
    assert set(spec) == {
        "automountServiceAccountToken", "containers", "enableServiceLinks", "initContainers", "securityContext",
        "terminationGracePeriodSeconds",
    }  # fmt: skip
    assert "resources" not in container(pod_of(one()), "guest")


@pytest.mark.parametrize("name", ["on", "null", "1e3", "0x1f", "1-2", "true", "007"])
def test_names_that_yaml_takes_for_something_else_stay_names(name: str) -> None:
    """The schemas are strict about strings."""
    over = {
        "source": {"pullSecretName": name},
        "rootfs": {"storageClassName": name, "dataSource": {"volumeSnapshotName": name}},
        "volumes": {name: {"mountPath": "/srv", "existingClaim": name}},
        "hostname": name,
        "placement": {"node": name, "priorityClassName": name, "runtimeClassName": name},
        "imagePullSecrets": [{"name": name}],
        "cloudInit": {"user": {"valueFrom": {"secretKeyRef": {"name": name, "key": name}}}},
        "labels": {name: name},
        "annotations": {name: name},
    }
    values = one(over, name=name)
    pod = find(render(values), "StatefulSet")["spec"]["template"]
    assert pod["metadata"]["labels"]["stateful-pods.io/machine"] == name
    assert environment(container(pod, "seed"))["SHIM_MACHINE"] == name
    render(one(over), release=name if name[0].isalpha() else f"a{name}")


# First-boot material


def test_inline_material_goes_into_a_secret_under_the_names_that_the_shim_reads() -> None:
    given = {
        "userData": "#cloud-config\n# ü\n",
        "vendorData": "#!/bin/sh\n",
        "user": "ada",
        "password": f"$6$abc${'a' * 86}",
        "sshAuthorizedKeys": ["ssh-ed25519 AAAA a", 'command="x y" ssh-rsa BBBB b'],
        "packages": ["nginx", "curl=8.*"],
        "runcmd": ["echo a > /b", "reboot"],
        "packageUpgrade": False,
    }
    secret = find(render(one({"cloudInit": {name: {"value": value} for name, value in given.items()}})), "Secret")
    assert secret["metadata"]["name"] == "pets-web-cloud-init"
    assert {name: base64.b64decode(data).decode() for name, data in secret["data"].items()} == {
        "user-data": given["userData"],
        "vendor-data": given["vendorData"],
        "user": given["user"],
        "password": given["password"],
        "ssh-authorized-keys": 'ssh-ed25519 AAAA a\ncommand="x y" ssh-rsa BBBB b',
        "packages": "nginx\ncurl=8.*",
        "runcmd": "echo a > /b\nreboot",
        "package-upgrade": "false",
    }


def test_material_of_any_origin_is_one_directory_that_the_provisioning_step_alone_mounts() -> None:
    material = {
        "user": {"value": "ada"},
        "password": {"valueFrom": {"secretKeyRef": {"name": "house", "key": "hash"}}},
        "packages": {"valueFrom": {"configMapKeyRef": {"name": "rules", "key": "list"}}},
    }
    pod = pod_of(one({"cloudInit": material}))
    (volume,) = pod["spec"]["volumes"]
    assert volume["projected"] == {
        "defaultMode": 0o400,
        "sources": [
            {"configMap": {"name": "rules", "items": [{"key": "list", "path": "packages"}]}},
            {"secret": {"name": "house", "items": [{"key": "hash", "path": "password"}]}},
            {"secret": {"name": "pets-web-cloud-init", "items": [{"key": "user", "path": "user"}]}},
        ],
    }
    mounts = container(pod, "provision")["volumeMounts"]
    assert {"name": volume["name"], "mountPath": "/provisioning", "readOnly": True} in mounts
    assert users(pod, volume["name"]) == ["provision"]


def test_material_by_reference_alone_makes_no_secret() -> None:
    material = {"user": {"valueFrom": {"secretKeyRef": {"name": "house", "key": "user"}}}}
    assert "Secret" not in {item["kind"] for item in render(one({"cloudInit": material}))}


# NOTES.txt


def test_the_notes_say_where_things_are_how_to_get_in_and_what_would_destroy_the_machine() -> None:
    text = notes(one())
    assert "pod pets-web-0, StatefulSet and Service pets-web, claim rootfs-pets-web-0" in text
    assert "a machine renamed, or under another release,\nwould be a new and empty one" in text
    assert "kubectl --namespace zoo exec -it POD -- /bin/sh" in text
    assert "kubectl --namespace zoo logs POD -c seed" in text
    assert "kubectl label namespace zoo pod-security.kubernetes.io/enforce=privileged" in text
    assert "kubectl --namespace zoo delete pvc rootfs-pets-web-0" in text


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({}, "root in the machine is root on its node"),
        ({"security": {"mode": "userns"}}, "containerd 2.1 with `cgroup_writable = true`"),
        ({"security": {"mode": "userns"}}, "idmapped mounts (ext4, xfs, btrfs, tmpfs; not NFS)"),
        ({"running": False}, "Set `running: true` to start it"),
        ({"guest": {"provisioning": "exec"}}, "kubectl --namespace zoo exec -it pets-web-0 -c guest -- /bin/sh"),
        (
            {"cloudInit": {"userData": {"value": "#!/bin/sh"}, "user": {"value": "a"}, "packages": {"value": ["b"]}}},
            "shadowed    by raw userData, and not used: packages, user",
        ),
        ({"network": {"ingress": "declared"}}, "nothing is let in: no port is declared"),
        ({"network": {"ingress": "declared"}}, "network plugin enforces none, everything is let in all"),
        ({"disruptionBudget": True}, "a drain of its node waits until you delete the pod"),
        ({"placement": {"runtimeClassName": "kata"}}, "kata, which is untested"),
        (
            {"source": {"kind": "oci", "name": ..., "reference": "registry.example.org/a:b"}},
            "registry.example.org/a:b, which is no digest",
        ),
    ],
)
def test_the_notes_say_what_a_choice_costs(over: dict[str, Any], said: str) -> None:
    assert said in notes(one(over))
    assert said == "root in the machine is root on its node" or said not in notes(one())


def test_the_notes_have_no_long_lines_of_prose_and_no_trailing_space() -> None:
    for line in notes(one(EVERYTHING)).splitlines():
        assert not re.search(r"[ \t]$", line)
        assert len(line) <= 120 or "sha256:" in line
