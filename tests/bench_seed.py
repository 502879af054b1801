"""The speed of seeding, for ``make bench``: an image in a local registry becomes a directory on tmpfs, as a command.

The peer is ``crane export | tar -xp``, the limit is ``zstd -dc | tar -xp`` of the same layer, which fetches and
verifies nothing. The three take turns, and the ratios are those of the medians.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shim.image.digest import Digest
from shim.image.model import Index
from shim.image.registry import RegistryRepository
from tests.shim.sources import AMD64

ROUNDS = 7
_STAGES = ("seed", "prepare", "customize", "provision")


def seed_speed(root: Path, host: str, reference: str) -> None:
    """Measure, and print one line for each figure.

    `root` is an empty directory on tmpfs, `host` a registry that speaks plain HTTP on loopback, and `reference`
    (``REPOSITORY@DIGEST`` there) an image for amd64 of one zstd layer.
    """
    image = f"{host}/{reference}"
    # A package that is installed has its modules compiled; a checkout must not pay for that in each process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(root / "pycache")
    target = root / "rootfs"
    shim = [sys.executable, "-m", "shim"]
    commands = {"ours": [*shim, "seed", str(target), "--source-reference", image]}
    commands["limit"] = ["sh", "-c", f"zstd -dc {_fetch_layer(root, host, reference)} | tar -xp -C {target}"]
    if shutil.which("crane"):
        commands["peer"] = ["sh", "-c", f"crane export --insecure {image} - | tar -xp -C {target}"]
    peak = 0
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(ROUNDS + 1):
        for name, command in commands.items():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            if number:
                seconds[name].append(_run(command, environment)[0])
            elif name == "ours":  # the first time warms up what is cached, and is watched
                peak = measured_peak(command, environment)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    ours, limit, peer = median["ours"], median["limit"], median.get("peer")
    print(f"seed: {ours:.2f} s; {ours / limit:.2f} of 'zstd -dc | tar -xp' ({limit:.2f} s); to reach: 1.50")
    if peer:
        print(f"seed: {ours / peer:.2f} of 'crane export | tar -xp' ({peer:.2f} s); to reach: 0.45")
    else:
        print("seed: crane is not installed, so there is no peer and no ratio to it")
    print(f"seed: peak memory {peak / 1e6:.0f} MB, children included; to reach: 150")
    shutil.rmtree(target)
    target.mkdir()
    _run(commands["ours"], environment)
    starts = [sum(_run([*shim, stage, str(target)], environment)[1] for stage in _STAGES) for _ in range(ROUNDS)]
    print(f"a start on a seeded volume: {statistics.median(starts):.2f} s of CPU in {', '.join(_STAGES)}; to reach: 1")
    print(f"load average: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)


def _fetch_layer(root: Path, host: str, reference: str) -> Path:
    """Store the compressed layer of the image in a file, and return its path."""
    name, _, digest = reference.partition("@")
    repository = RegistryRepository(host, name)
    manifest = repository.manifest(Digest.parse(digest))
    if isinstance(manifest, Index):
        manifest = repository.manifest(manifest.select(AMD64, reference))
    assert not isinstance(manifest, Index)
    (layer,) = manifest.layers
    path = root / "layer.tar.zst"
    with repository.open_blob(layer) as reader, path.open("wb") as file:
        while data := reader.read():
            file.write(data)
    return path


def _run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return the seconds that a command takes, by the clock and of CPU with its children."""
    before, start = _cpu(), time.monotonic()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.monotonic() - start, _cpu() - before


def measured_peak(command: list[str], environment: dict[str, str]) -> int:
    """Return the most bytes that the command and its children had resident together, sampled every 10 ms."""
    peak = 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(_resident, _family(process.pid))))
            time.sleep(0.01)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
