"""Root filesystem archives that are no images: what one looks like is told before anything of it is used.

Two forms are taken: the root filesystem itself, and the unified form of LXD and Incus, metadata.yaml beside rootfs/, of
which rootfs/ is the root.
"""

from __future__ import annotations

from pathlib import Path

from shim.errors import FormatError
from shim.image.digest import CHUNK
from shim.image.rootfs import looks_like
from shim.image.tar import TarWalker
from shim.rootdir import RootDir
from shim.run import Reader

_WINDOW = 8 << 20  # bytes that are looked at first
_PREFIX = b"rootfs/"
_UNIFIED = frozenset((b"metadata.yaml", b"rootfs", b"templates"))
_ROOT = frozenset(
    (b"bin", b"boot", b"dev", b"etc", b"home", b"lib", b"opt", b"proc", b"root", b"sbin", b"sys", b"usr", b"var")
)
_NEEDED = (("etc",), ("usr",), ("sbin", "usr/sbin"), ("etc/os-release", "usr/lib/os-release"))


class PlainArchive:
    """An uncompressed root filesystem archive: a reader, and how the paths in it become paths in the root.

    `name` is for messages. Raises `FormatError` at once for what is no root filesystem, as far as its first 8 MiB
    tell.
    """

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader, self._name = reader, name
        self._head: list[bytes] = []
        self._top: set[bytes] = set()
        self._prefix = self._recognise()

    def read(self, amount: int, /) -> bytes:
        """Return up to `amount` bytes (more, at its beginning), ``b""`` at the end."""
        return self._head.pop(0) if self._head else self._reader.read(amount)

    def select(self, path: bytes) -> bytes | None:
        """Return the path in the root for a path in the archive, None for what is not below it."""
        self._top.add(path.partition(b"/")[0])
        if not self._prefix or path == self._prefix[:-1]:
            return path[len(self._prefix) :]
        return path.removeprefix(self._prefix) if path.startswith(self._prefix) else None

    def check(self, rootfs: Path) -> None:
        """Raise `FormatError` unless what was unpacked into `rootfs` is a root filesystem."""
        looks = looks_like(self._top)
        if self._prefix and not {b"metadata.yaml", b"rootfs"} <= self._top - {b""} <= _UNIFIED:
            raise FormatError(f"{self._name} is no root filesystem: {looks}")
        with RootDir(rootfs) as root:
            found = {name for names in _NEEDED for name in names if root.stat(f"/{name}")}
        missing = [" or ".join(names) for names in _NEEDED if not found.intersection(names)]
        if missing:
            raise FormatError(f"{self._name} is no root filesystem: it lacks {', '.join(missing)}; {looks}")

    def _recognise(self) -> bytes:
        """Read the beginning, and return the prefix of the paths that are in the root."""
        walker = TarWalker(what=self._name)
        paths: set[bytes] = set()
        whole = False
        while not whole and sum(map(len, self._head)) < _WINDOW:
            data = self._reader.read(CHUNK)
            self._head.append(data)
            for member in walker.feed(data):
                parts = member.path.split(b"/")
                paths |= {parts[0], b"/".join(parts[:2])}
            for prefix in (b"", _PREFIX):
                if {prefix + b"etc", prefix + b"usr"} <= paths:
                    return prefix
            whole = not data
        top = {path.partition(b"/")[0] for path in paths} - {b""}
        if whole:
            walker.finish()
        if b"rootfs" in top and top <= _UNIFIED:
            return _PREFIX
        if whole or not top & _ROOT:
            raise FormatError(f"{self._name} is no root filesystem: {looks_like(top)}")
        return b""
