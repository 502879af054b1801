"""The tar dialect: what is read, what is refused, and that GNU tar and Python's tarfile read the same."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shim.image.tar
from shim.errors import FormatError
from shim.image.tar import MAX_EXTENSION, MAX_UNPACKED, Member, TarWalker
from tests.shim.tars import END, GNU, USTAR, V7, directory, extension, file, header, link, long_name, padded, pax

LONG = b"long/" * 60 + b"name"
SPARSE_1_0 = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": b"holes",
              b"GNU.sparse.realsize": b"1000000"}  # fmt: skip
SPARSE_0_1 = {b"GNU.sparse.size": b"9000", b"GNU.sparse.numblocks": b"2", b"GNU.sparse.name": b"holes",
              b"GNU.sparse.map": b"0,4,8000,3"}  # fmt: skip
SPARSE_0_0 = [(b"GNU.sparse.size", b"9000"), (b"GNU.sparse.numblocks", b"2"),
              (b"GNU.sparse.offset", b"0"), (b"GNU.sparse.numbytes", b"4"),
              (b"GNU.sparse.offset", b"8000"), (b"GNU.sparse.numbytes", b"3")]  # fmt: skip


def walk(archive: bytes, feeds: Iterable[int] = ()) -> list[Member]:
    """Return the members of a whole archive, fed in pieces of the sizes `feeds` and a last one."""
    walker = TarWalker()
    members: list[Member] = []
    start = 0
    for size in feeds:
        members += walker.feed(archive[start : start + size])
        start += size
    members += walker.feed(archive[start:])
    assert walker.finish() == len(archive)
    return members


def one(*blocks: bytes) -> Member:
    (member,) = walk(b"".join((*blocks, END)))
    return member


def base256(value: int, length: int) -> bytes:
    data = bytearray(value.to_bytes(length, "big", signed=True))
    data[0] |= 0x80
    return bytes(data)


def gnu_sparse(
    pairs: list[tuple[int, int]],
    size: int,
    real: int,
    name: bytes = b"holes",
    magic: bytes = GNU,
    more: Mapping[int, bytes] | None = None,
) -> bytes:
    """Return a sparse member of GNU's old form; entries beyond the fourth go into extension headers."""
    entries = [b"%011o\0%011o\0" % pair for pair in pairs]
    patch = {386: b"".join(entries[:4]), 482: bytes([len(entries) > 4]), 483: b"%011o\0" % real}
    blocks = [header(name, type=b"S", size=size, magic=magic, patch=patch | dict(more or {}))]
    for start in range(4, len(entries), 21):
        block = b"".join(entries[start : start + 21]).ljust(504, b"\0") + bytes([start + 21 < len(entries)])
        blocks.append(padded(block))
    return b"".join(blocks) + padded(b"d" * size)


def map_and_data(pairs: list[tuple[int, int]], length: int | None = None) -> bytes:
    """Return a member whose content is a PAX sparse map of form 1.0 and what it describes."""
    text = b"%d\n" % len(pairs) + b"".join(b"%d\n%d\n" % pair for pair in pairs)
    assert length is None or len(text) == length
    return file(b"GNUSparseFile.1/h", padded(text) + b"d" * sum(count for _, count in pairs))


def test_a_member_is_read_with_every_field() -> None:
    block = header(b"./usr//bin/./sudo", size=3, mode=0o104755, uid=1, gid=2, mtime=0o17, prefix=b"/a/")
    records = {b"SCHILY.xattr.security.capability": b"\1\0=\n\xff", b"mtime": b"-1.5"}
    extended = pax(records)
    (before, member) = walk(directory(b"./") + extended + block + padded(b"abc") + END)
    assert before.path == b""
    assert member == Member(
        name=b"/a//./usr//bin/./sudo", path=b"a/usr/bin/sudo", type=b"0", mode=0o4755, uid=1, gid=2, size=3, mtime=-2,
        linkname=b"", link=b"", devmajor=0, devminor=0, pax=records, sparse=None,
        start=512, data=512 + len(extended) + 512, end=512 + len(extended) + 1024,
    )  # fmt: skip


