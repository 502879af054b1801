"""``make bench``: speed and memory on a real Debian root filesystem, on tmpfs, paired with the peer in one run.

The peer is what an operator would write with crane: decode, check, append, label, index. Both sides publish one
platform to Debian's docker-registry on loopback, one after the other, several times; the figure to look at is the
ratio of the medians, because the machine's mood falls on both. Where crane is missing no ratio is claimed.
"""

from __future__ import annotations

import http.server
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.bench_seed import measured_peak, seed_speed
from tests.chart.bench import render_hundred
from tests.presetbuild.pgp import Signer
from tests.presetbuild.upstreams import rootfs_tar
from tests.registries import run_docker_registry
from tests.system import debian
from tests.system.test_build_debian import CATALOG

ROUNDS = 5
_MIB = 1 << 20


class Bench:
    """A tmpfs with a signed mirror, a catalog, a registry, and the two pipelines over them."""

    def __init__(self, root: Path, host: str, log: Path) -> None:
        self.root, self.host, self.log = root, host, log
        self.signer = Signer.create(root)
        (root / "keys").mkdir()
        (root / "keys/example.asc").write_bytes(self.signer.public_key())
        (root / "catalog.toml").write_text(CATALOG.format(compression="zstd", fingerprint=self.signer.fingerprint))
        self.number = 0

    def mirror(self, name: str, packed: Path) -> Path:
        """Return an upstream that serves one amd64 root filesystem."""
        filesystem = debian.RootFilesystem("amd64", packed.with_suffix(""), packed)
        return debian.debian_mirror(self.root / name, self.signer.sign, [filesystem])

    def ours(self, mirror: str, prefix: str, platforms: tuple[str, ...] = ("linux/amd64",)) -> list[str]:
        options = [word for platform in platforms for word in ("--platform", platform)]
        return [sys.executable, "-m", "presetbuild", "--catalog", str(self.root / "catalog.toml"), "--signing-keys",
                str(self.root / "keys"), "--mirror", mirror, "--to", f"{self.host}/{prefix}-", *options,
                "debian-trixie"]  # fmt: skip

    def peer(self, mirror: Path, prefix: str) -> list[str]:
        (directory,) = (mirror / "images/debian/trixie/amd64/cloud").iterdir()
        image = f"{self.host}/{prefix}"
        script = f"""set -e
cd {directory}; tar={self.root}/peer.tar
gpgv --quiet --keyring {self.root}/ring.gpg SHA256SUMS.asc SHA256SUMS 2>/dev/null
grep ' rootfs.tar.xz$' SHA256SUMS | sha256sum --check --quiet -
xz -T0 -dc rootfs.tar.xz > "$tar"; diff=$(sha256sum < "$tar")
crane append --insecure --oci-empty-base --new_layer "$tar" --new_tag {image}:layer >/dev/null 2>&1
crane mutate --insecure --set-platform linux/amd64 --label a=b --annotation a=b \\
  --tag {image}:amd64 {image}:layer >/dev/null 2>&1
crane index append --insecure --manifest {image}:amd64 --tag {image}:trixie >/dev/null 2>&1
crane manifest --insecure {image}:trixie >/dev/null; rm "$tar" """
        return ["sh", "-c", script]


def main() -> None:
    """Measure, and print one line for each figure."""
    if reason := debian.unavailable():
        sys.exit(f"bench: {reason}")
    cache = Path(os.environ.get("STATEFUL_PODS_TEST_CACHE") or tempfile.mkdtemp(prefix="bench-debian-", dir="/var/tmp"))
    cache.mkdir(parents=True, exist_ok=True)
    filesystem = debian.root_filesystem("amd64", cache)
    with ExitStack() as stack:
        root = stack.enter_context(_tmpfs())
        os.environ["TMPDIR"] = str(root)
        (root / "registry").mkdir()
        host = stack.enter_context(run_docker_registry(root / "registry", auth=False))
        bench = Bench(root, host, root / "registry/log")
        packed = Path(shutil.copy(filesystem.packed, root))
        size = filesystem.tar.stat().st_size
        print(f"Debian trixie amd64, {size / _MIB:.0f} MiB unpacked, {packed.stat().st_size / _MIB:.0f} MiB packed; "
              f"{os.cpu_count()} cores; medians of {ROUNDS}", flush=True)  # fmt: skip
        _speed(bench, bench.mirror("mirror", packed))
        _no_op(bench)
        for megabytes in (80, 600):
            _memory(bench, megabytes)
        (root / "seed").mkdir()
        seed_speed(root / "seed", host, _published(bench))
    print(f"a hundred machines render in {render_hundred():.2f} s; to reach: 1")
    if "STATEFUL_PODS_TEST_CACHE" not in os.environ:
        shutil.rmtree(cache)


