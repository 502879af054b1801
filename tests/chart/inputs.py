"""Reads the chart's inputs from the comments of values.yaml, the one place that describes them.

What stands below ``machines: {}`` there is a comment, because no machine is a default. Uncommented it is YAML again:
each key is an input, its value the default (null: unset), and the comment above it ``[TYPE, FLAG…] MEANING``. The key
NAME stands for names that the owner chooses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

_KEY = re.compile(r"( *)([A-Za-z0-9]+):(?: (.*))?")
_COMMENT = re.compile(r"\[([^]]+)\] (.+)")
FLAGS = ("required", "permanent")
ENTRY = "NAME"


class InputsError(Exception):
    """A line of values.yaml does not have the form that this module describes; the message names it."""


@dataclass
class Input:
    """One input: its `path`, `type`, whether it is `required` or `permanent`, its `meaning`, `default`, and members."""

    path: str
    type: str
    meaning: str
    required: bool = False
    permanent: bool = False
    default: Any = None
    members: dict[str, Input] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def walk(self) -> Iterator[Input]:
        """Yield every input below this one, in the order of values.yaml; entries of a map are not inputs themselves."""
        for member in self.members.values():
            if member.name != ENTRY:
                yield member
            yield from member.walk()


def read_inputs(text: str) -> Input:
    """Return the root of the inputs that `text`, a values.yaml, describes; raises `InputsError`."""
    root = Input("", "object", "")
    parents: list[tuple[int, Input]] = [(-1, root)]
    comment: list[str] = []
    for number, line in enumerate(_uncommented(text.splitlines()), 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
        elif not stripped:
            comment = []
        elif match := _KEY.fullmatch(line):
            indent, name, value = len(match[1]), match[2], match[3]
            while parents[-1][0] >= indent:
                parents.pop()
            parent = parents[-1][1]
            path = f"{parent.path}.{name}" if parent.path else name
            member = Input(path, "object", "") if name == ENTRY else _described(path, " ".join(comment), number)
            member.default = yaml.safe_load(value) if value else None
            parent.members[name] = member
            parents.append((indent, member))
            comment = []
        else:
            raise InputsError(f"values.yaml, line {number}: neither a comment nor a key: {line}")
    return root


def _uncommented(lines: list[str]) -> Iterator[str]:
    """Yield the lines; what is commented out below an empty map becomes its content."""
    inside = False
    for line in lines:
        if line.endswith(": {}"):
            inside = True
            yield line.removesuffix(" {}")
        else:
            inside = inside and line.startswith("#")
            yield " " + line[1:] if inside else line


def _described(path: str, comment: str, number: int) -> Input:
    match = _COMMENT.match(comment)
    if not match:
        raise InputsError(f"values.yaml, line {number}: {path} needs a comment of the form [TYPE, FLAG…] MEANING")
    type_, *flags = match[1].split(", ")
    if unknown := set(flags) - set(FLAGS):
        raise InputsError(f"values.yaml, line {number}: {path} has the unknown flag {', '.join(unknown)}")
    return Input(path, type_, match[2], "required" in flags, "permanent" in flags)
