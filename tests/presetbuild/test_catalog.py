"""The catalog: the presets that ship, and every mistake reported with its file and place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from presetbuild.catalog import RESERVED, Catalog, KeyPin, load_catalog, matches
from shim.errors import FormatError, NotFound, Refused
from shim.image.model import Platform

FINGERPRINT = "E7FB0CAEC8173D669066514CBAEFF88C22F6E216"
GOOD = f"""\
compression = "zstd"
source = "https://example.org/project"

[upstreams.example]
kind = "lxc"
url = "https://images.example.org"
keys = [{{ file = "example.asc", fingerprint = "{FINGERPRINT}" }}]

[presets.debian-trixie]
upstream = "example"
distribution = "debian"
release = "trixie"
variant = "cloud"
repository = "debian-cloud"
provisioning = ["cloud-init", "exec"]
os-release = {{ ID = "debian", VERSION_CODENAME = "trixie" }}
platforms = ["linux/amd64", "linux/arm64"]
"""
PRESET = GOOD[GOOD.index("[presets") :]


def load(tmp_path: Path, text: str | bytes) -> Catalog:
    path = tmp_path / "catalog.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_catalog(path)


def mistake(tmp_path: Path, text: str | bytes) -> str:
    """Return the message that refuses `text`, without the directory."""
    with pytest.raises(FormatError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/catalog.toml: ")
    assert message.isprintable()
    return message.removeprefix(f"{tmp_path}/")


# What ships


def test_shipped_catalog_is_the_table_of_the_design() -> None:
    catalog = load_catalog()
    assert (catalog.compression, catalog.source) == ("zstd", "https://github.com/stateful-pods/stateful-pods")
    rows = {
        name: (
            f"{preset.distribution};{preset.release};{preset.variant}",
            preset.repository,
            preset.provisioning,
            dict(preset.os_release),
        )
        for name, preset in catalog.presets.items()
    }
    both, debian = ("cloud-init", "exec"), {"ID": "debian", "VERSION_CODENAME": "trixie"}
    assert rows == {
        "debian-trixie": ("debian;trixie;cloud", "debian-cloud", both, debian),
        "alpine-3.24": ("alpine;3.24;cloud", "alpine-cloud", both, {"ID": "alpine", "VERSION_ID": "3.24*"}),
        "ubuntu-noble": (
            "ubuntu;noble;default", "ubuntu", ("exec",), {"ID": "ubuntu", "VERSION_CODENAME": "noble"},
        ),
        "void-current": ("voidlinux;current;default", "void", ("exec",), {"ID": "void"}),
    }  # fmt: skip
    for preset in catalog.presets.values():
        assert preset.platforms == (Platform("linux", "amd64"), Platform("linux", "arm64"))
        assert preset.upstream is catalog.upstreams["linuxcontainers"]
        assert preset.upstream.url == "https://images.linuxcontainers.org"
        assert preset.upstream.keys == (KeyPin("linuxcontainers.asc", FINGERPRINT, retired=False),)


def test_unknown_preset_lists_the_ones_that_exist_and_hints_at_the_closest() -> None:
    with pytest.raises(NotFound) as caught:
        load_catalog().preset("debian-trixi")
    assert str(caught.value) == (
        "there is no preset 'debian-trixi' (did you mean debian-trixie?); "
        "the catalog has: debian-trixie, alpine-3.24, ubuntu-noble, void-current"
    )


def test_unknown_preset_that_resembles_none_gets_no_hint() -> None:
    with pytest.raises(NotFound, match=r"there is no preset 'x\\\\x1b'; the catalog has: debian-trixie, ") as caught:
        load_catalog().preset("x\x1b")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(("expected", "found", "result"), [
    ("trixie", "trixie", True),
    ("trixie", "trixie2", False),
    ("3.24*", "3.24.1", True),
    ("3.24*", "3.24", True),
    ("3.24*", "3.2", False),
    ("3.24", "3.24.1", False),
    ("trixie", "", False),
])  # fmt: skip
def test_matching_of_os_release_values(expected: str, found: str, result: bool) -> None:
    assert matches(expected, found) is result


# What else is accepted


@pytest.mark.parametrize(("old", "new"), [
    ('"zstd"', '"gzip"'),
    ("https://images.example.org", "https://images.example.org:8443/mirror"),
    ("https://images.example.org", "http://127.0.0.1:8000"),
    ("https://images.example.org", "http://[::1]:8000"),
    ("https://images.example.org", "http://localhost"),
    ("https://images.example.org", "file:///srv/images"),
    ('"linux/arm64"', '"linux/arm/v7"'),
    ('["cloud-init", "exec"]', '["exec"]'),
    ('"debian-cloud"', '"group/debian-cloud"'),
    ("[presets.debian-trixie]", '[presets."3.x"]'),
])  # fmt: skip
def test_accepted_variations(tmp_path: Path, old: str, new: str) -> None:
    assert old in GOOD
    assert len(load(tmp_path, GOOD.replace(old, new)).presets) == 1


def test_slash_at_the_end_of_a_url_is_not_kept(tmp_path: Path) -> None:
    catalog = load(tmp_path, GOOD.replace("images.example.org", "images.example.org/mirror/"))
    assert catalog.upstreams["example"].url == "https://images.example.org/mirror"


def test_key_can_be_retired_beside_a_current_one(tmp_path: Path) -> None:
    pins = f'{{ file = "old.asc", fingerprint = "{"A" * 40}", retired = true }}, {{ file = "example.asc"'
    catalog = load(tmp_path, GOOD.replace('{ file = "example.asc"', pins))
    assert catalog.upstreams["example"].keys == (
        KeyPin("old.asc", "A" * 40, retired=True), KeyPin("example.asc", FINGERPRINT, retired=False),
    )  # fmt: skip


# Mistakes

TRIXIE = "catalog.toml: presets.debian-trixie"
KEY = "catalog.toml: upstreams.example.keys[0]"

MISTAKES = [
    # unknown, missing, and of the wrong type
    ("compression", "speed = 1\ncompression", "catalog.toml: speed: unknown field; the fields here are compression, "),
    ('kind = "lxc"', 'kind = "lxc"\nmirror = "x"', "catalog.toml: upstreams.example.mirror: unknown field; "),
    ("fingerprint =", "finger = 1, fingerprint =", f"{KEY}.finger: unknown field; the fields here are file, "),
    ("variant =", "os_release = 1\nvariant =", f"{TRIXIE}.os_release: unknown field; the fields here are upstream, "),
    ("variant =", '"a\\u001b" = 1\nvariant =', f"{TRIXIE}.a\\x1b: unknown field"),
    ('compression = "zstd"\n', "", "catalog.toml: compression: this field is missing"),
    ('url = "https://images.example.org"\n', "", "catalog.toml: upstreams.example.url: this field is missing"),
    ('file = "example.asc", ', "", f"{KEY}.file: this field is missing"),
    ('variant = "cloud"\n', "", f"{TRIXIE}.variant: this field is missing"),
    (PRESET, "", "catalog.toml: presets: this field is missing"),
    (PRESET, "[presets]\n", "catalog.toml: presets: must not be empty"),
    ("[upstreams", "presets = 1\n[upstreams", "catalog.toml: not a TOML document: "),
    (PRESET, "[presets]\nx = 1\n", "catalog.toml: presets.x: expected a table, found int 1"),
    ("[presets.debian-trixie]", "[[presets.debian-trixie]]", f"{TRIXIE}: expected a table, found a list"),
    ('"zstd"', "3", "catalog.toml: compression: expected a text, found int 3"),
    ('"trixie"\nvariant', "2026-01-01\nvariant", f"{TRIXIE}.release: expected a text, found date 2026-01-01"),
    ('"trixie"\nvariant', "3.24\nvariant", f"{TRIXIE}.release: expected a text, found float 3.24"),
    ('["linux/amd64", "linux/arm64"]', '"linux/amd64"', f"{TRIXIE}.platforms: expected a list, found a text"),
    ('"linux/arm64"', "true", f"{TRIXIE}.platforms[1]: expected a text, found true or false"),
    (f'"{FINGERPRINT}"', f'"{FINGERPRINT}", retired = "no"', f"{KEY}.retired: expected true or false, found a text"),
    (f'"{FINGERPRINT}"', f'"{FINGERPRINT}", retired = 1', f"{KEY}.retired: expected true or false, found int 1"),
    # choices
    ('"zstd"', '"xz"', "catalog.toml: compression: expected zstd or gzip, found 'xz'"),
    ('"lxc"', '"docker"', "catalog.toml: upstreams.example.kind: expected lxc, found 'docker'"),
    ('upstream = "example"', 'upstream = "other"', f"{TRIXIE}.upstream: expected example, found 'other'"),
    ('"exec"]', '"ignition"]', f"{TRIXIE}.provisioning[1]: expected cloud-init or exec, found 'ignition'"),
    ('"exec"]', '"cloud-init"]', f"{TRIXIE}.provisioning[1]: the entry cloud-init stands in this list already"),
    ('["cloud-init", "exec"]', "[]", f"{TRIXIE}.provisioning: must not be empty"),
    # names
    ("[presets.debian-trixie]", '[presets."Debian"]', "catalog.toml: presets: malformed name 'Debian': "),
    ("[presets.debian-trixie]", '[presets."-x"]', "catalog.toml: presets: malformed name '-x': "),
    ("[presets.debian-trixie]", '[presets.""]', "catalog.toml: presets: malformed name '': "),
    ("[presets.debian-trixie]", '[presets."a\\n"]', "catalog.toml: presets: malformed name 'a\\\\n': "),
    ("[presets.debian-trixie]", '[presets."a/b"]', "catalog.toml: presets: malformed name 'a/b': "),
    ("upstreams.example", 'upstreams."Ex"', "catalog.toml: upstreams: malformed name 'Ex': "),
    ('"debian"\nrelease', '"debian;trixie"\nrelease', f"{TRIXIE}.distribution: expected the upstream's name, of "),
    ('"cloud"', '"../cloud"', f"{TRIXIE}.variant: expected the upstream's name, of letters"),
    ('"cloud"', '""', f"{TRIXIE}.variant: expected the upstream's name, of letters"),
    # what is published
    ('"debian-cloud"', '"Debian"', f"{TRIXIE}.repository: malformed repository 'Debian'"),
    ('"debian-cloud"', '"../x"', f"{TRIXIE}.repository: malformed repository '../x'"),
    ('"debian-cloud"', '"x:y"', f"{TRIXIE}.repository: malformed repository 'x:y'"),
    ('"trixie"\nvariant', '"a/b"\nvariant', f"{TRIXIE}.release: malformed tag 'a/b'"),
    ('"trixie"\nvariant', '"a;b"\nvariant', f"{TRIXIE}.release: malformed tag 'a;b'"),
    ('"trixie"\nvariant', f'"{"a" * 120}"\nvariant', f"{TRIXIE}.release: malformed tag "),
    ('"trixie"\nvariant', '"a-20260101_0524"\nvariant', f"{TRIXIE}.release: 'a-20260101_0524' reads like the tag of"),
    # platforms
    ('"linux/arm64"', '"linux/amd64"', f"{TRIXIE}.platforms[1]: the platform linux/amd64 stands in this list already"),
    ('"linux/amd64"', '"linux/arm64/v8"', f"{TRIXIE}.platforms[1]: the platform linux/arm64 stands in this"),
    ('"linux/arm64"', '"arm64"', f"{TRIXIE}.platforms[1]: malformed platform 'arm64'"),
    ('"linux/arm64"', '"windows/amd64"', f"{TRIXIE}.platforms[1]: windows/amd64 is no Linux platform"),
    ('["linux/amd64", "linux/arm64"]', "[]", f"{TRIXIE}.platforms: must not be empty"),
    # os-release
    ('{ ID = "debian", VERSION_CODENAME = "trixie" }', "{}", f"{TRIXIE}.os-release: must not be empty"),
    ('ID = "debian"', 'id = "debian"', f"{TRIXIE}.os-release: 'id' is no name that os-release uses"),
    ('ID = "debian"', "ID = 13", f"{TRIXIE}.os-release.ID: expected a text, found int 13"),
    ('ID = "debian"', 'ID = ""', f"{TRIXIE}.os-release.ID: '' checks nothing"),
    ('ID = "debian"', 'ID = "*"', f"{TRIXIE}.os-release.ID: '*' checks nothing"),
    ('ID = "debian"', 'ID = "d*n"', f"{TRIXIE}.os-release.ID: a * stands at the end of a value only, found 'd*n'"),
    # keys
    (FINGERPRINT, FINGERPRINT.lower(), f"{KEY}.fingerprint: expected the primary key's whole fingerprint, 40 "),
    (FINGERPRINT, FINGERPRINT[-16:], f"{KEY}.fingerprint: expected the primary key's whole fingerprint"),
    (FINGERPRINT, FINGERPRINT + "A", f"{KEY}.fingerprint: expected the primary key's whole fingerprint"),
    (FINGERPRINT, "0x" + FINGERPRINT[2:], f"{KEY}.fingerprint: expected the primary key's whole fingerprint"),
    (FINGERPRINT, "E7FB 0CAE C817 3D66 9066  514C BAEF F88C 22F6 E216", f"{KEY}.fingerprint: expected the primary"),
    (FINGERPRINT, FINGERPRINT + "\\n", f"{KEY}.fingerprint: expected the primary key's whole fingerprint"),
    ("example.asc", "../example.asc", f"{KEY}.file: expected the plain name of a file in signing-keys/ "),
    ("example.asc", "/etc/example.asc", f"{KEY}.file: expected the plain name"),
    ("example.asc", "example.gpg", f"{KEY}.file: expected the plain name"),
    ("example.asc", ".asc", f"{KEY}.file: expected the plain name"),
    (f'[{{ file = "example.asc", fingerprint = "{FINGERPRINT}" }}]', "[]", "catalog.toml: upstreams.example.keys: "),
    ("}]\n", f'}}, {{ file = "b.asc", fingerprint = "{FINGERPRINT}" }}]\n',
     f"catalog.toml: upstreams.example.keys[1]: the fingerprint {FINGERPRINT} stands in this list already"),
    ("}]\n", f'}}, {{ file = "example.asc", fingerprint = "{"A" * 40}" }}]\n',
     "catalog.toml: upstreams.example.keys[1]: the file example.asc stands in this list already"),
    (f'"{FINGERPRINT}"', f'"{FINGERPRINT}", retired = true', "catalog.toml: upstreams.example.keys: every key "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"), MISTAKES, ids=[f"{n}-{m[2].split(': ')[1]}" for n, m in enumerate(MISTAKES)]
)
def test_mistake_is_refused_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert mistake(tmp_path, GOOD.replace(old, new, 1)).startswith(message)


@pytest.mark.parametrize(("url", "problem"), [
    ("http://images.example.org", "is plain http to another machine"),
    ("http://127.0.0.1.example.org", "is plain http to another machine"),
    ("http://localhost.example.org", "is plain http to another machine"),
    ("ftp://images.example.org", "does not begin with https:// or http:// or file://"),
    ("images.example.org", "does not begin with"),
    ("HTTPS://images.example.org", "does not begin with"),
    ("https:images.example.org", "does not begin with"),
    ("https://", "names no host"),
    ("https:///path", "names no host"),
    ("https://user:secret@images.example.org", "holds credentials"),
    ("https://@images.example.org", "holds credentials"),
    ("https://images.example.org/?a=b", "holds a query or a fragment"),
    ("https://images.example.org/?", "holds a query or a fragment"),
    ("https://images.example.org/#a", "holds a query or a fragment"),
    ("https://images.example.org/a b", "holds a character"),
    ("https://images.example.org/\\\\n", "holds a character"),
    ("https://images.example.org/\\u0000", "holds a character"),
    ("https://\u0456mages.example.org", "holds a character"),
    ("https://images.example.org:x", "malformed URL"),
    ("https://images.example.org:99999", "malformed URL"),
    ("https://[::1", "malformed URL"),
    ("file://host/srv", "names no absolute path of this machine"),
    ("file://srv", "names no absolute path of this machine"),
])  # fmt: skip
def test_url_that_is_not_plain_is_refused(tmp_path: Path, url: str, problem: str) -> None:
    message = mistake(tmp_path, GOOD.replace("https://images.example.org", url))
    assert message.startswith("catalog.toml: upstreams.example.url: ")
    assert problem in message


def test_source_must_be_https(tmp_path: Path) -> None:
    message = mistake(tmp_path, GOOD.replace("https://example.org/project", "http://127.0.0.1/project"))
    assert message == "catalog.toml: source: 'http://127.0.0.1/project' does not begin with https://"


@pytest.mark.parametrize("word", RESERVED)
def test_preset_named_like_a_command_is_refused(tmp_path: Path, word: str) -> None:
    message = mistake(tmp_path, GOOD.replace("[presets.debian-trixie]", f"[presets.{word}]"))
    assert message.startswith(f"catalog.toml: presets.{word}: {word} is the name of a command")


def test_two_presets_with_the_same_tags_are_refused(tmp_path: Path) -> None:
    other = PRESET.replace("debian-trixie", "again").replace('"cloud"', '"default"')
    assert mistake(tmp_path, GOOD + "\n" + other).startswith(
        "catalog.toml: presets.again: publishes release trixie into repository debian-cloud, as presets.debian-trixie"
    )


def test_two_presets_may_share_a_repository_or_a_release(tmp_path: Path) -> None:
    releases = PRESET.replace("debian-trixie", "sid").replace('"trixie"\nvariant', '"sid"\nvariant')
    repositories = PRESET.replace("debian-trixie", "plain").replace('"debian-cloud"', '"debian"')
    assert list(load(tmp_path, f"{GOOD}\n{releases}\n{repositories}").presets) == ["debian-trixie", "sid", "plain"]


@pytest.mark.parametrize(("text", "message"), [
    (GOOD + 'release = "sid"\n', r"not a TOML document: Cannot overwrite a value \(at line 18"),
    (f"{GOOD}\n{PRESET}", r"not a TOML document: Cannot declare .*'debian-trixie'.* twice \(at line 19"),
    ("compression = zstd\n", r"not a TOML document: Invalid value \(at line 1, column 15\)"),
    (b"a = '\xff'\n", "not a TOML document: 'utf-8' codec can't decode byte 0xff"),
    (b"", "compression: this field is missing"),
    ("a = " + "[" * 100_000, "not a TOML document"),
    ("a = '\x1b'\n", "not a TOML document: .*invalid character|.*Illegal character"),
])  # fmt: skip
def test_file_that_is_no_toml_is_refused_with_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert re.match(f"catalog.toml: {message}", mistake(tmp_path, text))


def test_missing_catalog_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"{tmp_path}/none.toml: there is no such catalog"):
        load_catalog(tmp_path / "none.toml")


def test_unreadable_catalog_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"{tmp_path}: the catalog cannot be read: Is a directory"):
        load_catalog(tmp_path)
