"""Names of images."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import FormatError
from shim.image.digest import Digest
from shim.image.reference import LayoutReference, RegistryReference, check_host, check_tag, parse_reference

DIGEST = Digest.of(b"")


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("r.example.org/a", RegistryReference("r.example.org", "a")),
        ("r.example.org/a/b-c__d.e:Tag_1.0", RegistryReference("r.example.org", "a/b-c__d.e", "Tag_1.0")),
        ("localhost/a:b", RegistryReference("localhost", "a", "b")),
        ("localhost:5000/a", RegistryReference("localhost:5000", "a")),
        ("[::1]:5000/a:b", RegistryReference("[::1]:5000", "a", "b")),
        ("127.0.0.1:5000/a:b", RegistryReference("127.0.0.1:5000", "a", "b")),
        (f"r.example.org/a@{DIGEST}", RegistryReference("r.example.org", "a", None, DIGEST)),
        (f"r.example.org:1/a:b@{DIGEST}", RegistryReference("r.example.org:1", "a", "b", DIGEST)),
        ("oci:dir", LayoutReference(Path("dir"))),
        ("oci:/a/b:tag", LayoutReference(Path("/a/b"), "tag")),
        (f"oci:dir@{DIGEST}", LayoutReference(Path("dir"), None, DIGEST)),
        ("oci:a@b/c:tag", LayoutReference(Path("a@b/c"), "tag")),
        ("oci:a:b/c", LayoutReference(Path("a:b/c"))),
        ("oci:/a b/ü:t", LayoutReference(Path("/a b/ü"), "t")),
    ],
)
def test_a_reference_is_read_and_written_alike(text: str, reference: RegistryReference | LayoutReference) -> None:
    assert parse_reference(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "debian",
        "debian:trixie",
        "library/debian",
        "https://r.example.org/a",
        "r.example.org/",
        "r.example.org/A",
        "r.example.org/a//b",
        "r.example.org/../a",
        "r.example.org/a/../b",
        "r.example.org/-a",
        "r.example.org/a..b",
        "r.example.org/a___b",
        "r.example.org/a:",
        "r.example.org/a:-b",
        "r.example.org/a:b c",
        "r.example.org/a:b\n",
        "r.example.org/a\n",
        "r.example.org/a:" + "b" * 129,
        "r.example.org/" + "a" * 250,
        "r.example.org/a@",
        "r.example.org/a@sha256:0",
        "r.example.org/a@sha256:" + "Z" * 64,
        "r.example.org:0/a",
        "r.example.org:65536/a",
        "r.example.org:/a",
        "user@r.example.org/a",
        "r_example.org/a",
        "r.example.org?x/a",
        "r.example.org%2f/a",
        "-r.example.org/a",
        "r..example.org/a",
        "oci:",
        "oci::tag",
        "oci:dir:",
        "oci:dir:a b",
        "oci:dir@sha256:0",
        "oci:@sha256:" + "0" * 64,
        "oci:a\0b",
    ],
)
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_reference(text)


def test_a_name_without_a_registry_is_not_given_one() -> None:
    with pytest.raises(FormatError, match="names no registry: expected HOST/REPOSITORY"):
        parse_reference("debian:trixie")


@given(st.text(alphabet=st.sampled_from("aA0.-_:/@[]%?#\n\0 "), max_size=30))
def test_whatever_is_accepted_reads_back(text: str) -> None:
    for candidate in (text, f"oci:{text}", f"r.example.org/{text}"):
        try:
            reference = parse_reference(candidate)
        except FormatError:
            continue
        if isinstance(reference, RegistryReference) or ":" not in str(reference.path):
            assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize("host", ["a", "a.b", "a:1", "[::1]", "[fe80::1]:5000", "1.2.3.4:65535"])
def test_a_host_is_accepted(host: str) -> None:
    assert check_host(host) == host


@pytest.mark.parametrize("host", ["", "a b", "a/b", "a@b", "a:b", "::1", "[::1", "a:99999", "a\n", "[::1%eth0]"])
def test_a_malformed_host_is_refused(host: str) -> None:
    with pytest.raises(FormatError):
        check_host(host)


@pytest.mark.parametrize("tag", ["a", "_", "trixie-20260829_0524-arm64", "A" * 128])
def test_a_tag_is_accepted(tag: str) -> None:
    assert check_tag(tag) == tag
