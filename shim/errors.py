"""The errors that the libraries raise: one root, and a subclass for each decision that a caller can take.

A message says what was being done, what was expected, what was found, where, and what the person can do now.
Text that came from outside (file names, key user IDs, server replies) goes through `printable` first, so that it can
neither move a cursor nor forge a line of a log.
"""

from __future__ import annotations


class StatefulPodsError(Exception):
    """The root of every error that these libraries raise on purpose."""


class Refused(StatefulPodsError):
    """What was found is wrong, and trying again changes nothing: stop, and let a person look."""


class VerificationError(Refused):
    """Bytes are not the ones that a signature, a list or a digest promised."""


class FormatError(Refused):
    """Input is malformed, or of a form that is not understood."""


class NotFound(Refused):
    """A name (a tag, a digest, a file) that was asked for does not exist."""


class NotReady(StatefulPodsError):
    """The upstream has not finished yet: wait for it."""


class Unavailable(StatefulPodsError):
    """A network, a registry or a disk failed in a way that a later try may cure."""


def printable(text: str | bytes, limit: int = 200) -> str:
    """Return foreign text in one line of plain characters, at most `limit` of them.

    Bytes that are not UTF-8 are shown as ``\\xNN``; control characters, line and paragraph separators, bidirectional
    overrides and surrogates as Python escapes.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text[: limit + 1]
    )
    return shown if len(text) <= limit and len(shown) <= limit else shown[: limit - 1] + "…"
