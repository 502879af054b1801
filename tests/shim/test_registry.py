"""The registry client, against Debian's registry and against one that lies about manifests and tags."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shim.errors import FormatError, NotFound, Refused, VerificationError
from shim.image import model
from shim.image.digest import Digest
from shim.image.model import Descriptor, Index, Manifest, canonical_json, parse_manifest
from shim.image.registry import RegistryRepository
from shim.image.repository import Repository
from tests.registries import (
    NAME,
    PASSWORD,
    USERNAME,
    Configure,
    Connect,
    FaultyRegistry,
    RegistryAt,
    Response,
    body,
    docker_config,
    headers,
    status,
)
from tests.shim.images import BLOB, LAYER, descriptor, image, read, upload


def serve(registry: FaultyRegistry, manifest: Manifest | Index, tag: str = "latest") -> Manifest | Index:
    registry.add_manifest(NAME, manifest.raw, manifest.media_type, tag)
    return manifest


# --- a real registry


@pytest.mark.parametrize("kind", ["docker_registry", "docker_registry_auth"])
def test_what_was_written_to_a_real_registry_is_read_back(
    kind: str, request: pytest.FixtureRequest, configure: Configure
) -> None:
    at: RegistryAt = request.getfixturevalue(kind)
    if kind == "docker_registry_auth":
        configure(docker_config(at.host))
    repository: Repository = RegistryRepository(at.host, at.repository, push=True)
    assert repository.name == at.name
    assert repository.tags() == []
    assert repository.resolve("latest") is None
    layer, config = upload(repository, BLOB), repository.put_blob(b"{}", model.OCI_CONFIG)
    assert (layer, config) == (descriptor(BLOB), descriptor(b"{}", model.OCI_CONFIG))
    manifest = image()
    repository.put_manifest(manifest)
    repository.put_manifest(manifest, "latest")
    index = canonical_json(
        {"schemaVersion": 2, "mediaType": model.OCI_INDEX, "manifests": [manifest.descriptor.to_json()]}
    )
    repository.put_manifest(parse_manifest(index, None, "an index"), "all")
    assert repository.tags() == ["all", "latest"]
    assert repository.resolve("latest") == manifest.descriptor.digest
    references: list[Descriptor | Digest | str] = ["latest", manifest.descriptor, manifest.descriptor.digest]
    for reference in references:
        assert repository.manifest(reference) == manifest
    assert repository.manifest("all").raw == index
    assert read(repository, layer) == BLOB
    assert repository.has_blob(layer)
    assert not repository.has_blob(Descriptor(LAYER, layer.digest, layer.size + 1))
    assert not repository.has_blob(descriptor(b"absent"))


def test_an_empty_blob_goes_to_a_real_registry(docker_registry: RegistryAt) -> None:
    repository = RegistryRepository(docker_registry.host, docker_registry.repository, push=True)
    assert read(repository, upload(repository, b"")) == b""


def test_a_tag_moves(docker_registry: RegistryAt) -> None:
    repository = RegistryRepository(docker_registry.host, docker_registry.repository, push=True)
    upload(repository, BLOB)
    repository.put_blob(b"{}", model.OCI_CONFIG)
    first, second = image(), image(annotations={"a": "b"})
    repository.put_manifest(first, "latest")
    repository.put_manifest(second, "latest")
    assert repository.resolve("latest") == second.descriptor.digest


@pytest.mark.parametrize(("password", "message"), [(None, "without credentials"), ("wrong", "with those for")])
def test_a_real_registry_that_refuses_us_is_named_with_the_remedy(
    docker_registry_auth: RegistryAt, configure: Configure, password: str | None, message: str
) -> None:
    at = docker_registry_auth
    if password:
        configure(docker_config(at.host, USERNAME, password))
    repository = RegistryRepository(at.host, at.repository, push=True)
    with pytest.raises(Refused, match=f"docker login {at.host}") as caught:
        repository.put_blob(b"data", LAYER)
    assert message in str(caught.value)
    assert f"repository:{at.repository}:pull,push" in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
def test_skopeo_reads_what_we_wrote(docker_registry: RegistryAt, tmp_path: Path) -> None:
    repository = RegistryRepository(docker_registry.host, docker_registry.repository, push=True)
    layer = repository.put_blob(b"\0" * 1024, model.OCI_LAYER)
    config = repository.put_blob(
        canonical_json(
            {
                "architecture": "arm64",
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [str(layer.digest)]},
            }
        ),
        model.OCI_CONFIG,
    )
    manifest = image(config=config.to_json(), layers=[layer.to_json()])
    repository.put_manifest(manifest, "latest")
    source = f"docker://{docker_registry.name}:latest"
    inspected = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", source], capture_output=True, check=True, timeout=60
    )
    assert json.loads(inspected.stdout)["Digest"] == str(manifest.descriptor.digest)
    options = ["-q", "--preserve-digests", "--insecure-policy", "--src-tls-verify=false"]
    subprocess.run(["skopeo", "copy", *options, source, f"oci:{tmp_path}/copy:latest"], check=True, timeout=60)
    assert (tmp_path / "copy" / "blobs" / "sha256" / layer.digest.encoded).read_bytes() == b"\0" * 1024


# --- reading: digests, sizes, types


def test_raw_bytes_are_kept_however_they_are_written(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    raw = json.dumps(json.loads(image().raw), indent=7).encode() + b"\n"
    serve(faulty_registry, parse_manifest(raw, None, "an image"))
    assert connect(faulty_registry).manifest("latest").raw == raw
    assert connect(faulty_registry).resolve("latest") == Digest.of(raw)


def test_accept_lists_the_types_of_both_worlds(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    serve(faulty_registry, image())
    connect(faulty_registry).manifest("latest")
    accept = faulty_registry.requests[-1].headers["accept"].split(", ")
    assert set(accept) == {model.OCI_INDEX, model.OCI_MANIFEST, model.DOCKER_LIST, model.DOCKER_MANIFEST}


@pytest.mark.parametrize("by", ["descriptor", "digest", "tag"])
def test_a_manifest_with_one_flipped_byte_is_refused(
    faulty_registry: FaultyRegistry, connect: Connect, by: str
) -> None:
    manifest = serve(faulty_registry, image(annotations={"key": "value"}))
    faulty_registry.fault("GET", "manifests", body(lambda raw: raw.replace(b"value", b"vblue")))
    at: Descriptor | Digest | str = "latest"
    if by != "tag":
        at = manifest.descriptor if by == "descriptor" else manifest.descriptor.digest
    with pytest.raises(VerificationError) as caught:
        connect(faulty_registry).manifest(at)
    assert str(manifest.descriptor.digest) in str(caught.value)
    assert str(Digest.of(manifest.raw.replace(b"value", b"vblue"))) in str(caught.value)


def test_the_size_of_a_manifest_is_checked_too(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    at = serve(faulty_registry, image()).descriptor
    with pytest.raises(VerificationError, match=f"its descriptor states {at.size + 1}"):
        connect(faulty_registry).manifest(Descriptor(at.media_type, at.digest, at.size + 1))


def test_a_manifest_of_another_type_than_its_descriptor_states_is_refused(
    faulty_registry: FaultyRegistry, connect: Connect
) -> None:
    at = serve(faulty_registry, image()).descriptor
    with pytest.raises(FormatError, match=r"its descriptor states .*docker"):
        connect(faulty_registry).manifest(Descriptor(model.DOCKER_MANIFEST, at.digest, at.size))


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        (model.OCI_INDEX, "was announced as"),
        ("application/vnd.docker.distribution.manifest.v1+prettyjws", "was announced as"),
    ],
)
def test_a_manifest_that_is_announced_as_something_else_is_refused(
    faulty_registry: FaultyRegistry, connect: Connect, content_type: str, message: str
) -> None:
    serve(faulty_registry, image())
    faulty_registry.fault("GET", "manifests", headers(Content_Type=content_type))
    with pytest.raises(FormatError, match=message):
        connect(faulty_registry).manifest("latest")


@pytest.mark.parametrize("content_type", [None, "application/json", f"{model.OCI_MANIFEST}; charset=utf-8"])
def test_a_manifest_that_says_what_it_is_needs_no_content_type(
    faulty_registry: FaultyRegistry, connect: Connect, content_type: str | None
) -> None:
    manifest = serve(faulty_registry, image())
    faulty_registry.fault("GET", "manifests", headers(Content_Type=content_type))
    assert connect(faulty_registry).manifest("latest") == manifest


@pytest.mark.parametrize(
    "raw",
    [
        b"<html>moved</html>",
        b"",
        b"[]",
        b"\xff",
        b'{"schemaVersion":1}',
        b'{"schemaVersion":2,"layers":[],"manifests":[]}',
    ],
)
def test_a_body_that_is_no_manifest_is_refused(faulty_registry: FaultyRegistry, connect: Connect, raw: bytes) -> None:
    serve(faulty_registry, image())
    faulty_registry.fault(
        "GET", "manifests", lambda _request, _response: Response(200, {"Content-Type": model.OCI_MANIFEST}, raw)
    )
    with pytest.raises(FormatError):
        connect(faulty_registry).manifest("latest")


@pytest.mark.parametrize("length", [True, False])
def test_a_manifest_without_end_is_not_read_to_its_end(
    faulty_registry: FaultyRegistry, connect: Connect, length: bool
) -> None:
    serve(faulty_registry, image())
    faulty_registry.fault("GET", "manifests", body(lambda raw: raw + b" " * (5 << 20), length=length))
    with pytest.raises(FormatError, match="longer than 4194304 bytes"):
        connect(faulty_registry).manifest("latest")


@pytest.mark.parametrize("at", ["absent", Digest.of(b"absent"), descriptor(b"absent", model.OCI_MANIFEST)])
def test_a_manifest_that_is_not_there_is_not_found(
    faulty_registry: FaultyRegistry, connect: Connect, at: Descriptor | Digest | str
) -> None:
    with pytest.raises(NotFound, match=f"127.0.0.1.*{NAME}"):
        connect(faulty_registry).manifest(at)


@pytest.mark.parametrize("tag", ["", "../../blobs", "a/b", "sha256:" + "0" * 64, "a?b", "a\r\nX: y", "x" * 129, ".a"])
def test_a_malformed_tag_never_becomes_a_url(faulty_registry: FaultyRegistry, connect: Connect, tag: str) -> None:
    repository = connect(faulty_registry)
    for use in (repository.resolve, repository.manifest, lambda tag: repository.put_manifest(image(), tag)):
        with pytest.raises(FormatError, match="malformed tag"):
            use(tag)
    assert faulty_registry.requests == []


# --- tags to digests


@pytest.mark.parametrize("refusal", [400, 405, 406, 501])
def test_a_registry_without_head_is_asked_by_get(
    faulty_registry: FaultyRegistry, connect: Connect, refusal: int
) -> None:
    manifest = serve(faulty_registry, image())
    faulty_registry.add_blob(BLOB)
    faulty_registry.fault("HEAD", "", status(refusal), times=9)
    repository = connect(faulty_registry)
    assert repository.resolve("latest") == manifest.descriptor.digest
    assert repository.resolve("absent") is None
    assert repository.has_blob(descriptor(BLOB))
    assert not repository.has_blob(descriptor(b"absent"))


@pytest.mark.parametrize("stated", [None, "", "sha256:short", "md5:" + "0" * 32, "SHA256:" + "0" * 64])
def test_a_tag_without_a_usable_digest_is_computed_from_the_body(
    faulty_registry: FaultyRegistry, connect: Connect, stated: str | None
) -> None:
    manifest = serve(faulty_registry, image())
    faulty_registry.fault("GET", "manifests", headers(Docker_Content_Digest=stated))
    assert connect(faulty_registry).resolve("latest") == manifest.descriptor.digest


@pytest.mark.parametrize("algorithm", ["sha256:" + "0" * 64, "sha512:" + "0" * 128])
def test_a_digest_that_contradicts_the_body_of_a_tag_is_refused_with_both(
    faulty_registry: FaultyRegistry, connect: Connect, algorithm: str
) -> None:
    serve(faulty_registry, image())
    faulty_registry.fault("GET", "manifests", headers(Docker_Content_Digest=algorithm), times=2)
    repository = connect(faulty_registry)
    for use in (repository.manifest, repository.resolve):
        with pytest.raises(
            VerificationError, match=rf"states {algorithm}, but its answer is {algorithm[:6]}:[0-9a-f]{{64}}"
        ):
            use("latest")


def test_a_tag_is_what_is_handed_out_for_it_whatever_head_says(
    faulty_registry: FaultyRegistry, connect: Connect
) -> None:
    manifest = serve(faulty_registry, image())
    faulty_registry.fault("HEAD", "manifests", headers(Docker_Content_Digest="sha256:" + "0" * 64), times=9)
    assert connect(faulty_registry).resolve("latest") == manifest.descriptor.digest
    assert [request.method for request in faulty_registry.requests] == ["GET"]


def test_a_tag_of_what_is_too_large_for_a_manifest_is_refused(
    faulty_registry: FaultyRegistry, connect: Connect
) -> None:
    faulty_registry.fault("GET", "manifests", lambda _request, _response: Response(200, body=b" " * (5 << 20)))
    with pytest.raises(FormatError, match="longer than 4194304 bytes"):
        connect(faulty_registry).resolve("latest")


@pytest.mark.parametrize("length", ["9" * 5000, "٣", "-3", "3x"])
def test_a_blob_of_malformed_length_is_measured(faulty_registry: FaultyRegistry, connect: Connect, length: str) -> None:
    faulty_registry.add_blob(BLOB)
    stated = length.encode().decode("latin-1")
    faulty_registry.fault(
        "HEAD", "blobs", lambda _request, response: replace(response, length=False).having(Content_Length=stated)
    )
    assert connect(faulty_registry).has_blob(descriptor(BLOB))


@pytest.mark.parametrize("link", ["<" * 60_000, "<>" + "; " * 30_000, "<//[::1/>; rel=next", "<a\xff>; rel=next"])
def test_a_malformed_link_to_the_next_page_neither_hangs_nor_escapes(
    faulty_registry: FaultyRegistry, connect: Connect, link: str
) -> None:
    faulty_registry.fault("GET", "tags", headers(Link=link))
    if "rel" in link:
        with pytest.raises(FormatError, match="malformed Location"):
            connect(faulty_registry).tags()
    else:
        assert connect(faulty_registry).tags() == []


def test_all_pages_of_tags_are_read_and_sorted(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    tags = [f"tag-{number:02}" for number in range(10)]
    for tag in tags:
        serve(faulty_registry, image(), tag)
    faulty_registry.page = 3
    assert connect(faulty_registry).tags() == tags
    assert len(faulty_registry.requests) == 4


@pytest.mark.parametrize("tags", [b'{"tags":null}', b'{"name":"x","tags":[]}'])
def test_a_repository_without_tags_has_none(faulty_registry: FaultyRegistry, connect: Connect, tags: bytes) -> None:
    faulty_registry.fault("GET", "tags", body(lambda _: tags))
    assert connect(faulty_registry).tags() == []


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"null", b'{"tags":{"a":1}}', b'{"tags":[1]}', b'{"tags":["../x"]}', b'{"tags":"ab"}', b"[" * 99999],
)
def test_a_malformed_list_of_tags_is_refused(faulty_registry: FaultyRegistry, connect: Connect, answer: bytes) -> None:
    faulty_registry.fault("GET", "tags", body(lambda _: answer))
    with pytest.raises(FormatError, match=r"list of tags|malformed tag"):
        connect(faulty_registry).tags()


def test_a_next_page_on_another_origin_is_refused(
    faulty_registry: FaultyRegistry, store: FaultyRegistry, connect: Connect
) -> None:
    faulty_registry.fault("GET", "tags", headers(Link=f'<{store.url}/v2/{NAME}/tags/list>; rel="next"'))
    with pytest.raises(Refused, match="is said to be elsewhere"):
        connect(faulty_registry).tags()
    assert store.requests == []


def test_a_list_of_tags_that_leads_to_itself_ends(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.fault("GET", "tags", headers(Link=f"</v2/{NAME}/tags/list>; rel=next"), times=5000)
    with pytest.raises(Refused, match="does not end"):
        connect(faulty_registry).tags()


# --- the rest


def test_one_connection_serves_many_requests(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    before = threading.active_count()
    repository = connect(faulty_registry, push=True)
    upload(repository, BLOB)
    read(repository, descriptor(BLOB))
    repository.put_manifest(image(), "latest")
    repository.resolve("latest")
    repository.resolve("absent")
    assert threading.active_count() - before <= 1  # the server has a thread for each connection


@pytest.mark.parametrize(("host", "repository"), [("a b", "x"), ("h.example.org", "../x"), ("h.example.org", "X")])
def test_a_malformed_name_is_refused_before_anything_is_asked(host: str, repository: str) -> None:
    with pytest.raises(FormatError, match="malformed"):
        RegistryRepository(host, repository)
