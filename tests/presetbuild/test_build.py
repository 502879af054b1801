"""The whole recipe on a small upstream: what is published, and what is refused with nothing published."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from presetbuild.build import Options, build_preset
from shim.errors import NotReady, Refused, StatefulPodsError, Unavailable, VerificationError
from shim.image.model import Platform, canonical_json
from tests.presetbuild.pgp import Signer
from tests.presetbuild.upstreams import BUILD, NEWER, OLDER, PRESET, Upstream, rootfs_tar, sha256

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


def blobs(destination: Path) -> dict[str, bytes]:
    """Return all blobs of a destination by their names."""
    return {path.name: path.read_bytes() for path in destination.rglob("blobs/sha256/*")}


def tags(destination: Path) -> dict[str, str]:
    """Return the digests that a layout's tags name."""
    index = json.loads((destination / "index.json").read_text())
    return {entry["annotations"]["org.opencontainers.image.ref.name"]: entry["digest"] for entry in index["manifests"]}


def document(destination: Path, digest: str) -> Any:
    return json.loads(blobs(destination)[digest.removeprefix("sha256:")])


def build(upstream: Upstream, options: Options, out: Path) -> str:
    return str(build_preset(upstream.catalog, PRESET, f"oci:{out}", options).digest)


def test_an_honest_build_is_published_under_its_tags(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    published = build_preset(upstream.catalog, PRESET, f"oci:{tmp_path / 'out'}", options)
    layout = tmp_path / "out/pet-cloud"
    assert (published.preset, published.build, published.new) == (PRESET, BUILD, True)
    assert published.repository == f"oci:{layout}"
    assert tags(layout)["one"] == tags(layout)["one-20260829_0524"] == str(published.digest)
    assert set(tags(layout)) == {
        "one", "one-20260829_0524", "one-20260829_0524-amd64", "one-20260829_0524-arm64",
    }  # fmt: skip
    assert published.tags == ("one-20260829_0524", "one")


def test_the_diff_id_is_the_hash_of_the_decompressed_archive(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    digest = build(upstream, options, tmp_path)
    layout = tmp_path / "pet-cloud"
    for entry, architecture in zip(document(layout, digest)["manifests"], ("amd64", "arm64"), strict=True):
        assert entry["platform"] == {"architecture": architecture, "os": "linux"}
        manifest = document(layout, entry["digest"])
        config = document(layout, manifest["config"]["digest"])
        archive = (upstream.directory(architecture) / "rootfs.tar.xz").read_bytes()
        assert config["rootfs"] == {"type": "layers", "diff_ids": [f"sha256:{sha256(lzma.decompress(archive))}"]}
        assert config["config"]["Labels"] == manifest["annotations"]
        assert set(config["config"]) == {"Labels"}
        assert config["created"] == "2026-08-29T05:24:00Z"
        layer = blobs(layout)[manifest["layers"][0]["digest"].removeprefix("sha256:")]
        unpacked = subprocess.run(["zstd", "-dc"], input=layer, capture_output=True, check=True).stdout
        assert unpacked == lzma.decompress(archive)


def test_annotations_say_where_the_bytes_come_from(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    digest = build(upstream, options, tmp_path)
    index = document(tmp_path / "pet-cloud", digest)
    common = {
        "org.opencontainers.image.title": PRESET,
        "org.opencontainers.image.version": BUILD,
        "org.opencontainers.image.created": "2026-08-29T05:24:00Z",
        "org.opencontainers.image.source": "https://git.example.org/pets",
        "io.stateful-pods.preset.name": PRESET,
        "io.stateful-pods.preset.upstream.build": BUILD,
        "io.stateful-pods.preset.upstream.key": upstream.signer.fingerprint,
        "io.stateful-pods.preset.provisioning": "cloud-init,exec",
    }
    assert index["annotations"] == common
    url = f"https://images.example.org/images/pet/one/arm64/cloud/{BUILD}/"
    archive = (upstream.directory("arm64") / "rootfs.tar.xz").read_bytes()
    assert document(tmp_path / "pet-cloud", index["manifests"][1]["digest"])["annotations"] == common | {
        "org.opencontainers.image.url": url,
        "io.stateful-pods.preset.upstream.url": url + "rootfs.tar.xz",
        "io.stateful-pods.preset.upstream.sha256": sha256(archive),
        "io.stateful-pods.preset.size": str(len(lzma.decompress(archive))),
        "io.stateful-pods.preset.diff-id": f"sha256:{sha256(lzma.decompress(archive))}",
        "io.stateful-pods.preset.compression": "zstd 1.5.7 level 3",
    }


def test_two_builders_publish_the_same_digest(upstream: Upstream, tmp_path: Path) -> None:
    lines = []
    for number, zone in enumerate(("Pacific/Kiritimati", "America/Los_Angeles")):
        work = tmp_path / f"builder-{number}"
        work.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "presetbuild", "--catalog", str(upstream.catalog_file), "--signing-keys",
             str(upstream.keys), "--mirror", str(upstream.mirror), "--to", "oci:out", PRESET],
            cwd=work, check=True, capture_output=True, text=True, umask=(0o022, 0o077)[number],
            env={**os.environ, "TZ": zone, "LC_ALL": ("C", "C.UTF-8")[number], "HOME": str(work),
                 "PYTHONHASHSEED": str(number), "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        lines.append(done.stdout)
    assert lines[0] == lines[1]
    assert lines[0].startswith(f"{PRESET}\t{BUILD}\toci:out/pet-cloud@sha256:")
    assert lines[0].count("\n") == 1


def test_a_build_that_is_published_is_reported_and_not_written_again(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    first = build(upstream, options, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("blobs/**/*")}
    # The archive is not needed any more: the signed list and the labels settle it.
    (upstream.directory("amd64") / "rootfs.tar.xz").unlink()
    again = build_preset(upstream.catalog, PRESET, f"oci:{tmp_path}", options)
    assert (str(again.digest), again.new) == (first, False)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("blobs/**/*")} == before


def test_a_rolling_tag_that_a_crash_left_behind_is_finished(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    digest = build(upstream, options, tmp_path)
    path = tmp_path / "pet-cloud/index.json"
    index = json.loads(path.read_text())
    index["manifests"] = [
        entry for entry in index["manifests"]
        if entry["annotations"]["org.opencontainers.image.ref.name"] != "one"
    ]  # fmt: skip
    path.write_text(json.dumps(index))
    assert build(upstream, options, tmp_path) == digest
    assert tags(tmp_path / "pet-cloud")["one"] == digest


def test_a_newer_build_moves_the_rolling_tag_and_keeps_the_dated_one(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    first = build(upstream, options, tmp_path)
    for architecture in ("amd64", "arm64"):
        upstream.add(architecture, NEWER, tar=rootfs_tar(architecture, extra={"etc/motd": b"new\n"}))
    second = build(upstream, options, tmp_path)
    found = tags(tmp_path / "pet-cloud")
    assert first != second
    assert (found["one"], found["one-20260829_0524"], found["one-20260901_0524"]) == (second, first, second)


@pytest.fixture
def went_backwards(upstream: Upstream, options: Options, tmp_path: Path) -> str:
    """The digest of a published build, after which the upstream offers an older one."""
    digest = build(upstream, options, tmp_path)
    upstream.add("amd64", OLDER)
    upstream.add("arm64", OLDER)
    return digest


def test_an_older_build_is_never_published_over_a_newer_one(
    upstream: Upstream, options: Options, tmp_path: Path, went_backwards: str
) -> None:
    with pytest.raises(Refused, match=f"offers build {OLDER}, and .*:one already names the newer {BUILD}"):
        build(upstream, options, tmp_path)
    assert tags(tmp_path / "pet-cloud")["one"] == went_backwards
    assert "one-20260801_0524" not in tags(tmp_path / "pet-cloud")


def test_a_person_may_go_back(upstream: Upstream, options: Options, tmp_path: Path, went_backwards: str) -> None:
    older = build(upstream, replace(options, allow_older=True), tmp_path)
    assert older != went_backwards
    assert tags(tmp_path / "pet-cloud")["one"] == older


def test_some_platforms_under_a_tag_that_names_both_are_refused(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    build(upstream, options, tmp_path)
    with pytest.raises(Refused, match="holds linux/amd64, linux/arm64, and linux/arm64 was asked for"):
        build(upstream, replace(options, platforms=(ARM64,)), tmp_path)


def test_one_platform_can_be_built_alone(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    digest = build(upstream, replace(options, platforms=(ARM64,)), tmp_path)
    entries = document(tmp_path / "pet-cloud", digest)["manifests"]
    assert [entry["platform"]["architecture"] for entry in entries] == ["arm64"]


def test_a_platform_that_the_catalog_does_not_give_is_refused(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=f"{PRESET} has no platform linux/s390x; .*linux/amd64, linux/arm64"):
        build(upstream, replace(options, platforms=(Platform("linux", "s390x"),)), tmp_path)


def test_a_tag_that_names_other_bytes_is_not_believed(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    build(upstream, options, tmp_path)
    upstream.add("amd64", tar=rootfs_tar("amd64", extra={"etc/motd": b"same build, other bytes\n"}))
    with pytest.raises(VerificationError, match=r"was published from something else: .*upstream\.sha256 should be"):
        build(upstream, options, tmp_path)


def test_platforms_on_different_builds_are_not_ready(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    upstream.add("arm64", OLDER)
    with pytest.raises(NotReady) as raised:
        build(upstream, options, tmp_path / "out")
    assert BUILD in str(raised.value)
    assert OLDER in str(raised.value)
    assert blobs(tmp_path / "out") == {}


@pytest.mark.parametrize("lost", ["index", "manifest", "layer"])
def test_what_a_repository_lost_is_put_back(upstream: Upstream, options: Options, tmp_path: Path, lost: str) -> None:
    digest = build(upstream, options, tmp_path)
    layout, whole = tmp_path / "pet-cloud", blobs(tmp_path)
    manifest = document(layout, digest)["manifests"][1]["digest"]
    layer = document(layout, manifest)["layers"][0]["digest"]
    name = {"index": digest, "manifest": manifest, "layer": layer}[lost].removeprefix("sha256:")
    (layout / "blobs/sha256" / name).unlink()
    again = build_preset(upstream.catalog, PRESET, f"oci:{tmp_path}", options)
    assert (str(again.digest), again.new) == (digest, True)
    assert blobs(tmp_path) == whole


DISHONEST: dict[str, Callable[[Any], object]] = {
    "another layer": lambda child: child["layers"][0].update({"urls": ["https://evil.example.org/"]}),
    "a second layer": lambda child: child["layers"].append(child["layers"][0]),
    "another config": lambda child: child["config"].update({"digest": "sha256:" + "0" * 64}),
    "another annotation": lambda child: child["annotations"].update({"a": "b"}),
    "another size": lambda child: child["annotations"].update({"io.stateful-pods.preset.size": "1"}),
    "other compression": lambda child: child["annotations"].update(
        {"io.stateful-pods.preset.compression": "gzip, by Mallory"}
    ),
    "no diff ID": lambda child: child["annotations"].pop("io.stateful-pods.preset.diff-id"),
    "other provisioning": lambda child: child["annotations"].update({"io.stateful-pods.preset.provisioning": "exec"}),
}


@pytest.mark.parametrize("change", DISHONEST.values(), ids=DISHONEST)
def test_a_dated_tag_with_honest_labels_is_not_believed(
    upstream: Upstream, options: Options, tmp_path: Path, change: Callable[[Any], object]
) -> None:
    layout = tmp_path / "pet-cloud"
    digest = build(upstream, options, tmp_path)

    def store(value: Any) -> dict[str, Any]:
        data = canonical_json(value)
        (layout / "blobs/sha256" / sha256(data)).write_bytes(data)
        return {"digest": f"sha256:{sha256(data)}", "size": len(data)}

    top = document(layout, digest)
    child = document(layout, top["manifests"][0]["digest"])
    change(child)
    top["manifests"][0] |= store(child)
    forged = store(top)
    index = json.loads((layout / "index.json").read_text())
    for entry in index["manifests"]:
        if entry["digest"] == digest:
            entry |= forged
    (layout / "index.json").write_text(json.dumps(index))
    with pytest.raises(VerificationError):
        build(upstream, options, tmp_path)


def test_a_newer_build_that_somebody_publishes_meanwhile_keeps_the_rolling_tag(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    for architecture in ("amd64", "arm64"):
        upstream.add(architecture, NEWER)
    newer = build(upstream, options, tmp_path)
    layout = tmp_path / "pet-cloud"
    index = json.loads((layout / "index.json").read_text())
    # As the other publisher leaves it for a moment: its dated tag is there, the rolling one not yet.
    index["manifests"] = [
        entry for entry in index["manifests"] if entry["annotations"]["org.opencontainers.image.ref.name"] != "one"
    ]
    (layout / "index.json").write_text(json.dumps(index))
    for architecture in ("amd64", "arm64"):
        upstream.add(architecture, BUILD)
    older = build_preset(upstream.catalog, PRESET, f"oci:{tmp_path}", options)
    assert (tags(layout)["one"], tags(layout)["one-20260829_0524"]) == (newer, str(older.digest))
    assert older.tags == ("one-20260829_0524",)


def test_a_dated_tag_that_somebody_sets_meanwhile_is_not_moved(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    other = replace(options, platforms=(ARM64,))
    published: list[str] = []

    def meanwhile(sentence: str) -> None:
        if "linux/arm64: the archive has the signed SHA-256" in sentence:
            published.append(build(upstream, other, tmp_path))

    with pytest.raises(Refused, match=r"since a moment ago, .*; a dated tag never moves"):
        build(upstream, replace(options, tell=meanwhile), tmp_path)
    assert tags(tmp_path / "pet-cloud")["one-20260829_0524"] == published[0]


def test_an_honest_metadata_file_of_too_many_bytes_is_refused(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    directory = upstream.directory("amd64")
    files = {"rootfs.tar.xz": (directory / "rootfs.tar.xz").read_bytes(), "incus.tar.xz": b"x" * ((1 << 20) + 1)}
    (directory / "incus.tar.xz").write_bytes(files["incus.tar.xz"])
    sums = "".join(f"{sha256(data)}  {name}\n" for name, data in files.items()).encode()
    upstream.sign(directory, sums, at=datetime(2026, 8, 29, 6, tzinfo=UTC))
    with pytest.raises(Refused, match=r"incus\.tar\.xz is longer than 1048576 bytes, so it is not read as metadata"):
        build(upstream, options, tmp_path / "out")


@pytest.mark.parametrize(
    ("to", "wording"),
    [
        ("foo", "'foo' cannot be used: no repository stands behind the host"),
        ("oci:", "'oci:' cannot be used"),
        ("localhost:5000", "'localhost:5000' cannot be used: no repository stands behind the host"),
        ("/var/x", "'/var/x' cannot be used: malformed registry host"),
        ("docker://localhost/x-", "cannot be used"),
    ],
)
def test_a_destination_that_is_none_is_told_before_anything_is_fetched(
    upstream: Upstream, options: Options, to: str, wording: str
) -> None:
    with pytest.raises(Refused, match=wording) as raised:
        build_preset(upstream.catalog, PRESET, to, replace(options, mirror="http://127.0.0.1:9"))
    assert "Expected oci:DIR" in str(raised.value)


def test_a_build_that_is_not_ready_leaves_nothing_at_the_destination(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    upstream.add("arm64", OLDER)
    with pytest.raises(NotReady):
        build(upstream, options, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_mirror_is_not_the_upstream(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="the mirror is an empty text"):
        build(upstream, replace(options, mirror=""), tmp_path / "out")


def test_a_platform_that_the_upstream_lacks_is_not_ready(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    del upstream.builds["arm64"]
    upstream.write_index()
    with pytest.raises(NotReady, match="linux/arm64"):
        build(upstream, options, tmp_path / "out")


def test_a_missing_mirror_is_told(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    with pytest.raises(StatefulPodsError, match="nowhere"):
        build(upstream, replace(options, mirror=str(tmp_path / "nowhere")), tmp_path / "out")


# Attacks, each on an otherwise honest upstream, on the second platform: the first one has been verified by then.

Attack = Callable[[Upstream, Path], None]


def _other_archive(upstream: Upstream, directory: Path) -> None:
    (directory / "rootfs.tar.xz").write_bytes(lzma.compress(rootfs_tar("arm64", extra={"etc/evil": b"x"}), preset=0))


def _flipped_byte(upstream: Upstream, directory: Path) -> None:
    data = bytearray((directory / "rootfs.tar.xz").read_bytes())
    data[len(data) // 2] ^= 1
    (directory / "rootfs.tar.xz").write_bytes(data)


def _cut_short(upstream: Upstream, directory: Path) -> None:
    path = directory / "rootfs.tar.xz"
    path.write_bytes(path.read_bytes()[:-8])


def _changed_list(upstream: Upstream, directory: Path) -> None:
    path = directory / "SHA256SUMS"
    path.write_bytes(path.read_bytes().replace(b"rootfs", b"rootfz"))


def _no_signature(upstream: Upstream, directory: Path) -> None:
    (directory / "SHA256SUMS.asc").unlink()


def _other_key(upstream: Upstream, directory: Path) -> None:
    stranger = Signer.create(upstream.root, "Stranger <stranger@example.org>", at=datetime(2026, 1, 1, tzinfo=UTC))
    upstream.add("arm64", signer=stranger)


def _other_platform(upstream: Upstream, directory: Path) -> None:
    for path in upstream.directory("amd64").iterdir():
        (directory / path.name).write_bytes(path.read_bytes())


def _other_platform_without_metadata(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", tar=rootfs_tar("amd64"), metadata=False)


def _older_build(upstream: Upstream, directory: Path) -> None:
    for path in upstream.add("arm64", OLDER).iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    upstream.builds["arm64"] = BUILD
    upstream.write_index()


def _other_variant(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", properties={"variant": "default"})


def _other_distribution(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", tar=rootfs_tar("arm64", os_release="ID=other\nVERSION_ID=1\n"))


def _no_cloud_init(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", tar=rootfs_tar("arm64", cloud_init=False))


def _no_root_filesystem(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", tar=b"\0" * 10240)


def _not_xz(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", packed=b"<html>Sorry, try again later</html>")


def _whiteout(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", tar=rootfs_tar("arm64", extra={"etc/.wh.passwd": b""}))


def _second_xz_stream_of_junk(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", packed=lzma.compress(rootfs_tar("arm64")) + b"junk")


def _future_signature(upstream: Upstream, directory: Path) -> None:
    upstream.add("arm64", signed_at=datetime(2027, 1, 1, tzinfo=UTC))


def _metadata_swapped(upstream: Upstream, directory: Path) -> None:
    (directory / "incus.tar.xz").write_bytes((upstream.directory("amd64") / "incus.tar.xz").read_bytes())


ATTACKS: list[tuple[Attack, type[StatefulPodsError], str]] = [
    (_other_archive, VerificationError, r"rootfs\.tar\.xz does not match its digest: expected sha256:.*found sha256:"),
    (_flipped_byte, VerificationError, r"rootfs\.tar\.xz does not match its digest: expected sha256:.*found sha256:"),
    (_cut_short, VerificationError, r"rootfs\.tar\.xz does not match its digest"),
    (_changed_list, VerificationError, "SHA256SUMS"),
    (_no_signature, Refused, r"SHA256SUMS\.asc"),
    (_other_key, VerificationError, "not pinned"),
    (_other_platform, VerificationError, "architecture.*amd64"),
    (_other_platform_without_metadata, VerificationError, "amd64"),
    (_older_build, VerificationError, "2026-08-01"),
    (_other_variant, VerificationError, "variant"),
    (_other_distribution, VerificationError, "other"),
    (_no_cloud_init, VerificationError, "holds no cloud-init, and the catalog says"),
    (_no_root_filesystem, Refused, "empty"),
    (_not_xz, Refused, "xz"),
    (_whiteout, Refused, r"\.wh\.passwd"),
    (_second_xz_stream_of_junk, Refused, "xz"),
    (_future_signature, VerificationError, "2027"),
    (_metadata_swapped, VerificationError, r"incus\.tar\.xz does not match its digest"),
]


@pytest.mark.parametrize(("attack", "error", "wording"), ATTACKS, ids=[entry[0].__name__ for entry in ATTACKS])
def test_an_attack_is_refused_and_publishes_nothing(
    upstream: Upstream, options: Options, tmp_path: Path, attack: Attack, error: type[Exception], wording: str
) -> None:
    attack(upstream, upstream.directory("arm64"))
    with pytest.raises(error, match=wording):
        build(upstream, options, tmp_path / "out")
    assert blobs(tmp_path / "out") == {}
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name == "index.json"
                and json.loads(path.read_text())["manifests"]]  # fmt: skip


def test_a_mirror_never_appears_in_what_is_published(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    build(upstream, options, tmp_path / "out")
    mirror = str(upstream.mirror).encode()
    layers = [name for name, data in blobs(tmp_path / "out").items() if data.startswith(b"\x28\xb5\x2f\xfd")]
    assert len(layers) == 2
    assert all(mirror not in data for data in blobs(tmp_path / "out").values())


def test_the_real_signed_list_is_accepted_and_another_archive_under_it_refused(tmp_path: Path) -> None:
    data = Path(__file__).parents[1] / "data/linuxcontainers"
    index = tmp_path / "meta/1.0/index-system"
    index.parent.mkdir(parents=True)
    lines = ""
    for architecture in ("amd64", "arm64"):
        path = f"images/debian/trixie/{architecture}/cloud/{BUILD}/"
        (tmp_path / path).mkdir(parents=True)
        for name in ("SHA256SUMS", "SHA256SUMS.asc"):
            (tmp_path / path / name).write_bytes((data / name).read_bytes())
        (tmp_path / path / "rootfs.tar.xz").write_bytes(lzma.compress(rootfs_tar(architecture)))
        lines += f"debian;trixie;{architecture};cloud;{BUILD};/{path}\n"
    index.write_text(lines)
    told: list[str] = []
    from presetbuild.catalog import load_catalog

    with pytest.raises(VerificationError) as raised:
        build_preset(
            load_catalog(), "debian-trixie", f"oci:{tmp_path}/out", Options(mirror=str(tmp_path), tell=told.append)
        )
    assert any("signed by E7FB0CAEC8173D669066514CBAEFF88C22F6E216" in sentence for sentence in told)
    found = hashlib.sha256((tmp_path / path.replace("arm64", "amd64") / "rootfs.tar.xz").read_bytes()).hexdigest()
    assert "sha256:c2eed8f2bf4fe70287ba9244161f30aefdb86328f5759d7efcdbf2b8a92288d6" in str(raised.value)
    assert f"sha256:{found}" in str(raised.value)
    assert "incus.tar.xz is missing" in str(raised.value)
    assert blobs(tmp_path / "out") == {}


def test_an_upstream_that_is_not_there_is_unavailable(upstream: Upstream, options: Options, tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        build(upstream, replace(options, mirror="http://127.0.0.1:9"), tmp_path / "out")


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_no_tag_that_names_half_a_preset(
    upstream: Upstream, options: Options, tmp_path: Path
) -> None:
    whole = build(upstream, options, tmp_path / "whole")
    command = [sys.executable, "-m", "presetbuild", "--catalog", str(upstream.catalog_file), "--signing-keys",
               str(upstream.keys), "--mirror", str(upstream.mirror), "--to", f"oci:{tmp_path}/out", PRESET]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    layout = tmp_path / "out/pet-cloud"
    # The writes are what matters: each rename in the layout is a moment of its own, so the kill follows the n-th one.
    for moment in range(1, 12):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        script = _KILL_AFTER_RENAMES.format(moment=moment)
        killed = subprocess.run(
            [sys.executable, "-c", script, *command[3:]], env=environment, capture_output=True, check=False
        )
        assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
        for digest in tags(layout).values() if (layout / "index.json").exists() else ():
            for entry in document(layout, digest).get("manifests", []):
                for descriptor in (lambda child: [child["config"], *child["layers"]])(
                    document(layout, entry["digest"])
                ):
                    assert sha256(blobs(layout)[descriptor["digest"].removeprefix("sha256:")]) in descriptor["digest"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.endswith(f"@{whole}\n")
        assert tags(layout) == tags(tmp_path / "whole/pet-cloud")
        assert blobs(layout) == blobs(tmp_path / "whole/pet-cloud")


_KILL_AFTER_RENAMES = """
import os, pathlib, signal
count = 0
def counting(rename):
    def counted(*arguments, **options):
        global count
        result = rename(*arguments, **options)
        count += 1
        if count == {moment}:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return counted
os.rename, os.replace = counting(os.rename), counting(os.replace)
from presetbuild.cli import main
main()
"""
