"""The layers of an image, lowest first, as one tar stream whose members are canonical and safe to unpack.

In the stream every name is resolved: it leads through real directories of the stream only, so nothing is written
through a link. There is no whiteout, no device, and nothing of what `shim.image.tree` leaves out. Members are handed on
as they are, in long runs of bytes; a header is written anew only where its name or an attribute's form has to change.

*One layer* streams straight through: what it says is decided member by member, and it is opened once.

*Several layers* are opened twice each. The first pass reads their headers, lowest layer first, into a tree. For each
layer the whiteouts are applied before its own entries, whatever their order. What is in the tree at the end is
the image. The second pass hands on those members that are still in it. Contents are not kept in between,
in memory or elsewhere; how a layer can be opened a second time is its own affair. Each opening verifies what is read,
so both passes rest on the digests.

Rules for markers, whose names begin with ``.wh.``:

* ``.wh.NAME`` hides NAME of the lower layers, ``.wh..wh..opq`` everything in its directory;
* other names that begin with ``.wh..wh.`` are aufs' bookkeeping: they are passed over, with what is below them;
* a marker that is no empty file, that names nothing, or that has something below it, is refused.

Sources: OCI image specification, layer.md; Docker Image Specification v1.2, "Creating an Image Filesystem Changeset".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from shim.errors import FormatError, printable
from shim.image import tarwrite
from shim.image.digest import CHUNK
from shim.image.tar import DIRECTORY, HARD_LINK, REGULAR, SYMLINK, Member, TarWalker
from shim.image.tarfields import HeaderError
from shim.image.tree import RUNTIME_DIRECTORIES, Conflict, Directory, Entry, Place, Tree, is_device
from shim.run import Reader

_MARKER, _BOOKKEEPING, _OPAQUE = b".wh.", b".wh..wh.", b".wh..wh..opq"
_SHOWN = 10  # device nodes that are named

#: Called with each member that is handed on and its resolved path, before it is; may raise to stop.
Vet = Callable[[bytes, Member], None]
_Placer = Callable[[int, Member], Place | None]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: how messages name it, and how its uncompressed bytes are read, verified to the end."""

    name: str
    open: Callable[[], AbstractContextManager[Reader]]


class _Marker(NamedTuple):
    directory: bytes
    hidden: bytes | None  # None: everything in it


def flatten(
    layers: Sequence[Layer],
    *,
    vet: Vet = lambda path, member: None,
    tell: Callable[[str], None] = lambda _: None,
    select: Callable[[bytes], bytes | None] | None = None,
) -> Iterator[bytes]:
    """Yield the tar stream of the image with these `layers`, lowest first, in pieces of about 1 MiB.

    `vet` may look at each member; `tell` is told what was left out. With `select`, the one layer is no layer but
    a plain archive, in which ``.wh.`` has no meaning: it returns the path in the root for a path in the archive, or
    None for what is not taken.

    The end of the archive is yielded only after every layer was verified to its end. Raises `FormatError`, naming layer
    and member, for what has no one meaning or would lead out of the root, and what opening and reading a layer raise.
    """
    tree = Tree()
    links: list[tuple[bytes, bytes]] = []
    if len(layers) == 1:
        yield from _forward(layers[0], lambda index, member: _place(tree, index, member, select), vet)
    else:
        for number, layer in enumerate(layers):
            _apply(tree, layer, number)
        survivors = _survivors(tree, len(layers), links)
        for layer, paths in zip(layers, survivors, strict=True):
            if paths:
                yield from _forward(layer, lambda index, member, paths=paths: paths.get(index), vet)
    devices = [path for path, node in tree.entries() if is_device(node)]
    if devices:
        shown = ", ".join(printable(path) for path in devices[:_SHOWN])
        tell(f"device nodes are left out: {shown}" + f" and {len(devices) - _SHOWN} more" * (len(devices) > _SHOWN))
    yield b"".join([*_implied(tree), *(tarwrite.hard_link(path, target) for path, target in links), tarwrite.END])


def _place(tree: Tree, index: int, member: Member, select: Callable[[bytes], bytes | None] | None) -> Place | None:
    """Put a member of the only layer into the tree."""
    path, link = member.path, member.link
    if select is None:
        if _marker(path, member.type, member.size) is not None:
            return None  # there is no lower layer to hide anything of
    else:
        selected = select(path)
        if selected is None:
            return None
        path, link = selected, (select(link) or b"") if member.type == HARD_LINK else b""
        if not path and member.type != DIRECTORY:
            raise Conflict("it is the root, and no directory")
    text = member.linkname if member.type == SYMLINK else b""
    return tree.put(Entry(path, member.type, link, text, 0, index))


