"""`presetbuild debian-trixie` on a real Debian root filesystem, checked by tools that share no code with it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from presetbuild.audit import audit
from presetbuild.build import Options, build_preset
from presetbuild.catalog import load_catalog
from presetbuild.findings import State
from shim.image.reference import parse_reference
from tests.presetbuild.pgp import Signer
from tests.registries import PASSWORD, USERNAME, RegistryAt
from tests.system import debian

CATALOG = """\
compression = "{compression}"
source = "https://git.example.org/pets"
[upstreams.example]
kind = "lxc"
url = "https://images.example.org"
keys = [ {{ file = "example.asc", fingerprint = "{fingerprint}" }} ]
[presets.debian-trixie]
upstream = "example"
distribution = "debian"
release = "trixie"
variant = "cloud"
repository = "debian-cloud"
provisioning = ["cloud-init", "exec"]
os-release = {{ ID = "debian", VERSION_CODENAME = "trixie" }}
platforms = ["linux/amd64", "linux/arm64"]
"""


class Site:
    """A signed mirror of real root filesystems, a catalog that pins its key, and the command over both."""

    def __init__(self, root: Path, filesystems: Mapping[str, debian.RootFilesystem]) -> None:
        self.root = root
        self.signer = Signer.create(root)
        self.mirror = debian.debian_mirror(root / "mirror", self.signer.sign, filesystems.values())
        self.keys = root / "keys"
        self.keys.mkdir()
        (self.keys / "example.asc").write_bytes(self.signer.public_key())
        self.catalog_file = self.write_catalog("zstd")

    def write_catalog(self, compression: str) -> Path:
        path = self.root / f"{compression}.toml"
        path.write_text(CATALOG.format(compression=compression, fingerprint=self.signer.fingerprint))
        return path

    @property
    def options(self) -> Options:
        return Options(signing_keys=self.keys, mirror=str(self.mirror))

    def command(self, to: str) -> list[str]:
        return [sys.executable, "-m", "presetbuild", "--catalog", str(self.catalog_file), "--signing-keys",
                str(self.keys), "--mirror", str(self.mirror), "--to", to, "debian-trixie"]  # fmt: skip

    def directory(self, architecture: str) -> Path:
        (found,) = (self.mirror / f"images/debian/trixie/{architecture}/cloud").iterdir()
        return found


@pytest.fixture(scope="session")
def site(debian_filesystems: Mapping[str, debian.RootFilesystem], tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"), debian_filesystems)


@pytest.fixture(scope="session")
def layout(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout that the command made of the real root filesystems."""
    work = tmp_path_factory.mktemp("layout")
    subprocess.run(site.command("oci:out"), cwd=work, check=True, capture_output=True, env=environment())
    return work / "out/debian-cloud"


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **more}


def skopeo(*words: str, **variables: str) -> bytes:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    return subprocess.run(
        ["skopeo", "--insecure-policy", *words], check=True, capture_output=True, env={**os.environ, **variables}
    ).stdout


