"""Fills a volume from a source, exactly once. What interrupts that leaves a volume on which the next seed starts again.

    EMPTY ──▶ seeding is marked ──▶ the tree is unpacked and checked ──▶ the record is written: SEEDED
                    ▲                            │ any failure
                    └── cleared ◀── INTERRUPTED ◀┘

tar writes while this process fetches, verifies and vets. Bytes whose digest is not settled yet reach only a volume
that is marked as being seeded; where they turn out wrong, the volume is cleared at once. tar holds the volume's lock
too, so that a seed which starts after this process was killed waits until tar has ended as well.

A seeded volume needs none of this, so nothing of it is imported before it is needed.
What a volume may be stands in README.md, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shim import volume
from shim.errors import StatefulPodsError, printable
from shim.image.progress import Progress, silent
from shim.spec import Machine, Source
from shim.volume import Record, State

_SCRATCH = ".stateful-pods"  # on the volume, where there is room or nowhere


@dataclass(frozen=True, slots=True)
class Seeded:
    """The record of a volume, and whether it was seeded just now (else: before, and nothing was done)."""

    record: Record
    new: bool


def seed(
    rootfs: Path,
    source: Source,
    machine: Machine,
    *,
    chart_version: str | None = None,
    wait: float = 60,
    tell: Callable[[str], None] = lambda _: None,
    progress: Progress = silent,
) -> Seeded:
    """Seed the volume at `rootfs` from `source` for `machine`, unless it is seeded already.

    For a seeded volume nothing is done, whatever the source, and no network is used. `wait` is how many seconds another
    seed of the same volume is waited for. `tell` is told what happens, `progress` the bytes of what is fetched.

    Raises `Refused` for a volume that holds somebody else's files, which stay untouched; `FormatError` for a record
    that cannot be understood, and for a source that is malformed; `VerificationError` for bytes that are not the
    promised ones; `NotFound` for what is not there, or not for this platform; `Unavailable` for a network, a registry
    or a disk that a later try may find better. None of them leaves a record, or unverified files.
    """
    if volume.state(rootfs) is State.SEEDED:
        return Seeded(volume.read_record(rootfs), new=False)
    with volume.lock(rootfs, f"machine {machine}", wait=wait, tell=tell) as lock:
        found = volume.state(rootfs)
        if found is State.SEEDED:  # by whoever was waited for
            return Seeded(volume.read_record(rootfs), new=False)
        if found is State.INTERRUPTED:
            tell("a seed of this volume was interrupted; it is cleared, and seeded again from the start")
            volume.clear(rootfs)
        record = _fill(rootfs, source, machine, chart_version, lock, tell, progress)
    tell(f"seeded from {source}")
    return Seeded(record, new=True)


def _fill(
    rootfs: Path,
    source: Source,
    machine: Machine,
    chart_version: str | None,
    lock: int,
    tell: Callable[[str], None],
    progress: Progress,
) -> Record:
    from shim.extract import Attributes, extract  # noqa: PLC0415 - see above
    from shim.image.flatten import flatten  # noqa: PLC0415
    from shim.sources import open_source  # noqa: PLC0415

    attributes = Attributes()
    with open_source(source, rootfs / _SCRATCH, tell=tell, progress=progress) as opened:
        volume.begin_seeding(rootfs)
        plain = opened.plain
        try:
            select = plain.select if plain else None
            extract(flatten(opened.layers, vet=attributes.note, tell=tell, select=select), rootfs, lock)
            attributes.check(rootfs, tell)
            if plain:
                plain.check(rootfs)
        except StatefulPodsError as error:
            _clear(rootfs, error)
            raise
        record = Record(opened.source, datetime.now(UTC).replace(microsecond=0), machine, chart_version)
        tell("everything is unpacked; waiting until it is on the disk")
        volume.write_record(rootfs, record)
    return record


def _clear(rootfs: Path, reason: StatefulPodsError) -> None:
    """Remove what a failed seed wrote; the volume stays marked as being seeded."""
    try:
        volume.clear(rootfs)
    except StatefulPodsError as error:
        reason.add_note(f"What was written of it could not be cleared: {printable(str(error), 500)}")
