"""Reading a preset back: every flipped byte and every forged document is found and named; trust is called trust."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from presetbuild.audit import audit
from presetbuild.build import Options, build_preset
from presetbuild.cli import commands
from presetbuild.findings import Audit, State
from shim.image.reference import parse_reference
from tests.presetbuild.upstreams import PRESET, Upstream, rootfs_tar, sha256

UPSTREAM_SHA256 = "io.stateful-pods.preset.upstream.sha256"


class Preset:
    """A published preset in a layout, of which a test can damage or forge every document."""

    def __init__(self, upstream: Upstream, options: Options, directory: Path) -> None:
        self.upstream, self.options, self.layout = upstream, options, directory / "pet-cloud"
        self.digest = str(build_preset(upstream.catalog, PRESET, f"oci:{directory}", options).digest)

    def blob(self, digest: str) -> Path:
        return self.layout / "blobs/sha256" / digest.removeprefix("sha256:")

    def read(self, digest: str) -> Any:
        return json.loads(self.blob(digest).read_bytes())

    @property
    def manifest_digest(self) -> str:
        return str(self.read(self.digest)["manifests"][0]["digest"])

    @property
    def config_digest(self) -> str:
        return str(self.read(self.manifest_digest)["config"]["digest"])

    @property
    def layer_digest(self) -> str:
        return str(self.read(self.manifest_digest)["layers"][0]["digest"])

    def store(self, data: bytes) -> dict[str, Any]:
        path = self.blob(sha256(data))
        path.write_bytes(data)
        return {"digest": f"sha256:{sha256(data)}", "size": len(data)}

    def forge(
        self,
        *,
        index: Callable[[Any], object] | None = None,
        manifest: Callable[[Any], object] | None = None,
        config: Callable[[Any], object] | None = None,
        layer: bytes | None = None,
    ) -> None:
        """Change documents of the first platform and make every digest above them right again."""
        top, child, inner = (self.read(digest) for digest in (self.digest, self.manifest_digest, self.config_digest))
        if layer is not None:
            child["layers"][0] |= self.store(
                subprocess.run(["zstd", "-c"], input=layer, capture_output=True, check=True).stdout
            )
        if config:
            config(inner)
        child["config"] |= self.store(json.dumps(inner).encode())
        if manifest:
            manifest(child)
        top["manifests"][0] |= self.store(json.dumps(child).encode())
        if index:
            index(top)
        self.digest = self.store(json.dumps(top).encode())["digest"]

    def audit(self, *, offline: bool = True, options: Options | None = None) -> Audit:
        reference = parse_reference(f"oci:{self.layout}@{self.digest}")
        return audit(reference, self.upstream.catalog, options or self.options, offline=offline)


@pytest.fixture
def preset(upstream: Upstream, options: Options, tmp_path: Path) -> Preset:
    return Preset(upstream, options, tmp_path / "out")


def differing(result: Audit) -> list[str]:
    return [f"{finding.subject}: {finding.sentence}" for finding in result.findings if finding.state is State.DIFFERS]


def test_an_honest_preset_holds_down_to_the_signed_archive(preset: Preset) -> None:
    result = preset.audit(offline=False)
    assert result.holds
    assert {finding.state for finding in result.findings} == {State.HOLDS}
    assert [finding.subject for finding in result.findings if "signed archive" in finding.sentence] == [
        "linux/amd64 provenance",
        "linux/arm64 provenance",
    ]


def test_without_the_upstream_the_last_step_is_called_the_builders_word(preset: Preset) -> None:
    result = preset.audit()
    unproven = [finding for finding in result.findings if finding.state is State.UNPROVEN]
    assert result.holds
    assert [finding.subject for finding in unproven] == ["linux/amd64 provenance", "linux/arm64 provenance"]
    assert all("rests on the builder's word" in finding.sentence for finding in unproven)


def test_a_build_that_the_upstream_no_longer_has_is_unproven_and_not_wrong(preset: Preset, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = preset.audit(offline=False, options=replace(preset.options, mirror=str(tmp_path / "empty")))
    assert result.holds
    assert sum(finding.state is State.UNPROVEN for finding in result.findings) == 2


@pytest.mark.parametrize("document", ["index", "manifest", "config", "layer"])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_flipped_byte_is_named(preset: Preset, document: str, where: str) -> None:
    digest = {
        "index": preset.digest,
        "manifest": preset.manifest_digest,
        "config": preset.config_digest,
        "layer": preset.layer_digest,
    }[document]
    path = preset.blob(digest)
    data = bytearray(path.read_bytes())
    data[{"first": 0, "middle": len(data) // 2, "last": -1}[where]] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    result = preset.audit()
    assert not result.holds
    assert any(document in sentence and digest in sentence for sentence in differing(result)), result.findings


def test_the_command_ends_in_1_and_names_what_differs(preset: Preset) -> None:
    path = preset.blob(preset.layer_digest)
    path.write_bytes(path.read_bytes() + b"x")
    done = CliRunner().invoke(commands, [
        "verify", f"oci:{preset.layout}:one", "--offline", "--catalog", str(preset.upstream.catalog_file)])  # fmt: skip
    assert done.exit_code == 1
    assert "differs" in done.stdout
    assert "linux/amd64 layer" in done.stderr.splitlines()[-1]


def test_the_command_lists_its_findings_as_json(preset: Preset) -> None:
    done = CliRunner().invoke(commands, [
        "verify", f"oci:{preset.layout}:one", "--offline", "--json", "--catalog",
        str(preset.upstream.catalog_file)])  # fmt: skip
    result = json.loads(done.stdout)
    assert (done.exit_code, result["holds"], result["digest"]) == (0, True, preset.digest)
    assert {"state": "holds", "subject": "linux/arm64 layer"}.items() <= {
        (key, value) for finding in result["findings"] for key, value in finding.items()
    } or any(finding["subject"] == "linux/arm64 layer" for finding in result["findings"])


FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "an annotation of the index alone": (
        {"index": lambda top: top["annotations"].update({"org.opencontainers.image.source": "https://evil.example.org"})},
        "org.opencontainers.image.source",
    ),
    "an annotation of a manifest alone": (
        {"manifest": lambda child: child["annotations"].update({UPSTREAM_SHA256: "0" * 64})},
        f"the label {UPSTREAM_SHA256}",
    ),
    "a label of a config alone": (
        {"config": lambda inner: inner["config"]["Labels"].update({UPSTREAM_SHA256: "0" * 64})},
        f"the label {UPSTREAM_SHA256}",
    ),
    "a config with a command": (
        {"config": lambda inner: inner["config"].update({"Cmd": ["/bin/evil"]})},
        "the config sets Cmd",
    ),
    "a config for another platform": (
        {"config": lambda inner: inner.update({"architecture": "arm64"})},
        "the config's platform is linux/arm64, expected linux/amd64",
    ),
    "another creation time": (
        {"config": lambda inner: inner.update({"created": "2020-01-01T00:00:00Z"})},
        "the config's created",
    ),
    "another layer": (
        {"layer": rootfs_tar("amd64", extra={"etc/evil": b"x"})},
        "the decompressed layer",
    ),
    "a second layer": (
        {"manifest": lambda child: child["layers"].append(child["layers"][0])},
        "it has 2 layers where a preset has one",
    ),
    "a key that nobody pinned": (
        {
            "index": lambda top: top["annotations"].update({"io.stateful-pods.preset.upstream.key": "A" * 40}),
        },
        f"{'A' * 40}, which the catalog does not pin",
    ),
    "a build that is none": (
        {"index": lambda top: top["annotations"].update({"io.stateful-pods.preset.upstream.build": "yesterday"})},
        "yesterday",
    ),
    "a platform of neither": (
        {"index": lambda top: top["manifests"][0].update({"platform": {"os": "linux", "architecture": "s390x"}})},
        "linux/s390x, which the catalog does not list",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_document_with_right_digests_is_found(preset: Preset, name: str) -> None:
    changes, wording = FORGERIES[name]
    preset.forge(**changes)
    result = preset.audit()
    assert not result.holds
    assert any(wording in sentence for sentence in differing(result)), result.findings


def test_a_consistent_forgery_is_found_by_asking_the_upstream(preset: Preset) -> None:
    evil = rootfs_tar("amd64", extra={"etc/evil": b"x"})
    preset.forge(
        layer=evil,
        config=lambda inner: (
            inner["rootfs"].update({"diff_ids": [f"sha256:{sha256(evil)}"]}),
            inner["config"]["Labels"].update({"io.stateful-pods.preset.size": str(len(evil))}),
        ),
        manifest=lambda child: child["annotations"].update({"io.stateful-pods.preset.size": str(len(evil))}),
    )
    assert all(finding.subject == "tags" for finding in preset.audit().findings if finding.state is State.DIFFERS)
    found = differing(preset.audit(offline=False))
    assert any(sentence.startswith("linux/amd64 provenance: the diff ID is") for sentence in found), found


def test_an_image_that_is_no_preset_is_told(preset: Preset) -> None:
    preset.forge(index=lambda top: top.pop("annotations"))
    assert any("names no preset" in sentence for sentence in differing(preset.audit()))


def test_a_single_image_is_no_preset(preset: Preset) -> None:
    preset.digest = preset.manifest_digest
    assert "names a single image where a preset's index was expected" in differing(preset.audit())[0]


def test_a_reference_without_tag_lists_the_tags(preset: Preset) -> None:
    result = audit(parse_reference(f"oci:{preset.layout}"), preset.upstream.catalog, preset.options, offline=True)
    assert "the tags are: one, one-20260829_0524, one-20260829_0524-amd64" in differing(result)[0]


def test_a_dated_tag_that_was_moved_is_found(preset: Preset) -> None:
    path = preset.layout / "index.json"
    index = json.loads(path.read_text())
    digests = {entry["annotations"]["org.opencontainers.image.ref.name"]: entry for entry in index["manifests"]}
    for key in ("digest", "size", "mediaType"):
        digests["one-20260829_0524-amd64"][key] = digests["one-20260829_0524-arm64"][key]
    path.write_text(json.dumps(index))
    assert any("the tag one-20260829_0524-amd64 is" in sentence for sentence in differing(preset.audit()))


def test_a_preset_of_another_catalog_is_checked_as_far_as_it_goes(preset: Preset, tmp_path: Path) -> None:
    text = preset.upstream.catalog_file.read_text().replace("presets.pet-one", "presets.other")
    preset.upstream.catalog_file.write_text(text)
    result = preset.audit()
    assert result.holds
    assert ("catalog", State.UNPROVEN) in [(finding.subject, finding.state) for finding in result.findings]
