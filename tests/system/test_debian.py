"""The stand-in for the upstream is what it claims to be, as Debian's own tools see it."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.system import debian

BUILD = "20260829_05:24"


@pytest.fixture(params=["amd64", "arm64"])
def members(
    request: pytest.FixtureRequest, debian_filesystems: Mapping[str, debian.RootFilesystem]
) -> Mapping[str, tarfile.TarInfo]:
    with tarfile.open(debian_filesystems[request.param].tar) as tar:
        return {member.name: member for member in tar}


def test_the_root_filesystem_carries_what_the_cloud_variant_does(members: Mapping[str, tarfile.TarInfo]) -> None:
    assert members["./etc/resolv.conf"].linkname == "/run/systemd/resolve/stub-resolv.conf"
    assert members["./etc/machine-id"].size == 0
    assert members["./etc/systemd/network/eth0.network"].isreg()
    assert members["./etc/cloud/cloud-init.disabled"].isreg()
    assert members["./usr/bin/cloud-init"].mode & 0o111
    assert members["./usr/sbin/init"].linkname.endswith("lib/systemd/systemd")
    assert members["./bin"].linkname == "usr/bin"


def test_the_root_filesystem_has_the_features_that_are_lost_easily(
    debian_filesystems: Mapping[str, debian.RootFilesystem],
) -> None:
    with tarfile.open(debian_filesystems["amd64"].tar) as tar:
        members = {member.name: member for member in tar}
    assert members["./usr/bin/sudo"].mode == 0o4755
    assert "SCHILY.xattr.security.capability" in members["./usr/bin/ping"].pax_headers
    assert any(member.islnk() for member in members.values())
    assert members["./dev/null"].ischr()


def test_the_mirror_is_laid_out_and_listed_as_the_upstream_does(
    debian_filesystems: Mapping[str, debian.RootFilesystem], tmp_path: Path
) -> None:
    mirror = debian.debian_mirror(tmp_path, lambda data: b"signature over " + data, debian_filesystems.values(), BUILD)
    index = (mirror / "meta/1.0/index-system").read_text().splitlines()
    for architecture, filesystem in debian_filesystems.items():
        line = next(line for line in index if line.startswith(f"debian;trixie;{architecture};cloud;{BUILD};/"))
        build = mirror / line.rpartition(";")[2].strip("/")
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=build, check=True)
        assert (build / "SHA256SUMS.asc").read_bytes() == b"signature over " + (build / "SHA256SUMS").read_bytes()
        unpacked = subprocess.run(["xz", "-dc", "rootfs.tar.xz"], cwd=build, check=True, stdout=subprocess.PIPE).stdout
        assert unpacked == filesystem.tar.read_bytes()
        with tarfile.open(build / "incus.tar.xz") as tar:
            metadata = tar.extractfile("metadata.yaml")
            assert metadata is not None
            properties = yaml.safe_load(metadata)["properties"]
        assert (properties["os"], properties["architecture"], properties["serial"]) == ("Debian", architecture, BUILD)


def test_padding_is_the_same_twice_and_compresses_by_half(tmp_path: Path) -> None:
    size = 8 << 20
    for name in ("one.tar", "two.tar"):
        with tarfile.open(tmp_path / name, "w") as tar:
            tar.addfile(tarfile.TarInfo("./etc"))
        debian.pad(tmp_path / name, size)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert abs((tmp_path / "one.tar").stat().st_size - size) < 256 << 10
    debian.pack(tmp_path / "one.tar", tmp_path / "one.tar.xz")
    assert 0.45 < (tmp_path / "one.tar.xz").stat().st_size / size < 0.55
