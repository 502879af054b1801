"""Checksum lists as ``sha256sum`` writes them: strictly, because a line that is skipped in silence is a hole.

Accepted is a UTF-8 text of lines ``HEX  name`` or ``HEX *name`` (text and binary marker, which mean the same here): 64
hexadecimal digits in either case, exactly one blank, the marker, and a plain file name. The newline at the end may be
missing. A name may stand twice with the same hash. Everything else is refused by its line number, with words for the
dialects that are known: coreutils' escaped names, BSD's ``SHA256 (name) = HEX``, line ends of DOS, comments, blank
lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shim.errors import FormatError, VerificationError, printable

MAX_LIST = 4 << 20  # bytes

_LINE = re.compile(r"([0-9A-Fa-f]{64}) [ *](.+)", re.ASCII | re.DOTALL)
_OTHER_LENGTH = re.compile(r"([0-9A-Fa-f]{8,}) [ *]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sums:
    """A parsed list. `what` names it in messages."""

    what: str
    _hashes: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the list covers, in its order."""
        return tuple(self._hashes)

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of the file called exactly `name`, in lower-case hexadecimal.

        Raises `VerificationError` where the list has no entry for it.
        """
        if name not in self._hashes:
            covered = printable(", ".join(self._hashes), 400)
            raise VerificationError(f"{self.what} has no entry for {printable(name)}; it covers: {covered}")
        return self._hashes[name]


def parse_sums(data: bytes, what: str) -> Sums:
    """Return the list that `data` holds; raises `FormatError` for a line that this module does not accept."""
    if len(data) > MAX_LIST:
        raise FormatError(f"{what} has {len(data)} bytes; a checksum list has at most {MAX_LIST}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start)
        raise FormatError(f"{what}, line {line + 1}: not UTF-8: {printable(data.split(bytes([10]))[line])}") from error
    if not text:
        raise FormatError(f"{what} is empty: a checksum list with no entry promises nothing")
    hashes: dict[str, str] = {}
    # At the newline and nowhere else: str.splitlines would also cut at characters that a file name may hold.
    for number, entry in enumerate(text.removesuffix("\n").split("\n"), 1):
        match = _LINE.fullmatch(entry)
        problem = _name_problem(match[2]) if match else _line_problem(entry)
        if not match or problem:
            raise FormatError(f"{what}, line {number}: {problem}: {printable(entry)!r}")
        encoded, name = match[1].lower(), match[2]
        if hashes.setdefault(name, encoded) != encoded:
            raise FormatError(
                f"{what}, line {number}: contradicts an earlier line: {printable(name)} has two different hashes, "
                f"{hashes[name]} and {encoded}"
            )
    return Sums(what, MappingProxyType(hashes))


def _name_problem(name: str) -> str | None:
    if name.endswith("\r"):
        return "ends with a carriage return, so it was written or converted on another system"
    if not name.isprintable():
        return "the file name holds a control character or another one that is not printable"
    if "/" in name or "\\" in name or name in (".", ".."):
        return "not a plain file name (/, \\, . and .. are refused)"
    if name != name.strip(" "):
        return "the file name begins or ends with a blank"
    return None


def _line_problem(line: str) -> str:
    if not line.strip():
        return "a blank line"
    if line.startswith("\\"):
        return "an escaped file name (the backslash in front says so), which is not accepted"
    if line.startswith(("#", ";")):
        return "a comment, which is no part of a checksum list"
    if line.startswith("-----BEGIN PGP"):
        return "OpenPGP armor; the list and its detached signature are two files"
    if line.startswith("<"):
        return "an HTML or XML document"
    if re.match(r"[A-Za-z0-9/-]+ ?\(.*\) ?= ", line):
        return "a line in BSD's format; expected 64 hexadecimal digits, two blanks and a name"
    if (match := _OTHER_LENGTH.match(line)) and len(match[1]) != 64:
        return f"a hash of {len(match[1])} hexadecimal digits; SHA-256 has 64"
    return "expected 64 hexadecimal digits, two blanks (or a blank and *) and a name"
