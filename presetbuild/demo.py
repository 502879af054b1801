"""The whole job with nothing but this machine: a key, an upstream on loopback, a build, a check, and two attacks.

Everything between the upstream's files and the published image is done by the same library functions as any build;
what is made up here is only the far end: a throwaway key, root filesystems, and a web server that serves them in the
shape of images.linuxcontainers.org.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import lzma
import shlex
import shutil
import struct
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Self

import gnupg

from presetbuild.audit import audit
from presetbuild.build import Options, build_preset
from presetbuild.catalog import Catalog, KeyPin, Preset, Upstream
from presetbuild.publish import Published
from presetbuild.upstream import lxc
from shim import run
from shim.errors import Refused
from shim.image.digest import CHUNK
from shim.image.model import Platform
from shim.image.reference import parse_reference

Say = Callable[[str], None]

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
_ELF_MACHINE = {AMD64: 62, ARM64: 183}  # EM_X86_64, EM_AARCH64: System V ABI, "ELF Header"
_SIGN = ["--digest-algo", "SHA512"]  # what the real upstream's signatures use
_PUBLIC_URL = "https://images.example.org"
_NAME = "demo"


def run_demo(say: Say, *, directory: Path | None = None, debian: bool = False) -> Published:
    """Build a preset from an upstream made on the spot, verify it, and have two attacks refused.

    `say` is called with each line of the story. The image layout stays in `directory` (None: a fresh temporary
    directory); with `debian`, the root filesystems are real ones, made by mmdebstrap. Raises `Refused` where a step
    that should succeed does not, or an attack succeeds.
    """
    for tool, package in {"gpg": "gnupg", "gpgconf": "gnupg", "xz": "xz-utils", "mmdebstrap": "mmdebstrap"}.items():
        if shutil.which(tool) is None and (debian or tool != "mmdebstrap"):
            raise Refused(f"the demonstration needs {tool}, which is not installed; apt-get install {package}")
    if directory and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Refused(f"{directory} is not an empty directory; name one that is, or none")
    kept = directory or Path(tempfile.mkdtemp(prefix="presetbuild-demo-"))
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    with ExitStack() as story:
        failed = story.enter_context(ExitStack())
        if directory is None:
            failed.callback(shutil.rmtree, kept, ignore_errors=True)
        work = Path(story.enter_context(tempfile.TemporaryDirectory(prefix="demo-")))
        say("1. A throwaway key and an upstream")
        signer = story.enter_context(_Signer(work / "gnupg", created=now - timedelta(days=30)))
        mirror = _Mirror(work / "upstream", signer)
        (work / "keys").mkdir()
        (work / "keys" / "demo.asc").write_text(signer.public_key)
        say(f"   The key's fingerprint is {signer.fingerprint}; the catalog pins it.")
        older, newer = now - timedelta(days=2), now - timedelta(hours=1)
        for platform in (AMD64, ARM64):
            archive = _debian_tar(work, platform) if debian else _small_tar(work, platform)
            for made in (older, newer):
                mirror.add(platform, made, archive)
            archive.unlink()
        mirror.write_index(dict.fromkeys((AMD64, ARM64), newer))
        say(f"   {'Debian' if debian else 'Small'} root filesystems for {AMD64} and {ARM64}, with signed SHA256SUMS.")
        catalog = _catalog(signer, debian=debian)
        with _serve(mirror.root) as url:
            options = Options(signing_keys=work / "keys", mirror=url, tell=lambda text: say(f"   {text}"))
            say(f"2. presetbuild {_NAME}: read it from {url}, verify, package, publish")
            published = build_preset(catalog, _NAME, f"oci:{kept}", options)
            say("3. presetbuild verify: read the published image back")
            result = audit(parse_reference(published.reference), catalog, options)
            for finding in result.findings:
                say(f"   {finding.state}: {finding.subject}: {finding.sentence}")
            if not result.holds:
                raise Refused("the image that was just built does not hold; see the findings above")
            say("4. Attack: one byte of the archive is changed on the mirror")
            with mirror.tampered(AMD64, newer):
                _attack(catalog, work, options, say)
            say("5. Attack: the mirror answers with an older build of another platform, honestly signed")
            with mirror.swapped((AMD64, newer), (ARM64, older)):
                _attack(catalog, work, options, say)
        failed.pop_all()
    say("6. The image")
    say(f"   {published.reference}")
    layout = kept / _NAME
    say(f"   Look at it:  skopeo inspect --raw {shlex.quote(f'{published.repository}:one')}")
    say(f"   Remove it:   rm -r {shlex.quote(str(layout if directory else kept))}")
    return published


def _attack(catalog: Catalog, work: Path, options: Options, say: Say) -> None:
    """Build from the mirror as it is now, into an empty place, and insist on a refusal that leaves nothing there."""
    victim = work / "victim"
    try:
        build_preset(catalog, _NAME, f"oci:{victim}", Options(options.signing_keys, options.mirror))
    except Refused as refusal:
        say(f"   Refused: {refusal}")
    else:
        raise Refused("the attack was not noticed; please report this")
    left = [path for path in victim.rglob("*") if path.is_file() and path.parent.name == "sha256"]
    if left:
        raise Refused(f"the attack was noticed, and yet {len(left)} blobs were published; please report this")
    say("   Nothing was published.")


def _catalog(signer: _Signer, *, debian: bool) -> Catalog:
    upstream = Upstream("demo", "lxc", _PUBLIC_URL, (KeyPin("demo.asc", signer.fingerprint, retired=False),))
    os_release = {"ID": "debian", "VERSION_CODENAME": "trixie"} if debian else {"ID": _NAME}
    preset = Preset(
        name=_NAME,
        upstream=upstream,
        distribution=_NAME,
        release="one",
        variant="default",
        repository=_NAME,
        provisioning=("exec",),
        os_release=os_release,
        platforms=(AMD64, ARM64),
    )
    return Catalog("zstd", "https://git.example.org/demo", {"demo": upstream}, {_NAME: preset})


class _Signer:
    """A GnuPG home with one key that signs as of any time."""

    def __init__(self, home: Path, created: datetime) -> None:
        home.mkdir(mode=0o700)
        self._home = home
        gpg = self._gpg(created)
        made = gpg.gen_key(
            "Key-Type: eddsa\nKey-Curve: ed25519\nKey-Usage: sign\nName-Real: presetbuild demo\n"
            "%no-protection\n%commit\n"
        )
        if not made.fingerprint:
            raise Refused(f"gpg made no key: {made.stderr}")
        self.fingerprint: str = made.fingerprint
        self.public_key: str = gpg.export_keys(made.fingerprint)

    def sign(self, data: bytes, at: datetime) -> bytes:
        """Return an armored detached signature over `data`, made at `at`."""
        return bytes(self._gpg(at).sign(data, detach=True, clearsign=False).data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the agent that gpg started to hold the key."""
        run.run(["gpgconf", "--homedir", str(self._home), "--kill", "all"], what="ending the demo's gpg-agent")

    def _gpg(self, at: datetime) -> gnupg.GPG:
        return gnupg.GPG(gnupghome=str(self._home), options=["--faked-system-time", f"{int(at.timestamp())}!", *_SIGN])


