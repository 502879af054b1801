"""Layers that tests make, what they mean by a simple model, and trees as they are found on disk."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shim.extract import extract
from shim.image.flatten import Layer, flatten
from shim.run import Reader
from tests.shim import tars

CLOSED = {"dev": 0o755, "proc": 0o555, "run": 0o755, "sys": 0o555, "tmp": 0o1777}
NEVER = ("lost+found", ".stateful-pods")

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Op:
    """One entry of a layer: kind is dir, file, link, hard, hide or opaque."""

    kind: str
    path: str
    value: str = ""  # a file's content, a link's text, a hard link's target
    mode: int = 0o644

    def member(self) -> bytes:
        """Return the entry as a tar member."""
        path = self.path.encode()
        directory, _, name = path.rpartition(b"/")
        prefix = directory + b"/" if directory else b""
        match self.kind:
            case "dir":
                return tars.directory(path + b"/", mode=self.mode)
            case "file":
                return tars.file(path, self.value.encode(), mode=self.mode)
            case "link":
                return tars.link(path, self.value.encode())
            case "hard":
                return tars.link(path, self.value.encode(), b"1")
            case "hide":
                return tars.file(prefix + b".wh." + name)
        return tars.file(path + b"/.wh..wh..opq")


def archive(ops: Sequence[Op]) -> bytes:
    return b"".join(op.member() for op in ops) + tars.END


def layer(data: bytes, name: str = "the layer") -> Layer:
    @contextmanager
    def opened() -> Iterator[Reader]:
        yield io.BytesIO(data)

    return Layer(name, opened)


def flat(*data: bytes) -> bytes:
    return b"".join(flatten([layer(one, f"layer {number}") for number, one in enumerate(data, 1)]))


def unpack(stream: bytes, root: Path) -> None:
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        extract([stream], root, nothing.fileno())


class Contradiction(Exception):
    """The layers have no one meaning."""


@dataclass
class Node:
    kind: str
    value: str = ""
    mode: int = 0o755
    layer: int = -1


@dataclass
class Model:
    """What layers mean, by path: slow, and simple enough to be believed."""

    nodes: dict[Path_, Node] = field(default_factory=lambda: {(): Node("dir")})

    def apply(self, ops: Sequence[Op], number: int) -> None:
        for op in ops:
            if op.kind in ("hide", "opaque"):
                self._hide(op, {one.path for one in ops if one.kind == "dir"})
        for op in ops:
            if op.kind not in ("hide", "opaque"):
                self._put(op, number)

    def _hide(self, op: Op, own: set[str]) -> None:
        directory = op.path if op.kind == "opaque" else op.path.rpartition("/")[0]
        parts = directory.split("/") if directory else []
        for end in range(1, len(parts) + 1):
            try:
                above = self._resolve(parts[: end - 1], None)
            except Contradiction:
                continue
            there = self.nodes.get((*above, parts[end - 1]))
            if "/".join(parts[:end]) in own and there and there.kind != "dir":
                return
        try:
            at = self._resolve(parts, None)
        except Contradiction:
            return
        if self._is_closed(at):
            return
        hidden = (op.path.rpartition("/")[2],) if op.kind == "hide" else {path[len(at)] for path in self._below(at)}
        for name in hidden:
            self._drop((*at, name))

    def _put(self, op: Op, number: int) -> None:
        parts = op.path.split("/")
        parent = self._resolve(parts[:-1], number)
        path = (*parent, parts[-1])
        if self._is_closed(parent) or (self._is_closed(path) and op.kind != "dir"):
            return
        there = self.nodes.get(path)
        node = Node(op.kind, op.value, op.mode, number)
        if op.kind == "hard":
            target = op.value.split("/")
            try:
                found = (*self._resolve(target[:-1], None), target[-1])
            except Contradiction:
                found = ("no", "such")
            if found not in self.nodes or self.nodes[found].kind == "dir":
                raise Contradiction("hard link to nothing")
            node = self.nodes[found]
        if op.kind != "dir":
            mine = [one for one in (path, *self._below(path)) if one in self.nodes and self.nodes[one].kind == "dir"]
            if there and there.kind == "dir" and any(self.nodes[one].layer == number for one in mine):
                raise Contradiction("replaces its own directory")
        if not (op.kind == there.kind == "dir" if there else False):
            self._drop(path)
        self.nodes[path] = node
        self.nodes[parent].layer = number

    def _resolve(self, parts: Sequence[str], number: int | None) -> Path_:
        at: Path_ = ()
        todo = list(parts)
        links = 0
        while todo:
            part = todo.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                at = at[:-1]
                continue
            path = (*at, part)
            if not self._is_closed(path):
                node = self.nodes.get(path)
                if node is None:
                    if number is None:
                        raise Contradiction("missing")
                    node = self.nodes[path] = Node("dir", layer=number)
                    self.nodes[at].layer = number
                if node.kind == "link":
                    links += 1
                    if links > 40:
                        raise Contradiction("too many links")
                    at = () if node.value.startswith("/") else at
                    todo = node.value.split("/") + todo
                    continue
                if node.kind != "dir":
                    raise Contradiction("below a file")
            at = path
        return at

    def _is_closed(self, path: Path_) -> bool:
        return bool(path) and path[0] in (*CLOSED, *NEVER)

    def _below(self, path: Path_) -> list[Path_]:
        return [one for one in self.nodes if len(one) > len(path) and one[: len(path)] == path]

    def _drop(self, path: Path_) -> None:
        if not self._is_closed(path):
            for one in [path, *self._below(path)]:
                self.nodes.pop(one, None)

    def tree(self) -> dict[str, tuple[object, ...]]:
        """Return what `found` finds where this was unpacked."""
        names: dict[int, list[str]] = {}
        for path, node in self.nodes.items():
            names.setdefault(id(node), []).append("/".join(path))
        result: dict[str, tuple[object, ...]] = {name: ("dir", mode) for name, mode in CLOSED.items()}
        for path, node in self.nodes.items():
            shown: tuple[object, ...] = ("dir", node.mode)
            if node.kind == "file":
                shown = ("file", node.mode, node.value, sorted(names[id(node)]))
            elif node.kind == "link":
                shown = ("link", node.value, sorted(names[id(node)]))
            if path[:1] != (".stateful-pods",):
                result["/".join(path)] = shown
        return result


def found(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is on disk below `root`, by path; hard links by all of their names."""
    paths = [root, *root.rglob("*")]
    names: dict[int, list[str]] = {}
    for path in paths:
        name = "" if path == root else str(path.relative_to(root))
        names.setdefault(path.lstat().st_ino, []).append(name)
    result: dict[str, tuple[object, ...]] = {}
    for path in paths:
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        others = sorted(names[status.st_ino])
        if path.is_symlink():
            shown: tuple[object, ...] = ("link", os.readlink(path), others)  # noqa: PTH115 - pathlib tidies it up
        else:
            shown = ("dir", mode) if path.is_dir() else ("file", mode, path.read_text(), others)
        result["" if path == root else str(path.relative_to(root))] = shown
    return result