def _speed(bench: Bench, mirror: Path) -> None:
    (bench.root / "ring.gpg").write_bytes(bench.signer.public_key(armor=False))
    crane = shutil.which("crane") is not None
    ours, peer, limit = [], [], []
    (archive,) = mirror.glob("images/debian/trixie/amd64/cloud/*/rootfs.tar.xz")
    for number in range(ROUNDS):
        ours.append(_time(bench.ours(str(mirror), f"ours{number}")))
        if crane:
            peer.append(_time(bench.peer(mirror, f"peer{number}/image")))
        limit.append(
            _time(["sh", "-c", f"xz -T2 -dc {archive} | zstd -q -3 > {bench.root}/limit; rm {bench.root}/limit"])
        )
    mine, floor = statistics.median(ours), statistics.median(limit)
    print(f"build and publish: {mine:.2f} s; {mine / floor:.2f} of 'xz -T2 -dc | zstd -3' ({floor:.2f} s)")
    if crane:
        theirs = statistics.median(peer)
        print(f"ratio to crane's pipeline: {mine / theirs:.2f} ({theirs:.2f} s); to reach: 0.60")
    else:
        print("ratio to crane's pipeline: crane is not installed, so there is no peer and no ratio")
    sys.stdout.flush()


def _no_op(bench: Bench) -> None:
    """Build both platforms of a small upstream over http, then build again, and count the second time's requests."""
    mirror = bench.root / "small"
    filesystems = []
    for architecture in ("amd64", "arm64"):
        tar = bench.root / f"small-{architecture}.tar"
        tar.write_bytes(rootfs_tar(architecture, os_release="ID=debian\nVERSION_CODENAME=trixie\n"))
        debian.pack(tar, tar.with_suffix(".tar.xz"))
        filesystems.append(debian.RootFilesystem(architecture, tar, tar.with_suffix(".tar.xz")))
    debian.debian_mirror(mirror, bench.signer.sign, filesystems)
    with _serve(mirror) as (url, requests):
        command = bench.ours(url, "noop", ("linux/amd64", "linux/arm64"))
        _time(command)
        requests.clear()
        before = _registry_requests(bench.log)
        seconds = statistics.median(_time(command) for _ in range(ROUNDS))
        upstream, registry = len(requests) / ROUNDS, (_registry_requests(bench.log) - before) / ROUNDS
    print(f"no-op build of two platforms: {seconds:.2f} s, {upstream + registry:g} requests (upstream {upstream:g}, "
          f"registry {registry:g}); to reach: 12 and 1 s", flush=True)  # fmt: skip


def _memory(bench: Bench, megabytes: int) -> None:
    tar = bench.root / f"{megabytes}.tar"
    tar.write_bytes(rootfs_tar("amd64", os_release="ID=debian\nVERSION_CODENAME=trixie\n"))
    debian.pad(tar, megabytes * 1_000_000)
    packed = tar.with_suffix(".tar.xz")
    # xz's own default, as the upstream uses it: the blocks are what a decoder with several threads must hold.
    with packed.open("wb") as target:
        subprocess.run(["xz", "-T0", "-6", "-c", str(tar)], stdout=target, check=True)
    tar.unlink()
    command = bench.ours(str(bench.mirror(f"mirror-{megabytes}", packed)), f"memory{megabytes}")
    peak = measured_peak(command, dict(os.environ))
    print(
        f"peak memory of a {megabytes} MB root filesystem: {peak / 1e6:.0f} MB, children included; to reach: 150",
        flush=True,
    )


def _published(bench: Bench) -> str:
    """Return the repository and digest of the Debian image that `_speed` published."""
    done = subprocess.run(bench.ours(str(bench.root / "mirror"), "ours0"), check=True, capture_output=True, text=True)
    return done.stdout.strip().rpartition("\t")[2].removeprefix(f"{bench.host}/")


def _time(command: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.monotonic() - start


def _registry_requests(log: Path) -> int:
    return sum(" /v2/" in line for line in log.read_text().splitlines())


@contextmanager
def _tmpfs() -> Iterator[Path]:
    """A tmpfs of this run's own, so that no disk is measured."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8g", "bench", directory], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def _serve(directory: Path) -> Iterator[tuple[str, list[str]]]:
    requests: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            requests.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(directory))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
        server.shutdown()


if __name__ == "__main__":
    main()
