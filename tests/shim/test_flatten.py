"""Layers become one stream that is safe to unpack and means what the layers mean."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shim.errors import FormatError
from shim.image import model
from shim.image.flatten import flatten
from shim.image.layout import Layout
from shim.image.model import canonical_json, parse_manifest
from shim.image.tar import TarWalker
from tests.shim import tars
from tests.shim.layers import CLOSED, Contradiction, Model, Op, archive, flat, found, layer, unpack

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to root")


def stacks(names: Sequence[str], texts: Sequence[str]) -> st.SearchStrategy[list[list[Op]]]:
    """Return stacks of layers over a few names, so that they meet often."""
    paths = st.lists(st.sampled_from(names), min_size=1, max_size=3).map("/".join)
    modes = st.sampled_from([0o644, 0o755, 0o4750, 0o2711])
    op = st.one_of(
        st.builds(Op, st.just("dir"), paths, st.just(""), modes),
        st.builds(Op, st.just("file"), paths, st.sampled_from(["", "one", "two" * 300]), modes),
        st.builds(Op, st.just("link"), paths, st.sampled_from(texts)),
        st.builds(Op, st.just("hard"), paths, paths),
        st.builds(Op, st.just("hide"), paths),
        st.builds(Op, st.just("opaque"), paths),
    )
    return st.lists(st.lists(op, max_size=7), min_size=1, max_size=4)


NAMES = ["a", "b", "c"]
TEXTS = ["a", "b", "/a", "/b/c", "../a", "../..", "nowhere", ".", "a/../b", "./c"]


def meaning(stack: Sequence[Sequence[Op]]) -> Model:
    meant = Model()
    for number, ops in enumerate(stack):
        meant.apply(ops, number)
    return meant


@needs_root
@settings(max_examples=200, deadline=None)
@given(stacks([*NAMES, "tmp"], [*TEXTS, "/tmp", "tmp/x"]))  # noqa: S108
def test_a_stack_of_layers_means_what_the_model_says(stack: list[list[Op]]) -> None:
    layers = [archive(ops) for ops in stack]
    try:
        meant = meaning(stack).tree()
    except Contradiction:
        with pytest.raises(FormatError):
            flat(*layers)
        return
    with tempfile.TemporaryDirectory() as directory:
        unpack(flat(*layers), Path(directory))
        assert found(Path(directory)) == meant


@needs_root
@pytest.mark.skipif(shutil.which("umoci") is None, reason="umoci is not installed")
@settings(max_examples=50, deadline=None)
@given(stacks(NAMES, TEXTS))
def test_umoci_unpacks_the_same_tree(stack: list[list[Op]]) -> None:
    try:
        meaning(stack)
    except Contradiction:
        return  # umoci takes one side of it
    layers = [archive(ops) for ops in stack]
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = Path(scratch, "ours"), Path(scratch, "theirs")
        ours.mkdir()
        unpack(flat(*layers), ours)
        assume(umoci(layers, Path(scratch, "layout"), theirs))
        assert without_runtime(found(ours)) == without_runtime(found(theirs / "rootfs"))


def without_runtime(tree: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {path: shown for path, shown in tree.items() if path.partition("/")[0] not in CLOSED}


def umoci(layers: Sequence[bytes], directory: Path, target: Path) -> bool:
    """Unpack with umoci, and say whether it could: it stumbles over a hard link to itself, for one."""
    layout = Layout(directory, create=True)
    descriptors = [layout.put_blob(gzip.compress(data), model.OCI_LAYER + "+gzip").to_json() for data in layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers]},
    }
    document = {
        "schemaVersion": 2,
        "mediaType": model.OCI_MANIFEST,
        "config": layout.put_blob(canonical_json(config), model.OCI_CONFIG).to_json(),
        "layers": descriptors,
    }
    layout.put_manifest(parse_manifest(canonical_json(document), None, "an image"), "tag")
    command = ["umoci", "unpack", "--image", f"{directory}:tag", str(target)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def listing(stream: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(stream)) as opened:
        members = opened.getmembers()
    assert len({member.name for member in members}) == len(members)
    return {member.name.removeprefix("./"): member for member in members}


def names(*layers: bytes) -> set[str]:
    """Return the names in the stream, but for those that are always there."""
    return set(listing(flat(*layers))) - {".", *CLOSED}


ROOT = tars.directory(b"./")
USR_MERGE = ROOT + tars.directory(b"usr/") + tars.directory(b"usr/bin/") + tars.link(b"bin", b"usr/bin") + tars.END


def test_a_layer_that_is_canonical_passes_byte_for_byte() -> None:
    runtime = b"".join(tars.directory(name.encode(), mode=mode) for name, mode in CLOSED.items())
    data = ROOT + runtime + tars.file(b"./f", b"x" * 3_000_000) + tars.link(b"./g", b"./f", b"1") + tars.END
    assert flat(data) == data


def test_a_name_goes_through_the_links_of_the_tree() -> None:
    upper = tars.file(b"bin/foo", b"content") + tars.END
    assert listing(flat(USR_MERGE, upper))["usr/bin/foo"].isfile()


def test_a_directory_over_a_link_replaces_it() -> None:
    upper = tars.directory(b"bin/") + tars.file(b"bin/foo") + tars.END
    tree = listing(flat(USR_MERGE, upper))
    assert tree["bin"].isdir()
    assert "bin/foo" in tree
    assert "usr/bin/foo" not in tree


def test_a_marker_in_a_directory_that_replaced_a_link_hides_nothing_behind_the_link() -> None:
    lower = USR_MERGE[:-1024] + tars.file(b"usr/bin/foo") + tars.END
    upper = tars.file(b"bin/.wh.foo") + tars.directory(b"bin/") + tars.END
    assert "usr/bin/foo" in names(lower, upper)
    assert "usr/bin/foo" not in names(lower, tars.file(b"bin/.wh.foo") + tars.END)


def test_a_directory_over_a_directory_keeps_what_is_in_it_and_changes_its_attributes() -> None:
    lower = tars.directory(b"d", mode=0o700) + tars.file(b"d/kept") + tars.END
    tree = listing(flat(lower, tars.directory(b"d", mode=0o750, mtime=5) + tars.END))
    assert (tree["d"].mode, tree["d"].mtime) == (0o750, 5)
    assert "d/kept" in tree


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["marker first", "marker last"])
def test_markers_apply_to_lower_layers_only_whatever_their_order(order: tuple[int, int]) -> None:
    lower = tars.directory(b"d") + tars.file(b"d/old") + tars.file(b"d/new", b"old") + tars.END
    parts = (tars.file(b"d/.wh..wh..opq"), tars.directory(b"d") + tars.file(b"d/new", b"new"))
    stream = flat(lower, parts[order[0]] + parts[order[1]] + tars.END)
    assert set(listing(stream)) - {".", *CLOSED} == {"d", "d/new"}
    assert b"new" in stream


def test_what_is_put_where_a_whiteout_hid_a_directory_goes_into_a_new_one() -> None:
    lower = tars.directory(b"d", mode=0o700) + tars.file(b"d/old") + tars.END
    tree = listing(flat(lower, tars.file(b".wh.d") + tars.file(b"d/new") + tars.END))
    assert set(tree) - {".", *CLOSED} == {"d", "d/new"}
    assert tree["d"].mode == 0o755


@pytest.mark.parametrize("count", [1, 2])
def test_no_marker_reaches_the_stream_however_many_layers_there_are(count: int) -> None:
    data = tars.file(b".wh.a") + tars.directory(b"d") + tars.file(b"d/.wh..wh..opq") + tars.END
    assert names(*[data] * count) == {"d"}


@pytest.mark.parametrize("name", [b".wh..wh.plnk", b".wh..wh.aufs", b"d/.wh..wh.orph/x", b".wh..wh..opq/x"])
def test_the_bookkeeping_of_aufs_is_passed_over(name: bytes) -> None:
    assert names(tars.file(name, b"something") + tars.END) == set()


@pytest.mark.parametrize(
    "member",
    [
        tars.file(b".wh."),
        tars.file(b".wh.."),
        tars.file(b"d/.wh..."),
        tars.file(b".wh.a", b"content"),
        tars.directory(b".wh.a"),
        tars.link(b".wh.a", b"b"),
        tars.link(b".wh..wh..opq", b"b"),
        tars.file(b".wh.a/b"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_an_odd_marker_is_refused(member: bytes, count: int) -> None:
    with pytest.raises(FormatError, match="whiteout"):
        flat(*[member + tars.END] * count)


def test_the_content_of_hard_links_follows_the_file_and_not_its_name() -> None:
    lower = tars.file(b"a", b"first") + tars.END
    middle = tars.link(b"b", b"a", b"1") + tars.END
    upper = tars.file(b"a", b"second") + tars.END
    stream = flat(lower, middle, upper)
    with tarfile.open(fileobj=io.BytesIO(stream)) as opened:
        contents = {name: (file.read() if (file := opened.extractfile(name)) else None) for name in ("./b", "a")}
    assert contents == {"./b": b"first", "a": b"second"}


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        ([tars.link(b"b", b"a", b"1") + tars.file(b"a")], "'b', .*hard link to 'a', and there is no such file"),
        ([tars.link(b"b", b"/etc/shadow", b"1")], "'b', .*hard link to 'etc/shadow', and there is no such file"),
        ([tars.link(b"b", b"../a", b"1")], "'b', .*'../a' has a component"),
        ([tars.directory(b"a") + tars.link(b"b", b"a", b"1")], "'b', .*hard link to 'a', which is a directory"),
        ([tars.file(b"a"), tars.file(b".wh.a") + tars.link(b"b", b"a", b"1")], "'b', .*hard link to 'a'"),
        ([tars.file(b"tmp/a") + tars.link(b"b", b"tmp/a", b"1")], "'b', .*hard link to 'tmp/a'"),
        ([tars.file(b".stateful-pods/a") + tars.link(b"b", b".stateful-pods/a", b"1")], "'b', .*hard link to"),
    ],
)
def test_a_hard_link_that_cannot_be_resolved_is_refused_with_both_paths(layers: list[bytes], sentence: str) -> None:
    with pytest.raises(FormatError, match=sentence):
        flat(*(data + tars.END for data in layers))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (tars.file(b"a") + tars.file(b"a/b"), "'a/b', .*below 'a', which is no directory"),
        (tars.link(b"a", b"f") + tars.file(b"f") + tars.file(b"a/../b"), "component"),
        (tars.link(b"a", b"b") + tars.link(b"b", b"a") + tars.file(b"a/x"), "too many links"),
        (tars.file(b"d/x") + tars.file(b"d"), "'d', .*replaces a directory of its own layer"),
        (tars.directory(b"d") + tars.link(b"d", b"/"), "'d', .*replaces a directory of its own layer"),
        (tars.link(b".", b"/"), "its name is a directory's"),
        (tars.pax({b"LIBARCHIVE.xattr.user.a": b"YQ"}) + tars.file(b"a"), "libarchive"),
        (tars.pax({b"SCHILY.acl.access": b"user::rw-,user:bob:r--,group::r--,mask::r--,other::r--"}) + tars.file(b"a"),
         "names 'bob', .*numeric-owner"),
        (tars.pax({b"SCHILY.acl.access": b"nonsense"}) + tars.file(b"a"), "access control list is malformed"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 2])
def test_what_has_no_one_meaning_is_refused(data: bytes, sentence: str, count: int) -> None:
    with pytest.raises(FormatError, match=sentence):
        flat(*[data + tars.END] * count)


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_taken_from_where_boot_mounts_nor_from_what_is_ours(count: int) -> None:
    data = b"".join(
        [
            tars.header(b"dev/sda", type=b"4"),
            tars.file(b"proc/x"),
            tars.file(b"run/x"),
            tars.link(b"sys", b"/etc"),
            tars.file(b"sys/x"),
            tars.directory(b"tmp", mode=0o1770, mtime=7),
            tars.file(b"tmp/x"),
            tars.link(b"var/run", b"/run"),
            tars.file(b"var/run/x"),
            tars.directory(b".stateful-pods", uid=7),
            tars.file(b".stateful-pods/provisioned", b"{}"),
            tars.directory(b"lost+found", mode=0o700),
            tars.file(b"lost+found/x"),
            tars.END,
        ]
    )
    tree = listing(flat(*[data] * count))
    assert set(tree) == {".", *CLOSED, "var", "var/run", "lost+found"}
    assert {name: tree[name].mode for name in CLOSED} == CLOSED | {"tmp": 0o1770}
    assert tree["tmp"].mtime == 7


def test_where_boot_mounts_there_are_empty_directories_whatever_the_image_has_in_their_place() -> None:
    """They are ours where it has none. Those that it has keep their attributes, as everything of an archive does."""
    odd = [tars.file(b"dev", uid=7), tars.link(b"proc", b"/etc"), tars.header(b"run", type=b"6", uid=7)]
    for layers in ([b"".join(odd)], [b"", b"".join(odd)], [tars.file(b"a"), tars.file(b".wh.sys", uid=7)]):
        tree = listing(flat(*(data + tars.END for data in layers)))
        shown = {name: (one.type, one.mode, one.uid, one.gid) for name, one in tree.items() if name in CLOSED}
        assert shown == {name: (tarfile.DIRTYPE, mode, 0, 0) for name, mode in CLOSED.items()}


@pytest.mark.parametrize(
    "marker",
    [b".wh.tmp", b"tmp/.wh.x", b"tmp/.wh..wh..opq", b".wh..wh..opq", b"var/tmp/.wh.x", b"var/tmp/.wh..wh..opq"],
)
def test_a_whiteout_changes_nothing_where_nothing_is_taken(marker: bytes) -> None:
    lower = tars.directory(b"tmp", mode=0o1770, mtime=7) + tars.file(b"tmp/x") + tars.link(b"var/tmp", b"../tmp")
    upper = tars.file(marker) + tars.file(b"tmp/y")
    tree = listing(flat(lower + tars.END, upper + tars.END))
    assert (tree["tmp"].mode, tree["tmp"].mtime) == (0o1770, 7)
    assert set(tree) - {".", *CLOSED} <= {"var", "var/tmp"}


@pytest.mark.parametrize("kind", [b"3", b"4"])
@pytest.mark.parametrize("count", [1, 2])
def test_no_device_node_survives_wherever_it_is(kind: bytes, count: int) -> None:
    link = tars.link(b"bin", b"usr/bin")
    nodes = tars.header(b"kmem", type=kind) + tars.header(b"bin/a", type=kind) + tars.link(b"b", b"usr/bin/a", b"1")
    assert names(*[link + nodes + tars.END] * count) == {"bin", "usr", "usr/bin"}


def test_a_device_node_takes_the_place_of_what_was_there() -> None:
    assert names(tars.file(b"etc/shadow", b"old") + tars.END, tars.header(b"etc/shadow", type=b"3") + tars.END) == {
        "etc"
    }


@pytest.mark.parametrize("layers", [[tars.file(b"a")], [tars.file(b"a") + tars.END, tars.file(b"b")]], ids=len)
@pytest.mark.parametrize("end", [b"", bytes(512), bytes(100)], ids=len)
def test_a_layer_without_its_end_is_refused(layers: list[bytes], end: bytes) -> None:
    with pytest.raises(FormatError, match=f"layer {len(layers)}"):
        flat(*layers[:-1], layers[-1] + end)


@needs_root
@pytest.mark.parametrize("count", [1, 2])
def test_a_directory_that_takes_the_place_of_a_link_gets_what_comes_after_it(count: int, tmp_path: Path) -> None:
    data = tars.link(b"x", b"a") + tars.file(b"x/f") + tars.directory(b"x/") + tars.file(b"x/g") + tars.END
    if count == 2:  # the link, and the way through it, are of another layer
        unpack(flat(tars.link(b"x", b"a") + tars.file(b"x/f") + tars.END, data[512:]), tmp_path)
    else:
        unpack(flat(data), tmp_path)
    assert set(found(tmp_path)) - {"", *CLOSED} == {"a", "a/f", "x", "x/g"}


def test_device_nodes_are_left_out_and_named() -> None:
    data = tars.header(b"var/null", type=b"3") + tars.link(b"var/null2", b"var/null", b"1") + tars.END
    told: list[str] = []
    stream = b"".join(flatten([layer(data)], tell=told.append))
    assert set(listing(stream)) - {".", *CLOSED} == {"var"}
    assert told == ["device nodes are left out: var/null, var/null2"]


def test_directories_that_only_their_contents_imply_are_roots_and_0755() -> None:
    tree = listing(flat(tars.file(b"a/b/c", uid=7) + tars.END))
    assert [(tree[name].mode, tree[name].uid) for name in (".", "a", "a/b")] == [(0o755, 0)] * 3


def test_a_parent_that_comes_later_gives_its_attributes() -> None:
    tree = listing(flat(tars.file(b"a/b") + tars.directory(b"a", mode=0o711) + tars.END))
    assert tree["a"].mode == 0o711


LONG = b"/".join([b"n" * 60] * 5)
SPARSE = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": b"bin/f"}


@needs_root
@pytest.mark.parametrize(
    ("member", "path", "size"),
    [
        (tars.file(b"bin/f", b"x"), "f", 1),
        (tars.file(b"/bin//./f", b"x"), "f", 1),
        (tars.pax({b"path": b"bin/f", b"mtime": b"1.5"}) + tars.file(b"short", b"x"), "f", 1),
        (tars.extension(b"L", b"bin/" + LONG + b"\0") + tars.file(b"short", b"x"), LONG.decode(), 1),
        (tars.pax(SPARSE | {b"GNU.sparse.realsize": b"100001"})
         + tars.file(b"short", tars.padded(b"1\n100000\n1\n") + b"x"), "f", 100_001),
        (tars.pax([(b"GNU.sparse.size", b"100001"), (b"GNU.sparse.numblocks", b"1"),
                   (b"GNU.sparse.offset", b"100000"), (b"GNU.sparse.numbytes", b"1")])
         + tars.file(b"bin/f", b"x"), "f", 100_001),
        (tars.header(b"bin/f", type=b"S", size=1, magic=tars.GNU,
                     patch={386: b"%011o\0%011o\0" % (100_000, 1), 483: b"%011o\0" % 100_001})
         + tars.padded(b"x"), "f", 100_001),
    ],
    ids=["ustar", "odd spelling", "pax", "GNU long name", "sparse 1.0", "sparse 0.0", "GNU sparse"],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 2])
def test_a_member_under_another_name_keeps_its_content(
    member: bytes, path: str, size: int, count: int, tmp_path: Path
) -> None:
    unpack(flat(*[USR_MERGE[:-1024] + member + tars.END] * count), tmp_path)
    unpacked = tmp_path / "usr/bin" / path
    assert unpacked.stat().st_size == size
    assert unpacked.read_bytes().endswith(b"x")


@needs_root
def test_access_control_lists_in_text_arrive_as_the_kernel_knows_them(tmp_path: Path) -> None:
    text = b"user::rw-\nuser:1000:r--\ngroup::r--\nuser:bob:rw-:7\nmask::rw-\nother::---"
    unpack(flat(tars.pax({b"SCHILY.acl.access": text}) + tars.file(b"f", mode=0o660) + tars.END), tmp_path)
    entries = os.getxattr(tmp_path / "f", "system.posix_acl_access")
    expected = [
        (1, 6, 0xFFFFFFFF),
        (2, 6, 7),
        (2, 4, 1000),
        (4, 4, 0xFFFFFFFF),
        (16, 6, 0xFFFFFFFF),
        (32, 0, 0xFFFFFFFF),
    ]
    packed = b"".join(
        t.to_bytes(2, "little") + m.to_bytes(2, "little") + w.to_bytes(4, "little") for t, m, w in expected
    )
    assert entries == b"\2\0\0\0" + packed


def test_the_stream_does_not_depend_on_where_pieces_end(monkeypatch: pytest.MonkeyPatch) -> None:
    data = USR_MERGE[:-1024] + b"".join(tars.file(b"/bin/%d" % size, b"x" * size) for size in range(0, 2000, 97))
    whole = flat(data + tars.END)
    for chunk in (1, 511, 512, 513, 1700):
        monkeypatch.setattr("shim.image.flatten.CHUNK", chunk)
        assert flat(data + tars.END) == whole


def test_the_stream_can_be_flattened_again_and_stays_the_same() -> None:
    once = flat(USR_MERGE, tars.file(b"bin/foo", b"x") + tars.link(b"bin/bar", b"bin/foo", b"1") + tars.END)
    assert flat(once) == once
    walker = TarWalker()
    walker.feed(once)
    walker.finish()


def hostile(c: bytes) -> dict[str, list[bytes]]:
    """Return layers that try to change what is in the directory `c`, which is not in the root."""
    up = b"../" * 15
    return {
        "a file through an absolute link": [tars.link(b"a", c) + tars.file(b"a/file", b"pwned")],
        "a file through a relative link": [tars.link(b"a", up + c) + tars.file(b"a/file", b"pwned")],
        "through a chain of links": [
            tars.link(b"a", b"b/c") + tars.link(b"b", b"..") + tars.link(b"c", c) + tars.file(b"a/file", b"pwned")
        ],
        "through a link of a lower layer": [tars.link(b"a", c), tars.file(b"a/file", b"pwned")],
        "a directory over a link": [tars.link(b"a", c) + tars.directory(b"a", mode=0)],
        "a directory over a link of a lower layer": [tars.link(b"a", c), tars.directory(b"a", mode=0)],
        "a file over a link": [tars.link(b"a", c + b"/file"), tars.file(b"a", b"pwned", mode=0o777)],
        "a file over a link of the same layer": [tars.link(b"a", c + b"/file") + tars.file(b"a", b"pwned", mode=0o777)],
        "a file over a hard link of a link": [
            tars.link(b"s", c + b"/file") + tars.link(b"h", b"s", b"1") + tars.file(b"h", b"pwned")
        ],
        "a hard link out of the root": [tars.link(b"h", c + b"/file", b"1") + tars.file(b"h", b"pwned")],
        "a hard link through a link": [
            tars.link(b"a", c) + tars.link(b"h", b"a/file", b"1") + tars.file(b"h", b"pwned")
        ],
        "an absolute name": [tars.file(c + b"/file", b"pwned")],
        "an absolute root": [tars.directory(b"/", mode=0)],
        "a name that climbs": [tars.file(up + c + b"/file", b"pwned")],
        "a whiteout through a link": [tars.link(b"a", c), tars.file(b"a/.wh.file")],
        "an opaque directory through a link": [tars.link(b"a", c), tars.file(b"a/.wh..wh..opq")],
        "a whiteout of what is above": [tars.directory(b"a"), tars.file(b"a/.wh...")],
        "a runtime directory that is a link": [tars.link(b"tmp", c) + tars.file(b"tmp/file", b"pwned")],
        "our directory is a link": [tars.link(b".stateful-pods", c) + tars.file(b".stateful-pods/file", b"pwned")],
        "lost+found is a link": [tars.link(b"lost+found", c) + tars.file(b"lost+found/file", b"pwned")],
        "a root that is a link": [tars.link(b".", c) + tars.file(b"file", b"pwned")],
        "a long name in a PAX record": [tars.pax({b"path": c + b"/file"}) + tars.file(b"harmless", b"pwned")],
        "a long name in a GNU header": [tars.extension(b"L", c + b"/file\0") + tars.file(b"harmless", b"pwned")],
        "a link target in a PAX record": [
            tars.pax({b"linkpath": c + b"/file"}) + tars.link(b"h", b"x", b"1") + tars.file(b"h", b"pwned")
        ],
    }


@needs_root
@pytest.mark.parametrize("attack", hostile(b"/c"))
def test_nothing_outside_of_the_root_is_touched(attack: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short:  # a path that fits into a header
        canary = Path(short)
        (canary / "file").write_text("canary")
        before = snapshot(canary)
        try:
            unpack(flat(*(data + tars.END for data in hostile(bytes(canary))[attack])), tmp_path)
        except FormatError:
            assert not any(tmp_path.iterdir())
        assert snapshot(canary) == before


def snapshot(directory: Path) -> list[tuple[object, ...]]:
    result = []
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.lstat()
        result.append((path, stat.S_IMODE(status.st_mode), status.st_mtime_ns, status.st_ino, status.st_nlink))
    return [*result, ((directory / "file").read_text(),)]
