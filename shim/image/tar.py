"""The tar dialect, walked: members as their headers stream by, every byte up to the end of the archive accounted for.

What a header says, and what in it is refused, is `shim.image.tarheader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from shim.errors import FormatError, printable
from shim.image.tarfields import (
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
    HeaderError,
    header_text,
    padded,
    pax_records,
)
from shim.image.tarheader import Extensions, Member, check_header, extension_size, member_name, read_member
from shim.image.tarsparse import check_content_map

__all__ = [
    "BLOCK", "BLOCK_DEVICE", "CHARACTER_DEVICE", "DIRECTORY", "FIFO", "HARD_LINK", "MAX_EXTENSION", "MAX_MEMBERS",
    "MAX_UNPACKED", "REGULAR", "SYMLINK", "Member", "TarWalker",
]  # fmt: skip

MAX_MEMBERS = 500_000

_ZEROS = bytes(BLOCK)


class TarWalker:
    """A push parser: hand it the archive in pieces of any size, get the members; `finish` says that it was whole.

    `wanted` is called with each member, in order, when its headers are complete, and says how many leading bytes of
    its content to keep; where that is not 0, `on_content` is called with them (fewer where the member is shorter).
    Nothing of a sparse file is kept: what the archive holds of one is not its content. `what` names the archive in
    messages.

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
        self._sparse_header = b""
        self._sparse_map = bytearray()
        self._lines = 0  # that a sparse map in the content is short of

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

    @property
    def settled(self) -> int:
        """The offset of the first byte that may belong to a member which was not returned yet."""
        return self._offset if self._extensions.start is None else self._extensions.start

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
            self._sparse_header = block
            self._sparse_map += block[386:482]
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
        size = extension_size(block)
        if kind == b"g" and self._extensions.start is not None:
            raise HeaderError("a global header stands between an extension header and its member")
        if kind != b"g":
            self._start()
        self._wait(lambda body: self._extension_body(kind, body[:size], body[size:]), padded(size))

    def _extension_body(self, kind: bytes, body: bytes, padding: bytes) -> None:
        self._wait(self._header)
        # The padding of ordinary content is read by nobody; GNU tar and tarfile read a long name on into it.
        if padding.strip(b"\0"):
            raise HeaderError("something other than zeros pads its extension header")
        if kind == b"g":
            if others := pax_records(body).keys() - {b"comment"}:
                raise HeaderError(f"a global header sets {printable(b', '.join(sorted(others)))} for all members")
        elif kind == b"x":
            if self._extensions.pax:
                raise HeaderError("it has two PAX headers")
            self._extensions.pax = pax_records(body)
        else:
            text, zero, more = body.partition(b"\0")
            if not zero or more:
                raise HeaderError("its long name does not have its one zero byte at its end")
            if kind in self._extensions.texts:
                raise HeaderError("it has two long names")
            self._extensions.texts[kind] = text

    def _sparse_map_goes_on(self, more: int) -> None:
        if more:
            if not self._sparse_map[-24]:
                raise HeaderError("its sparse map goes on behind its end")  # GNU tar ends there, others do not
            self._wait(self._sparse_block)
        else:
            self._member(self._sparse_header)

    def _sparse_block(self, block: bytes) -> None:
        self._sparse_map += block[:504]
        if len(self._sparse_map) > MAX_EXTENSION:
            raise HeaderError(f"its sparse map has more than {MAX_EXTENSION} bytes")
        self._sparse_map_goes_on(block[504])

    def _content_map(self, member: Member, block: bytes) -> None:
        """Take the sparse map that begins the content: its length in entries, then two lines for each."""
        if not self._sparse_map:
            count = block.partition(b"\n")[0]
            self._lines = 2 * int(count) + 1 if count.isdigit() else 0
        self._sparse_map += block
        self._lines -= block.count(b"\n")
        if self._lines > 0 and len(self._sparse_map) < min(member.size, MAX_EXTENSION):
            return
        check_content_map(bytes(self._sparse_map), member.size, member.sparse or 0)
        self._skip = member.end - member.data - len(self._sparse_map)
        self._sparse_map = bytearray()
        self._wait(self._header)

    def _member(self, block: bytes) -> None:
        self._name = name = member_name(block, self._extensions)
        member = read_member(name, block, self._extensions, bytes(self._sparse_map), self._offset)
        self._count += 1
        if self._count > MAX_MEMBERS:
            raise HeaderError(f"the archive has more than {MAX_MEMBERS} members")
        if self._extensions.start is not None:
            self._extensions, self._sparse_map = Extensions(), bytearray()
        self._members.append(member)
        amount = self._wanted(member) if self._wanted else 0
        if member.sparse is not None:
            amount = 0
            if b"GNU.sparse.major" in member.pax:
                self._wait(lambda block: self._content_map(member, block))
                return
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
