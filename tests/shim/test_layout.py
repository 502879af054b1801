"""Image layouts on disk: what stands there after everything that can happen to a writer."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shim.errors import FormatError, NotFound, Refused, Unavailable, VerificationError
from shim.image import model
from shim.image.digest import Digest
from shim.image.layout import Layout
from shim.image.model import Descriptor, Index, canonical_json, parse_manifest
from shim.image.repository import Repository
from tests.shim.images import BLOB, LAYER, descriptor, image, read, upload

REF_NAME = "org.opencontainers.image.ref.name"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "layout"


@pytest.fixture
def layout(path: Path) -> Layout:
    return Layout(path, create=True)


def index_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "index.json").read_bytes())
    return document


def write_index(path: Path, *entries: dict[str, Any], **more: Any) -> None:
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries} | more, indent=1))


def tagged(at: Descriptor, tag: str) -> dict[str, Any]:
    return at.to_json() | {"annotations": {REF_NAME: tag}}


def blob_path(path: Path, digest: Digest) -> Path:
    return path / "blobs" / digest.algorithm / digest.encoded


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()}


EMPTY = {"oci-layout", "index.json"}


# --- what is written


def test_what_was_written_is_read_back(layout: Layout, path: Path) -> None:
    repository: Repository = layout
    assert repository.name == f"oci:{path}"
    assert repository.tags() == []
    assert repository.resolve("latest") is None
    assert upload(repository, BLOB) == descriptor(BLOB)
    manifest = image()
    repository.put_manifest(manifest, "latest")
    references: list[Descriptor | Digest | str] = ["latest", manifest.descriptor, manifest.descriptor.digest]
    for reference in references:
        assert repository.manifest(reference) == manifest
    assert repository.resolve("latest") == manifest.descriptor.digest
    assert repository.tags() == ["latest"]
    assert read(repository, descriptor(BLOB)) == BLOB
    assert repository.has_blob(descriptor(BLOB))
    assert not repository.has_blob(Descriptor(LAYER, Digest.of(BLOB), len(BLOB) + 1))
    assert not repository.has_blob(descriptor(b"absent"))


def test_the_files_are_those_of_the_specification(layout: Layout, path: Path) -> None:
    manifest = image()
    layout.put_manifest(manifest, "latest")
    assert (path / "oci-layout").read_bytes() == b'{"imageLayoutVersion":"1.0.0"}'
    assert (path / "index.json").read_bytes() == canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": model.OCI_INDEX,
            "manifests": [tagged(manifest.descriptor, "latest")],
        }
    )
    assert files(path) == EMPTY | {f"blobs/sha256/{manifest.descriptor.digest.encoded}"}


def test_raw_bytes_are_kept_however_they_are_written(layout: Layout) -> None:
    raw = json.dumps(json.loads(image().raw), indent=7).encode() + b"\n"
    layout.put_manifest(parse_manifest(raw, None, "an image"), "latest")
    assert layout.manifest("latest").raw == raw


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        layout = Layout(path / "deep" / "er", create=True)
        layout.put_manifest(image(), "latest")
        upload(layout, BLOB)
    finally:
        os.umask(before)
    for found in (path, *path.rglob("*")):
        assert stat.S_IMODE(found.stat().st_mode) == (0o755 if found.is_dir() else 0o644), found


def test_the_index_is_the_same_whatever_the_order(tmp_path: Path) -> None:
    images = {tag: image(annotations={"tag": tag}) for tag in ("b", "a", "c")}
    for name, order in (("one", "abc"), ("other", "cabbac")):
        layout = Layout(tmp_path / name, create=True)
        for tag in order:
            layout.put_manifest(images[tag], tag)
    assert (tmp_path / "one" / "index.json").read_bytes() == (tmp_path / "other" / "index.json").read_bytes()


def test_a_manifest_without_a_tag_is_a_blob_only(layout: Layout, path: Path) -> None:
    layout.put_manifest(image())
    assert index_of(path)["manifests"] == []
    assert layout.manifest(image().descriptor) == image()


def test_a_tag_moves_and_names_one_manifest(layout: Layout, path: Path) -> None:
    other = image(annotations={"a": "b"})
    for manifest in (image(), other):
        layout.put_manifest(manifest, "latest")
        layout.put_manifest(manifest, "also")
    assert [entry["annotations"][REF_NAME] for entry in index_of(path)["manifests"]] == ["also", "latest"]
    assert layout.resolve("latest") == layout.resolve("also") == other.descriptor.digest


def test_a_foreign_index_keeps_what_it_says_beyond_us(layout: Layout, path: Path) -> None:
    foreign = descriptor(b"x").to_json() | {"urls": ["https://example.org/x"], "x-new": {"a": [1]}}
    write_index(path, foreign, annotations={"a": "ü"}, **{"x-top": 1})
    layout.put_manifest(image(), "latest")
    document = index_of(path)
    assert foreign in document["manifests"]
    assert (document["annotations"], document["x-top"]) == ({"a": "ü"}, 1)
    assert layout.tags() == ["latest"]


def test_leaving_the_block_without_commit_leaves_nothing(layout: Layout, path: Path) -> None:
    with pytest.raises(ZeroDivisionError), layout.new_blob() as blob:
        blob.write(BLOB)
        raise ZeroDivisionError
    assert files(path) == EMPTY


def test_a_blob_is_not_there_before_its_commit(layout: Layout) -> None:
    with layout.new_blob() as blob:
        blob.write(BLOB)
        assert not layout.has_blob(descriptor(BLOB))
        blob.commit(LAYER)
        assert layout.has_blob(descriptor(BLOB))


def test_a_damaged_blob_is_replaced_by_the_good_one(layout: Layout, path: Path) -> None:
    upload(layout, BLOB)
    blob_path(path, Digest.of(BLOB)).write_bytes(bytes(len(BLOB)))
    upload(layout, BLOB)
    assert read(layout, descriptor(BLOB)) == BLOB


def test_the_data_is_on_the_disk_before_its_name(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        calls.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        fsync(descriptor)

    def record_replace(self: Path, target: Path) -> Path:
        calls.append(f"name {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    manifest = image()
    layout.put_manifest(manifest, "latest")
    assert calls == [
        "sync file",
        f"name {manifest.descriptor.digest.encoded}",
        "sync directory",
        "sync file",
        "name index.json",
        "sync directory",
    ]


# --- writers that meet, die, or have no room

_WRITER = """
import sys
from pathlib import Path
from shim.image.layout import Layout
from tests.shim.images import image
layout = Layout(Path(sys.argv[1]), create=True)
for number in range(20):
    layout.put_manifest(image(annotations={"writer": sys.argv[2]}), f"{sys.argv[2]}-{number}")
