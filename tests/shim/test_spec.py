"""Machine and Source exist only well-formed, and go into the record and come back as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shim.errors import FormatError, Refused
from shim.image.digest import Digest
from shim.image.model import Platform
from shim.spec import Machine, Source

SHA256 = "ab" * 32
MACHINE = Machine("pets", "home", "rex")
OCI = Source.oci("registry.example.org/debian-cloud:trixie", preset="debian-trixie")


def test_a_machine_is_recorded_as_its_three_names() -> None:
    document = {"namespace": "pets", "release": "home", "name": "rex"}
    assert MACHINE.to_json() == document
    assert Machine.from_json({**document, "later": "member"}) == MACHINE


def test_a_machine_that_has_moved_is_recorded_with_the_one_that_it_was() -> None:
    moved = replace(MACHINE, moved_from=Machine("pets", "home", "toto"))
    document = moved.to_json()
    assert document == MACHINE.to_json() | {"movedFrom": {"namespace": "pets", "release": "home", "name": "toto"}}
    read = Machine.from_json(document)
    assert (read, read.identity) == (MACHINE, Machine("pets", "home", "toto"))
    assert Machine.from_json(MACHINE.to_json()).identity == MACHINE


@pytest.mark.parametrize("name", ["", "Rex", "-rex", "rex-", "re/x", "../x", "re\nx", "x" * 254])
def test_a_name_that_kubernetes_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="the machine's name is "):
        Machine("pets", "home", name)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "x",
        {"name": 1},
        {"namespace": "a", "release": "b"},
        {"namespace": "a", "release": "b", "name": 1},
        {"namespace": "a", "release": "b", "name": "c", "movedFrom": "d"},
        {"namespace": "a", "release": "b", "name": "c", "movedFrom": {}},
    ],
)
def test_a_malformed_machine_of_a_record_is_refused(document: object) -> None:
    with pytest.raises(FormatError, match="in the record"):
        Machine.from_json(document)


def test_an_image_is_recorded_with_what_was_found() -> None:
    found = replace(OCI, digest=Digest.of(b"index"), platform=Platform.parse("linux/arm64"))
    assert found.to_json() == {
        "kind": "oci",
        "reference": "registry.example.org/debian-cloud:trixie",
        "digest": str(Digest.of(b"index")),
        "preset": "debian-trixie",
    }
    assert Source.from_json(found.to_json()) == replace(found, platform=None)


def test_an_archive_is_recorded_with_its_url_and_sum() -> None:
    source = Source.lxc("https://images.example.org/rootfs.tar.xz", SHA256.upper())
    assert source.to_json() == {
        "kind": "lxc",
        "url": "https://images.example.org/rootfs.tar.xz",
        "sha256": SHA256,
    }
    assert Source.from_json(source.to_json()) == source


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://example.org/a.tar?X-Amz-Signature=S3CRET", "https://example.org/a.tar"),
        ("https://example.org/a.tar#S3CRET", "https://example.org/a.tar"),
        ("https://example.org/a.tar?a=b?c#S3CRET?S3CRET", "https://example.org/a.tar"),
        ("https://example.org?S3CRET=a@b/c", "https://example.org"),
        ("https://ada:S3CRET@example.org/a@b.tar", "https://example.org/a@b.tar"),
        ("dir/what?.tar#1", "dir/what?.tar#1"),
    ],
)
def test_neither_what_is_shown_nor_what_is_recorded_of_a_url_holds_a_secret(url: str, public: str) -> None:
    source = Source.lxc(url, SHA256)
    assert source.url == url
    assert str(source) == public
    assert source.to_json()["url"] == public
    with pytest.raises(Refused) as caught:
        Source("lxc", url=url)
    assert str(caught.value).startswith(f"'{public}' needs the SHA-256")


@pytest.mark.parametrize(
    ("kind", "members", "sentence"),
    [
        ("", {}, "expected oci or lxc"),
        ("docker", {}, "kind is 'docker'"),
        ("oci", {}, "needs a reference"),
        ("oci", {"reference": "debian"}, "names no registry"),
        ("oci", {"reference": "oci:dir", "sha256": SHA256}, "takes no sha256"),
        ("lxc", {}, "needs a URL"),
        ("lxc", {"url": "https://example.org/x"}, "needs the SHA-256"),
        ("lxc", {"url": "https://example.org/x", "sha256": "ab"}, "malformed sha256 digest"),
        (
            "lxc",
            {"url": "x", "sha256": SHA256, "reference": "oci:x", "preset": "p"},
            "takes no reference and no preset",
        ),
    ],
)
def test_a_source_that_does_not_fit_its_kind_is_refused(kind: str, members: dict[str, str], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        Source(kind, **members)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match=sentence):
        Source.from_json({"kind": kind, **members})