READ: dict[str, tuple[bytes, dict[str, object]]] = {
    "NUL is a regular file": (header(b"f", type=b"\0"), {"type": b"0"}),
    "7 is a regular file": (header(b"f", type=b"7"), {"type": b"0"}),
    "v7 marks a directory by its name": (header(b"d/", type=b"\0", magic=V7), {"type": b"5", "path": b"d"}),
    "ustar has a prefix": (header(b"f", prefix=b"p/q"), {"name": b"p/q/f"}),
    "a name fills its field": (header(b"n" * 100), {"path": b"n" * 100}),
    "a name that is not UTF-8": (header(b"\xff\n\x1b"), {"path": b"\xff\n\x1b"}),
    "a GNU long name": (long_name(LONG) + header(b"short"), {"path": LONG}),
    "a GNU long link": (long_name(LONG, b"K") + link(b"l", b"short"), {"linkname": LONG}),
    "both, in either order": (
        long_name(LONG, b"K") + long_name(LONG) + link(b"l", b"s"), {"linkname": LONG, "path": LONG}
    ),
    "a PAX path": (pax({b"path": b"/" + LONG + b"/./"}) + directory(b"d"), {"path": LONG}),
    "a PAX link path": (pax({b"linkpath": b"../\xff"}) + link(b"l", b"s"), {"linkname": b"../\xff", "link": b""}),
    "a symlink's text is verbatim": (link(b"l", b"/../..//x/."), {"linkname": b"/../..//x/.", "link": b""}),
    "a hard link means a path": (link(b"l", b"./a//b", b"1"), {"linkname": b"./a//b", "link": b"a/b"}),
    "PAX owners": (pax({b"uid": b"3000000", b"gid": b"4294967294"}) + header(b"f"), {"uid": 3000000, "gid": 2**32 - 2}),
    "base-256 owners": (header(b"f", uid=base256(3000000, 8), magic=GNU), {"uid": 3000000}),
    "a base-256 time before the epoch": (header(b"f", mtime=base256(-5, 12), magic=GNU), {"mtime": -5}),
    "a PAX time": (pax({b"mtime": b"12.999"}) + header(b"f"), {"mtime": 12}),
    "a whole PAX time before the epoch": (pax({b"mtime": b"-12.000"}) + header(b"f"), {"mtime": -12}),
    "numbers with blanks": (header(b"f", mode=b"   644 \0", uid=b"0000007 "), {"mode": 0o644, "uid": 7}),
    "numbers that are not there": (header(b"f", mode=b"", uid=b"", mtime=b""), {"mode": 0, "uid": 0, "mtime": 0}),
    "setuid, setgid and sticky stay": (header(b"f", mode=0o7711), {"mode": 0o7711}),
    "a device": (
        header(b"d", type=b"3", patch={329: b"0000010\0", 337: b"0000011\0"}),
        {"type": b"3", "devmajor": 8, "devminor": 9},
    ),
    "the largest device numbers": (
        header(b"d", type=b"4", patch={329: b"0007777\0", 337: b"3777777\0"}),
        {"devmajor": 0xFFF, "devminor": 0xFFFFF},
    ),
    "device numbers of a regular file are nothing": (header(b"f", patch={329: b"7777777\0"}), {"devmajor": 0}),
    "a mode with the type of the file": (header(b"f", mode=0o100755), {"mode": 0o755}),
    "the last second of 64 bits": (header(b"f", mtime=base256(2**63 - 1, 12), magic=GNU), {"mtime": 2**63 - 1}),
    "the first second of 64 bits": (header(b"f", mtime=base256(-(2**63), 12), magic=GNU), {"mtime": -(2**63)}),
    "a PAX time of 18 digits": (pax({b"mtime": b"9" * 18}) + header(b"f"), {"mtime": 10**18 - 1}),
    "padding of content is nobody's": (header(b"f", size=3) + b"abc".ljust(512, b"x"), {"size": 3}),
    "what a field holds behind a zero byte": (header(b"f\0junk"), {"name": b"f"}),
    "a fifo": (header(b"p", type=b"6"), {"type": b"6"}),
    "an unknown PAX key": (pax({b"VENDOR.x": b""}) + header(b"f"), {"pax": {b"VENDOR.x": b""}}),
    "an empty extended attribute": (
        pax({b"LIBARCHIVE.xattr.user.a": b""}) + header(b"f"), {"pax": {b"LIBARCHIVE.xattr.user.a": b""}}
    ),
    "a character set": (pax({b"hdrcharset": b"BINARY", b"path": b"\xff"}) + header(b"f"), {"path": b"\xff"}),
    "the same PAX value twice": (pax([(b"uid", b"1"), (b"uid", b"1")]) + header(b"f"), {"uid": 1}),
    "a PAX size that the header has too": (pax({b"size": b"3"}) + file(b"f", b"abc"), {"size": 3}),
    "a global comment": (pax({b"comment": b"abc"}, b"g") + header(b"f"), {"start": 1024, "path": b"f"}),
    "sparse, GNU": (gnu_sparse([(0, 4), (8000, 3)], 7, 9000), {"sparse": 9000, "size": 7, "type": b"0"}),
    "sparse, GNU, 4 entries": (gnu_sparse([(n * 10, 1) for n in range(4)], 4, 99), {"sparse": 99, "data": 512}),
    "sparse, GNU, 5 entries": (gnu_sparse([(n * 10, 1) for n in range(5)], 5, 99), {"sparse": 99, "data": 1024}),
    "sparse, GNU, 47 entries": (
        gnu_sparse([(n * 10, 1) for n in range(47)], 47, 999), {"data": 2048, "end": 2560, "start": 0}
    ),
    "sparse, GNU, behind a long name": (
        long_name(LONG) + gnu_sparse([(n * 10, 1) for n in range(5)], 5, 99),
        {"path": LONG, "start": 0, "data": 2048},
    ),
    "sparse, PAX 0.0": (pax(SPARSE_0_0) + file(b"f", b"abcdefg"), {"sparse": 9000, "path": b"f"}),
    "sparse, PAX 0.1": (pax(SPARSE_0_1) + file(b"f", b"abcdefg"), {"sparse": 9000, "path": b"holes"}),
    "sparse, PAX 1.0": (pax(SPARSE_1_0) + map_and_data([(0, 4), (8000, 3)]), {"sparse": 1000000, "path": b"holes"}),
    "sparse, PAX 1.0, nothing but a hole": (
        pax(SPARSE_1_0) + map_and_data([(1000000, 0)]), {"sparse": 1000000, "size": 512}
    ),
    "sparse, PAX 1.0, of no entries": (pax(SPARSE_1_0) + map_and_data([]), {"sparse": 1000000, "size": 512}),
    "sparse, PAX 1.0, a map of two blocks": (
        pax(SPARSE_1_0) + map_and_data([(n * 1000, 1) for n in range(100)]), {"size": 1024 + 100, "path": b"holes"}
    ),
    "sparse, PAX 1.0, a map that fills its block": (
        pax(SPARSE_1_0) + map_and_data([(n * 100, 1) for n in range(1, 75)], 512), {"size": 512 + 74}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("blocks", "expected"), READ.values(), ids=READ)
def test_what_is_read(blocks: bytes, expected: dict[str, object]) -> None:
    member = one(blocks)
    assert {name: getattr(member, name) for name in expected} == expected


REFUSED: dict[str, tuple[bytes, str]] = {
    "a wrong checksum": (header(b"f", checksum=b"000000\0 "), "does not match its checksum"),
    "a checksum that is no number": (header(b"f", checksum=b"checksum"), "checksum is not a number"),
    "an unknown magic": (header(b"f", magic=b"USTAR\x0000"), "of no known form"),
    "ustar of another version": (header(b"f", magic=b"ustar\x0001"), "of no known form"),
    "star's shorter prefix": (header(b"f", patch={508: b"tar\0"}), "of no known form"),
    "a mode that is not octal": (header(b"f", mode=b"0000648\0"), "mode is not a number"),
    "a signed number": (header(b"f", uid=b"-000001\0"), "uid is not a number"),
    "a number with a plus": (header(b"f", uid=b"+000001\0"), "uid is not a number"),
    "a number with an underscore": (header(b"f", uid=b"1_0\0\0\0\0\0"), "uid is not a number"),
    "a number in two parts": (header(b"f", size=b"0\0" + b"0000001\0\0\0"), "size is not a number"),
    "a number behind a zero byte": (header(b"f", uid=b"\x000000001"), "uid is not a number"),
    "only blanks": (header(b"f", gid=b" " * 8), "gid is not a number"),
    "old GNU base-64": (header(b"f", size=b"+AAAAAAAAAAB"), "size is not a number"),
    "base-256 with an odd first byte": (header(b"f", uid=b"\x81" + bytes(7)), "uid is not a number"),
    "a negative size": (header(b"f", size=base256(-1, 12)), "size is -1; expected 0"),
    "a negative owner": (header(b"f", uid=base256(-1, 8)), "uid is -1"),
    "the owner that means no owner": (header(b"f", gid=base256(2**32 - 1, 8)), "gid is 4294967295"),
    "a huge size": (header(b"f", size=base256(2**62, 12)), f"expected 0 to {MAX_UNPACKED}"),
    "a size beyond 64 bits": (header(b"f", size=base256(2**63, 12)), "size is not a number of 64 bits"),
    "a time beyond 64 bits": (header(b"f", mtime=base256(2**63, 12), magic=GNU), "mtime is not a number of 64 bits"),
    "a time far before the epoch": (header(b"f", mtime=base256(-(2**63) - 1, 12)), "mtime is not a number of 64 bits"),
    "a time beyond 64 bits behind a PAX time": (
        pax({b"mtime": b"1"}) + header(b"f", mtime=base256(2**80, 12)), "mtime is not a number of 64 bits"
    ),
    "a mode of more bits than its field": (header(b"f", mode=base256(2**40, 8)), "mode is 1099511627776; expected"),
    "a negative mode": (header(b"f", mode=base256(-1, 8)), "mode is -1; expected"),
    "a device of junk that is no device": (header(b"f", patch={329: b"junk"}), "device number is not a number"),
    "a device with a blank in it that is no device": (header(b"f", patch={329: b"00 0000\0"}), "device number is not"),
    "a device of junk that is no device, GNU": (header(b"f", magic=GNU, patch={337: b"junk"}), "device number is not"),
    "a device of junk that is no device, v7": (header(b"f", magic=V7, patch={337: b"junk"}), "device number is not"),
    "a major number beyond Linux": (header(b"d", type=b"3", patch={329: b"0010000\0"}), "number is 4096; expected"),
    "a minor number beyond Linux": (header(b"d", type=b"4", patch={337: b"4000000\0"}), "number is 1048576; expected"),
    "a negative major number": (header(b"d", type=b"3", patch={329: base256(-1, 8)}), "device number is -1; expected"),
    **{
        f"{what} at byte {position} of a {form} header": (
            header(name, magic=magic, patch={position: data}), "goes on behind its last field"
        )
        for form, magic in (("GNU", GNU), ("v7", V7))
        for what, name, position, data in (
            ("a prefix", b"passwd", 345, b"etc"),
            ("a whiteout", b"x", 345, b".wh.etc"),
            ("a time", b"f", 345, b"14000000000\0"),
            ("a time", b"f", 357, b"14000000000\0"),
            ("an offset", b"f", 369, b"00000000001\0"),
            ("long names", b"f", 381, b"x"),
            ("a byte", b"f", 385, b"x"),
            ("a sparse map", b"f", 386, b"00000000001\0"),
            ("a sparse map that goes on", b"f", 482, b"\1"),
            ("a real size", b"f", 483, b"00000000001\0"),
            ("a byte", b"f", 511, b"x"),
        )
    },
    "a prefix of a GNU sparse file": (gnu_sparse([(0, 4)], 4, 9, more={345: b"etc"}), "goes on behind its last"),
    "a byte behind a GNU sparse header": (gnu_sparse([(0, 4)], 4, 9, more={495: b"x"}), "goes on behind its last"),
    "a prefix of a GNU long name": (
        header(b"f", type=b"L", size=2, magic=GNU, patch={345: b"etc"}) + padded(b"a\0"), "goes on behind"
    ),
    "a device number that is none": (header(b"d", type=b"4", patch={329: b"x"}), "device number is not a number"),
    "a device without numbers": (header(b"d", type=b"3", magic=V7), "no field for which"),
    **{
        f"content of type {kind.decode()}": (
            header(b"n", type=kind, size=512, linkname=b"t") + bytes(512), "states 512 bytes of content"
        )
        for kind in (b"1", b"2", b"3", b"4", b"5", b"6")
    },
    "content of a v7 directory": (header(b"d/", type=b"\0", size=3) + padded(b"abc"), "states 3 bytes of content"),
    "an empty name": (header(b""), "its name is empty"),
    "an empty long name": (extension(b"L", b"\0") + header(b"f"), "its name is empty"),
    "an empty PAX path": (pax({b"path": b""}) + header(b"f"), "its name is empty"),
    "a way out of the root": (header(b"../f"), "has a component .."),
    "a way out of the root in the middle": (header(b"a/../../f"), "has a component .."),
    "a way out of the root at the end": (directory(b"a/.."), "has a component .."),
    "a way out of the root in the prefix": (header(b"f", prefix=b".."), "has a component .."),
    "a way out of the root in a long name": (long_name(b"/../f") + header(b"f"), "has a component .."),
    "a way out of the root in a PAX path": (pax({b"path": b"a/.."}) + directory(b"f"), "has a component .."),
    "a way out of the root in a sparse name": (
        pax(SPARSE_1_0 | {b"GNU.sparse.name": b"../x"}) + file(b"f", b"0\n"), "has a component .."
    ),
    "a hard link out of the root": (link(b"l", b"../x", b"1"), "has a component .."),
    "a file as the root": (header(b"/", type=b"6", magic=V7), "a directory's"),
    "a symlink as the root": (link(b".", b"x"), "a directory's"),
    "a file with a directory's name": (header(b"f/"), "a directory's"),
    "a file with a directory's name, by a dot": (header(b"f/."), "a directory's"),
    "a symlink with a directory's name": (link(b"l/", b"x"), "a directory's"),
    "a name longer than Linux takes": (pax({b"path": b"n/" * 2048}) + directory(b"f"), "longer than 4095"),
    "a link longer than Linux takes": (long_name(b"n" * 4096, b"K") + link(b"l", b"x"), "longer than 4095"),
    "a hard link to a directory": (header(b"f") + link(b"l", b"f/", b"1"), "hard link to a directory"),
    "a hard link to a directory, by a dot": (header(b"f") + link(b"l", b"f/.", b"1"), "hard link to a directory"),
    "a v7 directory that PAX makes a file": (
        pax({b"path": b"foo"}) + header(b"foo/", type=b"\0", size=512) + header(b"smuggled"), "by one of its names"
    ),
    "a v7 directory that a long name makes a file": (
        long_name(b"foo") + header(b"foo/", type=b"\0", size=512) + header(b"smuggled"), "by one of its names"
    ),
    "a v7 file that PAX makes a directory": (pax({b"path": b"d/"}) + header(b"d", type=b"\0"), "by one of its names"),
    "a v7 file that its prefix makes a directory": (header(b"", type=b"\0", prefix=b"d"), "by one of its names"),
    "a hard link to nothing": (link(b"l", b"", b"1"), "a link to nothing"),
    "a symlink to nothing": (link(b"l", b""), "a link to nothing"),
    "a symlink to nothing by PAX": (pax({b"linkpath": b""}) + link(b"l", b"x"), "a link to nothing"),
    **{
        f"type flag {kind!r}": (header(b"f", type=kind), "type flag .* is unknown")
        for kind in (b"8", b"9", b"N", b"X", b"A", b"I", b"a", b" ", b"\xff")
    },
    "a multi-volume member": (header(b"f", type=b"M"), "one volume of several"),
    "a volume label": (header(b"label", type=b"V"), "one volume of several"),
    "a PAX volume label": (pax({b"GNU.volume.label": b"x"}, b"g") + header(b"f"), "one volume of several"),
    "a PAX volume": (pax({b"GNU.volume.filename": b"x"}) + header(b"f"), "one volume of several"),
    "an incremental backup with its times": (
        header(b"d", type=b"D", magic=GNU, patch={345: b"14000000000\0"}), "incremental backups"
    ),
    "a PAX incremental backup": (pax({b"GNU.dumpdir": b"Yf\0\0"}) + directory(b"d"), "incremental backups"),
    **{
        f"PAX {key.decode()}": (pax({key: b"1"}) + header(b"d", type=b"3"), "only some readers know that key")
        for key in (b"SCHILY.realsize", b"SCHILY.devmajor", b"SCHILY.devminor", b"SUN.holesdata")
    },
    "an incremental backup": (header(b"d", type=b"D"), "incremental backups"),
    "a global path": (pax({b"path": b"x"}, b"g") + header(b"f"), "global header sets path for all"),
    "a global owner among comments": (pax({b"comment": b"", b"uid": b"0"}, b"g"), "global header sets uid for all"),
    "a global header before a member": (pax({b"uid": b"1"}) + pax({b"comment": b""}, b"g"), "between an extension"),
    "two PAX headers": (pax({b"uid": b"1"}) + pax({b"gid": b"1"}) + header(b"f"), "two PAX headers"),
    "two long names": (long_name(b"a") + long_name(b"b") + header(b"f"), "two long names"),
    **{
        f"a long name of {body!r}": (extension(kind, body) + link(b"l", b"x"), "its one zero byte at its end")
        for kind in (b"L", b"K")
        for body in (b"a", b"a\0b", b"a\0b\0", b"a\0\0", b"\0a", b"\0\0", b"n" * 512)
    },
    **{
        f"{kind.decode()} that goes on in its padding": (
            header(b"f", type=kind, size=len(body)) + (body + more).ljust(512, b"\0") + link(b"lnk", b"x"),
            "zeros pads its extension header",
        )
        for kind, body, more in (
            (b"L", b"ln\0", b"k/evil\0"), (b"L", b"ln", b"k/evil\0"), (b"K", b"etc", b"/../..\0"),
            (b"x", b"8 uid=1\n", b"8 gid=1\n"), (b"g", b"12 comment=\n", b"8 gid=1\n"),
            (b"L", b"a\0", bytes(500) + b"x"),
        )
    },
    "a long name and a PAX sparse name": (
        long_name(b"lname") + pax(SPARSE_1_0) + map_and_data([(0, 5)]), "give its GNU.sparse.name"
    ),
    "two names of two kinds": (long_name(b"a") + pax({b"path": b"b"}) + header(b"f"), "give its path"),
    "two links of two kinds": (long_name(b"a", b"K") + pax({b"linkpath": b"b"}) + link(b"l", b"x"), "its linkpath"),
    "a PAX header without a member": (pax({b"uid": b"1"}), "no member behind it"),
    "a long name without a member": (long_name(b"a"), "no member behind it"),
    **{
        f"an extension header {kind.decode()} of a {field} that is no number": (
            header(b"f", type=kind, size=12, **{field: b"junk"}) + padded(b"12 comment=\n") + header(b"f"),  # type: ignore[arg-type]
            f"{field} is not a number",
        )
        for kind in (b"x", b"g", b"L", b"K")
        for field in ("mode", "uid", "gid", "mtime")
    },
    "an empty extension header": (extension(b"x", b"") + header(b"f"), "an extension header of 0 bytes"),
    "an endless long name": (header(b"f", type=b"L", size=MAX_EXTENSION + 1), f"header of {MAX_EXTENSION + 1} bytes"),
    "an endless PAX header": (header(b"f", type=b"x", size=2**33 - 1), "an extension header of"),
    "a negative extension header": (header(b"f", type=b"x", size=base256(-512, 12)), "an extension header of -512"),
    **{
        f"PAX record {body!r}": (extension(b"x", body) + header(b"f"), "PAX header is malformed")
        for body in (
            b"x", b"5", b"8 uid=1", b"8 uid=1x", b"9 uid=1\n", b"7 uid=1\n", b"0 uid=1\n", b"-8 uid=1\n", b" 8 uid=1\n",
            b"+8 uid=1\n", b"8_ uid=1\n", b"8\tuid=1\n", b"7 uid1\n", b"5 =1\n", b"3 \n", b"2 ", b"99999999999 uid=1\n",
            b"8 uid=1\n\0\0", b"9 a\0b=12\n", b"\xb9 uid=1\n", b"12 uid=1\n11 a", b"1 " * 10,
        )
    },
    **{
        f"PAX {key.decode()}={value.decode('latin-1')!r}": (pax({key: value}) + header(b"f"), "which is malformed")
        for key, values in {
            b"uid": (b"", b"x", b"-1", b"+1", b"1.0", b" 1", b"1 ", b"0x1", b"1_0", b"\xd9\xa1", b"9" * 30, b"1\0"),
            b"gid": (b"root",),
            b"size": (b"", b"-1", b"1e3"),
            b"mtime": (b"", b"x", b"nan", b"inf", b"1e5", b".5", b"1.5.5", b"--1", b"1.-5", b"1\n",
                       b"9" * 19, b"-" + b"9" * 19, b"9223372036854775808"),
            b"atime": (b"x", b"9" * 19),
            b"ctime": (b"x", b"9" * 19),
            b"path": (b"a\0b",),
            b"linkpath": (b"a\0b", b"\0"),
            b"uname": (b"a\0",),
            b"gname": (b"a\0",),
            b"hdrcharset": (b"latin-1", b""),
            b"GNU.sparse.major": (b"2", b"0"),
            b"GNU.sparse.minor": (b"1",),
            b"GNU.sparse.realsize": (b"-1",),
            b"GNU.sparse.map": (b"", b"1,", b"1,,2", b"1,-2", b"a"),
        }.items()
        for value in values
    },
    "a PAX owner that is too large": (pax({b"uid": b"4294967295"}) + header(b"f"), "uid is 4294967295"),
    "two values of a PAX key": (pax([(b"uid", b"0"), (b"uid", b"1")]) + header(b"f"), "two values of uid"),
    "a PAX size that smuggles members": (pax({b"size": b"512"}) + header(b"f") + bytes(512), "states 0 bytes, its PAX"),
    "a PAX size that hides content": (pax({b"size": b"0"}) + file(b"f", b"abc"), "states 3 bytes, its PAX header 0"),
    "a huge PAX size": (pax({b"size": b"9" * 18}) + header(b"f"), f"expected 0 to {MAX_UNPACKED}"),
    "GNU sparse under ustar": (gnu_sparse([(0, 4)], 4, 9, magic=USTAR), "of no known form"),
    "GNU sparse with PAX sparse": (pax(SPARSE_0_1) + gnu_sparse([(0, 4)], 4, 9), "of no known form"),
    "a sparse map backwards": (gnu_sparse([(8, 4), (0, 4)], 8, 99), "goes backwards"),
    "a sparse map that overlaps": (gnu_sparse([(0, 4), (3, 4)], 8, 99), "goes backwards"),
    "a sparse map of other content": (gnu_sparse([(0, 4)], 5, 99), "does not describe 5 bytes"),
    "a sparse map beyond the file": (gnu_sparse([(96, 4)], 4, 99), "does not describe 4 bytes"),
    "a sparse map with a gap": (gnu_sparse([(0, 4), (5, 0), (9, 0)], 4, 99, more={410: bytes(24)}), "map is malformed"),
    "a sparse map that is no number": (gnu_sparse([(0, 4)], 4, 99, more={410: b"x"}), "map is malformed"),
    "a sparse real size that is no number": (
        header(b"f", type=b"S", magic=GNU, patch={483: b"x"}), "real size is not a number"
    ),
    "an endless sparse map": (
        header(b"f", type=b"S", magic=GNU, patch={386: b"0" * 96, 482: b"\1"})
        + (b"0" * 504 + b"\1" + bytes(7)) * (MAX_EXTENSION // 504 + 1), "map has more"
    ),
    "a sparse map that goes on behind its end": (
        gnu_sparse([(0, 4)], 4, 99, more={482: b"\1"}) + bytes(512), "goes on behind its end"
    ),
    "a sparse map that goes on behind its end, later": (
        header(b"f", type=b"S", magic=GNU, patch={386: b"0" * 96, 482: b"\1"}) + (bytes(504) + b"\1" + bytes(7)),
        "goes on behind its end"
    ),
    "a sparse map that goes on behind an empty entry": (
        gnu_sparse([(0, 0), (0, 4)], 4, 99), "on behind an empty entry"
    ),
    "a sparse file of endless holes": (gnu_sparse([(0, 4)], 4, MAX_UNPACKED + 1), "real size is 17179869185; expected"),
    "a sparse real size beyond 64 bits": (
        gnu_sparse([(0, 4)], 4, 9, more={483: base256(2**70, 12)}), "real size is not a number of 64 bits"
    ),
    "a PAX sparse file of endless holes": (
        pax(SPARSE_0_1 | {b"GNU.sparse.size": b"%d" % 2**60}) + file(b"f", b"abcdefg"), "real size is 11529215"
    ),
    "a PAX 1.0 sparse file of endless holes": (
        pax(SPARSE_1_0 | {b"GNU.sparse.realsize": b"%d" % 2**60}) + map_and_data([]), "real size is 11529215"
    ),
    **{
        f"a sparse map in the content, {what}": (pax(SPARSE_1_0) + blocks, problem)
        for what, blocks, problem in (
            ("none", header(b"f"), "cut off|content is malformed"),
            ("shorter than a block", file(b"f", b"0\n"), "does not describe -510 bytes"),
            ("no number", file(b"f", padded(b"garbage\n0\n5\n") + b"abcde"), "content is malformed"),
            ("a signed number", file(b"f", padded(b"+1\n0\n5\n") + b"abcde"), "content is malformed"),
            ("a negative number", file(b"f", padded(b"1\n0\n-5\n")), "content is malformed"),
            ("a number with blanks", file(b"f", padded(b"1\n 0\n5\n") + b"abcde"), "content is malformed"),
            ("an empty line", file(b"f", padded(b"1\n\n0\n5\n") + b"abcde"), "content is malformed"),
            ("a line too few", file(b"f", padded(b"1\n0\n") + b"abcde"), "content is malformed"),
            ("a line too many", file(b"f", padded(b"1\n0\n5\n6\n") + b"abcde"), "content is malformed"),
            ("junk behind it", file(b"f", padded(b"1\n0\n5\n\0x") + b"abcde"), "content is malformed"),
            ("an endless one", file(b"f", padded(b"99999\n") + bytes(2 * MAX_EXTENSION)), "content is malformed"),
            ("of a number without end", file(b"f", b"9" * 2 * MAX_EXTENSION), "content is malformed"),
            ("of other content", file(b"f", padded(b"1\n0\n5\n") + b"abcd"), "does not describe 4 bytes"),
            ("beyond the file", map_and_data([(999_999, 2)]), "does not describe 2 bytes"),
            ("backwards", map_and_data([(8, 2), (0, 2)]), "goes backwards"),
        )
    },
    "a PAX sparse directory": (pax(SPARSE_0_1) + directory(b"d"), "of no known form"),
    "a PAX sparse name alone": (pax({b"GNU.sparse.name": b"x"}) + header(b"f"), "of no known form"),
    "PAX sparse of two forms": (pax(SPARSE_0_1 | SPARSE_1_0) + file(b"f", b"abcdefg"), "of no known form"),
    "PAX sparse without a size": (
        pax({key: SPARSE_1_0[key] for key in list(SPARSE_1_0)[:3]}) + file(b"f", b"0\n"), "of no known form"
    ),
    "a PAX sparse map of other content": (pax(SPARSE_0_1) + file(b"f", b"abc"), "does not describe 3 bytes"),
    "a PAX sparse map of other length": (
        pax(SPARSE_0_1 | {b"GNU.sparse.numblocks": b"3"}) + file(b"f", b"abcdefg"), "as many entries"
    ),
    "a PAX sparse map out of order": (pax([*SPARSE_0_0[:2], *SPARSE_0_0[3:]]) + file(b"f", b"abc"), "map is malformed"),
    "a PAX sparse map twice": (pax([*SPARSE_0_1.items(), *SPARSE_0_0[2:]]) + file(b"f", b"abcdefg"), "two sparse maps"),
    "a PAX sparse map half": (pax(SPARSE_0_0[:5]) + file(b"f", b"abcd"), "as many entries"),
}  # fmt: skip


@pytest.mark.parametrize(("archive", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(archive: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        walk(archive + END)


def test_a_refusal_names_archive_member_and_offset_in_plain_characters() -> None:
    walker = TarWalker(what="rootfs.tar.xz")
    with pytest.raises(FormatError) as caught:
        walker.feed(file(b"good", b"abc") + header(b"ev\x1b[2Jil\xff", uid=b"8"))
    assert str(caught.value) == (
        r"rootfs.tar.xz, member 'ev\x1b[2Jil\xff', byte 1024: its uid is not a number of 64 bits: "
        r"'8\x00\x00\x00\x00\x00\x00\x00'"
    )


ENDS = {
    "no zero block": (b"", "cut off"),
    "one zero block": (bytes(512), "cut off"),
    "half of the second": (bytes(700), "cut off"),
    "one zero block, then a member": (bytes(512) + header(b"f"), "single zero block"),
    "a member behind the end": (END + header(b"f"), "something follows the end"),
    "a byte behind the end": (END + b"\0x", "something follows the end"),
}


@pytest.mark.parametrize(("end", "problem"), ENDS.values(), ids=ENDS)
def test_an_archive_without_its_end_is_refused(end: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        walk(file(b"f", b"content") + end)


@pytest.mark.parametrize("zeros", [0, 1, 511, 8192, 100_000])
def test_zeros_behind_the_end_count(zeros: int) -> None:
    archive = file(b"f", b"content") + END + bytes(zeros)
    assert len(walk(archive)) == len(walk(archive, itertools.repeat(100, 99))) == 1


def test_nothing_at_all_is_no_archive_and_an_empty_archive_is_one() -> None:
    with pytest.raises(FormatError, match="cut off"):
        walk(b"")
    assert walk(END) == []


EVERYTHING = b"".join(
    (
        directory(b"./"),
        long_name(LONG),
        long_name(LONG, b"K"),
        link(b"l", b"x"),
        pax({b"path": b"\xff" * 600, b"mtime": b"1.5", b"SCHILY.xattr.user.x": b"\0\n" * 300}),
        file(b"f", b"content" * 200),
        file(b"empty"),
        gnu_sparse([(n * 10, 1) for n in range(30)], 30, 999),
        pax(SPARSE_0_0),
        file(b"f", b"abcdefg"),
        pax(SPARSE_1_0),
        map_and_data([(n * 1000, 9) for n in range(100)]),
        header(b"dev", type=b"3", magic=GNU),
        pax({b"comment": b"x"}, b"g"),
        link(b"hard", b"empty", b"1"),
        END,
    )
)
MEMBERS = walk(EVERYTHING)


@pytest.mark.parametrize("step", [1, 7, 511, 512, 513, 4096])
def test_pieces_of_one_size_give_the_same_members(step: int) -> None:
    assert walk(EVERYTHING, itertools.repeat(step, len(EVERYTHING) // step)) == MEMBERS


@given(st.lists(st.integers(0, 3000)))
def test_pieces_of_any_size_give_the_same_members(feeds: list[int]) -> None:
    assert walk(EVERYTHING, feeds) == MEMBERS


def test_every_truncation_is_an_error() -> None:
    borders = range(0, len(EVERYTHING), 512)
    for length in sorted({max(0, border + off) for border in borders for off in (-1, 0, 1, 100, 257)}):
        if length < len(EVERYTHING):
            with pytest.raises(FormatError):
                walk(EVERYTHING[:length])


@settings(max_examples=500)
@given(
    damages=st.lists(st.tuples(st.integers(0, len(EVERYTHING) - 1), st.binary(min_size=1, max_size=12)), max_size=4),
    repair=st.booleans(),
)
def test_corruption_is_an_error_or_changes_nothing_but_values(damages: list[tuple[int, bytes]], repair: bool) -> None:
    """With `repair`, the checksums are made right again, so that the damage reaches what is behind them."""
    archive = bytearray(EVERYTHING)
    for position, data in damages:
        archive[position : position + len(data)] = data[: len(archive) - position]
    if repair:
        for start in range(0, len(archive), 512):
            if EVERYTHING[start + 257 : start + 262] == b"ustar":
                block = archive[start : start + 512]
                block[148:156] = b" " * 8
                archive[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    try:
        members = walk(bytes(archive))
    except FormatError:
        return
    assert all(member.end <= len(archive) and b".." not in member.path.split(b"/") for member in members)
    ends = [0, *(member.end for member in members)]
    assert all(end <= member.start < member.data for end, member in zip(ends, members, strict=False))
    if not repair:
        kept = [(member.path, member.type, member.mode, member.uid, member.size, member.start) for member in members]
        assert len(kept) == len(MEMBERS)


@pytest.mark.parametrize("step", [1, 300, 1 << 20])
def test_content_is_captured_up_to_what_is_wanted(step: int) -> None:
    captured: list[tuple[bytes, bytes]] = []
    amounts = {b"none": 0, b"head": 700, b"exact": 512, b"all": 10_000, b"empty": 5}
    walker = TarWalker(lambda member: amounts[member.path], lambda m, data: captured.append((m.path, data)))
    content = bytes(range(256)) * 5
    archive = b"".join(file(name, b"" if name == b"empty" else content) for name in amounts) + END
    members = [m for start in range(0, len(archive), step) for m in walker.feed(archive[start : start + step])]
    assert walker.finish() == len(archive)
    assert captured == [(b"head", content[:700]), (b"exact", content[:512]), (b"all", content), (b"empty", b"")]
    assert [archive[m.data : m.data + m.size] for m in members] == [content] * 4 + [b""]


def test_nothing_of_a_sparse_file_is_captured() -> None:
    captured: list[Member] = []
    archive = (
        pax(SPARSE_1_0) + map_and_data([(0, 600)]) + gnu_sparse([(0, 600)], 600, 9000)
        + pax(SPARSE_0_1) + file(b"f", b"abcdefg") + END
    )  # fmt: skip
    walker = TarWalker(lambda member: 100, lambda member, content: captured.append(member))
    assert len(walker.feed(archive)) == 3
    assert (walker.finish(), captured) == (len(archive), [])


def test_an_error_of_a_callback_passes_as_it_is() -> None:
    def refuse(member: Member) -> int:
        raise FormatError("mine")

    with pytest.raises(FormatError, match=r"^mine$"):
        TarWalker(refuse).feed(header(b"f"))


def test_too_many_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim.image.tar, "MAX_MEMBERS", 3)
    assert len(walk(header(b"f") * 3 + END)) == 3
    with pytest.raises(FormatError, match="more than 3 members"):
        walk(header(b"f") * 4 + END)


def test_an_archive_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim.image.tar, "MAX_UNPACKED", 4096)
    assert walk(END + bytes(4096 - len(END))) == []
    with pytest.raises(FormatError, match="longer than 4096 bytes"):
        walk(END + bytes(4097 - len(END)))


# --- The same archives, read by GNU tar and by tarfile


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with what a root filesystem holds, and with names that are awkward."""
    root = tmp_path_factory.mktemp("tree")
    deep = root / "/".join(["directory-with-a-long-name"] * 6)
    deep.mkdir(parents=True)
    (deep / ("f" * 90)).write_bytes(b"deep")
    (root / "plain").write_bytes(b"content" * 1000)
    (root / "empty").touch(mode=0o600)
    (root / "plain").chmod(0o4755)
    os.utime(root / "plain", ns=(0, 1_000_000_000_123_456_789))
    os.utime(root / "empty", (-100, -100))
    os.link(root / "plain", root / "a-hard-link")
    os.link(deep / ("f" * 90), root / "deep-hard-link")
    (root / "symlink").symlink_to("../" * 50 + "nowhere")
    (root / "absolute").symlink_to("/absolute")
    Path(os.fsdecode(os.fsencode(root) + b"/not-utf-8-\xff\xe4")).write_bytes(b"x")
    (root / "new\nline and \x1b control").write_bytes(b"x")
    os.mkfifo(root / "fifo")
    with (root / "sparse").open("wb") as sparse:
        for position in range(0, 4_000_000, 160_000):
            sparse.seek(position)
            sparse.write(b"x" * 4096)
        sparse.truncate(5_000_000)
    try:
        os.setxattr(root / "plain", "user.note", b"a\0b\n=c")
        os.mknod(root / "device", 0o020666, os.makedev(1, 3))
        os.chown(root / "empty", 3_000_000, 70_000)
    except OSError:
        pass  # no user attributes on this file system, or no root: the rest is as good
    return root


def pack(tree: Path, form: str, *options: str) -> bytes:
    command = ["tar", "--create", f"--format={form}", "--sort=name", *options, "--directory", str(tree), "."]
    return subprocess.run(command, check=True, capture_output=True).stdout


FORMS = [
    ("gnu", ["--sparse"]),
    ("gnu", []),
    ("pax", ["--xattrs", "--sparse"]),
    ("pax", ["--xattrs", "--sparse", "--sparse-version=0.1"]),
    ("pax", ["--sparse", "--sparse-version=0.0"]),
    ("pax", []),
    ("ustar", ["--exclude=symlink", "--exclude=deep*", "--exclude=empty", "--exclude=dir*"]),
    ("v7", ["--exclude=symlink", "--exclude=deep*", "--exclude=empty", "--exclude=dir*", "--exclude=device",
            "--exclude=fifo"]),
]  # fmt: skip
each_form = pytest.mark.parametrize(("form", "options"), FORMS, ids=[" ".join([form, *opts]) for form, opts in FORMS])


@each_form
def test_tarfile_reads_the_same_members(tree: Path, form: str, options: list[str]) -> None:
    archive = pack(tree, form, *options)
    members = walk(archive)
    with tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8", errors="surrogateescape") as other:
        theirs = other.getmembers()
    assert len(members) == len(theirs) > 5
    for ours, their in zip(members, theirs, strict=True):
        kind = b"0" if their.issparse() else their.type.replace(b"\0", b"0")
        assert ours.name.rstrip(b"/") == os.fsencode(their.name)
        assert (ours.type, ours.mode, ours.uid, ours.gid) == (kind, their.mode, their.uid, their.gid)
        assert ours.mtime == their.mtime // 1
        assert ours.linkname == os.fsencode(their.linkname)
        if kind in b"34":
            assert (ours.devmajor, ours.devminor) == (their.devmajor, their.devminor)
        assert (ours.size if ours.sparse is None else ours.sparse) == their.size
        assert (ours.sparse is not None) == their.issparse()
        if ours.path == b"plain" and ours.type == b"0":
            assert archive[ours.data : ours.data + ours.size] == b"content" * 1000


@each_form
def test_gnu_tar_reads_the_same_members(tree: Path, form: str, options: list[str]) -> None:
    archive = pack(tree, form, *options)
    command = ["tar", "--list", "--quoting-style=literal", "--file=-"]
    listed = subprocess.run(command, input=archive, check=True, capture_output=True).stdout
    names = b"".join(member.name + b"\n" for member in walk(archive))
    assert listed == names


def test_extended_attributes_arrive(tree: Path) -> None:
    """As many as the file system takes: none on an old tmpfs."""
    first = next(member for member in walk(pack(tree, "pax", "--xattrs")) if member.path in (b"a-hard-link", b"plain"))
    there = {
        name: os.getxattr(tree / "plain", name) for name in os.listxattr(tree / "plain") if name.startswith("user.")
    }
    found = {key: value for key, value in first.pax.items() if key.startswith(b"SCHILY.xattr.user.")}
    assert found == {b"SCHILY.xattr." + name.encode(): value for name, value in there.items()}


def test_a_file_of_more_than_8_gib_is_walked_past() -> None:
    size = 9 << 30
    for blocks in (pax({b"size": b"%d" % size}) + header(b"f"), header(b"f", size=base256(size, 12), magic=GNU)):
        walker = TarWalker()
        (member,) = walker.feed(blocks)
        assert (member.size, member.end - member.data) == (size, size)


def test_one_volume_of_several_as_gnu_tar_writes_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(50_000))
    volumes = [tmp_path / "one.tar", tmp_path / "two.tar", tmp_path / "three.tar"]
    files = [f"--file={volume}" for volume in volumes]
    command = ["tar", "--create", "--multi-volume", "--tape-length=30", *files, f"--directory={tmp_path}", "big"]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(FormatError, match="cut off"):
        walk(volumes[0].read_bytes())
    with pytest.raises(FormatError, match="one volume of several"):
        walk(volumes[1].read_bytes())