"""
_KILLED = """
import os, signal, sys
from pathlib import Path
from shim.image.layout import Layout
with Layout(Path(sys.argv[1])).new_blob() as blob:
    blob.write(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""
ROOT = Path(__file__).parents[2]


def start(program: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], cwd=ROOT)


def test_writers_at_once_lose_nothing_not_even_when_they_create_the_layout(path: Path) -> None:
    writers = [start(_WRITER, path, name) for name in "abc"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    assert Layout(path).tags() == sorted(f"{name}-{number}" for name in "abc" for number in range(20))
    assert not [name for name in files(path) if name.startswith(".")]


def test_what_a_killed_writer_left_is_removed_by_the_next(layout: Layout, path: Path) -> None:
    assert start(_KILLED, path).wait(timeout=60) == -signal.SIGKILL
    left = files(path) - EMPTY
    assert len(left) == 1
    layout.put_manifest(image(), "latest")
    assert not left & files(path)
    assert layout.tags() == ["latest"]


def test_the_file_of_a_living_writer_is_not_removed(layout: Layout, path: Path) -> None:
    with layout.new_blob() as first:
        first.write(b"da")
        upload(layout, BLOB)
        Layout(path).put_manifest(image(), "latest")
        first.write(b"ta")
        first.commit(LAYER)
    assert read(layout, descriptor(b"data")) == b"data"


def test_files_of_others_are_left_alone(layout: Layout, path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (path / ".stateful-pods-link").symlink_to(tmp_path / "precious")
    (path / ".stateful-pods-directory").mkdir()
    (path / "README").write_text("x")
    upload(layout, BLOB)
    assert (tmp_path / "precious").read_text() == "x"
    assert (path / "README").exists()
    assert (path / ".stateful-pods-directory").exists()


def test_a_creation_that_was_interrupted_is_completed(path: Path) -> None:
    (path / "blobs" / "sha256").mkdir(parents=True)
    write_index(path)
    (path / ".stateful-pods-x").write_text("{")
    assert Layout(path, create=True).tags() == []
    assert files(path) == EMPTY


@pytest.fixture
def full() -> Iterator[None]:
    """No file may grow beyond 1 MiB: the nearest to a full disk that needs no mount."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_may_not_grow_is_an_error_that_leaves_nothing(layout: Layout, path: Path, full: None) -> None:
    with pytest.raises(Refused, match=r"cannot write a blob in oci:.*: File too large"):
        upload(layout, BLOB)
    assert files(path) == EMPTY


def test_a_full_file_system_is_unavailable_and_leaves_nothing(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["unshare", "--mount", "--map-root-user"]
    program = """
import subprocess, sys
from pathlib import Path
from shim.errors import Unavailable
from shim.image.layout import Layout
from tests.shim.images import BLOB, image, upload
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", sys.argv[1]], check=True)
layout = Layout(Path(sys.argv[1]) / "layout", create=True)
layout.put_manifest(image(), "latest")
try:
    upload(layout, BLOB)
except Unavailable as error:
    print(error)
layout.put_manifest(image(annotations={"a": "b"}), "next")
print(layout.tags(), [path.name for path in Path(sys.argv[1]).rglob(".*")])
"""
    if subprocess.run([*mount, "mount", "-t", "tmpfs", "tmpfs", mounted], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    done = subprocess.run(
        [*mount, sys.executable, "-c", program, mounted], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    assert done.stdout.decode().splitlines() == [
        f"cannot write a blob in oci:{mounted}/layout: No space left on device; try again once that is cured",
        "['latest', 'next'] []",
    ]


def test_a_writer_waits_for_the_lock_of_another(layout: Layout, path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    writer = start(_WRITER, path, "a")
    with pytest.raises(subprocess.TimeoutExpired):
        writer.wait(timeout=0.5)
    os.close(directory)
    assert writer.wait(timeout=60) == 0
    assert len(layout.tags()) == 20


# --- what is read: digests and sizes


def test_a_flipped_byte_in_a_blob_is_found(layout: Layout, path: Path) -> None:
    upload(layout, BLOB)
    flipped = bytes([BLOB[0] ^ 1]) + BLOB[1:]
    blob_path(path, Digest.of(BLOB)).write_bytes(flipped)
    with pytest.raises(VerificationError, match=f"expected {Digest.of(BLOB)}, found {Digest.of(flipped)}"):
        read(layout, descriptor(BLOB))


@pytest.mark.parametrize("size", [0, len(BLOB) - 1, len(BLOB) + 1])
def test_a_blob_of_another_size_is_refused_at_once(layout: Layout, path: Path, size: int) -> None:
    upload(layout, BLOB)
    os.truncate(blob_path(path, Digest.of(BLOB)), size)
    assert not layout.has_blob(descriptor(BLOB))
    with pytest.raises(VerificationError, match=f"has {size} bytes; its descriptor states {len(BLOB)}"):
        layout.open_blob(descriptor(BLOB))


@pytest.mark.parametrize("by", ["tag", "digest", "descriptor"])
def test_a_flipped_byte_in_a_manifest_is_found(layout: Layout, path: Path, by: str) -> None:
    manifest = image(annotations={"key": "value"})
    layout.put_manifest(manifest, "latest")
    blob_path(path, manifest.descriptor.digest).write_bytes(manifest.raw.replace(b"value", b"vblue"))
    at: Descriptor | Digest | str = "latest"
    if by != "tag":
        at = manifest.descriptor if by == "descriptor" else manifest.descriptor.digest
    with pytest.raises(VerificationError, match=f"expected {manifest.descriptor.digest}"):
        layout.manifest(at)


@pytest.mark.parametrize("change", [{"size": 1}, {"mediaType": model.OCI_INDEX}, {"mediaType": "application/x"}])
def test_a_manifest_is_held_to_its_entry_in_the_index(layout: Layout, path: Path, change: dict[str, Any]) -> None:
    layout.put_manifest(image())
    write_index(path, tagged(image().descriptor, "latest") | change)
    with pytest.raises(Refused):
        layout.manifest("latest")


def test_symlinked_blobs_are_read(layout: Layout, path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(BLOB)
    blob_path(path, Digest.of(BLOB)).symlink_to(tmp_path / "elsewhere")
    assert layout.has_blob(descriptor(BLOB))
    assert read(layout, descriptor(BLOB)) == BLOB


def test_writing_over_a_symlinked_blob_does_not_write_through_it(layout: Layout, path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"x")
    blob_path(path, Digest.of(BLOB)).symlink_to(tmp_path / "precious")
    upload(layout, BLOB)
    assert (tmp_path / "precious").read_bytes() == b"x"
    assert read(layout, descriptor(BLOB)) == BLOB


@pytest.mark.parametrize("kind", ["fifo", "directory", "dangling", "loop"])
def test_a_blob_that_is_no_file_neither_hangs_nor_counts(layout: Layout, path: Path, kind: str) -> None:
    there = blob_path(path, Digest.of(BLOB))
    if kind == "fifo":
        os.mkfifo(there)
    elif kind == "directory":
        there.mkdir()
    else:
        there.symlink_to("absent" if kind == "dangling" else there.name)
    if kind != "loop":
        assert not layout.has_blob(descriptor(BLOB))
    with pytest.raises(Refused):
        layout.open_blob(descriptor(BLOB))


@pytest.mark.parametrize("name", ["blob", "index.json", "oci-layout"])
def test_a_file_that_cannot_be_read_is_unavailable(layout: Layout, path: Path, name: str) -> None:
    there = blob_path(path, Digest.of(BLOB)) if name == "blob" else path / name
    there.unlink(missing_ok=True)
    there.symlink_to("/proc/self/mem")  # regular, empty, and an error of input when it is read at its start
    with pytest.raises(Unavailable, match=rf"cannot read {there}: Input/output error"):
        if name == "blob":
            read(layout, Descriptor(LAYER, Digest.of(BLOB), 0))
        else:
            Layout(path).tags()


def test_an_index_that_is_too_large_is_not_read(layout: Layout, path: Path) -> None:
    (path / "index.json").write_bytes(b'{"schemaVersion":2,"manifests":[]}'.ljust((4 << 20) + 1))
    with pytest.raises(FormatError, match=r"index\.json of oci:.* is longer than 4194304 bytes"):
        layout.tags()


def test_a_tag_that_would_make_the_index_too_large_is_refused_and_changes_nothing(layout: Layout, path: Path) -> None:
    full = canonical_json({"schemaVersion": 2, "manifests": [], "x": "x" * ((4 << 20) - 100)})
    (path / "index.json").write_bytes(full)
    with pytest.raises(Refused, match=r"cannot take the tag latest: its index\.json may have 4194304 bytes"):
        layout.put_manifest(image(), "latest")
    assert (path / "index.json").read_bytes() == full


def test_a_sha512_blob_of_another_tool_is_read(layout: Layout, path: Path) -> None:
    import hashlib

    digest = Digest("sha512", hashlib.sha512(BLOB).hexdigest())
    blob_path(path, digest).parent.mkdir()
    blob_path(path, digest).write_bytes(BLOB)
    assert read(layout, Descriptor(LAYER, digest, len(BLOB))) == BLOB


def test_a_manifest_that_is_too_large_is_not_read(layout: Layout, path: Path) -> None:
    large = b" " * (5 << 20)
    upload(layout, large)
    for at in (Digest.of(large), descriptor(large, model.OCI_MANIFEST)):
        with pytest.raises(FormatError, match="4194304"):
            layout.manifest(at)


@pytest.mark.parametrize("at", [Digest.of(b"absent"), descriptor(b"absent"), "absent"])
def test_what_is_not_there_is_not_found(layout: Layout, path: Path, at: Descriptor | Digest | str) -> None:
    layout.put_manifest(image(), "latest")
    with pytest.raises(NotFound, match=f"oci:{path}"):
        layout.manifest(at)
    if isinstance(at, str):
        with pytest.raises(NotFound, match="it has: latest"):
            layout.manifest(at)


@pytest.mark.parametrize("tag", ["", "../x", "a/b", "a b", "sha256:" + "0" * 64, "x" * 129, "a\n"])
def test_a_malformed_tag_is_refused_and_writes_nothing(layout: Layout, path: Path, tag: str) -> None:
    for use in (layout.resolve, layout.manifest, lambda tag: layout.put_manifest(image(), tag)):
        with pytest.raises(FormatError, match="malformed tag"):
            use(tag)
    assert files(path) == EMPTY


# --- layouts of others


def test_a_tag_that_stands_twice_for_different_manifests_is_refused_with_both(layout: Layout, path: Path) -> None:
    first, second = image(), image(annotations={"a": "b"})
    for manifest in (first, second):
        layout.put_manifest(manifest)
    write_index(path, tagged(first.descriptor, "latest"), tagged(second.descriptor, "latest"))
    for use in (layout.resolve, layout.manifest):
        with pytest.raises(FormatError, match=f"{first.descriptor.digest}, {second.descriptor.digest}"):
            use("latest")
    layout.put_manifest(second, "latest")
    assert layout.resolve("latest") == second.descriptor.digest
    assert len(index_of(path)["manifests"]) == 1


def test_a_tag_that_stands_twice_for_one_manifest_is_one(layout: Layout, path: Path) -> None:
    layout.put_manifest(image())
    write_index(path, *[tagged(image().descriptor, "latest")] * 2)
    assert layout.manifest("latest") == image()
    assert layout.tags() == ["latest"]


def test_names_that_are_no_tags_are_not_listed(layout: Layout, path: Path) -> None:
    write_index(path, *(tagged(image().descriptor, name) for name in ("b", "r.example.org/x:1", "", "a", "-")))
    assert layout.tags() == ["a", "b"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b'{"schemaVersion":2}',
        b'{"schemaVersion":1,"manifests":[]}',
        b'{"schemaVersion":2,"manifests":{}}',
        b'{"schemaVersion":2,"manifests":[{}]}',
        b'{"schemaVersion":2,"manifests":[{"mediaType":"x","digest":"sha256:../x","size":1}]}',
        b'{"schemaVersion":2,"manifests":[],"manifests":[]}',
        b'{"schemaVersion":2,"manifests":[],"layers":[]}',
        b'{"schemaVersion":2,"manifests":[],"mediaType":"application/vnd.oci.image.manifest.v1+json"}',
        b'{"schemaVersion":2,"manifests":[],"annotations":{"a":"\\ud800"}}',
        b"[" * 99999,
    ],
)
def test_a_malformed_index_is_refused_and_stays(layout: Layout, path: Path, raw: bytes) -> None:
    (path / "index.json").write_bytes(raw)
    for use in (layout.tags, lambda: layout.resolve("latest"), lambda: layout.put_manifest(image(), "latest")):
        with pytest.raises(FormatError, match=r"index\.json of oci:"):
            use()
    assert (path / "index.json").read_bytes() == raw


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b"{}", "malformed"),
        (b"\xff", "malformed"),
        (b'"x"', "malformed"),
        (b"[" * 99999, "malformed"),
        (b'{"imageLayoutVersion":"2.0.0"}', "of version 2.0.0; 1.0.0 is understood"),
        (b'{"imageLayoutVersion":"\\u001b[2J"}', r"of version \\x1b\[2J"),
    ],
)
def test_a_layout_of_another_version_is_refused(path: Path, marker: bytes, message: str) -> None:
    Layout(path, create=True)
    (path / "oci-layout").write_bytes(marker)
    for create in (False, True):
        with pytest.raises(FormatError, match=message):
            Layout(path, create=create)


def test_a_directory_that_is_no_layout_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NotFound, match="is no image layout: it has no oci-layout"):
            Layout(path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_other_contents_does_not_become_a_layout(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(FormatError, match="neither empty nor an image layout"):
        Layout(tmp_path, create=True)
    assert files(tmp_path) == {"precious"}


def test_a_file_does_not_become_a_layout(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Refused):
            Layout(path, create=True)


def test_creating_what_exists_changes_nothing(layout: Layout, path: Path) -> None:
    layout.put_manifest(image(), "latest")
    before = {name: (path / name).stat().st_ino for name in files(path)}
    assert Layout(path, create=True).tags() == ["latest"]
    assert {name: (path / name).stat().st_ino for name in files(path)} == before


# --- another tool


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
def test_skopeo_reads_what_we_wrote_and_we_what_it_wrote(layout: Layout, path: Path, tmp_path: Path) -> None:
    layer = layout.put_blob(b"\0" * 1024, model.OCI_LAYER)
    manifests = []
    for architecture in ("amd64", "arm64"):
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [str(layer.digest)]},
        }
        at = layout.put_blob(canonical_json(config), model.OCI_CONFIG)
        manifest = image(config=at.to_json(), layers=[layer.to_json()])
        layout.put_manifest(manifest)
        platform = {"os": "linux", "architecture": architecture}
        manifests.append(manifest.descriptor.to_json() | {"platform": platform})
    raw = canonical_json({"schemaVersion": 2, "mediaType": model.OCI_INDEX, "manifests": manifests})
    index = parse_manifest(raw, None, "an index")
    layout.put_manifest(index, "latest")
    shown = subprocess.run(
        ["skopeo", "inspect", "--raw", f"oci:{path}:latest"], capture_output=True, check=True, timeout=60
    )
    assert shown.stdout == raw
    copy = ["skopeo", "copy", "-q", "--all", "--preserve-digests", "--insecure-policy"]
    subprocess.run([*copy, f"oci:{path}:latest", f"oci:{tmp_path}/copy:copied"], check=True, timeout=60)
    theirs = Layout(tmp_path / "copy")
    found = theirs.manifest("copied")
    assert isinstance(found, Index)
    assert (found.raw, theirs.tags()) == (raw, ["copied"])
    for entry in found.manifests:
        assert theirs.manifest(entry) == layout.manifest(entry)
    assert read(theirs, layer) == b"\0" * 1024
