"""The seccomp profile: what it denies, on every machine type, and nothing else."""

from __future__ import annotations

import json

from tests.chart.charts import CHART

PROFILE = json.loads((CHART / "profiles/stateful-pods-machine.json").read_text())


def test_it_allows_by_default_on_x86_and_arm_in_64_and_32_bits() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ALLOW"
    assert set(PROFILE["architectures"]) == {
        f"SCMP_ARCH_{name}" for name in ("X86_64", "X86", "X32", "AARCH64", "ARM")
    }  # fmt: skip


def test_it_denies_what_reaches_the_node() -> None:
    always = [rule for rule in PROFILE["syscalls"] if "args" not in rule]
    assert [name for rule in always for name in rule["names"]] == [
        "delete_module", "finit_module", "init_module", "kexec_file_load", "kexec_load", "open_by_handle_at",
    ]  # fmt: skip
    assert {(rule["action"], rule["errnoRet"]) for rule in PROFILE["syscalls"]} == {("SCMP_ACT_ERRNO", 1)}


def test_it_denies_a_forced_unmount_whatever_other_flags_are_given() -> None:
    (rule,) = (rule for rule in PROFILE["syscalls"] if "args" in rule)
    assert rule["names"] == ["umount2"]
    assert rule["args"] == [{"index": 1, "value": 1, "valueTwo": 1, "op": "SCMP_CMP_MASKED_EQ"}]
