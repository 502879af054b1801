"""Blobs to and from a registry that breaks off, lies, or asks to wait."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path

import pytest

from shim.errors import FormatError, NotFound, Refused, StatefulPodsError, Unavailable, VerificationError
from shim.image import model
from shim.image.digest import Digest
from shim.image.model import Descriptor, Index, Manifest, parse_manifest
from shim.image.registry import RegistryRepository
from shim.image.retry import Retry
from tests.raw_server import ENDLESS, SENSELESS, endless, raw_server
from tests.registries import (
    NAME,
    PASSING_FAILURES,
    Change,
    Configure,
    Connect,
    FaultyRegistry,
    Request,
    Response,
    body,
    docker_config,
    drop,
    headers,
    status,
)
from tests.shim.images import BLOB, LAYER, descriptor, image, read, upload


def serve(registry: FaultyRegistry, manifest: Manifest | Index, tag: str = "latest") -> Manifest | Index:
    registry.add_manifest(NAME, manifest.raw, manifest.media_type, tag)
    return manifest


# --- downloads


def blob_fault(*changes: Change) -> Change:
    """Apply each of `changes` to one request after another."""
    left = list(changes)
    return lambda request, response: left.pop(0)(request, response)


@pytest.mark.parametrize("length", [True, False])
def test_a_broken_download_goes_on_where_it_was(
    faulty_registry: FaultyRegistry, connect: Connect, length: bool
) -> None:
    faulty_registry.add_blob(BLOB)
    cut = body(lambda data: data[: 1 << 20], length=False)
    faulty_registry.fault("GET", "blobs", drop(1 << 20) if length else cut)
    faulty_registry.fault("GET", "blobs", drop(100))
    assert read(connect(faulty_registry), descriptor(BLOB)) == BLOB
    assert [request.headers.get("range") for request in faulty_registry.requests] == [
        None,
        f"bytes={1 << 20}-",
        f"bytes={(1 << 20) + 100}-",
    ]


RANGES: dict[str, Change] = {
    "the Range is ignored": lambda _request, _response: Response(200, {}, BLOB),
    "another start": headers(Content_Range=f"bytes 5-{len(BLOB) - 1}/{len(BLOB)}"),
    "another size": headers(Content_Range=f"bytes 1000-{len(BLOB) - 1}/{len(BLOB) + 1}"),
    "no Content-Range": headers(Content_Range=None),
    "nonsense": headers(Content_Range="items 1000-2000/*"),
    "416": status(416),
    "403 for a Range": status(400),
}


@pytest.mark.parametrize("change", RANGES.values(), ids=RANGES)
def test_a_broken_download_survives_a_wrong_answer_to_its_range(
    faulty_registry: FaultyRegistry, connect: Connect, change: Change
) -> None:
    faulty_registry.add_blob(BLOB)
    faulty_registry.fault("GET", "blobs", blob_fault(drop(1000), change), times=2)
    assert read(connect(faulty_registry), descriptor(BLOB)) == BLOB


def test_a_range_that_is_glued_from_another_file_is_found(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.add_blob(BLOB)
    flip = body(lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    faulty_registry.fault("GET", "blobs", blob_fault(drop(1000), flip), times=2)
    with pytest.raises(VerificationError, match="does not match its digest"):
        read(connect(faulty_registry), descriptor(BLOB))


LIES: dict[str, tuple[Change, str]] = {
    "flipped": (body(lambda data: b"\0" + data[1:]), "does not match its digest"),
    "short": (body(lambda data: data[:-1]), "ended after"),
    "empty": (body(lambda data: b""), "ended after 0 bytes"),
    "long": (body(lambda data: data + b"\0"), "is longer than"),
    "long without length": (body(lambda data: data + b"\0", length=False), "is longer than"),
    "an error page with 200": (body(lambda data: b"<html>try later</html>"), "ended after"),
}


@pytest.mark.parametrize(("change", "message"), LIES.values(), ids=LIES)
def test_other_bytes_than_the_promised_are_never_taken_for_the_blob(
    faulty_registry: FaultyRegistry, connect: Connect, change: Change, message: str
) -> None:
    faulty_registry.add_blob(BLOB)
    faulty_registry.fault("GET", "blobs", change)
    with pytest.raises(VerificationError, match=message):
        read(connect(faulty_registry), descriptor(BLOB))


def test_bytes_that_call_themselves_gzip_are_not_decoded(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.add_blob(BLOB)
    faulty_registry.fault("GET", "blobs", headers(Content_Encoding="gzip"))
    assert read(connect(faulty_registry), descriptor(BLOB)) == BLOB
    assert faulty_registry.requests[0].headers["accept-encoding"] == "identity"


def test_a_connection_that_breaks_every_time_ends_as_unavailable(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float]
) -> None:
    faulty_registry.add_blob(BLOB)
    faulty_registry.fault("GET", "blobs", drop(0), times=99)
    with pytest.raises(Unavailable, match="tried 4 times"):
        read(connect(faulty_registry), descriptor(BLOB))
    assert len(sleeps) == 3


def test_a_download_that_only_trickles_is_given_up(faulty_registry: FaultyRegistry) -> None:
    faulty_registry.add_blob(BLOB)
    now = iter(range(0, 100_000, 100))
    repository = RegistryRepository(faulty_registry.host, NAME, retry=Retry(clock=lambda: float(next(now))))
    with pytest.raises(Unavailable, match="300 s"), repository.open_blob(descriptor(BLOB)) as reader:
        while reader.read(1000):
            pass


def test_an_upload_that_only_trickles_is_given_up(faulty_registry: FaultyRegistry) -> None:
    now = iter(range(0, 100_000, 100))
    retry = Retry(clock=lambda: float(next(now)))
    with pytest.raises(Unavailable, match="did not finish in 396 s"):
        upload(RegistryRepository(faulty_registry.host, NAME, push=True, retry=retry), BLOB)
    assert faulty_registry.blobs == {}


def test_a_connection_that_breaks_again_and_again_is_given_up_whatever_it_delivered(
    faulty_registry: FaultyRegistry, connect: Connect
) -> None:
    blob = bytes(25 << 20)
    faulty_registry.add_blob(blob)
    faulty_registry.fault("GET", "blobs", drop((1 << 20) + 1), times=99)
    with pytest.raises(Unavailable, match="tried 20 times"):
        read(connect(faulty_registry), descriptor(blob))


def test_a_blob_that_is_not_there_is_not_found_at_once(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    with pytest.raises(NotFound, match="GET http://127"):
        connect(faulty_registry).open_blob(descriptor(BLOB))


def test_a_blob_of_unstated_length_is_measured(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.add_blob(BLOB)
    faulty_registry.fault("HEAD", "blobs", body(lambda data: data, length=False))
    faulty_registry.fault("HEAD", "blobs", body(lambda data: data, length=False))
    repository = connect(faulty_registry)
    assert repository.has_blob(descriptor(BLOB))
    assert not repository.has_blob(Descriptor(LAYER, Digest.of(BLOB), len(BLOB) - 1))


def test_progress_is_told_for_both_directions(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    told: list[tuple[str, int, int | None]] = []
    repository = connect(faulty_registry, push=True, progress=lambda *step: told.append(step))
    read(repository, upload(repository, BLOB))
    short = str(Digest.of(BLOB))[:19]
    for verb in ("upload", "download"):
        steps = [step for step in told if step[0] == f"{verb} {short}"]
        assert steps[-1] == (f"{verb} {short}", len(BLOB), len(BLOB))
        assert [step[1] for step in steps] == sorted({step[1] for step in steps})


# --- uploads


def test_a_blob_that_is_there_already_is_not_sent(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.add_blob(BLOB)
    assert upload(connect(faulty_registry, push=True), BLOB) == descriptor(BLOB)
    assert [request.method for request in faulty_registry.requests] == ["HEAD"]


def test_leaving_the_block_without_commit_sends_nothing_and_leaves_nothing(
    faulty_registry: FaultyRegistry, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), connect(faulty_registry, push=True).new_blob() as blob:
        blob.write(BLOB)
        raise ZeroDivisionError
    assert faulty_registry.requests == []
    assert list(tmp_path.iterdir()) == []


LOCATIONS = {
    "absolute": "{url}/v2/test/image/blobs/uploads/upload-0?_state=a%2fb%2Bc%7E==",
    "a path": "/v2/test/image/blobs/uploads/upload-0?_state=a%2fb%2Bc%7E==",
    "relative": "upload-0?_state=a%2fb%2Bc%7E==",
    "relative with dots": "../uploads/upload-0?_state=a%2fb%2Bc%7E==",
    "without a scheme": "//{host}/v2/test/image/blobs/uploads/upload-0?_state=a%2fb%2Bc%7E==",
}


@pytest.mark.parametrize("location", LOCATIONS.values(), ids=LOCATIONS)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_location_of_an_upload_is_followed_byte_for_byte(
    faulty_registry: FaultyRegistry,
    store: FaultyRegistry,
    connect: Connect,
    configure: Configure,
    location: str,
    elsewhere: bool,
) -> None:
    faulty_registry.auth = "basic"
    configure(docker_config(faulty_registry.host))
    there = store if elsewhere and "{" in location else faulty_registry
    faulty_registry.fault("POST", "uploads", headers(Location=location.format(url=there.url, host=there.host)))
    assert upload(connect(faulty_registry, push=True), BLOB) == descriptor(BLOB)
    assert faulty_registry.blobs[str(Digest.of(BLOB))] == BLOB
    put = there.seen("PUT")[0]
    assert put.target == (
        f"/v2/test/image/blobs/uploads/upload-0?_state=a%2fb%2Bc%7E==&digest=sha256%3A{Digest.of(BLOB).encoded}"
    )
    assert (put.authorization is None) == (there is store)


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/x", "http://user:pw@127.0.0.1/x", "http://[/x", "/a b", "/\x7f"])
def test_a_malformed_location_is_refused(faulty_registry: FaultyRegistry, connect: Connect, location: str) -> None:
    faulty_registry.fault("POST", "uploads", headers(Location=location))
    with pytest.raises(FormatError, match="malformed"):
        upload(connect(faulty_registry, push=True), BLOB)


def test_an_upload_without_location_is_refused(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.fault("POST", "uploads", headers(Location=None))
    with pytest.raises(Refused, match="POST http"):
        upload(connect(faulty_registry, push=True), BLOB)


@pytest.mark.parametrize("change", PASSING_FAILURES.values(), ids=PASSING_FAILURES)
@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_a_passing_failure_of_an_upload_is_cured_by_another_attempt(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float], method: str, change: Change
) -> None:
    faulty_registry.fault(method, "blobs", change)
    upload(connect(faulty_registry, push=True), BLOB)
    assert faulty_registry.blobs[str(Digest.of(BLOB))] == BLOB
    assert len(sleeps) == 1


def test_an_upload_that_arrived_although_its_answer_did_not_is_not_sent_again(
    faulty_registry: FaultyRegistry, connect: Connect
) -> None:
    faulty_registry.fault("PUT", "uploads", drop(-1))  # it is stored before the connection ends
    upload(connect(faulty_registry, push=True), BLOB)
    assert len(faulty_registry.seen("PUT")) == 1


def test_an_upload_that_another_replica_does_not_know_starts_again(
    faulty_registry: FaultyRegistry, connect: Connect
) -> None:
    def forget(_request: Request, _response: Response) -> Response:
        faulty_registry.blobs.clear()
        return Response(404)

    faulty_registry.fault("PUT", "uploads", forget)
    upload(connect(faulty_registry, push=True), BLOB)
    assert len(faulty_registry.seen("POST")) == 2
    assert faulty_registry.blobs[str(Digest.of(BLOB))] == BLOB


def test_the_body_starts_again_after_a_401(
    faulty_registry: FaultyRegistry, connect: Connect, configure: Configure
) -> None:
    faulty_registry.auth, faulty_registry.token_uses = "bearer", 2  # HEAD and POST
    upload(connect(faulty_registry, push=True), BLOB)
    assert [request.length for request in faulty_registry.seen("PUT")] == [len(BLOB), len(BLOB)]
    assert faulty_registry.blobs[str(Digest.of(BLOB))] == BLOB


@pytest.mark.parametrize("what", ["blob", "manifest"])
def test_a_registry_that_stored_something_else_is_refused(
    faulty_registry: FaultyRegistry, connect: Connect, what: str
) -> None:
    other = "sha256:" + "0" * 64
    faulty_registry.fault("PUT", "", headers(Docker_Content_Digest=other))
    repository = connect(faulty_registry, push=True)
    with pytest.raises(VerificationError, match=f"the registry stored {other}"):
        if what == "blob":
            upload(repository, BLOB)
        else:
            repository.put_manifest(image(), "latest")


def test_a_manifest_is_sent_as_it_is_with_its_type(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    raw = json.dumps(json.loads(image(model.DOCKER_MANIFEST).raw), indent=3).encode()
    manifest = parse_manifest(raw, model.DOCKER_MANIFEST, "an image")
    connect(faulty_registry, push=True).put_manifest(manifest)
    assert faulty_registry.manifests == {(NAME, str(Digest.of(raw))): (model.DOCKER_MANIFEST, raw)}


@pytest.mark.parametrize("number", [400, 404, 409, 413, 422])
def test_a_refused_manifest_shows_what_the_registry_said(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float], number: int
) -> None:
    said = json.dumps({"errors": [{"code": "MANIFEST_INVALID", "message": "blob\x1b[2J\nunknown"}]}).encode()
    faulty_registry.fault("PUT", "", lambda _request, _response: Response(number, body=said))
    with pytest.raises(Refused) as caught:
        connect(faulty_registry, push=True).put_manifest(image(), "latest")
    assert str(caught.value) == (
        f"PUT {faulty_registry.url}/v2/{NAME}/manifests/latest: HTTP {number}: "
        r"MANIFEST_INVALID: blob\x1b[2J\nunknown"
    )
    assert sleeps == []


def test_an_endless_error_page_is_not_read(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    page = body(lambda _: b"x" * (8 << 20))
    faulty_registry.fault("GET", "", lambda request, _: page(request, Response(418)))
    with pytest.raises(Refused, match=r"HTTP 418$"):
        connect(faulty_registry).manifest("latest")


# --- retries


@pytest.mark.parametrize("number", [429, 503])
@pytest.mark.parametrize(("wait", "slept"), [("7", 7.0), ("0", 0.0), (formatdate(0, usegmt=True), 0.0)])
def test_retry_after_is_honoured(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float], number: int, wait: str, slept: float
) -> None:
    serve(faulty_registry, image())
    faulty_registry.fault("GET", "manifests", status(number, Retry_After=wait))
    connect(faulty_registry).manifest("latest")
    assert sleeps == [slept]


@pytest.mark.parametrize("wait", ["31", "999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_that_asks_for_too_long_a_wait_is_unavailable(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float], wait: str
) -> None:
    faulty_registry.fault("GET", "manifests", status(429, Retry_After=wait), times=9)
    with pytest.raises(Unavailable, match=r"HTTP 429; the server asks to wait [0-9]+ s"):
        connect(faulty_registry).manifest("latest")
    assert sleeps == []


@pytest.mark.parametrize("wait", ["-5", "soon", "1e9", "٣", "9" * 5000, "Fri, 31 Dec 99999999999999999 23:59:59 GMT"])
def test_a_malformed_retry_after_is_no_reason_to_wait_long(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float], wait: str
) -> None:
    serve(faulty_registry, image())
    faulty_registry.fault("GET", "manifests", status(429, Retry_After=wait.encode().decode("latin-1")))
    connect(faulty_registry).manifest("latest")
    assert len(sleeps) == 1
    assert sleeps[0] <= 0.5


@pytest.mark.parametrize("change", [*PASSING_FAILURES.values(), drop(10)], ids=[*PASSING_FAILURES, "short"])
def test_retries_are_few_and_grow_with_jitter(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float], change: Change
) -> None:
    serve(faulty_registry, image())
    faulty_registry.fault("GET", "manifests", change, times=99)
    with pytest.raises(Unavailable, match=r"GET http://127.*tried 4 times\); try again later"):
        connect(faulty_registry).manifest("latest")
    assert len(faulty_registry.requests) == 4
    for slept, most in zip(sleeps, (0.5, 1.0, 2.0), strict=True):
        assert most / 2 <= slept <= most


def test_a_refused_connection_is_not_retried_for_minutes(connect: Connect, sleeps: list[float]) -> None:
    with FaultyRegistry() as registry:
        repository = connect(registry)
    with pytest.raises(Unavailable, match="Connection refused"):
        repository.resolve("latest")
    assert sum(sleeps) <= 5


@pytest.mark.parametrize("pause", [0.02, 0.0])
@pytest.mark.parametrize("name", ENDLESS)
def test_an_answer_that_never_ends_is_given_up(name: str, pause: float) -> None:
    with raw_server(endless(name, pause)) as host:
        repository = RegistryRepository(host, NAME, retry=Retry(seconds=0.3))
        with pytest.raises((Unavailable, Refused)):
            repository.resolve("latest")
        with pytest.raises((Unavailable, Refused)):
            read(repository, descriptor(BLOB))


def test_the_body_of_a_redirect_is_neither_decoded_nor_read_to_its_end() -> None:
    bomb = gzip.compress(bytes(1 << 20))

    def answer(send: Callable[[bytes], None]) -> None:
        send(b"HTTP/1.1 307 x\r\nLocation: /x\r\nContent-Encoding: gzip\r\n\r\n")
        while True:
            send(bomb)

    with raw_server(answer) as host, pytest.raises(Refused, match="more than 5 redirects"):
        RegistryRepository(host, NAME).resolve("latest")


@pytest.mark.parametrize("answer", SENSELESS.values(), ids=SENSELESS)
def test_an_answer_that_makes_no_sense_is_one_of_our_errors(answer: bytes) -> None:
    with raw_server(lambda send: send(answer)) as host:
        repository = RegistryRepository(host, NAME, push=True, retry=Retry(sleep=lambda _: None))
        for reads in (lambda: repository.manifest("latest"), lambda: read(repository, descriptor(BLOB))):
            with pytest.raises(StatefulPodsError) as caught:
                reads()
            assert str(caught.value).isprintable()
        for writes in (lambda: upload(repository, BLOB), lambda: repository.put_manifest(image(), "latest")):
            with suppress(StatefulPodsError):  # a 200 is one, whatever else there is
                writes()


def test_the_deadline_of_the_whole_ends_the_retries(faulty_registry: FaultyRegistry) -> None:
    now = iter([0.0, 299.9, 1000.0])
    repository = RegistryRepository(
        faulty_registry.host, NAME, retry=Retry(clock=lambda: next(now), sleep=lambda _: pytest.fail("it slept"))
    )
    faulty_registry.fault("GET", "manifests", status(503, Retry_After="20"), times=99)
    with pytest.raises(Unavailable, match="gave up, because 300 s are over"):
        repository.manifest("latest")
