"""The index of an lxc upstream: strict about its form, and not ready unless all platforms are on one build."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from presetbuild.fetch import open_source
from presetbuild.upstream import lxc
from shim.errors import FormatError, NotFound, NotReady, Refused
from shim.image.model import Platform

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
NOW = datetime(2026, 8, 29, 12, 0, tzinfo=UTC)
CREATED = datetime(2026, 8, 29, 5, 24, tzinfo=UTC)


def line(arch: str = "amd64", build: str = "20260829_05:24", name: str = "debian;trixie;cloud") -> str:
    distribution, release, variant = name.split(";")
    path = f"/images/{distribution}/{release}/{arch}/{variant}/{build}/"
    return f"{distribution};{release};{arch};{variant};{build};{path}"


GOOD = line()


def parse(*lines: str) -> tuple[lxc.Line, ...]:
    return lxc.parse_index("\n".join(lines).encode("utf-8", "surrogateescape"), "the index")


def resolve(*lines: str, platforms: tuple[Platform, ...] = (AMD64, ARM64), now: datetime | None = NOW) -> lxc.Build:
    return lxc.resolve(
        parse(*lines),
        distribution="debian",
        release="trixie",
        variant="cloud",
        platforms=platforms,
        what="debian-trixie",
        now=now,
    )


def test_a_line_names_a_combination_its_build_and_its_directory() -> None:
    assert parse(GOOD, "") == (
        lxc.Line(
            "debian", "trixie", "amd64", "cloud", "20260829_05:24", "images/debian/trixie/amd64/cloud/20260829_05:24/"
        ),
    )


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_the_end_of_the_index_may_be_empty_lines(end: str) -> None:
    assert len(lxc.parse_index(f"{GOOD}\n{line('arm64')}{end}".encode(), "the index")) == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "expected printable ASCII"),
        ("<html>", "expected distribution;release;architecture;variant;build;path, found '<html>'"),
        ("<!doctype html>", "expected printable ASCII without spaces"),
        (GOOD + ";", "expected distribution;release"),
        (GOOD + "\r", r"05:24/\\\\r'$"),
        (" " + GOOD, "without spaces"),
        (GOOD.replace("trixie", "trix\x1b[2Jie"), r"trix\\\\x1b\[2Jie"),
        (GOOD.replace("trixie", "trix\u202eie"), r"expected printable ASCII"),
        (GOOD.replace("trixie", "tri\udcffxie"), r"tri\\\\xffxie"),
        (GOOD.replace(";cloud;", ";;"), "expected distribution;release"),
        (GOOD.replace("20260829", "20260230"), "malformed build '20260230_05:24': expected a date"),
        (GOOD.replace("05:24", "24:00"), "malformed build '20260829_24:00'"),
        (GOOD.replace("05:24", "0524"), "malformed build"),
        (GOOD.replace("05:24", "5:24"), "malformed build"),
        (GOOD.replace("_05:24", ""), "malformed build"),
        (GOOD.replace("20260829", "00000829"), "malformed build"),
        (GOOD.replace("/images", "images"), "expected a path that begins with a slash"),
        (GOOD.removesuffix("/"), "expected a path of plain names between slashes"),
        (GOOD.replace("/images", "//images"), "expected a path of plain names between slashes"),
        (GOOD.replace("/images", "/../images"), "expected a path of plain names between slashes"),
        (GOOD.replace("/debian/", "/./"), "expected a path of plain names between slashes"),
        (GOOD.replace("/images", "https://example.org/images"), "expected a path that begins with a slash"),
        (GOOD.replace("/images", "/%2e%2e/images"), "expected a path of plain names between slashes"),
        (GOOD.replace("/images", "/a?b=#c/images"), "expected a path of plain names between slashes"),
        (GOOD.replace("05:24/", "05:24/../"), "expected a path of plain names between slashes"),
        (GOOD.replace("05:24/", "05:25/"), "expected a path that ends with its build, 20260829_05:24/"),
        (GOOD.rpartition(";")[0] + ";/", "expected a path of plain names between slashes"),
        (GOOD[:-5], "expected a path of plain names"),
        (GOOD[:-15], "expected a path that ends with its build"),
    ],
)
def test_a_line_that_does_not_parse_stops_the_build_and_is_named(bad: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        parse(line("riscv64"), bad, line("arm64"))
    assert str(caught.value).startswith("the index, line 2: ")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("data", [b"", b"\n", b"\x00", b"\xfd7zXZ\x00"])
def test_what_is_no_index_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="the index, line 1: expected printable ASCII"):
        lxc.parse_index(data, "the index")


@pytest.mark.parametrize("second", [GOOD, line(build="20260830_05:24")])
def test_a_combination_that_stands_twice_is_refused(second: str) -> None:
    with pytest.raises(FormatError, match="line 3: debian;trixie;amd64;cloud stands in line 1 already"):
        parse(GOOD, line("arm64"), second)


def test_one_build_for_all_platforms_is_resolved() -> None:
    build = resolve(GOOD, line("arm64"), line("riscv64", "20260101_00:00"), line(name="debian;trixie;default"))
    assert (build.name, build.created, build.tag_suffix) == ("20260829_05:24", CREATED, "20260829_0524")
    assert dict(build.directories) == {
        AMD64: "images/debian/trixie/amd64/cloud/20260829_05:24/",
        ARM64: "images/debian/trixie/arm64/cloud/20260829_05:24/",
    }


def test_one_platform_alone_is_resolved_whatever_the_others_have() -> None:
    build = resolve(GOOD, line("arm64", "20260828_05:24"), platforms=(ARM64,))
    assert build.name == "20260828_05:24"
    assert list(build.directories) == [ARM64]


def test_platforms_on_different_builds_are_not_ready_and_each_is_listed() -> None:
    with pytest.raises(NotReady) as caught:
        resolve(GOOD, line("arm64", "20260828_05:24"))
    assert str(caught.value) == (
        "debian-trixie is not ready: every platform must be on one build of debian;trixie;cloud, and the upstream has "
        "linux/amd64 20260829_05:24, linux/arm64 20260828_05:24; the newest build, 20260829_05:24, is 6 hours old; "
        "try again when it has finished"
    )


@pytest.mark.parametrize(
    "platform", [ARM64, Platform("linux", "riscv64"), Platform("linux", "amd64", "v2"), Platform("windows", "amd64")]
)
def test_a_platform_that_the_upstream_lacks_is_not_ready(platform: Platform) -> None:
    with pytest.raises(NotReady, match=f"the upstream has linux/amd64 20260829_05:24, {platform} none; the newest"):
        resolve(GOOD, platforms=(AMD64, platform))


@pytest.mark.parametrize(
    ("now", "age"),
    [
        (datetime(2026, 8, 29, 6, 30, tzinfo=UTC), "is 1 hour old"),
        (datetime(2026, 8, 29, 5, 0, tzinfo=UTC), "is 0 hours old"),
        (datetime(2026, 9, 30, 6, 0, tzinfo=UTC), "is 32 days old"),
    ],
)
def test_the_age_of_the_newest_build_is_told(now: datetime, age: str) -> None:
    with pytest.raises(NotReady, match=age):
        resolve(GOOD, now=now)
    with pytest.raises(NotReady, match=r"linux/arm64 none; try again"):
        resolve(GOOD, now=None)


def test_an_unknown_combination_lists_what_there_is_of_the_distribution() -> None:
    with pytest.raises(NotReady) as caught:
        resolve(line(name="debian;sid;default"), line(name="debian;bookworm;cloud"), line(name="alpine;3.24;cloud"))
    assert str(caught.value) == (
        "debian-trixie: the upstream has no debian;trixie;cloud; of debian it has: bookworm;cloud, sid;default"
    )
    with pytest.raises(NotReady, match="of debian it has: nothing"):
        resolve(line(name="alpine;3.24;cloud"))


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    directory = tmp_path / "images/debian/trixie/amd64/cloud/20260829_05:24"
    directory.mkdir(parents=True)
    (directory / "SHA256SUMS").write_bytes(b"list\xff")
    (directory / "SHA256SUMS.asc").write_bytes(b"signature")
    (tmp_path / "meta/1.0").mkdir(parents=True)
    (tmp_path / "meta/1.0/index-system").write_text(GOOD + "\n")
    return tmp_path


def test_the_index_and_the_lists_are_fetched_and_the_url_is_the_catalogs(mirror: Path) -> None:
    source = open_source(str(mirror))
    assert lxc.read_index(source) == parse(GOOD)
    build = resolve(GOOD, platforms=(AMD64,))
    for catalog_url in ("https://images.example.org", "https://images.example.org/"):
        assert lxc.fetch_lists(source, build, AMD64, catalog_url) == lxc.Untrusted(
            build,
            AMD64,
            "https://images.example.org/images/debian/trixie/amd64/cloud/20260829_05:24/",
            f"{mirror}/images/debian/trixie/amd64/cloud/20260829_05:24/",
            b"list\xff",
            b"signature",
        )


def test_a_build_whose_list_is_gone_is_not_ready(mirror: Path) -> None:
    (mirror / "images/debian/trixie/amd64/cloud/20260829_05:24/SHA256SUMS").unlink()
    build = resolve(GOOD, platforms=(AMD64,))
    with pytest.raises(
        NotReady, match="names build 20260829_05:24 for linux/amd64, and its directory has no SHA256SUMS"
    ):
        lxc.fetch_lists(open_source(str(mirror)), build, AMD64, "https://images.example.org")


def test_a_message_about_the_index_names_where_it_lies(mirror: Path) -> None:
    (mirror / "meta/1.0/index-system").write_text("<html>\n")
    with pytest.raises(FormatError, match=rf"{mirror}/meta/1\.0/index-system, line 1"):
        lxc.read_index(open_source(str(mirror)))
    (mirror / "meta/1.0/index-system").unlink()
    with pytest.raises(NotFound, match=r"meta/1\.0/index-system"):
        lxc.read_index(open_source(str(mirror)))


@pytest.mark.parametrize(
    ("name", "limit"),
    [("SHA256SUMS", lxc.LIST_LIMIT), ("SHA256SUMS.asc", lxc.SIGNATURE_LIMIT), (lxc.INDEX, lxc.INDEX_LIMIT)],
)
def test_small_files_have_small_limits(mirror: Path, name: str, limit: int) -> None:
    build = resolve(GOOD, platforms=(AMD64,))
    file = mirror / name if name == lxc.INDEX else mirror / build.directories[AMD64] / name
    with file.open("wb") as sparse:
        sparse.truncate(limit + 1)
    source = open_source(str(mirror))
    with pytest.raises(Refused, match=f"longer than the {limit} bytes"):
        lxc.read_index(source)
        lxc.fetch_lists(source, build, AMD64, "https://images.example.org")


def test_a_list_without_a_signature_is_not_handed_on(mirror: Path) -> None:
    build = resolve(GOOD, platforms=(AMD64,))
    (mirror / build.directories[AMD64] / "SHA256SUMS.asc").unlink()
    with pytest.raises(NotFound, match=r"SHA256SUMS\.asc"):
        lxc.fetch_lists(open_source(str(mirror)), build, AMD64, "https://images.example.org")