@dataclass(frozen=True, slots=True)
class _Mirror:
    """A directory in the shape that the upstream serves."""

    root: Path
    signer: _Signer

    def directory(self, platform: Platform, made: datetime) -> Path:
        return self.root / f"images/demo/one/{platform.architecture}/default/{_build_name(made)}"

    def add(self, platform: Platform, made: datetime, archive: Path) -> None:
        """Add one build: the archive, its metadata, and the signed list over both."""
        directory = self.directory(platform, made)
        directory.mkdir(parents=True)
        rootfs = directory / lxc.ARCHIVE
        with (
            archive.open("rb") as tar,
            rootfs.open("wb") as packed,
            run.piped(["xz", "-T0", "-1"], tar, "xz") as stream,
        ):
            while data := stream.read(CHUNK):
                packed.write(data)
        (directory / lxc.METADATA).write_bytes(_metadata(platform, made))
        names = (lxc.ARCHIVE, lxc.METADATA)
        sums = "".join(f"{_sha256(directory / name)}  {name}\n" for name in names).encode()
        (directory / lxc.LIST).write_bytes(sums)
        (directory / lxc.SIGNATURE).write_bytes(self.signer.sign(sums, made + timedelta(minutes=10)))

    def write_index(self, builds: dict[Platform, datetime]) -> None:
        index = self.root / lxc.INDEX
        index.parent.mkdir(parents=True)
        lines = [
            f"demo;one;{platform.architecture};default;{_build_name(made)};"
            f"/{self.directory(platform, made).relative_to(self.root)}/\n"
            for platform, made in builds.items()
        ]
        index.write_text("".join(lines))

    @contextmanager
    def tampered(self, platform: Platform, made: datetime) -> Iterator[None]:
        """Change one byte in the middle of an archive for as long as the block runs."""
        path = self.directory(platform, made) / lxc.ARCHIVE
        middle = path.stat().st_size // 2
        with path.open("r+b") as file:
            file.seek(middle)
            byte = file.read(1)
            file.seek(middle)
            file.write(bytes([byte[0] ^ 1]))
        yield
        with path.open("r+b") as file:
            file.seek(middle)
            file.write(byte)

    @contextmanager
    def swapped(self, victim: tuple[Platform, datetime], other: tuple[Platform, datetime]) -> Iterator[None]:
        """Serve another build's files in place of the victim's for as long as the block runs."""
        path = self.directory(*victim)
        aside = path.with_name("aside")
        path.rename(aside)
        shutil.copytree(self.directory(*other), path)
        yield
        shutil.rmtree(path)
        aside.rename(path)


