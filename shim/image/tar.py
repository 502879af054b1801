"""The tar dialect, walked: members as their headers stream by, every byte up to the end of the archive accounted for.

What a header says, and what in it is refused, is `shim.image.tarheader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from shim.errors import FormatError, printable
from shim.image.tarheader import (
    BLOCK,
    BLOCK_DEVICE,
    CHARACTER_DEVICE,
    DIRECTORY,
    FIFO,
    GNU_SPARSE,
    HARD_LINK,
    MAX_EXTENSION,
    MAX_UNPACKED,
    REGULAR,
    SYMLINK,
    Extensions,
    HeaderError,
    Member,
    check_header,
    header_number,
    header_text,
    member_name,
    padded,
    pax_records,
    read_member,
)

__all__ = [
    "BLOCK", "BLOCK_DEVICE", "CHARACTER_DEVICE", "DIRECTORY", "FIFO", "HARD_LINK", "MAX_EXTENSION", "MAX_MEMBERS",
    "MAX_UNPACKED", "REGULAR", "SYMLINK", "Member", "TarWalker",
]  # fmt: skip

MAX_MEMBERS = 2_000_000

_ZEROS = bytes(BLOCK)


class TarWalker:
    """A push parser: hand it the archive in pieces of any size, get the members; `finish` says that it was whole.

    `wanted` is called with each member, in order, when its headers are complete, and says how many leading bytes of
    its content to keep; where that is not 0, `on_content` is called with them (fewer where the member is shorter).
    `what` names the archive in messages.

    Raises `FormatError`, which names the member and an offset in the uncompressed archive, for everything that is
    malformed, that common readers take differently, or that is larger than MAX_MEMBERS, MAX_UNPACKED and
    MAX_EXTENSION allow. After that the walker must not be used.
    """

    def __init__(
        self,
        wanted: Callable[[Member], int] | None = None,
        on_content: Callable[[Member, bytes], None] | None = None,
        what: str = "the archive",
    ) -> None:
        self._wanted, self._on_content, self._what = wanted, on_content, what
        self._members: list[Member] = []  # found in this feed
        self._count = 0
        self._offset = 0  # of what comes next
        self._skip = 0  # bytes of content and padding to pass over first
        self._need = BLOCK  # bytes that `_then` takes
        self._then: Callable[[bytes], None] = self._header
        self._held = bytearray()  # the beginning of those, where a piece of the archive ended among them
        self._ended = False
        self._name: bytes | None = None  # of the member at hand, for messages
        self._extensions = Extensions()
        self._sparse_header = self._sparse_map = b""

    def feed(self, data: bytes) -> list[Member]:
        """Take the next piece of the archive, and return the members whose headers it completed."""
        self._members = []
        try:
            self._walk(data)
        except HeaderError as error:
            self._fail(str(error))
        if self._offset > MAX_UNPACKED:
            self._fail(f"the archive is longer than {MAX_UNPACKED} bytes")
        return self._members

    def finish(self) -> int:
        """Return the size of the archive in bytes; raises `FormatError` unless it is whole."""
        if not self._ended:
            self._fail("the archive is cut off: the two zero blocks that end one are missing")
        return self._offset

    def _walk(self, data: bytes) -> None:
        position, end = 0, len(data)
        while position < end:
            if self._skip:
                step = min(self._skip, end - position)
                self._skip -= step
                self._offset += step
            elif self._ended:
                step = end - position
                if data[position:].strip(b"\0"):
                    raise HeaderError("something follows the end of the archive")
                self._offset += step
            elif not self._held and end - position >= self._need:
                step = self._need
                self._take(data[position : position + step])
            else:
                step = min(self._need - len(self._held), end - position)
                self._held += data[position : position + step]
                if len(self._held) == self._need:
                    whole, self._held = bytes(self._held), bytearray()
                    self._take(whole)
            position += step

    def _take(self, data: bytes) -> None:
        self._then(data)
        self._offset += len(data)

    def _wait(self, then: Callable[[bytes], None], need: int = BLOCK) -> None:
        self._then, self._need = then, need

    def _header(self, block: bytes) -> None:
        if block == _ZEROS:
            if self._extensions.start is not None:
                raise HeaderError("an extension header has no member behind it")
            self._wait(self._second_zeros)
            return
        self._name = header_text(block, 0, 100)
        check_header(block)
        kind = block[156:157]
        if kind in (b"L", b"K", b"x", b"g"):
            self._extension(block, kind)
        elif kind == GNU_SPARSE:
            self._start()
            self._sparse_header, self._sparse_map = block, block[386:482]
            self._sparse_map_goes_on(block[482])
        else:
            self._member(block)

    def _second_zeros(self, block: bytes) -> None:
        if block != _ZEROS:
            raise HeaderError("a single zero block stands where two end the archive")
        self._ended = True

    def _start(self) -> None:
        if self._extensions.start is None:
            self._extensions.start = self._offset

    def _extension(self, block: bytes, kind: bytes) -> None:
        size = header_number(block, "size", 124, 136)
        if not 0 < size <= MAX_EXTENSION:
            raise HeaderError(f"it is an extension header of {size} bytes; expected 1 to {MAX_EXTENSION}")
        if kind == b"g" and self._extensions.start is not None:
            raise HeaderError("a global header stands between an extension header and its member")
        if kind != b"g":
            self._start()
        self._wait(lambda body: self._extension_body(kind, body[:size]), padded(size))

    def _extension_body(self, kind: bytes, body: bytes) -> None:
        self._wait(self._header)
        if kind == b"g":
            if others := pax_records(body).keys() - {b"comment"}:
                raise HeaderError(f"a global header sets {printable(b', '.join(sorted(others)))} for all members")
        elif kind == b"x":
            if self._extensions.pax:
                raise HeaderError("it has two PAX headers")
            self._extensions.pax = pax_records(body)
        else:
            text = body.rstrip(b"\0")
            if kind in self._extensions.texts or b"\0" in text:
                raise HeaderError("it has two long names, or one with a zero byte in it")
            self._extensions.texts[kind] = text

    def _sparse_map_goes_on(self, more: int) -> None:
        if more:
            self._wait(self._sparse_block)
        else:
            self._member(self._sparse_header)

    def _sparse_block(self, block: bytes) -> None:
        self._sparse_map += block[:504]
        if len(self._sparse_map) > MAX_EXTENSION:
            raise HeaderError(f"its sparse map has more than {MAX_EXTENSION} bytes")
        self._sparse_map_goes_on(block[504])

    def _member(self, block: bytes) -> None:
        self._name = name = member_name(block, self._extensions)
        member = read_member(name, block, self._extensions, self._sparse_map, self._offset)
        self._count += 1
        if self._count > MAX_MEMBERS:
            raise HeaderError(f"the archive has more than {MAX_MEMBERS} members")
        self._extensions, self._sparse_map = Extensions(), b""
        self._members.append(member)
        amount = self._wanted(member) if self._wanted else 0
        head = min(amount, member.size)
        if head:
            self._wait(lambda content: self._content(member, content), head)
        else:
            self._wait(self._header)
            self._skip = member.end - member.data
            if amount and self._on_content:
                self._on_content(member, b"")

    def _content(self, member: Member, head: bytes) -> None:
        self._wait(self._header)
        self._skip = member.end - member.data - len(head)
        if self._on_content:
            self._on_content(member, head)

    def _fail(self, problem: str) -> NoReturn:
        member = "" if self._name is None else f", member '{printable(self._name)}'"
        raise FormatError(f"{self._what}{member}, byte {self._offset}: {problem}")
