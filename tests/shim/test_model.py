"""Manifests, indexes and configs: what they say, and what makes them no such thing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shim.errors import FormatError, NotFound, VerificationError
from shim.image import model
from shim.image.digest import Digest
from shim.image.model import (
    Config,
    Descriptor,
    Index,
    Manifest,
    Platform,
    canonical_json,
    check_raw,
    parse_config,
    parse_manifest,
)

BLOB: dict[str, Any] = {"mediaType": "application/x", "digest": f"{Digest.of(b'')}", "size": 0}
SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1+prettyjws"
MANIFEST: dict[str, Any] = {"schemaVersion": 2, "mediaType": model.OCI_MANIFEST, "config": BLOB, "layers": [BLOB]}
INDEX: dict[str, Any] = {"schemaVersion": 2, "mediaType": model.OCI_INDEX, "manifests": [BLOB]}
CONFIG: dict[str, Any] = {
    "architecture": "amd64",
    "os": "linux",
    "rootfs": {"type": "layers", "diff_ids": [BLOB["digest"]]},
}


def parse(document: Any, media_type: str | None = None) -> Manifest | Index:
    return parse_manifest(json.dumps(document).encode(), media_type, "it")


def entry(number: int, platform: dict[str, str] | None) -> dict[str, Any]:
    made = BLOB | {"digest": str(Digest.of(bytes([number])))}
    return made | ({"platform": platform} if platform else {})


def index(*platforms: str | None) -> Index:
    keys = ("os", "architecture", "variant")
    entries = [
        entry(number, dict(zip(keys, platform.split("/"), strict=False)) if platform else None)
        for number, platform in enumerate(platforms)
    ]
    parsed = parse(INDEX | {"manifests": entries})
    assert isinstance(parsed, Index)
    return parsed


def test_the_raw_bytes_stay_and_are_what_the_digest_is_of() -> None:
    raw = json.dumps(MANIFEST, indent=4).encode() + b"\n"
    parsed = parse_manifest(raw, None, "it")
    assert parsed.raw == raw
    assert parsed.descriptor == Descriptor(model.OCI_MANIFEST, Digest.of(raw), len(raw))


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (MANIFEST, Manifest),
        (MANIFEST | {"mediaType": model.DOCKER_MANIFEST}, Manifest),
        (INDEX, Index),
        (INDEX | {"mediaType": model.DOCKER_LIST}, Index),
    ],
)
@pytest.mark.parametrize("stated", [None, "application/json", "text/plain; charset=utf-8", "the same"])
def test_each_type_is_read_whatever_a_vague_server_calls_it(document: Any, kind: type, stated: str | None) -> None:
    parsed = parse(document, document["mediaType"] if stated == "the same" else stated)
    assert isinstance(parsed, kind)
    assert parsed.media_type == document["mediaType"]


@pytest.mark.parametrize(
    ("document", "stated", "expected"),
    [
        (MANIFEST, model.OCI_MANIFEST, model.OCI_MANIFEST),
        (MANIFEST, None, model.OCI_MANIFEST),
        (INDEX, model.DOCKER_LIST, model.DOCKER_LIST),
        (INDEX, "application/json", model.OCI_INDEX),
    ],
)
def test_a_document_without_a_type_takes_the_stated_one_or_tells_by_its_shape(
    document: dict[str, Any], stated: str | None, expected: str
) -> None:
    untyped = {key: value for key, value in document.items() if key != "mediaType"}
    assert parse(untyped, stated).media_type == expected


REFUSED: dict[str, tuple[Any, str | None, str]] = {
    "schema 1": ({"schemaVersion": 1, "fsLayers": []}, None, "schema 1"),
    "schema 1 by type": (MANIFEST | {"mediaType": SCHEMA_1}, None, "schema 1"),
    "another schema": (MANIFEST | {"schemaVersion": 3}, None, "schemaVersion 3; expected 2"),
    "no schema": ({"layers": []}, None, "schemaVersion None"),
    "a schema as text": (MANIFEST | {"schemaVersion": "2"}, None, "schemaVersion 2"),
    "both": (MANIFEST | {"manifests": []}, None, "both layers and manifests"),
    "an index with a config": (INDEX | {"config": BLOB}, None, "both layers and manifests"),
    "announced as an index": (MANIFEST, model.OCI_INDEX, "was announced as"),
    "announced as a blob": (MANIFEST, "application/octet-stream", "was announced as"),
    "announced as schema 1": (MANIFEST, SCHEMA_1, "was announced"),
    "another type": (MANIFEST | {"mediaType": "application/x"}, None, "is no image or index"),
    "a type that is no text": (MANIFEST | {"mediaType": 7}, None, "mediaType that is no text"),
    "a list as type": (MANIFEST | {"mediaType": []}, None, "mediaType that is no text"),
    "an index of layers": (MANIFEST | {"mediaType": model.OCI_INDEX}, None, "no list of manifests"),
    "an image of manifests": (INDEX | {"mediaType": model.OCI_MANIFEST}, None, "the config of it is missing"),
    "no layers": ({key: MANIFEST[key] for key in ("schemaVersion", "config")}, None, "no list of layers"),
    "layers by name": (MANIFEST | {"layers": {}}, None, "no list of layers"),
    "a layer as text": (MANIFEST | {"layers": ["x"]}, None, r"layers\[0\] of it is missing or is not a descriptor"),
    "a size as text": (MANIFEST | {"layers": [BLOB | {"size": "5"}]}, None, "no valid size"),
    "a size below 0": (MANIFEST | {"layers": [BLOB | {"size": -1}]}, None, "no valid size"),
    "a size that is true": (MANIFEST | {"layers": [BLOB | {"size": True}]}, None, "no valid size"),
    "a size in fractions": (MANIFEST | {"layers": [BLOB | {"size": 1.0}]}, None, "no valid size"),
    "a digest as a path": (MANIFEST | {"layers": [BLOB | {"digest": "../../x"}]}, None, "the digest of layers"),
    "no digest": (MANIFEST | {"config": {"mediaType": "x", "size": 1}}, None, "digest of the config of it is missing"),
    "no type of a layer": (MANIFEST | {"layers": [BLOB | {"mediaType": None}]}, None, "no mediaType"),
    "an annotation that is a number": (MANIFEST | {"annotations": {"a": 1}}, None, "annotations of it are not texts"),
    "annotations as a list": (MANIFEST | {"annotations": ["a"]}, None, "annotations of it are not texts"),
    "a subject as text": (MANIFEST | {"subject": "x"}, None, "the subject of it"),
    "an empty subject": (MANIFEST | {"subject": {}}, None, "the subject of it"),
    "an artifact type as a number": (MANIFEST | {"artifactType": 1}, None, "artifactType"),
    "a platform as text": (INDEX | {"manifests": [BLOB | {"platform": "linux"}]}, None, "platform of"),
    "a platform of nothing": (INDEX | {"manifests": [BLOB | {"platform": {}}]}, None, "platform of"),
}  # fmt: skip


@pytest.mark.parametrize(("document", "stated", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_manifest_is_refused_by_name(document: Any, stated: str | None, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse(document, stated)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff"}',
        b'{"schemaVersion":2,"schemaVersion":2}',
        b'{"a":{"b":1,"b":2}}',
        b'{"schemaVersion":NaN}',
        b'{"schemaVersion":Infinity}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\uDC00x"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
        b"{}{}",
    ],
)
def test_what_is_no_json_object_of_one_meaning_is_refused(raw: bytes) -> None:
    for read in (parse_config, lambda raw, what: parse_manifest(raw, None, what)):
        with pytest.raises(FormatError, match=r"^it "):
            read(raw, "it")


@pytest.mark.parametrize(
    "document",
    [
        MANIFEST | {"Layers": []},
        MANIFEST | {"layer\u017f": []},
        MANIFEST | {"Config": MANIFEST["config"]},
        MANIFEST | {"Manifests": []},
        MANIFEST | {"MANIFESTS": None},
        MANIFEST | {"mediatype": model.OCI_INDEX},
        MANIFEST | {"SchemaVersion": 1},
        MANIFEST | {"x": 1, "X": 2},
        MANIFEST | {"Å": 1, "å": 2},
        MANIFEST | {"config": MANIFEST["config"] | {"Digest": "sha256:" + "0" * 64}},
        MANIFEST | {"layers": [MANIFEST["layers"][0] | {"\u017fize": 1}]},
        MANIFEST | {"layers": [MANIFEST["layers"][0] | {"MEDIATYPE": "x"}]},
        MANIFEST | {"subject": MANIFEST["config"] | {"Data": ""}},
        INDEX | {"Layers": []},
        INDEX | {"manifests": [INDEX["manifests"][0] | {"platform": {"os": "a", "architecture": "b", "OS": "c"}}]},
        INDEX | {"manifests": [INDEX["manifests"][0] | {"Platform": {"os": "a", "architecture": "b"}}]},
    ],
)
def test_a_key_that_is_another_where_case_is_folded_is_refused(document: Any) -> None:
    with pytest.raises(FormatError, match="which some readers take for") as caught:
        parse(document)
    assert str(caught.value).isascii()


@pytest.mark.parametrize(
    "change",
    [
        {"Architecture": "arm64"},
        {"OS": "linux"},
        {"Config": {"Labels": {}}},
        {"rootFS": CONFIG["rootfs"]},
        {"rootfs": CONFIG["rootfs"] | {"Diff_IDs": []}},
        {"rootfs": CONFIG["rootfs"] | {"diff_id\u017f": []}},
        {"config": {"labels": {"a": "b"}}},
        {"config": {"Labels": {}, "LABELS": {"a": "b"}}},
        {"config": {"env": []}},
        {"config": {"cmd": []}},
        {"config": {"wor\u212aingDir": "/"}},
        {"config": {"Healthcheck": {"test": []}}},
        {"history": [{}, {"Created_By": "x"}]},
    ],
    ids=ascii,
)
def test_a_key_of_a_config_that_is_another_where_case_is_folded_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="which some readers take for"):
        parse_config(json.dumps(CONFIG | change).encode(), "it")


def test_names_that_people_choose_may_differ_in_case_alone() -> None:
    names = {"size": "1", "Size": "2", "layers": "3", "LAYERS": "4"}
    layer = MANIFEST["layers"][0] | {"annotations": names}
    parsed = parse(MANIFEST | {"annotations": names, "layers": [layer]})
    assert isinstance(parsed, Manifest)
    assert parsed.annotations == parsed.layers[0].annotations == names
    inner = {"Labels": names, "Volumes": {"/a": {}, "/A": {}}, "ExposedPorts": {}, "Env": [], "Cmd": ["x"]}
    raw = json.dumps(CONFIG | {"config": inner, "container_config": {"cmd": 1}}).encode()
    assert parse_config(raw, "it").labels == names


@pytest.mark.parametrize("size", [2**63, 10**400, -1, 1.0, True, "1", None])
def test_a_size_that_is_no_size_is_refused(size: object) -> None:
    with pytest.raises(FormatError, match="no valid size"):
        parse(MANIFEST | {"config": MANIFEST["config"] | {"size": size}})


def test_the_largest_size_is_read() -> None:
    parsed = parse(MANIFEST | {"config": MANIFEST["config"] | {"size": 2**63 - 1}})
    assert isinstance(parsed, Manifest)
    assert parsed.config.size == 2**63 - 1


def test_a_whole_surrogate_pair_is_text() -> None:
    raw = canonical_json(MANIFEST | {"annotations": {"a": "😀"}})
    escaped = json.dumps(MANIFEST | {"annotations": {"a": "😀"}}).encode()
    assert b"\\ud83d" in escaped
    assert parse_manifest(escaped, None, "it").annotations == parse_manifest(raw, None, "it").annotations


def test_a_text_from_outside_cannot_forge_the_message() -> None:
    with pytest.raises(FormatError) as caught:
        parse(MANIFEST | {"mediaType": "x\x1b[2J\nerror: none"})
    assert "x\\x1b[2J\\nerror: none" in str(caught.value)


# --- platforms


@pytest.mark.parametrize("text", ["linux/amd64", "linux/arm/v7", "linux/arm64"])
def test_a_platform_is_read_and_written_alike(text: str) -> None:
    assert str(Platform.parse(text)) == text


def test_arm64_is_v8() -> None:
    assert Platform.parse("linux/arm64/v8") == Platform.parse("linux/arm64") == Platform("linux", "arm64")
    assert Platform.parse("linux/arm64/v9") != Platform.parse("linux/arm64")


@pytest.mark.parametrize("text", ["", "linux", "linux/", "/amd64", "linux/arm/v7/x", "linux/am d64", "linux/ämd64"])
def test_a_malformed_platform_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="expected OS/ARCH"):
        Platform.parse(text)


@pytest.mark.parametrize(
    ("there", "wanted", "position"),
    [
        (["linux/amd64", "linux/arm64"], "linux/arm64", 1),
        (["linux/amd64", "linux/arm64/v8"], "linux/arm64", 1),
        (["linux/arm64"], "linux/arm64/v8", 0),
        (["unknown/unknown", "linux/amd64"], "linux/amd64", 1),
        ([None, "linux/amd64"], "linux/amd64", 1),
        (["windows/amd64", "linux/amd64"], "linux/amd64", 1),
        (["linux/amd64/v3", "linux/amd64"], "linux/amd64", 1),
        (["linux/amd64/v3"], "linux/amd64", 0),
        (["linux/arm/v6", "linux/arm/v7"], "linux/arm/v7", 1),
    ],
)
def test_the_entry_of_the_platform_is_selected(there: list[str | None], wanted: str, position: int) -> None:
    made = index(*there)
    assert made.select(Platform.parse(wanted)) == made.manifests[position]


@pytest.mark.parametrize(
    ("there", "wanted", "listed"),
    [
        (["linux/amd64"], "linux/arm64", "linux/amd64"),
        (["linux/amd64"], "linux/amd64/v3", "linux/amd64"),
        (["unknown/unknown", None], "linux/amd64", "none"),
        ([], "linux/amd64", "none"),
        (["linux/\x1b[2J"], "linux/amd64", r"linux/\\x1b\[2J"),
    ],
)
def test_a_platform_that_is_not_there_lists_those_that_are(there: list[str], wanted: str, listed: str) -> None:
    with pytest.raises(NotFound, match=f"it holds no image for {wanted}; it holds: {listed}$"):
        index(*there).select(Platform.parse(wanted), "it")


@pytest.mark.parametrize("there", [["linux/amd64", "linux/amd64"], ["linux/amd64/v2", "linux/amd64/v3"]])
def test_two_entries_that_fit_equally_well_are_refused(there: list[str]) -> None:
    with pytest.raises(FormatError, match="2 images for linux/amd64"):
        index(*there).select(Platform.parse("linux/amd64"))


def test_one_image_that_is_listed_twice_is_one() -> None:
    twice = parse(INDEX | {"manifests": [entry(1, {"os": "linux", "architecture": "amd64"})] * 2})
    assert isinstance(twice, Index)
    assert twice.select(Platform("linux", "amd64")).digest == Digest.of(b"\1")


# --- configs


def test_a_config_is_read() -> None:
    raw = json.dumps(CONFIG | {"config": {"Labels": {"a": "b"}}, "created": "2026-08-29T05:24:00Z", "x": 1}).encode()
    assert parse_config(raw, "it") == Config(
        raw, Platform("linux", "amd64"), (Digest.of(b""),), {"a": "b"}, "2026-08-29T05:24:00Z"
    )


@pytest.mark.parametrize("absent", [{}, {"config": None}, {"config": {}}, {"config": {"Labels": None}}])
def test_a_config_needs_no_labels(absent: dict[str, Any]) -> None:
    assert parse_config(json.dumps(CONFIG | absent).encode(), "it").labels == {}


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": None},
        {"os": 1},
        {"variant": 1},
        {"rootfs": None},
        {"rootfs": {"type": "other", "diff_ids": []}},
        {"rootfs": {"type": "layers"}},
        {"rootfs": {"type": "layers", "diff_ids": [1]}},
        {"rootfs": {"type": "layers", "diff_ids": ["sha256:x"]}},
        {"config": []},
        {"config": "x"},
        {"config": {"Labels": {"a": 1}}},
        {"created": 1},
    ],
)
def test_a_malformed_config_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        parse_config(json.dumps(CONFIG | change).encode(), "it")


# --- the rest


def test_a_descriptor_is_read_as_it_was_written() -> None:
    made = Descriptor("t", Digest.of(b"x"), 1, Platform("linux", "arm", "v7"), {"a": "b"}, "artifact")
    parsed = parse(INDEX | {"manifests": [made.to_json()]})
    assert isinstance(parsed, Index)
    assert parsed.manifests == (made,)


@pytest.mark.parametrize(
    ("raw", "message"), [(b"dat", "has 3 bytes; its descriptor states 4"), (b"datA", f"found {Digest.of(b'datA')}")]
)
def test_raw_bytes_are_held_to_their_descriptor(raw: bytes, message: str) -> None:
    at = Descriptor("t", Digest.of(b"data"), 4)
    check_raw(b"data", at, "it")
    with pytest.raises(VerificationError, match=message):
        check_raw(raw, at, "it")


def test_canonical_json_is_one_form() -> None:
    assert canonical_json({"b": [1, "ü\n"], "a": {"d": None, "c": True}}) == (
        '{"a":{"c":true,"d":null},"b":[1,"ü\\n"]}'.encode()
    )


def test_what_was_parsed_cannot_be_changed() -> None:
    parsed = parse(MANIFEST | {"annotations": {"a": "b"}})
    with pytest.raises(TypeError):
        parsed.annotations["a"] = "c"  # type: ignore[index]