def _build_name(made: datetime) -> str:
    return f"{made:%Y%m%d_%H:%M}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _metadata(platform: Platform, made: datetime) -> bytes:
    text = (
        f"architecture: {platform.architecture}\ncreation_date: {int(made.timestamp())}\nproperties:\n"
        f"  architecture: {platform.architecture}\n  os: Demo\n  release: one\n  variant: default\n"
        f'  serial: "{_build_name(made)}"\n'
    ).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("metadata.yaml")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    return lzma.compress(buffer.getvalue())


def _small_tar(work: Path, platform: Platform) -> Path:
    """Return a root filesystem of the least that one can be: directories, an os-release, and a bare ELF header."""
    elf = struct.pack("<4sBBBB8xHH", b"\x7fELF", 2, 1, 1, 0, 2, _ELF_MACHINE[platform]).ljust(64, b"\0")
    path = work / f"{platform.architecture}.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in (".", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "usr/bin", "usr/lib", "usr/sbin", "var"):
            member = tarfile.TarInfo("./" if name == "." else f"./{name}/")
            member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(member)
        for name in ("bin", "lib", "sbin"):
            member = tarfile.TarInfo(f"./{name}")
            member.type, member.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(member)
        files = {
            "etc/os-release": (f'ID={_NAME}\nNAME="A demonstration"\n'.encode(), 0o644),
            "etc/hostname": (b"demo\n", 0o644),
            "usr/bin/true": (elf, 0o755),
            "usr/sbin/init": (elf, 0o755),
        }
        for name, (data, mode) in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
    return path


def _debian_tar(work: Path, platform: Platform) -> Path:
    """Return Debian trixie's packages, extracted: nothing in it is run, so any machine can make it for any platform."""
    path = work / f"{platform.architecture}.tar"
    run.run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=extract",
            f"--architectures={platform.architecture}",
            "--include=base-files,bash,coreutils,systemd-sysv",
            "trixie",
            str(path),
        ],
        what=f"making a Debian root filesystem for {platform}",
    )
    return path


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing: the story is told elsewhere."""


@contextmanager
def _serve(directory: Path) -> Iterator[str]:
    """Serve `directory` on a free port of the loopback interface."""
    handler = partial(_QuietHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
