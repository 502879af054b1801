"""Reading a preset back: every flipped byte and every forged document is found and named; trust is called trust."""

from __future__ import annotations

import json
import shutil
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
from shim.errors import NotFound, Refused
from shim.image.model import canonical_json
from shim.image.reference import parse_reference
from tests.presetbuild.upstreams import NEWER, PRESET, Upstream, rootfs_tar, sha256

UPSTREAM_SHA256 = "io.stateful-pods.preset.upstream.sha256"
UPSTREAM_KEY = "io.stateful-pods.preset.upstream.key"


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
        child["config"] |= self.store(canonical_json(inner))
        if manifest:
            manifest(child)
        top["manifests"][0] |= self.store(canonical_json(child))
        if index:
            index(top)
        self.digest = self.store(canonical_json(top))["digest"]

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
    assert {"holds"} == {
        finding["state"] for finding in result["findings"] if finding["subject"] == "linux/arm64 layer"
    }


FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "an annotation of the index alone": (
        {"index": lambda top: top["annotations"].update({"org.opencontainers.image.source": "https://evil.example.org"})},
        "org.opencontainers.image.source",
    ),
    "an index of nothing": ({"index": lambda top: top.update({"manifests": []})}, "at least one"),
    "a platform that stands twice": (
        {"index": lambda top: top["manifests"].append(top["manifests"][0])},
        "one manifest for each platform",
    ),
    "another order": (
        {"index": lambda top: top["manifests"].reverse()},
        "the index does not list its platforms in the catalog's order",
    ),
    "a key that stands twice": (
        {
            "index": lambda top: top["annotations"].update(
                {UPSTREAM_KEY: ",".join([top["annotations"][UPSTREAM_KEY]] * 2)}
            )
        },
        f"{UPSTREAM_KEY} is ",
    ),
    "a subject": ({"index": lambda top: top.update({"subject": top["manifests"][0]})}, "subject is "),
    "another annotation": ({"index": lambda top: top["annotations"].update({"x": "y"})}, "annotations.x is"),
    "the place of another preset": (
        {"index": lambda top: top["annotations"].update({"io.stateful-pods.preset.name": "x\nholds  all\x1b[31m"})},
        "expected x\\nholds  all\\x1b[31m",
    ),
    "a layer from somewhere else": (
        {"manifest": lambda child: child["layers"][0].update({"urls": ["https://evil.example.org"]})},
        "layers[0].urls is",
    ),
    "an image URL that is not the upstream's": (
        {
            "manifest": lambda child: child["annotations"].update({"org.opencontainers.image.url": "https://x.example.org/"}),
            "config": lambda inner: inner["config"]["Labels"].update({"org.opencontainers.image.url": "https://x.example.org/"}),
        },
        "upstream.url is",
    ),
    "a config with a history": ({"config": lambda inner: inner.update({"history": []})}, "history is []"),
    "no diff ID": ({"config": lambda inner: inner["rootfs"].update({"diff_ids": []})}, "0 diff IDs; expected one"),
    "an annotation of a manifest alone": (
        {"manifest": lambda child: child["annotations"].update({UPSTREAM_SHA256: "0" * 64})},
        f"config.Labels.{UPSTREAM_SHA256} is",
    ),
    "a label of a config alone": (
        {"config": lambda inner: inner["config"]["Labels"].update({UPSTREAM_SHA256: "0" * 64})},
        f"config.Labels.{UPSTREAM_SHA256} is",
    ),
    "a config with a command": (
        {"config": lambda inner: inner["config"].update({"Cmd": ["/bin/evil"]})},
        'config.Cmd is ["/bin/evil"], expected nothing',
    ),
    "a config for another platform": (
        {"config": lambda inner: inner.update({"architecture": "arm64"})},
        'architecture is "arm64", expected "amd64"',
    ),
    "another creation time": (
        {"config": lambda inner: inner.update({"created": "2020-01-01T00:00:00Z"})},
        'created is "2020-01-01T00:00:00Z", expected',
    ),
    "another layer": (
        {"layer": rootfs_tar("amd64", extra={"etc/evil": b"x"})},
        "the decompressed layer",
    ),
    "a second layer": (
        {"manifest": lambda child: child["layers"].append(child["layers"][0])},
        "2 layers, 1 diff IDs; expected one",
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
    facts = {
        "io.stateful-pods.preset.size": str(len(evil)),
        "io.stateful-pods.preset.diff-id": f"sha256:{sha256(evil)}",
    }
    preset.forge(
        layer=evil,
        config=lambda inner: (
            inner["rootfs"].update({"diff_ids": [f"sha256:{sha256(evil)}"]}),
            inner["config"]["Labels"].update(facts),
        ),
        manifest=lambda child: child["annotations"].update(facts),
    )
    assert all(finding.subject == "tags" for finding in preset.audit().findings if finding.state is State.DIFFERS)
    found = differing(preset.audit(offline=False))
    assert any(sentence.startswith("linux/amd64 provenance: the diff ID is") for sentence in found), found


def test_an_image_that_is_no_preset_is_told(preset: Preset) -> None:
    preset.forge(index=lambda top: top.pop("annotations"))
    assert any(
        "the index is no preset's: it lacks org.opencontainers.image.title" in sentence
        for sentence in differing(preset.audit())
    )


def test_a_single_image_is_no_preset(preset: Preset) -> None:
    preset.digest = preset.manifest_digest
    assert "names a single image where a preset's index was expected" in differing(preset.audit())[0]


def test_a_reference_without_tag_lists_the_tags(preset: Preset) -> None:
    with pytest.raises(NotFound, match="the tags are: one, one-20260829_0524, one-20260829_0524-amd64"):
        audit(parse_reference(f"oci:{preset.layout}"), preset.upstream.catalog, preset.options, offline=True)


def test_the_same_json_written_otherwise_is_another_document(preset: Preset) -> None:
    top = preset.read(preset.digest)
    preset.digest = preset.store(json.dumps(top, indent=1).encode())["digest"]
    assert "index: it is the same JSON, written otherwise" in differing(preset.audit())


def test_a_tag_of_somebody_elses_is_told(preset: Preset) -> None:
    path = preset.layout / "index.json"
    path.write_text(path.read_text().replace('"one"', '"mine"'))
    result = audit(parse_reference(f"oci:{preset.layout}:mine"), preset.upstream.catalog, preset.options, offline=True)
    assert result.holds
    assert any(finding.sentence.startswith("mine is no tag that presetbuild gives") for finding in result.findings)


def test_a_rolling_tag_that_was_moved_back_is_told(preset: Preset) -> None:
    for architecture in ("amd64", "arm64"):
        preset.upstream.add(architecture, NEWER)
    build_preset(preset.upstream.catalog, PRESET, f"oci:{preset.layout.parent}", preset.options)
    path = preset.layout / "index.json"
    index = json.loads(path.read_text())
    entries = {entry["annotations"]["org.opencontainers.image.ref.name"]: entry for entry in index["manifests"]}
    entries["one"]["digest"] = entries["one-20260829_0524"]["digest"]
    path.write_text(json.dumps(index))
    result = audit(parse_reference(f"oci:{preset.layout}:one"), preset.upstream.catalog, preset.options, offline=True)
    assert any("one names an older build than the newest one there, one-20260901_0524" in finding.sentence
               for finding in result.findings)  # fmt: skip


def test_a_missing_gpg_says_nothing_about_the_image(preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = preset.layout.parent / "tools"
    tools.mkdir()
    for tool in ("xz",):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(Refused, match="install the package gnupg"):
        preset.audit(offline=False)


def test_a_mirror_that_is_not_there_is_told_at_once(preset: Preset, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        preset.audit(offline=False, options=replace(preset.options, mirror=str(tmp_path / "nowhere")))


def test_what_differs_is_told_although_the_mirror_cannot_be_reached(preset: Preset) -> None:
    path = preset.blob(preset.layer_digest)
    path.write_bytes(path.read_bytes() + b"x")
    result = preset.audit(offline=False, options=replace(preset.options, mirror="http://127.0.0.1:9"))
    assert any(sentence.startswith("linux/amd64 layer: ") for sentence in differing(result))
    assert result.findings[-1].subject == "provenance"


def test_a_list_without_metadata_leaves_the_variant_unproven(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    for architecture in ("amd64", "arm64"):
        for path in upstream.add(architecture, metadata=False).glob("incus*"):
            path.unlink()
    result = Preset(upstream, options, tmp_path / "out").audit(offline=False)
    unproven = [finding for finding in result.findings if finding.state is State.UNPROVEN]
    assert [finding.subject for finding in unproven] == ["linux/amd64 provenance", "linux/arm64 provenance"]
    assert all("rests on where it was found" in finding.sentence for finding in unproven)


def test_what_is_unproven_can_be_required(preset: Preset) -> None:
    words = ["verify", f"oci:{preset.layout}:one", "--offline", "--catalog", str(preset.upstream.catalog_file)]
    assert CliRunner().invoke(commands, words).exit_code == 0
    done = CliRunner().invoke(commands, [*words, "--require", "provenance"])
    assert done.exit_code == 1
    assert "linux/amd64 provenance: that the layer is the signed archive" in done.stderr


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
