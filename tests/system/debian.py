"""Real Debian root filesystems, and an upstream that serves them in the shape of images.linuxcontainers.org.

mmdebstrap makes the root filesystems: amd64 installed in full, arm64 only extracted, so that nothing of it has to run.
Both carry what the upstream's cloud variant does: systemd, networkd with DHCP on eth0, resolved's link in place of
/etc/resolv.conf, cloud-init and the marker that disables it, an empty machine-id.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

RELEASE = "trixie"
VARIANT = "cloud"

Sign = Callable[[bytes], bytes]
"""Makes an armored detached signature over the bytes it is given."""

_INSTALLED = (
    "ca-certificates cloud-init dbus iproute2 iputils-ping libcap2-bin libpam-systemd netbase sudo systemd-resolved "
    "systemd-sysv"
)
_COPY = 'cp -a --remove-destination {overlay}/. "$1"'  # mmdebstrap's own copy-in would follow what is to be replaced
_RECIPES = {
    "amd64": (
        "--variant=minbase",
        f"--include={_INSTALLED}",
        f"--customize-hook={_COPY}",
        # The one kind of extended attribute that a machine cannot do without.
        '--customize-hook=chroot "$1" setcap cap_net_raw=ep /usr/bin/ping',
    ),
    "arm64": (
        "--variant=extract",
        "--include=base-files cloud-init systemd-resolved systemd-sysv",
        f"--extract-hook={_COPY}",
    ),
}
_FILES = {
    "etc/cloud/cloud-init.disabled": "",
    "etc/hostname": "debian\n",
    "etc/machine-id": "",
    "etc/systemd/network/eth0.network": "[Match]\nName=eth0\n\n[Network]\nDHCP=true\n",
}
_LINKS = {
    "etc/resolv.conf": "/run/systemd/resolve/stub-resolv.conf",
    "etc/systemd/system/multi-user.target.wants/systemd-networkd.service": (
        "/usr/lib/systemd/system/systemd-networkd.service"
    ),
}
_KERNEL_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class RootFilesystem:
    """One architecture's root filesystem, as a tar archive and packed the way the upstream serves it."""

    architecture: str
    tar: Path
    packed: Path  # .tar.xz


def unavailable() -> str | None:
    """Return why no root filesystem can be made here, or None."""
    if os.geteuid() != 0:
        return "only root can make a Debian root filesystem"
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed"
    return None


def recent_build() -> str:
    """Return the name of yesterday's build: old enough to have been signed since, whatever the clock says."""
    return f"{datetime.now(UTC) - timedelta(days=1):%Y%m%d}_05:24"


def root_filesystem(architecture: str, directory: Path) -> RootFilesystem:
    """Return the root filesystem for `architecture`, made in `directory` unless it is there from an earlier call.

    About 30 s and 250 MB for amd64, 10 s and 170 MB for arm64. Raises `subprocess.CalledProcessError`.
    """
    # A changed recipe has another name, so that a cache never answers with what an older one made.
    recipe = hashlib.sha256(repr((_RECIPES[architecture], _FILES, _LINKS)).encode()).hexdigest()[:12]
    tar = directory / f"{architecture}-{recipe}.tar"
    packed = tar.with_name(f"{tar.name}.xz")
    if not packed.exists():
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            made = Path(scratch, tar.name)
            _mmdebstrap(architecture, _overlay(Path(scratch, "overlay")), made)
            pack(made, made.with_name(packed.name))
            made.rename(tar)
            made.with_name(packed.name).rename(packed)
    return RootFilesystem(architecture, tar, packed)


def pack(tar: Path, packed: Path) -> None:
    """Compress `tar` to `packed` with xz, in several blocks as the upstream's archives are."""
    with tar.open("rb") as source, packed.open("wb") as target:
        subprocess.run(["xz", "-T0", "-0", "-c"], stdin=source, stdout=target, check=True)


