"""What reading a published preset back found: a list of checks, each with its outcome and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from shim.errors import FormatError, NotFound, VerificationError, printable
from shim.image.digest import Digest
from shim.image.model import Config, Manifest, Platform

T = TypeVar("T")

#: The errors that say that an image is not what it should be.
WRONG = (VerificationError, FormatError, NotFound)


class State(StrEnum):
    """What became of one check."""

    HOLDS = "holds"
    DIFFERS = "differs"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what it was about (``index``, ``linux/amd64 layer``, …), its outcome, and a sentence."""

    state: State
    subject: str
    sentence: str


@dataclass(slots=True)
class Audit:
    """What reading a preset back found. `digest` is None where the reference itself could not be read."""

    reference: str
    digest: Digest | None = None
    preset: str | None = None
    build: str | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if no check differs; what is unproven stays a matter of trust."""
        return all(finding.state is not State.DIFFERS for finding in self.findings)

    def note(self, state: State, subject: str, sentence: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(state, subject, sentence))

    @contextmanager
    def check(self, subject: str, sentence: str) -> Iterator[None]:
        """Add `sentence` as holding, or what the block found wrong as differing.

        Other errors pass: a missing tool or a file that may not be read says nothing about the image.
        """
        try:
            yield
        except WRONG as error:
            self.note(State.DIFFERS, subject, str(error))
        else:
            self.note(State.HOLDS, subject, sentence)

    def attempt(self, subject: str, sentence: str, read: Callable[[], T]) -> T | None:
        """Do as `check` with what `read` does, and return its result, None where it was refused."""
        try:
            value = read()
        except WRONG as error:
            self.note(State.DIFFERS, subject, str(error))
            return None
        self.note(State.HOLDS, subject, sentence)
        return value


@dataclass(frozen=True, slots=True)
class Part:
    """One platform of the preset, as far as it could be read."""

    platform: Platform
    manifest: Manifest
    config: Config

    @property
    def shown(self) -> str:
        """The platform, fit to be printed."""
        return printable(str(self.platform))


def expect(found: str | None, expected: str | None, what: str) -> None:
    """Raise `VerificationError`, in which `what` names it, unless what was `found` is what was `expected`."""
    if found != expected:
        shown = "absent" if found is None else printable(found)
        raise VerificationError(f"{what} is {shown}, expected {'nothing' if expected is None else printable(expected)}")