def document(layout: Path, digest: str) -> Any:
    return json.loads((layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes())


def test_the_diff_ids_are_what_xz_and_sha256sum_say(site: Site, layout: Path) -> None:
    for architecture in ("amd64", "arm64"):
        config = json.loads(skopeo("inspect", "--config", "--override-arch", architecture, f"oci:{layout}:trixie"))
        pipeline = f"xz -dc '{site.directory(architecture)}/rootfs.tar.xz' | sha256sum"
        unpacked = subprocess.run(["sh", "-c", pipeline], check=True, capture_output=True, text=True).stdout.split()[0]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{unpacked}"]
        assert config["architecture"] == architecture


def test_gnu_tar_lists_the_layer_as_it_lists_the_archive(site: Site, layout: Path) -> None:
    tag = json.loads((layout / "index.json").read_text())
    index = next(
        entry["digest"]
        for entry in tag["manifests"]
        if entry["annotations"]["org.opencontainers.image.ref.name"] == "trixie"
    )
    for entry in document(layout, index)["manifests"]:
        layer = document(layout, entry["digest"])["layers"][0]["digest"]
        listing = ["tar", "--list", "--verbose", "--numeric-owner", "--full-time", "--xattrs", "--file"]
        ours = subprocess.run(
            [*listing, str(layout / "blobs/sha256" / layer.removeprefix("sha256:")), "--zstd"],
            check=True,
            capture_output=True,
        ).stdout
        archive = site.directory(entry["platform"]["architecture"]) / "rootfs.tar.xz"
        theirs = subprocess.run([*listing, str(archive), "--xz"], check=True, capture_output=True).stdout
        assert ours == theirs
        assert ours.count(b"\n") > 3000


def test_gpgv_accepts_the_list_that_was_accepted(site: Site) -> None:
    if shutil.which("gpgv") is None:
        pytest.skip("gpgv is not installed")
    ring = site.root / "ring.gpg"
    ring.write_bytes(site.signer.public_key(armor=False))
    directory = site.directory("amd64")
    done = subprocess.run(
        ["gpgv", "--keyring", str(ring), str(directory / "SHA256SUMS.asc"), str(directory / "SHA256SUMS")],
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("registry", ["docker_registry", "docker_registry_auth"])
def test_a_registry_gets_the_digest_that_a_layout_gets(
    site: Site, layout: Path, registry: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    at: RegistryAt = request.getfixturevalue(registry)
    login(tmp_path, at.host)
    done = subprocess.run(
        site.command(f"{at.host}/{at.repository}-"), check=True, capture_output=True, text=True,
        env=environment(DOCKER_CONFIG=str(tmp_path), TZ="Asia/Tokyo"),
    )  # fmt: skip
    name, build, reference = done.stdout.removesuffix("\n").split("\t")
    repository, _, digest = reference.partition("@")
    assert (name, repository) == ("debian-trixie", f"{at.host}/{at.repository}-debian-cloud")
    raw = skopeo("inspect", "--raw", f"oci:{layout}:trixie")
    assert digest == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    found = skopeo(
        "inspect", "--raw", "--tls-verify=false", "--authfile", str(tmp_path / "config.json"), f"docker://{reference}"
    )
    assert found == raw
    tags = json.loads(
        skopeo("list-tags", "--tls-verify=false", "--authfile", str(tmp_path / "config.json"), f"docker://{repository}")
    )
    dated = f"trixie-{build.replace(':', '')}"
    assert sorted(tags["Tags"]) == ["trixie", dated, f"{dated}-amd64", f"{dated}-arm64"]


def login(directory: Path, host: str) -> None:
    """Write the configuration that `docker login` would."""
    auth = base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
    (directory / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def test_skopeo_copies_both_platforms_out_of_a_registry(
    site: Site, docker_registry: RegistryAt, tmp_path: Path
) -> None:
    catalog = load_catalog(site.catalog_file)
    prefix = f"{docker_registry.host}/{docker_registry.repository}-"
    published = build_preset(catalog, "debian-trixie", prefix, site.options)
    index = json.loads(skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{published.reference}"))
    for entry in index["manifests"]:
        copy = tmp_path / entry["platform"]["architecture"]
        skopeo(
            "--override-arch", copy.name, "copy", "--src-tls-verify=false",
            f"docker://{published.reference}", f"oci:{copy}:it",
        )  # fmt: skip
        assert json.loads((copy / "index.json").read_text())["manifests"][0]["digest"] == entry["digest"]
        manifest = document(copy, entry["digest"])
        layer = copy / "blobs/sha256" / manifest["layers"][0]["digest"].removeprefix("sha256:")
        config = document(copy, manifest["config"]["digest"])
        unpacked = subprocess.run(["zstd", "-dcq", str(layer)], check=True, stdout=subprocess.PIPE).stdout
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    result = audit(parse_reference(published.reference), catalog, site.options)
    assert {finding.state for finding in result.findings} == {State.HOLDS}
    assert sum("signed archive, decompressed, is the layer" in finding.sentence for finding in result.findings) == 2


def test_gzip_layers_hold_the_same_bytes(site: Site, layout: Path, tmp_path: Path) -> None:
    catalog = load_catalog(site.write_catalog("gzip"))
    published = build_preset(catalog, "debian-trixie", f"oci:{tmp_path}", site.options)
    ours = tmp_path / "debian-cloud"
    (first, _) = document(ours, str(published.digest))["manifests"]
    manifest = document(ours, first["digest"])
    assert manifest["layers"][0]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    config = document(ours, manifest["config"]["digest"])
    theirs = json.loads(skopeo("inspect", "--config", "--override-arch", "amd64", f"oci:{layout}:trixie"))
    assert config["rootfs"] == theirs["rootfs"]
    assert audit(parse_reference(published.reference), catalog, site.options, offline=True).holds


def test_nothing_is_written_but_compressed_layers(site: Site, tmp_path: Path) -> None:
    """The uncompressed root filesystem never lies on a disk, neither in the layout nor in a temporary directory."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    biggest = 0
    with subprocess.Popen(
        site.command(f"oci:{tmp_path}/out"),
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as build:
        while build.poll() is None:
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            biggest = max([biggest, *(path.stat().st_size for path in files if path.exists())])
            time.sleep(0.02)
    assert build.returncode == 0
    assert list(temporary.iterdir()) == []
    assert 10 << 20 < biggest < (site.directory("amd64") / "rootfs.tar.xz").stat().st_size * 1.3


@pytest.mark.parametrize("after", [1.0, 3.0])
def test_a_kill_moves_no_tag_and_the_next_run_completes(site: Site, layout: Path, tmp_path: Path, after: float) -> None:
    command = site.command("oci:out")
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as build:
        try:
            build.wait(after)
        except subprocess.TimeoutExpired:
            os.kill(build.pid, signal.SIGKILL)
    ours = tmp_path / "out/debian-cloud"
    index = ours / "index.json"
    entries = json.loads(index.read_text())["manifests"] if index.exists() else []
    for entry in entries:  # whatever a tag names is whole
        assert audit(
            parse_reference(f"oci:{ours}@{entry['digest']}"),
            load_catalog(site.catalog_file),
            site.options,
            offline=True,
        ).digest
    done = subprocess.run(command, cwd=tmp_path, env=environment(), check=True, capture_output=True, text=True)
    raw = skopeo("inspect", "--raw", f"oci:{layout}:trixie")
    assert done.stdout.removesuffix("\n").endswith(f"@sha256:{hashlib.sha256(raw).hexdigest()}")
    files = {path.relative_to(ours): path.stat().st_mode for path in ours.rglob("*") if path.is_file()}
    assert files == {path.relative_to(layout): path.stat().st_mode for path in layout.rglob("*") if path.is_file()}
