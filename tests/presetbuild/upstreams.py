"""A small upstream in the shape of images.linuxcontainers.org, of which a test can bend every part."""

from __future__ import annotations

import hashlib
import io
import lzma
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from presetbuild.catalog import Catalog, load_catalog
from tests.presetbuild.pgp import Signer

BUILD = "20260829_05:24"
OLDER = "20260801_05:24"
NEWER = "20260901_05:24"
NOW = datetime(2026, 9, 2, 12, 0, tzinfo=UTC)
PRESET = "pet-one"
MACHINES = {"amd64": 62, "arm64": 183}
KEY_MADE = datetime(2026, 1, 1, tzinfo=UTC)

CATALOG = """\
compression = "{compression}"
source = "https://git.example.org/pets"

[upstreams.example]
kind = "lxc"
url = "https://images.example.org"
keys = [ {{ file = "example.asc", fingerprint = "{fingerprint}" }} ]

[presets.pet-one]
upstream = "example"
distribution = "pet"
release = "one"
variant = "cloud"
repository = "pet-cloud"
provisioning = ["cloud-init", "exec"]
os-release = {{ ID = "pet", VERSION_ID = "1*" }}
platforms = ["linux/amd64", "linux/arm64"]
"""


@dataclass(slots=True)
class Upstream:
    """A mirror directory, a key directory and a catalog below one root, and the signer of the lists."""

    root: Path
    signer: Signer
    builds: dict[str, str] = field(default_factory=dict)

    @property
    def mirror(self) -> Path:
        return self.root / "mirror"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def catalog_file(self) -> Path:
        return self.root / "catalog.toml"

    @property
    def catalog(self) -> Catalog:
        return load_catalog(self.catalog_file)

    def write_catalog(self, compression: str = "zstd", extra: str = "") -> None:
        self.keys.mkdir(parents=True, exist_ok=True)
        (self.keys / "example.asc").write_bytes(self.signer.public_key())
        text = CATALOG.format(fingerprint=self.signer.fingerprint, compression=compression)
        self.catalog_file.write_text(text + extra)

    def directory(self, architecture: str, build: str = BUILD) -> Path:
        return self.mirror / f"images/pet/one/{architecture}/cloud/{build}"

    def add(
        self,
        architecture: str,
        build: str = BUILD,
        *,
        tar: bytes | None = None,
        packed: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        metadata: bool = True,
        signed_at: datetime | None = None,
        signer: Signer | None = None,
    ) -> Path:
        """Add one platform's build, honest but for what is given, name it in the index, and return its directory.

        `tar` and `packed` replace the archive, before and after compression; `properties` are laid over the honest
        ones; without `metadata` the list covers no incus.tar.xz.
        """
        directory = self.directory(architecture, build)
        directory.mkdir(parents=True, exist_ok=True)
        archive = packed if packed is not None else lzma.compress(tar or rootfs_tar(architecture), preset=0)
        files = {"rootfs.tar.xz": archive}
        if metadata:
            files["incus.tar.xz"] = incus_tar(architecture, build, properties or {})
        for name, data in files.items():
            (directory / name).write_bytes(data)
        made = datetime.strptime(build, "%Y%m%d_%H:%M").replace(tzinfo=UTC)
        self.sign(directory, "".join(f"{sha256(data)}  {name}\n" for name, data in files.items()).encode(),
                  at=signed_at or made + timedelta(minutes=30), signer=signer)  # fmt: skip
        self.builds[architecture] = build
        self.write_index()
        return directory

    def sign(self, directory: Path, sums: bytes, *, at: datetime, signer: Signer | None = None) -> None:
        (directory / "SHA256SUMS").write_bytes(sums)
        (directory / "SHA256SUMS.asc").write_bytes((signer or self.signer).sign(sums, at=at))

    def write_index(self) -> None:
        index = self.mirror / "meta/1.0/index-system"
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_text(
            "".join(
                f"pet;one;{architecture};cloud;{build};/images/pet/one/{architecture}/cloud/{build}/\n"
                for architecture, build in self.builds.items()
            )
        )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def elf(architecture: str) -> bytes:
    """Return the first 64 bytes of a 64-bit little-endian executable."""
    header = struct.pack("<4sBBBB8xHH", b"\x7fELF", 2, 1, 1, 0, 2, MACHINES[architecture])
    return header.ljust(64, b"\0")


def rootfs_tar(
    architecture: str,
    *,
    os_release: str = 'ID=pet\nVERSION_ID="1.2"\n',
    cloud_init: bool = True,
    extra: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return a small root filesystem archive; `extra` adds files by name."""
    files = {
        "etc/os-release": (os_release.encode(), 0o644),
        "usr/bin/true": (elf(architecture), 0o755),
        "usr/sbin/init": (elf(architecture), 0o755),
        **({"usr/bin/cloud-init": (b"#!/usr/bin/python3\n", 0o755)} if cloud_init else {}),
        **{name: (data, 0o644) for name, data in (extra or {}).items()},
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in ("./", "./dev/", "./etc/", "./proc/", "./run/", "./sys/", "./tmp/", "./usr/", "./usr/bin/",
                     "./usr/sbin/", "./var/"):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for name in ("bin", "sbin"):
            member = tarfile.TarInfo(f"./{name}")
            member.type, member.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(member)
        for name, (data, mode) in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def incus_tar(architecture: str, build: str, properties: Mapping[str, str]) -> bytes:
    """Return an incus.tar.xz whose metadata has the honest properties with `properties` laid over them."""
    values = {
        "architecture": architecture,
        "os": "Pet",
        "release": "one",
        "variant": "cloud",
        "serial": build,
    } | dict(properties)
    text = "architecture: x\nproperties:\n" + "".join(f'  {key}: "{value}"\n' for key, value in values.items())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("metadata.yaml")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text.encode()))
    return lzma.compress(buffer.getvalue(), preset=0)
