"""The merged tree of an image's layers, without contents: where each name leads, what replaces what, what is left out.

Every name is resolved inside the tree, through its own links; nothing here looks at a file system. What may be left
out is one list:

* everything below ``dev``, ``proc``, ``sys``, ``run`` and ``tmp``, which are directories always: boot mounts over them;
* everything below ``lost+found``, which belongs to a file system, and all of ``.stateful-pods``, which is ours: an
  image must not be able to say that its own seed is complete;
* device nodes: a container may not be able to make them, and a guest is given the ones that it needs.

Source: OCI image specification, layer.md, "Applying Changesets" and "Whiteouts".
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from shim.errors import printable
from shim.image.tar import BLOCK_DEVICE, CHARACTER_DEVICE, DIRECTORY, HARD_LINK, MAX_MEMBERS, SYMLINK

#: Directories of the root that are always there and whose contents are never taken, with the modes of missing ones.
RUNTIME_DIRECTORIES = {b"dev": 0o755, b"proc": 0o555, b"run": 0o755, b"sys": 0o555, b"tmp": 0o1777}
_NEVER = b".stateful-pods"
_CLOSED = (*RUNTIME_DIRECTORIES, _NEVER, b"lost+found")
_DEVICES = (BLOCK_DEVICE, CHARACTER_DEVICE)
_MAX_LINKS = 40  # symlinks in one path, as the kernel counts them
_MAX_NAMES = 64 << 20  # bytes of all names and link texts together; those of a million ordinary files


class Conflict(ValueError):
    """What is wrong with a member's place in the tree, in words that follow its name."""


class Entry(NamedTuple):
    """What the tree has to know of a member: its canonical path, type, link, and where in the image it stands."""

    path: bytes
    type: bytes
    link: bytes  # the canonical path that a hard link means
    text: bytes  # what a symlink says
    layer: int
    number: int  # among the members of its layer


class Place(NamedTuple):
    """Where a member goes: its resolved path and, for a hard link, the resolved path of what it is a link to."""

    path: bytes
    link: bytes = b""