def pad(tar: Path, size: int, seed: int = 0) -> None:
    """Add files to the archive `tar`, in place, until it is about `size` bytes long; half of their bytes compress.

    The same `seed` gives the same files. Raises `ValueError` where the archive is larger already.
    """
    missing = size - tar.stat().st_size
    if missing < 0:
        raise ValueError(f"{tar.name} is {-missing} bytes over the {size} that it should have")
    rng = random.Random(seed)
    with tarfile.open(tar, "a", format=tarfile.GNU_FORMAT) as archive:
        for number, start in enumerate(range(0, missing, 1 << 20)):
            pages = min(missing - start, 1 << 20) // (2 * _PAGE)
            data = b"".join(rng.randbytes(_PAGE) + b"compressible " * (_PAGE // 13) for _ in range(pages))
            member = tarfile.TarInfo(f"./usr/share/padding/{number:04}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def debian_mirror(directory: Path, sign: Sign, filesystems: Iterable[RootFilesystem], build: str | None = None) -> Path:
    """Lay out an upstream under `directory`, with `build` (None: yesterday's) of every filesystem, and return it."""
    build = build or recent_build()
    lines = ["alpine;3.24;amd64;cloud;20200101_13:00;/images/alpine/3.24/amd64/cloud/20200101_13:00/"]
    for filesystem in filesystems:
        path = f"images/debian/{RELEASE}/{filesystem.architecture}/{VARIANT}/{build}"
        write_build(directory / path, filesystem, sign, build)
        lines.append(f"debian;{RELEASE};{filesystem.architecture};{VARIANT};{build};/{path}/")
    index = directory / "meta/1.0/index-system"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_text("".join(f"{line}\n" for line in lines))
    return directory


def write_build(directory: Path, filesystem: RootFilesystem, sign: Sign, build: str) -> None:
    """Write one build's directory: the archive, its metadata, the list of their checksums, the signature over that."""
    directory.mkdir(parents=True)
    shutil.copyfile(filesystem.packed, directory / "rootfs.tar.xz")  # no link: attacks write into what is served
    (directory / "incus.tar.xz").write_bytes(incus_tar(filesystem.architecture, build))
    sums = "".join(f"{_sha256(directory / name)}  {name}\n" for name in ("rootfs.tar.xz", "incus.tar.xz")).encode()
    (directory / "SHA256SUMS").write_bytes(sums)
    (directory / "SHA256SUMS.asc").write_bytes(sign(sums))


def incus_tar(architecture: str, build: str) -> bytes:
    """Return an `incus.tar.xz` as distrobuilder writes it: metadata.yaml and the templates that it names."""
    made = datetime.strptime(build, "%Y%m%d_%H:%M").replace(tzinfo=UTC)
    metadata = {
        "architecture": _KERNEL_NAMES[architecture],
        "creation_date": int(made.timestamp()),
        "expiry_date": int((made + timedelta(days=30)).timestamp()),
        "properties": {
            "architecture": architecture,
            "description": f"Debian {RELEASE} {architecture} ({build})",
            "name": f"debian-{RELEASE}-{architecture}-{VARIANT}-{build}",
            "os": "Debian",
            "release": RELEASE,
            "serial": build,
            "variant": VARIANT,
        },
        "templates": {
            "/etc/hostname": {"when": ["create", "copy"], "template": "hostname.tpl", "properties": {}},
        },
    }
    files = {"metadata.yaml": yaml.safe_dump(metadata), "templates/hostname.tpl": "{{ container.name }}\n"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(text), int(made.timestamp())
            tar.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def _mmdebstrap(architecture: str, overlay: Path, tar: Path) -> None:
    options = [option.replace("{overlay}", shlex.quote(str(overlay))) for option in _RECIPES[architecture]]
    command = ["mmdebstrap", "--quiet", f"--architectures={architecture}", *options, RELEASE, str(tar)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _overlay(directory: Path) -> Path:
    """Write what the upstream's cloud variant adds to Debian's packages."""
    for name, text in _FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, target in _LINKS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the umask
    return directory


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
