"""What signed files say of themselves must be what was asked for; each difference has its own sentence."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presetbuild.identity import check_machine, check_metadata, check_os_release, check_signed_at, read_metadata
from presetbuild.upstream.lxc import Build
from shim.errors import FormatError, VerificationError
from shim.image.model import Platform

WHAT = "https://images.example.org/x/incus.tar.xz"
YAML = """\
architecture: x86_64
creation_date: 1788153840
properties:
  architecture: amd64
  description: Debian trixie amd64 (20260829_05:24)
  name: debian-trixie-amd64-cloud-20260829_05:24
  os: Debian
  release: trixie
  serial: "20260829_05:24"
  variant: cloud
templates:
  /etc/hostname: {when: [create, copy], create_only: false, template: hostname.tpl, properties: {}}
"""
PROPERTIES = {"os": "Debian", "release": "trixie", "architecture": "amd64", "variant": "cloud"}
PROPERTIES["serial"] = "20260829_05:24"
CREATED = datetime(2026, 8, 29, 5, 24, tzinfo=UTC)
BUILD = Build("20260829_05:24", CREATED, {})
NOW = CREATED + timedelta(days=1)
AMD64 = Platform("linux", "amd64")


def tar(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            member.linkname = "" if kind == tarfile.REGTYPE else "target"
            archive.addfile(member, io.BytesIO(content) if kind == tarfile.REGTYPE else None)
    return output.getvalue()


def incus(text: str | bytes, name: str = "metadata.yaml") -> bytes:
    content = text.encode() if isinstance(text, str) else text
    return lzma.compress(tar(("templates/hostname.tpl", b"{{ container.name }}\n"), (name, content)))


def properties(lines: str) -> Mapping[str, str]:
    return read_metadata(incus("properties:\n" + "".join(f"  {line}\n" for line in lines.split("\n"))), WHAT)


# -- the tarball


def test_the_properties_are_read() -> None:
    found = read_metadata(incus(YAML), WHAT)
    assert {name: found[name] for name in PROPERTIES} == PROPERTIES


@pytest.mark.parametrize("name", ["./metadata.yaml", "././/metadata.yaml"])
def test_the_spelling_of_the_name_does_not_matter(name: str) -> None:
    assert read_metadata(incus(YAML, name), WHAT)["release"] == "trixie"


@pytest.mark.parametrize("padding", [0, 4, 1024])
def test_all_streams_of_the_xz_file_are_read_and_padding_is_allowed(padding: int) -> None:
    data = tar(("metadata.yaml", YAML.encode()))
    pieces = [lzma.compress(data[at : at + 1000]) + bytes(padding) for at in range(0, len(data), 1000)]
    assert read_metadata(b"".join(pieces), WHAT)["release"] == "trixie"


GOOD = incus(YAML)
TAR = tar(("metadata.yaml", YAML.encode()))
HUGE = lzma.compress(bytes(64 << 20))
WIDE = lzma.compress(
    TAR, format=lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 128 << 20}]
)


def damaged_header() -> bytes:
    data = bytearray(tar(("metadata.yaml", YAML.encode()), ("metadata.yaml", b"properties: {}")))
    second = 512 + -(-len(YAML) // 512) * 512
    data[second + 150] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "no whole tar archive", id="empty"),
        pytest.param(b"<html>", "is no whole xz file", id="html"),
        pytest.param(lzma.compress(TAR, format=lzma.FORMAT_ALONE), "is no whole xz file", id="lzma"),
        pytest.param(GOOD[:-1], "is no whole xz file: it ends within a stream", id="cut at the end"),
        pytest.param(GOOD[:100], "is no whole xz file: it ends within a stream", id="cut"),
        pytest.param(GOOD + b"junk", "is no whole xz file", id="junk after it"),
        pytest.param(GOOD + bytes(3), "padding is no multiple of four bytes", id="odd padding"),
        pytest.param(GOOD + bytes(4) + b"junk", "is no whole xz file", id="junk after padding"),
        pytest.param(bytes(4) + GOOD, "is no whole xz file", id="padding before it"),
        pytest.param(GOOD[:60] + bytes([GOOD[60] ^ 1]) + GOOD[61:], "is no whole xz file", id="flipped bit"),
        pytest.param(HUGE, "decompresses to more than 8388608 bytes", id="bomb"),
        pytest.param(GOOD * 400 + HUGE, "decompresses to more than", id="bomb of many streams"),
        pytest.param(WIDE, "Memory usage limit", id="huge dictionary"),
        pytest.param(lzma.compress(b"no tar" * 1000), "no whole tar archive", id="no tar"),
        pytest.param(lzma.compress(TAR[:-10240] + bytes(512)), "does not end as one", id="one zero block"),
        pytest.param(lzma.compress(TAR[:512]), "no whole tar archive|does not end as one", id="header alone"),
        pytest.param(lzma.compress(TAR[:700]), "no whole tar archive|does not end as one", id="half a member"),
        pytest.param(lzma.compress(TAR + b"x"), "does not end as one", id="junk after the tar"),
        pytest.param(lzma.compress(TAR + TAR), "does not end as one", id="two tars"),
        pytest.param(lzma.compress(damaged_header()), "does not end as one", id="damaged header"),
        pytest.param(lzma.compress(tar()), "holds 0 files metadata.yaml; expected one", id="none"),
        pytest.param(incus(YAML, "sub/metadata.yaml"), "holds 0 files", id="not at the top"),
        pytest.param(incus(YAML, "METADATA.YAML"), "holds 0 files", id="another name"),
        pytest.param(incus(YAML, "x/../metadata.yaml"), "a member that leaves it: 'x/../metadata.yaml'", id="dots"),
        pytest.param(
            lzma.compress(tar(("metadata.yaml", YAML.encode()), ("./metadata.yaml", b"{}"))), "holds 2 files", id="two"
        ),
        pytest.param(lzma.compress(tar(("metadata.yaml", b""), kind=tarfile.SYMTYPE)), "no regular file", id="symlink"),
        pytest.param(
            lzma.compress(tar(("metadata.yaml", b""), kind=tarfile.LNKTYPE)), "no regular file", id="hard link"
        ),
        pytest.param(
            lzma.compress(tar(("metadata.yaml", b""), kind=tarfile.DIRTYPE)), "no regular file", id="directory"
        ),
        pytest.param(incus(b"#" * (65536 + 1)), "no regular file of at most 65536 bytes", id="too large"),
    ],
)
def test_a_tarball_that_is_not_whole_or_not_plain_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_metadata(data, WHAT)
    assert WHAT in str(caught.value)


# -- the document


def test_values_stay_the_texts_that_they_are() -> None:
    assert properties('release: 3.20\nserial: 20260829_0524\nvariant: no\nos: null\na: "0x1F"\nb: 010\nc: ~\nd:') == {
        "release": "3.20",
        "serial": "20260829_0524",
        "variant": "no",
        "os": "null",
        "a": "0x1F",
        "b": "010",
        "c": "~",
        "d": "",
    }


def test_absent_properties_are_empty() -> None:
    assert read_metadata(incus("architecture: x86_64\n"), WHAT) == {}


def test_an_alias_is_what_it_stands_for() -> None:
    assert read_metadata(incus("x: &x trixie\nproperties: {release: *x}\n"), WHAT) == {"release": "trixie"}


BILLION_LAUGHS = "a0: &a0 ha\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 40))


def test_a_bomb_of_aliases_costs_nothing() -> None:
    assert read_metadata(incus(BILLION_LAUGHS + "properties: {os: Debian}\n"), WHAT) == {"os": "Debian"}
    with pytest.raises(FormatError, match="the property 'os' is no text"):
        read_metadata(incus(BILLION_LAUGHS + "properties: {os: *a39}\n"), WHAT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "expected a mapping", id="empty"),
        pytest.param("[]", "expected a mapping", id="list"),
        pytest.param("text", "expected a mapping", id="text"),
        pytest.param("properties: []", "properties in .*: expected a mapping", id="properties are a list"),
        pytest.param("properties:", "properties in .*: expected a mapping", id="properties are nothing"),
        pytest.param("properties: text", "properties in .*: expected a mapping", id="properties are a text"),
        pytest.param("properties: {os: [Debian]}", "the property 'os' is no text", id="list as value"),
        pytest.param("properties: {os: {a: b}}", "the property 'os' is no text", id="mapping as value"),
        pytest.param("properties: {os: !!binary RGViaWFu}", "the property 'os' is no text", id="binary"),
        pytest.param("properties: {os: !!python/name:os.system x}", "the property 'os' is no text", id="python"),
        pytest.param("properties: {[os]: Debian}", "expected keys that are texts", id="list as key"),
        pytest.param("properties: {os: a, os: b}", "the key 'os' stands twice", id="twice"),
        pytest.param('properties: {os: a, "\\x6fs": b}', "the key 'os' stands twice", id="twice, escaped"),
        pytest.param("properties: {}\nproperties: {}", "the key 'properties' stands twice", id="properties twice"),
        pytest.param("properties: {}\n---\nproperties: {}", "is no YAML", id="two documents"),
        pytest.param("properties: *unknown", "is no YAML", id="unknown alias"),
        pytest.param("properties: {os: a", "is no YAML", id="not closed"),
        pytest.param("properties: {os: 'a\x00'}", "is no YAML", id="control character"),
        pytest.param('properties: {os: "\\UFFFFFFFF"}', "is no YAML", id="no character"),
        pytest.param(b"properties: {os: \xff}", "is no YAML", id="not UTF-8"),
        pytest.param("[" * 60_000, "is no YAML", id="deep"),
        pytest.param("a: " * 10_000, "is no YAML", id="mappings on a line"),
    ],
)
def test_a_document_that_is_malformed_or_ambiguous_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_metadata(incus(text), WHAT)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_merge_key_is_no_property() -> None:
    text = "x: &x {os: Alpine}\nproperties: {<<: {os: Alpine}, release: trixie}\n"
    with pytest.raises(FormatError, match="the property '<<' is no text"):
        read_metadata(incus(text), WHAT)


@given(st.binary(max_size=300))
def test_any_document_is_read_or_refused(text: bytes) -> None:
    try:
        found = read_metadata(incus(text), WHAT)
    except FormatError as error:
        assert str(error).isprintable()
    else:
        assert all(isinstance(value, str) for value in found.values())


# -- the properties


def check(found: Mapping[str, str], **asked: str) -> tuple[str, ...]:
    wanted = {"distribution": "debian", "release": "trixie", "architecture": "amd64", "variant": "cloud"}
    wanted |= {"build": BUILD.name} | asked
    return check_metadata(
        found,
        distribution=wanted["distribution"],
        release=wanted["release"],
        architecture=wanted["architecture"],
        variant=wanted["variant"],
        build=wanted["build"],
        what=WHAT,
    )


def test_what_is_stated_is_established_and_what_is_absent_is_not() -> None:
    assert check(PROPERTIES) == ("os", "release", "architecture", "variant", "serial")
    assert check({"variant": "cloud", "os": "Debian", "name": "anything"}) == ("os", "variant")
    assert check({}) == ()


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        ({"os": "DEBIAN"}, {}),
        ({"release": "Trixie"}, {}),
        ({"variant": "Cloud"}, {}),
        ({"architecture": "x86_64"}, {}),
        ({"architecture": "AMD64"}, {}),
        ({"architecture": "aarch64"}, {"architecture": "arm64"}),
        ({"architecture": "riscv64"}, {"architecture": "riscv64"}),
        ({"serial": "20260829_0524"}, {}),
        ({"serial": "20260829_05:24"}, {"build": "20260829_0524"}),
        ({"os": "voidlinux"}, {"distribution": "voidlinux"}),
        ({"os": "Void Linux"}, {"distribution": "voidlinux"}),
        ({"os": "Void"}, {"distribution": "voidlinux"}),
        ({"os": "Alpine Linux"}, {"distribution": "alpine"}),
        ({"os": "Linux"}, {"distribution": "linux"}),
    ],
)
def test_spellings_of_the_same_are_the_same(found: dict[str, str], asked: dict[str, str]) -> None:
    assert check(found, **asked) == tuple(found)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("os", "Alpine", "'Alpine', and 'debian' was asked for"),
        ("os", "Debian2", "'Debian2'"),
        ("os", "linux", "'linux'"),
        ("release", "bookworm", "'bookworm', and 'trixie' was asked for"),
        ("release", "trixie ", "'trixie '"),
        ("architecture", "arm64", "'arm64', and 'amd64' was asked for"),
        ("architecture", "aarch64", "'aarch64'"),
        ("architecture", "i686", "'i686'"),
        ("variant", "default", "'default', and 'cloud' was asked for"),
        ("serial", "20260828_05:24", "'20260828_05:24', and '20260829_05:24' was asked for"),
        ("serial", "20240829_0524", "'20240829_0524'"),
        ("serial", "20260829", "'20260829'"),
        ("variant", "cloud\x1b[2J\u202e", r"'cloud\\x1b[2J\\u202e'"),
    ],
)
def test_each_property_that_differs_has_its_sentence(name: str, value: str, shown: str) -> None:
    with pytest.raises(VerificationError) as caught:
        check(PROPERTIES | {name: value})
    assert f"{WHAT} is signed, and it is of another {name}: its metadata says " in str(caught.value)
    assert shown in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_that_is_there_and_empty_confirms_nothing_and_is_refused(name: str) -> None:
    with pytest.raises(VerificationError, match=f"another {name}"):
        check(PROPERTIES | {name: ""})


def test_a_release_that_looks_like_a_number_is_compared_as_text() -> None:
    assert check(properties("release: 3.20"), release="3.20") == ("release",)
    with pytest.raises(VerificationError, match=r"says '3\.20', and '3\.2' was asked for"):
        check(properties("release: 3.20"), release="3.2")


# -- the time of the signature


@pytest.mark.parametrize("made", [CREATED, CREATED + timedelta(minutes=40), NOW, NOW + timedelta(minutes=10)])
def test_a_signature_is_made_after_its_build(made: datetime) -> None:
    check_signed_at(made, BUILD, now=NOW, what="SHA256SUMS.asc")


def test_an_old_signature_under_a_new_name_is_refused() -> None:
    with pytest.raises(VerificationError) as caught:
        check_signed_at(datetime(2024, 8, 29, 6, 1, 2, tzinfo=UTC), BUILD, now=NOW, what="SHA256SUMS.asc")
    assert str(caught.value) == (
        "SHA256SUMS.asc was made at 2024-08-29 06:01:02 UTC, before the build 20260829_05:24 that it is offered for "
        "(2026-08-29 05:24:00 UTC): it signs an older build"
    )
    with pytest.raises(VerificationError, match="older build"):
        check_signed_at(CREATED - timedelta(seconds=1), BUILD, now=NOW, what="SHA256SUMS.asc")


def test_a_signature_from_the_future_is_refused() -> None:
    with pytest.raises(
        VerificationError, match=r"at 2026-08-30 05:34:01 UTC, in the future \(it is 2026-08-30 05:24:00"
    ):
        check_signed_at(NOW + timedelta(minutes=10, seconds=1), BUILD, now=NOW, what="SHA256SUMS.asc")


# -- the archive's own words


@pytest.mark.parametrize(
    "expected", [{"ID": "alpine", "VERSION_ID": "3.24*"}, {"VERSION_ID": "3.24.1"}, {"VERSION_ID": "*"}, {}]
)
def test_an_os_release_that_the_catalog_expects_is_accepted(expected: dict[str, str]) -> None:
    check_os_release({"ID": "alpine", "VERSION_ID": "3.24.1", "NAME": "Alpine"}, expected, what="rootfs.tar.xz")


@pytest.mark.parametrize(
    ("found", "expected", "message"),
    [
        ({"ID": "alpine"}, {"ID": "debian"}, "expects ID=debian, and its os-release says 'alpine'"),
        ({"ID": "debian"}, {"ID": "debian", "X": "y"}, "expects X=y, and its os-release does not state it"),
        ({"ID": "debian2"}, {"ID": "debian"}, "says 'debian2'"),
        ({"ID": "Debian"}, {"ID": "debian"}, "says 'Debian'"),
        ({"V": "3.23.9"}, {"V": "3.24*"}, r"expects V=3\.24\*, and its os-release says '3\.23\.9'"),
        ({"V": "3.2"}, {"V": "3.24*"}, r"says '3\.2'"),
        ({"ID": ""}, {"ID": "debian"}, "says ''"),
        ({}, {"ID": "*"}, "does not state it"),
        ({"ID": "\x1b[2J"}, {"ID": "debian"}, r"x1b\[2J"),
    ],
)
def test_another_os_release_is_refused(found: dict[str, str], expected: dict[str, str], message: str) -> None:
    with pytest.raises(VerificationError, match=message) as caught:
        check_os_release(found, expected, what="rootfs.tar.xz")
    assert str(caught.value).startswith("rootfs.tar.xz is another system: the catalog ")
    assert str(caught.value).isprintable()


def test_executables_of_the_platform_are_accepted() -> None:
    check_machine({"amd64": b"usr/bin/sh"}, AMD64, what="rootfs.tar.xz")
    check_machine({"arm64": b"usr/bin/sh"}, Platform("linux", "arm64", "v8"), what="rootfs.tar.xz")


@pytest.mark.parametrize(
    ("machines", "message"),
    [
        ({}, "holds no executable, so nothing shows that it is for linux/amd64"),
        ({"arm64": b"usr/bin/sh"}, "another architecture: expected linux/amd64, found usr/bin/sh for arm64"),
        ({"amd64": b"bin/a", "386": b"bin/b"}, "expected linux/amd64, found bin/b for 386"),
        ({"ELF machine 4242": b"bin/\xff\n"}, r"found bin/\\xff\\n for ELF machine 4242"),
    ],
)
def test_executables_of_another_machine_are_refused(machines: dict[str, bytes], message: str) -> None:
    with pytest.raises(VerificationError, match=message) as caught:
        check_machine(machines, AMD64, what="rootfs.tar.xz")
    assert str(caught.value).isprintable()