def _apply(tree: Tree, layer: Layer, number: int) -> None:
    """Read the headers of a layer, and change the tree as it says."""
    markers: list[_Marker] = []
    entries: list[tuple[Entry, int]] = []

    def collect(index: int, member: Member) -> None:
        marker = _marker(member.path, member.type, member.size)
        if marker is None:
            text = member.linkname if member.type == SYMLINK else b""
            entries.append((Entry(member.path, member.type, member.link, text, number, index), member.start))
        else:
            markers.append(marker)

    for _ in _forward(layer, collect, lambda path, member: None):
        pass
    own = {entry.path for entry, _ in entries if entry.type == DIRECTORY}
    for marker in markers:
        tree.hide(marker.directory, marker.hidden, own)
    for entry, start in entries:
        try:
            tree.put(entry)
        except Conflict as error:
            raise _refused(layer, entry.path, start, error) from error


def _survivors(tree: Tree, count: int, links: list[tuple[bytes, bytes]]) -> list[dict[int, Place]]:
    """Return for each layer which of its members are in the tree, and where; append what becomes a hard link."""
    found: list[dict[int, Place]] = [{} for _ in range(count)]
    for path, node in tree.entries():
        if node.entry is None or is_device(node):
            continue
        paths = found[node.entry.layer]
        if node.entry.number in paths:
            links.append((path, paths[node.entry.number].path))
        else:
            paths[node.entry.number] = Place(path)
    return found


def _implied(tree: Tree) -> Iterator[bytes]:
    """Yield the directories that no member describes."""
    for path, node in tree.entries():
        if isinstance(node, Directory) and node.entry is None:
            if not node.closed:
                yield tarwrite.directory(path, 0o755)
            elif path in RUNTIME_DIRECTORIES:
                yield tarwrite.directory(path, RUNTIME_DIRECTORIES[path])


def _forward(layer: Layer, place: _Placer | Callable[[int, Member], None], vet: Vet) -> Iterator[bytes]:
    """Yield the members of `layer` that `place` gives a place, with their names changed to it."""
    walker = TarWalker(what=layer.name)
    held, base = b"", 0  # what was read and may still be needed, and its offset
    start = end = 0  # the run of bytes that is handed on as it is, from what is not yet yielded
    index = 0
    with layer.open() as reader:
        while data := reader.read(CHUNK):
            held = held + data if held else data
            pieces: list[bytes] = []
            for member in walker.feed(data):
                try:
                    placed = place(index, member)
                    index += 1
                    if placed is None:
                        continue
                    vet(placed.path, member)
                    changed = b""
                    if not tarwrite.is_plain(member, *placed):
                        raw = held[member.start - base : member.data - base]
                        changed = tarwrite.rewritten(raw, member, *placed)
                except (Conflict, HeaderError) as error:
                    raise _refused(layer, member.name, member.start, error) from error
                if changed or member.start != end:
                    if start < end:
                        pieces.append(held[start - base : end - base])
                    pieces.append(changed)
                    start = member.data if changed else member.start
                end = member.end
            stop = min(end, base + len(held))
            if start < stop:
                pieces.append(held[start - base : stop - base])
                start = stop
            held, base = held[walker.settled - base :], walker.settled
            if pieces:
                yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
    walker.finish()


def _marker(path: bytes, kind: bytes, size: int) -> _Marker | None:
    """Return what a marker hides, None for a member that is no marker; raises `Conflict` for an odd one."""
    if _MARKER not in path:
        return None
    parts = path.split(b"/")
    at = next((at for at, part in enumerate(parts) if part.startswith(_MARKER)), None)
    if at is None:
        return None
    directory, name = b"/".join(parts[:at]), parts[at]
    is_last = at == len(parts) - 1
    if name.startswith(_BOOKKEEPING) and not (name == _OPAQUE and is_last):
        return _Marker(directory, b"")  # hides nothing: no name is empty
    if not is_last:
        raise Conflict(f"it is below '{printable(name)}', which is the name of a whiteout")
    # aufs makes its whiteouts hard links of one empty file.
    if kind not in (REGULAR, HARD_LINK) or size or name[len(_MARKER) :] in (b"", b".", b".."):
        raise Conflict("it has the name of a whiteout, but is no empty file that names something")
    return _Marker(directory, None if name == _OPAQUE else name[len(_MARKER) :])


def _refused(layer: Layer, name: bytes, start: int, error: ValueError) -> FormatError:
    return FormatError(f"{layer.name}, member '{printable(name)}', byte {start}: {error}")
