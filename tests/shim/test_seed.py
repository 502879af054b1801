"""A volume is seeded once, from bytes that were verified, or it holds no record."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest

from shim import volume
from shim.errors import FormatError, NotFound, Refused, StatefulPodsError, VerificationError
from shim.extract import Attributes
from shim.image import model
from shim.image.layout import Layout
from shim.image.model import Platform, canonical_json, parse_manifest
from shim.image.registry import RegistryRepository
from shim.image.tar import TarWalker
from shim.seed import Seeded, seed
from shim.spec import Machine, Source
from shim.volume import Record, State
from tests.presetbuild.servers import Fault, Server
from tests.registries import NAME, Certificate, FaultyRegistry, Request, Response
from tests.shim import tars
from tests.shim.layers import found
from tests.shim.sources import AMD64, COMPRESSIONS, ROOTFS, push

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write what belongs to root")

MACHINE = Machine("pets", "zoo", "rex")
ARM64 = Platform("linux", "arm64")


@pytest.fixture(autouse=True)
def amd64_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    directory = tmp_path / "rootfs"
    directory.mkdir()
    return directory


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "images", create=True)


def write(path: Path, data: bytes) -> Source:
    """Write an archive, and return it as a source."""
    path.write_bytes(data)
    return Source.lxc(str(path), hashlib.sha256(data).hexdigest())


def tree(root: Path) -> Mapping[str, tuple[object, ...]]:
    """Return what is on the volume, but for what is ours."""
    return {path: shown for path, shown in found(root).items() if not path.startswith(".stateful-pods")}


def expected(tmp_path: Path, data: bytes = ROOTFS) -> Mapping[str, tuple[object, ...]]:
    """Return what GNU tar makes of an archive, and the directories that are always there."""
    directory = tmp_path / "expected"
    directory.mkdir()
    subprocess.run(["tar", "-xpf", "-", "--numeric-owner", "-C", directory], input=data, check=True)
    for name, mode in {"dev": 0o755, "proc": 0o555, "run": 0o755, "sys": 0o555, "tmp": 0o1777}.items():
        (directory / name).mkdir()
        (directory / name).chmod(mode)
    return tree(directory)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_an_image_is_seeded_exactly(compression: str, rootfs: Path, layout: Layout, tmp_path: Path) -> None:
    digest = push(layout, [ROOTFS], "trixie", compression=compression)
    source = Source.oci(f"{layout.name}:trixie", preset="debian-trixie")
    seeded = seed(rootfs, source, MACHINE, chart_version="0.1.0")
    assert tree(rootfs) == expected(tmp_path)
    assert (rootfs / "home").stat().st_uid == 1000
    assert (rootfs / "home").stat().st_mtime == 5
    assert seeded.new
    assert seeded.record == volume.read_record(rootfs)
    assert seeded.record.source == replace(source, digest=digest)
    assert (seeded.record.machine, seeded.record.chart_version) == (MACHINE, "0.1.0")
    assert volume.state(rootfs) is State.SEEDED


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_archive_is_seeded_exactly(compression: str, rootfs: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "archive", COMPRESSIONS[compression](ROOTFS))
    assert seed(rootfs, source, MACHINE).record.source == source
    assert tree(rootfs) == expected(tmp_path)


def test_the_record_is_in_the_form_of_the_design(rootfs: Path, layout: Layout) -> None:
    digest = push(layout, [ROOTFS], "trixie")
    seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    record = json.loads((rootfs / ".stateful-pods/provisioned").read_text())
    assert record["source"] == {"kind": "oci", "reference": f"{layout.name}:trixie", "digest": str(digest)}
    assert record["machine"] == {"namespace": "pets", "release": "zoo", "name": "rex"}


def test_a_seeded_volume_is_left_alone_whatever_the_source_says(rootfs: Path, layout: Layout) -> None:
    push(layout, [ROOTFS], "trixie")
    first = seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    before = [(path, path.lstat()) for path in sorted(rootfs.rglob("*"))]
    again = seed(rootfs, Source.oci("registry.example.org/other:tag"), Machine("other", "other", "other"))
    assert not again.new
    assert again.record == first.record
    assert [(path, path.lstat()) for path in sorted(rootfs.rglob("*"))] == before


@pytest.mark.parametrize("record", [b"", b"{", b'{"schemaVersion": 2}'])
def test_a_record_that_cannot_be_read_stops_the_seed_and_clears_nothing(
    record: bytes, rootfs: Path, layout: Layout
) -> None:
    push(layout, [ROOTFS], "trixie")
    seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    (rootfs / ".stateful-pods/provisioned").write_bytes(record)
    before = tree(rootfs)
    with pytest.raises(FormatError, match="counts as seeded all the same"):
        seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    assert tree(rootfs) == before


def test_a_foreign_volume_is_refused_before_the_source_is_looked_at(rootfs: Path) -> None:
    (rootfs / "photo.jpg").write_bytes(b"of the cat")
    before = [path.lstat() for path in (rootfs, rootfs / "photo.jpg")]
    with pytest.raises(Refused, match="photo"):
        seed(rootfs, Source.oci("registry.example.org/debian:trixie"), MACHINE)
    assert [path.lstat() for path in (rootfs, rootfs / "photo.jpg")] == before
    assert list(rootfs.iterdir()) == [rootfs / "photo.jpg"]


def test_an_interrupted_seed_is_cleared_and_done_again(rootfs: Path, layout: Layout, tmp_path: Path) -> None:
    volume.begin_seeding(rootfs)
    (rootfs / "usr").mkdir()
    (rootfs / "usr/leftover").touch()
    (rootfs / "lost+found").mkdir()
    (rootfs / "lost+found/kept").touch()
    push(layout, [ROOTFS], "trixie")
    told: list[str] = []
    seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE, tell=told.append)
    assert any("interrupted" in sentence for sentence in told)
    assert {path: shown for path, shown in tree(rootfs).items() if "lost" not in path} == expected(tmp_path)
    assert (rootfs / "lost+found/kept").exists()


def test_an_image_cannot_forge_the_record_of_its_own_seed(rootfs: Path, layout: Layout) -> None:
    forged = tars.directory(b".stateful-pods") + tars.file(b".stateful-pods/provisioned", b"{}") + tars.END
    push(layout, [forged, b"not an archive" * 100], "forged")
    with pytest.raises(StatefulPodsError):
        seed(rootfs, Source.oci(f"{layout.name}:forged"), MACHINE)
    assert volume.state(rootfs) is State.INTERRUPTED


def nothing_is_left(rootfs: Path) -> bool:
    """Say that a failed seed left no file of the source, no record, and a volume that can be seeded."""
    return volume.state(rootfs) in (State.EMPTY, State.INTERRUPTED) and {path.name for path in rootfs.iterdir()} <= {
        ".stateful-pods"
    }


def test_a_layer_with_another_diff_id_is_refused_and_cleared(rootfs: Path, layout: Layout) -> None:
    push(layout, [ROOTFS], "trixie")
    config = canonical_json(
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "00" * 32]}}
    )
    push(layout, [ROOTFS], "wrong", members={"config": layout.put_blob(config, model.OCI_CONFIG).to_json()})
    with pytest.raises(VerificationError, match=r"layer 1 of 1 \(sha256:[0-9a-f]{12}\), uncompressed, does not match"):
        seed(rootfs, Source.oci(f"{layout.name}:wrong"), MACHINE)
    assert nothing_is_left(rootfs)
    seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)


@pytest.mark.parametrize("position", [100, -20], ids=["at the beginning", "at the end"])
def test_a_blob_that_was_changed_is_refused_and_cleared(position: int, rootfs: Path, layout: Layout) -> None:
    digest = push(layout, [ROOTFS], "trixie", compression="none")
    manifest = layout.manifest(digest)
    assert isinstance(manifest, model.Manifest)
    blob = Path(layout.name.removeprefix("oci:")) / "blobs/sha256" / manifest.layers[0].digest.encoded
    data = bytearray(blob.read_bytes())
    data[position] ^= 1
    blob.write_bytes(data)
    with pytest.raises(StatefulPodsError):
        seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    assert nothing_is_left(rootfs)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_archive_with_another_checksum_is_refused_and_cleared(
    compression: str, rootfs: Path, tmp_path: Path
) -> None:
    (tmp_path / "archive").write_bytes(COMPRESSIONS[compression](ROOTFS))
    with pytest.raises(VerificationError, match=f"expected sha256:{'ab' * 32}, found sha256:"):
        seed(rootfs, Source.lxc(str(tmp_path / "archive"), "ab" * 32), MACHINE)
    assert nothing_is_left(rootfs)


def member(name: str, data: bytes = b"") -> bytes:
    return tars.file(name.encode(), data)


BELOW = ROOTFS.replace(b"./", b"r/")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (member("debian/etc/passwd") + member("debian/usr/x") + tars.END, "everything is below debian/"),
        (member("oci-layout") + member("index.json") + tars.END, "use it as an oci source"),
        (member("src/main.c") + member("README") + tars.END, "at the top it holds README, src"),
        (member("etc/passwd") + tars.END, "no root filesystem"),
        (tars.END, "it is empty"),
        (b"<html>" + b" " * 1000, "no tar archive, .*begins with '<html>"),
        (tars.header(b"etc", type=b"M", size=5) + tars.END, "one volume of several"),
        (member("rootfs/x") + member("other") + tars.END, "no root filesystem"),
        (member("../x") + tars.END, "component"),
        (ROOTFS[:-700], "cut off"),
        (ROOTFS + b"x" * 512, "follows the end"),
    ],
)
def test_an_archive_that_is_no_root_filesystem_is_told_before_anything_is_written(
    data: bytes, sentence: str, rootfs: Path, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=sentence):
        seed(rootfs, write(tmp_path / "archive", data), MACHINE)
    assert nothing_is_left(rootfs)


def test_one_that_turns_out_late_to_be_none_is_refused_and_cleared(rootfs: Path, tmp_path: Path) -> None:
    data = member("etc/passwd") + member("usr/big", bytes(9_000_000)) + tars.END
    with pytest.raises(FormatError, match=r"it lacks sbin or usr/sbin, etc/os-release or usr/lib/os-release"):
        seed(rootfs, write(tmp_path / "archive", data), MACHINE)
    assert nothing_is_left(rootfs)


def unified(*, metadata_first: bool) -> bytes:
    """Return an LXD image in its unified form; the real ones have metadata.yaml first or last."""
    target = io.BytesIO()
    metadata = tarfile.TarInfo("metadata.yaml")
    with tarfile.open(fileobj=target, mode="w") as made, tarfile.open(fileobj=io.BytesIO(ROOTFS)) as source:
        if metadata_first:
            made.addfile(metadata)
        _move(source, made)
        if not metadata_first:
            made.addfile(metadata)
    return target.getvalue()


def _move(source: tarfile.TarFile, made: tarfile.TarFile) -> None:
    for one in source.getmembers():
        content = source.extractfile(one) if one.isreg() else None
        one.name = f"rootfs/{one.name.removeprefix('./')}"
        one.linkname = f"rootfs/{one.linkname.removeprefix('./')}" if one.islnk() else one.linkname
        made.addfile(one, content)


@pytest.mark.parametrize("metadata_first", [True, False])
def test_of_an_lxd_image_the_root_filesystem_is_taken(metadata_first: bool, rootfs: Path, tmp_path: Path) -> None:
    seed(rootfs, write(tmp_path / "archive", unified(metadata_first=metadata_first)), MACHINE)
    assert tree(rootfs) == expected(tmp_path)


def test_a_root_filesystem_below_a_directory_that_is_called_rootfs_is_no_lxd_image(
    rootfs: Path, tmp_path: Path
) -> None:
    data = unified(metadata_first=False)
    alone = data.replace(b"metadata.yaml", b"rootfs/a.yaml")
    with pytest.raises(FormatError):
        seed(rootfs, write(tmp_path / "archive", alone), MACHINE)
    assert nothing_is_left(rootfs)


def test_a_plain_archive_has_no_whiteouts(rootfs: Path, tmp_path: Path) -> None:
    data = ROOTFS[: -len(tars.END)] + member("etc/.wh.passwd", b"a file like any other") + tars.END
    seed(rootfs, write(tmp_path / "archive", data), MACHINE)
    assert (rootfs / "etc/.wh.passwd").read_bytes() == b"a file like any other"


def test_the_platform_follows_the_node_unless_it_is_named(rootfs: Path, layout: Layout, tmp_path: Path) -> None:
    index = push_index(layout, {AMD64: ROOTFS, ARM64: ROOTFS[:-1024] + member("arm64") + tars.END})
    assert seed(rootfs, Source.oci(f"{layout.name}:index"), MACHINE).record.source.digest == index.descriptor.digest
    assert not (rootfs / "arm64").exists()
    other = tmp_path / "other"
    other.mkdir()
    seed(other, Source.oci(f"{layout.name}:index", platform=ARM64), MACHINE)
    assert (other / "arm64").exists()


def push_index(layout: Layout, images: Mapping[Platform, bytes]) -> model.Index:
    entries = []
    for platform, data in images.items():
        found = layout.manifest(push(layout, [data], platform=platform))
        entries.append(replace(found.descriptor, platform=platform).to_json())
    document = {"schemaVersion": 2, "mediaType": model.OCI_INDEX, "manifests": entries}
    index = parse_manifest(canonical_json(document), None, "an index")
    assert isinstance(index, model.Index)
    layout.put_manifest(index, "index")
    return index


@pytest.mark.parametrize("as_index", [True, False])
def test_an_image_for_other_platforms_only_is_refused_with_a_list(as_index: bool, rootfs: Path, layout: Layout) -> None:
    if as_index:
        push_index(layout, {ARM64: ROOTFS, Platform("linux", "riscv64"): ROOTFS})
    else:
        push(layout, [ROOTFS], "index", platform=ARM64)
    with pytest.raises(NotFound, match="no image for linux/amd64; it holds: linux/arm64"):
        seed(rootfs, Source.oci(f"{layout.name}:index"), MACHINE)
    assert volume.state(rootfs) is State.EMPTY


def test_a_layout_without_a_tag_means_its_only_image(rootfs: Path, layout: Layout) -> None:
    digest = push(layout, [ROOTFS], "trixie")
    assert seed(rootfs, Source.oci(layout.name), MACHINE).record.source.digest == digest


def test_a_layout_with_several_images_lists_its_tags(rootfs: Path, layout: Layout) -> None:
    push(layout, [ROOTFS], "one")
    push(layout, [ROOTFS[:-1024] + member("x") + tars.END], "two")
    with pytest.raises(NotFound, match=r"2 images; name one by its tag \(one, two\)"):
        seed(rootfs, Source.oci(layout.name), MACHINE)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"layers": []}, "0 layers"),
        ({"layers": [{"mediaType": "application/x-other", "digest": "sha256:" + "00" * 32, "size": 1}]}, "x-other"),
        (
            {"config": {"mediaType": "application/x-helm", "digest": "sha256:" + "00" * 32, "size": 2}},
            "no image to run",
        ),
    ],
)
def test_what_is_no_image_to_run_is_refused_before_the_volume_is_marked(
    document: Mapping[str, object], sentence: str, rootfs: Path, layout: Layout
) -> None:
    push(layout, [ROOTFS], "odd", members=document)
    with pytest.raises(FormatError, match=sentence):
        seed(rootfs, Source.oci(f"{layout.name}:odd"), MACHINE)
    assert volume.state(rootfs) is State.EMPTY


LAYERS = [
    ROOTFS,
    member("usr/bin/new", b"new") + member("home/.wh..wh..opq") + tars.END,
    member("usr/bin/.wh.mail") + tars.link(b"usr/bin/newer", b"usr/bin/new", b"1") + tars.END,
]


def test_layers_are_fetched_once_and_nothing_is_kept(
    rootfs: Path, faulty_registry: FaultyRegistry, tmp_path: Path
) -> None:
    digest = push(RegistryRepository(faulty_registry.host, NAME, push=True), LAYERS)
    faulty_registry.requests.clear()
    seed(rootfs, Source.oci(f"{faulty_registry.host}/{NAME}@{digest}"), MACHINE)
    fetched = [one.path for one in faulty_registry.requests if one.method == "GET" and "/blobs/" in one.path]
    assert len(fetched) == len(set(fetched)) == len(LAYERS) + 1  # and the config
    assert not (rootfs / "usr/bin/mail").exists()
    assert (rootfs / "usr/bin/newer").samefile(rootfs / "usr/bin/new")
    assert {path.name for path in (rootfs / ".stateful-pods").iterdir()} == {"lock", "provisioned"}


def test_a_broken_connection_is_taken_up_where_it_broke(
    rootfs: Path, faulty_registry: FaultyRegistry, tmp_path: Path
) -> None:
    digest = push(RegistryRepository(faulty_registry.host, NAME, push=True), [ROOTFS], compression="none")

    def drop(request: Request, response: Response) -> Response:
        return replace(response, drop=9_000)

    faulty_registry.fault("GET", "/blobs/", drop, times=2)
    seed(rootfs, Source.oci(f"{faulty_registry.host}/{NAME}@{digest}"), MACHINE)
    assert tree(rootfs) == expected(tmp_path)


def test_over_plain_http_no_unpinned_reference_is_asked_for(rootfs: Path, faulty_registry: FaultyRegistry) -> None:
    push(RegistryRepository(faulty_registry.host, NAME, push=True), [ROOTFS], "trixie")
    faulty_registry.requests.clear()
    with pytest.raises(Refused, match=r"does not speak TLS, .* names no digest"):
        seed(rootfs, Source.oci(f"{faulty_registry.host}/{NAME}:trixie"), MACHINE)
    assert not faulty_registry.requests
    assert volume.state(rootfs) is State.EMPTY


def test_an_unpinned_reference_is_named_as_what_it_is_and_its_digest_is_recorded(
    rootfs: Path, trusted: Certificate
) -> None:
    told: list[str] = []
    with FaultyRegistry(tls=trusted) as registry:
        digest = push(RegistryRepository(registry.host, NAME, push=True), [ROOTFS], "latest")
        reference = f"{registry.host}/{NAME}"
        record = seed(rootfs, Source.oci(reference), MACHINE, tell=told.append).record
    assert record.source.digest == digest
    host = reference.partition("/")[0]
    assert told[:2] == [
        f"{reference} names no digest: that it is the right image rests on the TLS of {host} alone",
        f"{reference} names {digest} at this moment",
    ]


def test_an_archive_comes_over_http_from_this_machine_only(rootfs: Path, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    source = write(tmp_path / "served/rootfs.tar.zst", COMPRESSIONS["zstd"](ROOTFS))
    with Server(tmp_path / "served") as server:
        server.faults["/rootfs.tar.zst?token=secret"] = [Fault(cut=100)]
        seed(rootfs, replace(source, url=f"{server.url}/rootfs.tar.zst?token=secret"), MACHINE)
    assert tree(rootfs) == expected(tmp_path)


def test_a_token_in_a_url_is_sent_and_neither_told_nor_recorded(rootfs: Path, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    source = write(tmp_path / "served/rootfs.tar", ROOTFS)
    told: list[str] = []
    shown: list[str] = []
    with Server(tmp_path / "served") as server:
        url = f"{server.url}/rootfs.tar"
        done = seed(
            rootfs,
            replace(source, url=f"{url}?X-Amz-Signature=S3CRET#S3CRET"),
            MACHINE,
            tell=told.append,
            progress=lambda *step: shown.append(step[0]),
        )
    assert [request.path for request in server.requests] == ["/rootfs.tar?X-Amz-Signature=S3CRET"]
    assert told[-1] == f"seeded from {url}"
    assert done.record == volume.read_record(rootfs)
    assert done.record.source.url == url
    assert "S3CRET" not in " ".join([*told, *shown, (rootfs / ".stateful-pods/provisioned").read_text()])


@pytest.mark.parametrize("data", [b"<html>" + b" " * 1000, ROOTFS[:-700], member("etc/passwd") + tars.END])
def test_a_token_in_a_url_is_in_no_error_about_what_it_leads_to(data: bytes, rootfs: Path, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    source = write(tmp_path / "served/rootfs.tar", data)
    with Server(tmp_path / "served") as server:
        url = f"{server.url}/rootfs.tar?sig=S3CRET#S3CRET"
        for asked in (replace(source, url=url), Source.lxc(url, "ab" * 32)):
            with pytest.raises(StatefulPodsError, match=r"/rootfs\.tar") as caught:
                seed(rootfs, asked, MACHINE)
            assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://images.example.org/rootfs.tar.xz", "not https"),
        ("ftp://images.example.org/rootfs.tar.xz", "expected https"),
        ("https://user:password@images.example.org/rootfs.tar.xz", "holds a user name"),
    ],
)
def test_a_url_that_would_be_read_in_the_clear_or_as_somebody_is_refused(url: str, sentence: str, rootfs: Path) -> None:
    with pytest.raises(Refused, match=sentence) as caught:
        seed(rootfs, Source.lxc(url, "ab" * 32), MACHINE)
    assert "password" not in str(caught.value)
    assert volume.state(rootfs) is State.EMPTY


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe"])
def test_an_archive_that_is_no_file_is_refused(kind: str, rootfs: Path, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(Refused, match=r"no file|no regular file"):
        seed(rootfs, Source.lxc(str(path), "ab" * 32), MACHINE)


def test_attributes_that_the_volume_refuses(rootfs: Path) -> None:
    def walked(records: Mapping[bytes, bytes]) -> Attributes:
        attributes = Attributes()
        (one,) = TarWalker().feed(tars.pax(records) + member("f") + tars.END)
        attributes.note(one.path, one)
        return attributes

    (rootfs / "f").touch()
    told: list[str] = []
    walked({b"SCHILY.xattr.security.selinux": b"label\0"}).check(rootfs, told.append)
    assert told == ["the volume does not keep security.selinux, a label; 1 files are without it"]
    with pytest.raises(Refused, match=r"does not keep the attribute security\.capability of 'f'"):
        walked({b"SCHILY.xattr.security.capability": b"\1"}).check(rootfs, told.append)


def capability(value: bytes) -> bytes:
    """Return the PAX header that gives the next member this file capability."""
    return tars.pax({b"SCHILY.xattr.security.capability": value})


REFUSED_BY_THE_KERNEL = capability(b"\1")  # and tar exits with 0 all the same


def test_an_attribute_that_the_volume_does_not_keep_stops_the_seed(rootfs: Path, layout: Layout) -> None:
    push(layout, [tars.rootfs(REFUSED_BY_THE_KERNEL + member("usr/bin/ping"))], "trixie")
    with pytest.raises(Refused, match=r"does not keep the attribute security\.capability of 'usr/bin/ping'"):
        seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    assert nothing_is_left(rootfs)


def test_of_a_path_that_stands_twice_the_last_one_s_attributes_count(rootfs: Path, layout: Layout) -> None:
    push(layout, [tars.rootfs(REFUSED_BY_THE_KERNEL + member("f", b"first"), member("f", b"second"))], "trixie")
    seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    assert (rootfs / "f").read_bytes() == b"second"
    assert os.listxattr(rootfs / "f") == []


def test_an_attribute_with_another_value_is_not_the_one_that_was_asked_for(rootfs: Path, layout: Layout) -> None:
    version, effective, permitted = 0x02000000, 1, 1 << 13  # capabilities(7): struct vfs_cap_data; CAP_NET_RAW
    there, asked = (struct.pack("<5I", version | effective, bits, 0, 0, 0) for bits in (permitted, permitted << 1))
    (one,) = TarWalker().feed(capability(asked) + member("f") + tars.END)
    (rootfs / "f").touch()
    attributes = Attributes()
    attributes.note(one.path, one)
    os.setxattr(rootfs / "f", "security.capability", asked)
    attributes.check(rootfs, lambda _: None)
    os.setxattr(rootfs / "f", "security.capability", there)
    with pytest.raises(Refused, match=r"does not keep the attribute security\.capability of 'f'"):
        attributes.check(rootfs, lambda _: None)


def test_a_directory_keeps_its_time_whatever_is_put_into_it_later(rootfs: Path, layout: Layout) -> None:
    members = (tars.directory(b"d", mode=0o500, mtime=5), tars.directory(b"e"), member("d/f"), member("e/f"))
    push(layout, [tars.rootfs(*members)], "trixie")
    seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    found = (rootfs / "d").stat()
    assert (found.st_mtime, oct(found.st_mode)) == (5, "0o40500")


def test_a_seed_that_waited_for_another_finds_the_volume_seeded(rootfs: Path) -> None:
    """Two at once: the second has seen an empty volume, and waits for the lock that the first one holds."""
    record = Record(Source.oci("registry.example.org/first:tag"), datetime(2026, 11, 30, tzinfo=UTC), MACHINE)
    waits = Event()
    with ThreadPoolExecutor(1) as pool:
        with volume.lock(rootfs, "the first"):
            second = pool.submit(
                seed, rootfs, Source.oci("registry.example.org/second:tag"), MACHINE, tell=lambda _: waits.set()
            )
            assert waits.wait(30)
            volume.begin_seeding(rootfs)
            (rootfs / "file").touch()
            volume.write_record(rootfs, record)
        assert second.result(30) == Seeded(record, new=False)
    assert (rootfs / "file").exists()


def test_an_owner_that_the_user_namespace_does_not_map_is_named(tmp_path: Path, layout: Layout) -> None:
    """In a real user namespace, which maps root alone."""
    push(layout, [ROOTFS], "trixie")
    target = tmp_path / "target"
    target.mkdir()
    script = (
        "import sys, pathlib; from shim.seed import seed; from shim.spec import *\n"
        "seed(pathlib.Path(sys.argv[1]), Source.oci(sys.argv[2]), Machine('a', 'b', 'c'))"
    )
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", script, str(target), layout.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip("user namespaces are not allowed here")
    assert "belongs to gid 8, which this user namespace does not map (it maps 0 to 0)" in done.stderr
    assert nothing_is_left(target)


def test_what_is_there_and_how_far_it_is_are_told(rootfs: Path, layout: Layout) -> None:
    digest = push(layout, [ROOTFS], "trixie")
    told: list[str] = []
    seen: list[tuple[str, int, int | None]] = []
    seed(
        rootfs,
        Source.oci(f"{layout.name}:trixie"),
        MACHINE,
        tell=told.append,
        progress=lambda *step: seen.append(step),
    )
    assert told[0] == f"{layout.name}:trixie names {digest} at this moment"
    what, done, total = seen[-1]
    assert what.startswith("layer 1 of 1 (sha256:")
    assert done == total


def test_a_start_on_a_seeded_volume_imports_nothing_that_fetches(rootfs: Path, layout: Layout) -> None:
    push(layout, [ROOTFS], "trixie")
    seed(rootfs, Source.oci(f"{layout.name}:trixie"), MACHINE)
    script = (
        "import sys, pathlib, shim\n"
        "shim.seed(pathlib.Path(sys.argv[1]), shim.Source.oci('registry.example.org/x:y'), shim.Machine('a','b','c'))\n"
        "print([name for name in ('oras', 'requests', 'urllib3', 'zstandard', 'ssl', 'shim.image.registry') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, rootfs], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