class Leaf:
    """Anything but a directory. All hard links of a file are the same leaf: its content follows it, not its name."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry


class Directory:
    """A directory. `entry` is the member that gives its attributes; None: it is only implied by what is in it."""

    __slots__ = ("children", "closed", "entry", "layer")

    def __init__(self, layer: int, closed: bool = False) -> None:
        self.children: dict[bytes, Leaf | Directory] = {}
        self.entry: Entry | None = None
        self.layer = layer  # the last one that put something here
        self.closed = closed  # nothing below is taken, so there are no children


class Tree:
    """Put the members of each layer into it, lowest layer first, in their order; hide what whiteouts name before.

    The methods raise `Conflict`.
    """

    def __init__(self) -> None:
        self._root = Directory(0)
        self._root.children |= {name: Directory(0, closed=True) for name in _CLOSED}
        self._found: dict[bytes, tuple[Directory, bytes]] = {}  # directories by the way they were asked for
        self._nodes = self._names = 0

    def put(self, entry: Entry) -> Place | None:
        """Put a member into the tree, and return where it is to be written; None: it is left out.

        A directory over a directory changes its attributes, anything else replaces what was there. Only what this
        layer itself made a directory stays one: a layer that says both has no one meaning.
        """
        if not entry.path:
            self._root.entry = entry
            return Place(b"")
        above, _, name = entry.path.rpartition(b"/")
        parent, path = self._directory(above, entry.layer)
        if parent.closed:
            return None
        path = path + b"/" + name if path else name
        self._count(len(name) + len(entry.text))
        there = parent.children.get(name)
        if entry.type == DIRECTORY:
            if not isinstance(there, Directory):
                self._replace(parent, name, Directory(entry.layer))
            directory = parent.children[name]
            assert isinstance(directory, Directory)  # noqa: S101 - made one line above
            directory.entry, directory.layer = entry, entry.layer
            return None if path == _NEVER else Place(path)
        if isinstance(there, Directory) and there.closed:
            return None
        leaf, link = self._target(entry) if entry.type == HARD_LINK else (Leaf(entry), b"")
        if isinstance(there, Directory) and _has_part_of(there, entry.layer):
            raise Conflict("it replaces a directory of its own layer")
        if there is not leaf:
            self._replace(parent, name, leaf)
        parent.layer = entry.layer
        return None if leaf.entry.type in _DEVICES or link == path else Place(path, link)

    def hide(self, directory: bytes, name: bytes | None, own: Set[bytes]) -> None:
        """Apply a whiteout of the next layer: hide `name` in `directory`, or with None everything in it.

        `own` is the paths of that layer's own directories. Where one of them takes the place of a link, the marker is
        about it, and not about what the link led to.
        """
        prefix = b""
        for part in directory.split(b"/"):
            prefix = prefix + b"/" + part if prefix else part
            if prefix in own and isinstance(self._get(prefix), Leaf):
                return
        found = self._find(directory)
        if found is None:
            return
        children = found[0].children
        for hidden in [name] if name is not None else list(children):
            child = children.get(hidden)
            if child and not (isinstance(child, Directory) and child.closed):
                del children[hidden]
        self._found.clear()

    def entries(self) -> Iterator[tuple[bytes, Leaf | Directory]]:
        """Yield path and node of everything that is in the tree; the root first, a directory before what is in it."""
        todo: list[tuple[bytes, Leaf | Directory]] = [(b"", self._root)]
        while todo:
            path, node = todo.pop()
            if path != _NEVER:
                yield path, node
            if isinstance(node, Directory):
                prefix = path + b"/" if path else b""
                todo += [(prefix + name, child) for name, child in reversed(node.children.items())]

    def _target(self, entry: Entry) -> tuple[Leaf, bytes]:
        """Return what a hard link is a link to, and its resolved path."""
        above, _, name = entry.link.rpartition(b"/")
        found = self._find(above)
        leaf = found[0].children.get(name) if found else None
        if not found or not isinstance(leaf, Leaf):
            what = "which is a directory" if leaf else "and there is no such file at this point"
            raise Conflict(f"it is a hard link to '{printable(entry.link)}', {what}")
        return leaf, found[1] + b"/" + name if found[1] else name

    def _directory(self, path: bytes, layer: int) -> tuple[Directory, bytes]:
        """Return the directory that `path` leads to, and its resolved path; what is missing is made."""
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = self._walk(path, layer)
        return found

    def _find(self, path: bytes) -> tuple[Directory, bytes] | None:
        try:
            return self._walk(path, None)
        except (Conflict, LookupError):
            return None

    def _get(self, path: bytes) -> Leaf | Directory | None:
        above, _, name = path.rpartition(b"/")
        found = self._find(above)
        return found[0].children.get(name) if found else None

    def _walk(self, path: bytes, layer: int | None) -> tuple[Directory, bytes]:
        """Walk `path` from the root, which ``..`` does not leave. What is missing is made by `layer`, if given."""
        directories, names = [self._root], list[bytes]()
        todo = path.split(b"/")[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                names = names[:-1]
                directories = directories[: len(names) + 1]
                continue
            here = directories[-1]
            child = here if here.closed else here.children.get(part)
            if child is None:
                if layer is None:
                    raise LookupError
                self._count(len(part))
                here.layer = layer
                child = here.children[part] = Directory(layer)
            if isinstance(child, Directory):
                directories.append(child)
                names.append(part)
                continue
            where = b"/".join([*names, part])
            if child.entry.type != SYMLINK:
                raise Conflict(f"it is below '{printable(where)}', which is no directory")
            links += 1
            if links > _MAX_LINKS:
                raise Conflict(f"the link '{printable(where)}' above it leads nowhere: too many links")
            if child.entry.text.startswith(b"/"):
                directories, names = [self._root], []
            todo += child.entry.text.split(b"/")[::-1]
        return directories[-1], b"/".join(names)

    def _replace(self, parent: Directory, name: bytes, node: Leaf | Directory) -> None:
        if name in parent.children:
            self._found.clear()
        parent.children[name] = node

    def _count(self, size: int) -> None:
        self._nodes += 1
        self._names += size
        if self._nodes > MAX_MEMBERS or self._names > _MAX_NAMES:
            raise Conflict(f"the image has more than {MAX_MEMBERS} members, or {_MAX_NAMES} bytes of names")


def is_device(node: Leaf | Directory) -> bool:
    """Say whether `node` is a device node, which is left out."""
    return isinstance(node, Leaf) and node.entry.type in _DEVICES


def _has_part_of(directory: Directory, layer: int) -> bool:
    """Say whether `layer` made `directory`, or put anything below it."""
    todo = [directory]
    while todo:
        here = todo.pop()
        if here.layer == layer:
            return True
        todo += [child for child in here.children.values() if isinstance(child, Directory)]
    return False
