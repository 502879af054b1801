"""Who the registry client believes, and where its credentials may go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shim.errors import FormatError, Refused, Unavailable
from shim.image.model import Index, Manifest
from shim.image.registry import RegistryRepository
from shim.image.retry import Retry
from tests.registries import (
    NAME,
    Certificate,
    Configure,
    Connect,
    FaultyRegistry,
    Request,
    Response,
    body,
    docker_config,
    drop,
    headers,
    resolve_to_loopback,
    status,
)
from tests.shim.images import BLOB, descriptor, image, read, upload


def serve(registry: FaultyRegistry, manifest: Manifest | Index, tag: str = "latest") -> Manifest | Index:
    registry.add_manifest(NAME, manifest.raw, manifest.media_type, tag)
    return manifest


# --- authentication


@pytest.mark.parametrize(("push", "actions"), [(False, "pull"), (True, "pull,push")])
def test_the_right_scope_is_asked_for_from_the_start(
    faulty_registry: FaultyRegistry, connect: Connect, configure: Configure, push: bool, actions: str
) -> None:
    faulty_registry.auth = "bearer"
    configure(docker_config(faulty_registry.host))
    repository = connect(faulty_registry, push=push)
    assert repository.resolve("latest") is None
    if push:
        upload(repository, BLOB)
    tokens = faulty_registry.seen("GET", "^/token")
    assert [token.query for token in tokens] == [{"service": ["a service"], "scope": [f"repository:{NAME}:{actions}"]}]
    assert tokens[0].authorization is not None


def test_without_credentials_a_token_is_asked_for_anonymously(
    faulty_registry: FaultyRegistry, connect: Connect
) -> None:
    faulty_registry.auth = "bearer"
    serve(faulty_registry, image())
    assert connect(faulty_registry).manifest("latest") == image()
    assert faulty_registry.seen("GET", "^/token")[0].authorization is None


def test_a_wider_scope_in_the_challenge_is_not_asked_for(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.auth = "bearer"
    challenge = f'Bearer realm="{faulty_registry.url}/token",service="s",scope="repository:others:pull,push,delete"'
    faulty_registry.fault("GET", "manifests", headers(WWW_Authenticate=challenge))
    connect(faulty_registry).resolve("latest")
    assert faulty_registry.seen("GET", "^/token")[0].query["scope"] == [f"repository:{NAME}:pull"]


def test_an_expired_token_is_renewed_once(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.auth, faulty_registry.token_uses = "bearer", 1
    serve(faulty_registry, image())
    repository = connect(faulty_registry)
    for _ in range(3):
        assert repository.manifest("latest") == image()
    assert len(faulty_registry.seen("GET", "^/token")) == 3


def test_a_token_that_is_refused_is_not_renewed_for_ever(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float]
) -> None:
    faulty_registry.auth, faulty_registry.token_uses = "bearer", 0
    with pytest.raises(Refused, match=rf"127\.0\.0\.1:[0-9]+ refuses access \(repository:{NAME}:pull\) with HTTP 401"):
        connect(faulty_registry).resolve("latest")
    assert len(faulty_registry.requests) == 3  # without, the token, with
    assert sleeps == []


def test_a_403_is_refused_at_once(faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float]) -> None:
    said = json.dumps({"errors": [{"code": "DENIED", "message": "no"}]}).encode()
    faulty_registry.fault("PUT", "manifests", lambda _request, _response: Response(403, body=said), times=9)
    with pytest.raises(Refused, match="with HTTP 403: DENIED: no"):
        connect(faulty_registry, push=True).put_manifest(image(), "latest")
    assert len(faulty_registry.requests) == 1
    assert sleeps == []


CHALLENGES = {
    "a realm with spaces": 'Basic realm="a realm with spaces"',
    "a quoted comma": 'Basic realm="a, b=\\"c\\""',
    "lower case": "basic realm=plain",
    "beside another scheme": 'Negotiate, Basic realm="x"',
    "with parameters": 'Basic realm="x", charset="UTF-8"',
    "bare": "Basic",
}


@pytest.mark.parametrize("challenge", CHALLENGES.values(), ids=CHALLENGES)
def test_basic_authentication_is_understood(
    faulty_registry: FaultyRegistry, connect: Connect, configure: Configure, challenge: str
) -> None:
    faulty_registry.auth = "basic"
    faulty_registry.fault("GET", "", headers(WWW_Authenticate=challenge))
    configure(docker_config(faulty_registry.host))
    repository = connect(faulty_registry)
    assert repository.resolve("latest") is None
    repository.tags()
    assert [bool(request.authorization) for request in faulty_registry.requests] == [False, True, True]


def test_bearer_is_preferred_over_basic(
    faulty_registry: FaultyRegistry, connect: Connect, configure: Configure
) -> None:
    faulty_registry.auth = "bearer"
    both = f'Basic realm="x", Bearer realm="{faulty_registry.url}/token?a=b", service="s"'
    faulty_registry.fault("GET", "", headers(WWW_Authenticate=both))
    configure(docker_config(faulty_registry.host))
    connect(faulty_registry).resolve("latest")
    assert faulty_registry.seen("GET", "^/token")[0].target.startswith("/token?a=b&service=s&scope=")


@pytest.mark.parametrize("challenge", [None, "", "Negotiate", "Digest realm=x", ",,,=", 'Bearer realm="', "Bearer"])
def test_a_challenge_that_cannot_be_answered_is_refused(
    faulty_registry: FaultyRegistry, connect: Connect, challenge: str | None
) -> None:
    faulty_registry.fault("GET", "", lambda _request, _response: Response(401).having(WWW_Authenticate=challenge))
    with pytest.raises(Refused):
        connect(faulty_registry).manifest("latest")


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"token":7}', b'{"token":"a\\r\\nX: y"}', b'{"token":""}', b" " * (2 << 20)]
)
def test_a_malformed_token_is_refused(faulty_registry: FaultyRegistry, connect: Connect, answer: bytes) -> None:
    faulty_registry.auth = "bearer"
    faulty_registry.fault("GET", "^/token", body(lambda _: answer))
    with pytest.raises(FormatError, match=f"a token of 127.* for repository:{NAME}:pull"):
        connect(faulty_registry).resolve("latest")


@pytest.mark.parametrize("key", ["token", "access_token"])
def test_a_token_has_two_names(faulty_registry: FaultyRegistry, connect: Connect, key: str) -> None:
    faulty_registry.auth = "bearer"
    faulty_registry.fault("GET", "^/token", body(lambda raw: raw.replace(b'"token"', f'"{key}"'.encode())))
    assert connect(faulty_registry).resolve("latest") is None


def test_a_passing_failure_of_the_token_server_is_retried(
    faulty_registry: FaultyRegistry, connect: Connect, sleeps: list[float]
) -> None:
    faulty_registry.auth = "bearer"
    faulty_registry.fault("GET", "^/token", status(503))
    faulty_registry.fault("GET", "^/token", drop(-1))
    assert connect(faulty_registry).resolve("latest") is None
    assert len(sleeps) == 2


def test_wrong_credentials_at_the_token_server_are_refused_without_retry(
    faulty_registry: FaultyRegistry, connect: Connect, configure: Configure, sleeps: list[float]
) -> None:
    faulty_registry.auth = "bearer"
    configure(docker_config(faulty_registry.host, password="wrong"))
    with pytest.raises(Refused, match=f"docker login {faulty_registry.host}"):
        connect(faulty_registry).resolve("latest")
    assert sleeps == []


def test_an_identity_token_is_exchanged(
    faulty_registry: FaultyRegistry, connect: Connect, configure: Configure
) -> None:
    faulty_registry.auth = "bearer"
    configure(docker_config(faulty_registry.host, "<token>", "", identitytoken="identity"))
    assert connect(faulty_registry).resolve("latest") is None
    assert len(faulty_registry.seen("POST", "^/token$")) == 1


# --- where credentials may go


def authorized(registry: FaultyRegistry) -> list[Request]:
    return [request for request in registry.requests if request.authorization]


@pytest.mark.parametrize("number", [301, 302, 303, 307, 308])
def test_a_blob_on_another_origin_is_fetched_without_credentials(
    faulty_registry: FaultyRegistry, store: FaultyRegistry, connect: Connect, configure: Configure, number: int
) -> None:
    faulty_registry.auth = "basic"
    configure(docker_config(faulty_registry.host))
    digest = faulty_registry.add_blob(BLOB)
    location = f"{store.url}/v2/{NAME}/blobs/{digest}?X-Signature=a%2fb%2Bc%7e"
    for method in ("HEAD", "GET"):
        faulty_registry.fault(method, "blobs", status(number, Location=location), times=9)
    repository = connect(faulty_registry)
    repository.tags()  # authenticates
    store.fault("GET", "blobs", drop(1000))
    assert repository.has_blob(descriptor(BLOB))
    assert read(repository, descriptor(BLOB)) == BLOB
    assert authorized(store) == []
    assert {request.target.partition("?")[2] for request in store.requests} == {"X-Signature=a%2fb%2Bc%7e"}
    assert store.requests[-1].headers["range"] == "bytes=1000-"
    assert all(request.authorization for request in faulty_registry.seen("GET", "blobs"))


def test_a_challenge_from_another_origin_is_not_answered(
    faulty_registry: FaultyRegistry, store: FaultyRegistry, connect: Connect, configure: Configure
) -> None:
    store.auth = "basic"
    configure(docker_config(faulty_registry.host) | docker_config(store.host))
    digest = faulty_registry.add_blob(BLOB)
    faulty_registry.fault("GET", "blobs", status(307, Location=f"{store.url}/v2/{NAME}/blobs/{digest}"))
    with pytest.raises(Refused, match=f"GET {store.url}.*HTTP 401"):
        connect(faulty_registry).open_blob(descriptor(BLOB))
    assert authorized(store) == []


def test_a_blob_store_that_signs_for_get_only_is_asked_by_get(
    faulty_registry: FaultyRegistry, store: FaultyRegistry, connect: Connect
) -> None:
    digest = faulty_registry.add_blob(BLOB)
    location = f"{store.url}/v2/{NAME}/blobs/{digest}"
    for method in ("HEAD", "GET"):
        faulty_registry.fault(method, "blobs", status(307, Location=location))
    store.fault("HEAD", "", status(403))
    assert connect(faulty_registry).has_blob(descriptor(BLOB))


def test_redirects_end(faulty_registry: FaultyRegistry, connect: Connect) -> None:
    faulty_registry.fault("GET", "", status(307, Location=f"/v2/{NAME}/manifests/latest"), times=99)
    with pytest.raises(Refused, match="more than 5 redirects"):
        connect(faulty_registry).manifest("latest")
    assert len(faulty_registry.requests) == 6


@pytest.mark.parametrize("number", [301, 302, 303])
def test_a_redirect_that_would_turn_a_put_into_a_get_is_refused(
    faulty_registry: FaultyRegistry, connect: Connect, number: int
) -> None:
    faulty_registry.fault("PUT", "", status(number, Location="/elsewhere"))
    with pytest.raises(Refused, match="another request"):
        connect(faulty_registry, push=True).put_manifest(image(), "latest")


def test_a_redirect_never_leaves_https(trusted: Certificate, connect: Connect, store: FaultyRegistry) -> None:
    with FaultyRegistry(tls=trusted) as registry:
        registry.fault("GET", "blobs", status(307, Location=f"{store.url}/x"))
        with pytest.raises(Refused, match="not https; nothing was sent there"):
            connect(registry).open_blob(descriptor(BLOB))
    assert store.requests == []


@pytest.mark.parametrize(
    "location", ["http://registry.example.org/x", "http://10.0.0.1/x", "http://x.local.example.org/"]
)
def test_plain_http_leads_to_loopback_only(faulty_registry: FaultyRegistry, connect: Connect, location: str) -> None:
    faulty_registry.fault("POST", "", headers(Location=location))
    with pytest.raises(Refused, match="not https"):
        upload(connect(faulty_registry, push=True), BLOB)


def test_a_realm_without_tls_gets_nothing_from_a_registry_with_it_elsewhere(
    faulty_registry: FaultyRegistry, connect: Connect, configure: Configure
) -> None:
    faulty_registry.auth, faulty_registry.realm = "bearer", "http://auth.example.org/token"
    configure(docker_config(faulty_registry.host))
    with pytest.raises(Refused, match=r"names the token server http://auth\.example\.org/token, which is not https"):
        connect(faulty_registry).resolve("latest")


def test_credentials_follow_a_foreign_realm_over_https(
    trusted: Certificate, faulty_registry: FaultyRegistry, connect: Connect, configure: Configure
) -> None:
    # Docker does so too: a registry and its token server are often two hosts, and the registry is the one to say which.
    configure(docker_config(faulty_registry.host))
    with FaultyRegistry(tls=trusted) as tokens:
        faulty_registry.auth, faulty_registry.realm = "bearer", f"{tokens.url}/token"
        faulty_registry._tokens = tokens._tokens
        assert connect(faulty_registry).resolve("latest") is None
        assert [request.path for request in authorized(tokens)] == ["/token"]


def test_the_token_server_may_not_send_us_elsewhere(
    faulty_registry: FaultyRegistry, store: FaultyRegistry, connect: Connect, configure: Configure
) -> None:
    faulty_registry.auth = "bearer"
    configure(docker_config(faulty_registry.host))
    faulty_registry.fault("GET", "^/token", status(307, Location=f"{store.url}/token"))
    with pytest.raises(Refused, match="HTTP 307"):
        connect(faulty_registry).resolve("latest")
    assert store.requests == []


def test_over_plain_http_to_another_host_no_credentials_are_sent(
    faulty_registry: FaultyRegistry, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_registry.auth = "basic"
    host = faulty_registry.host.replace("127.0.0.1", "registry.local")
    resolve_to_loopback(monkeypatch)
    configure(docker_config(host))
    with pytest.raises(Refused, match="over plain http none are sent to another machine"):
        RegistryRepository(host, NAME).resolve("latest")
    assert authorized(faulty_registry) == []
    assert faulty_registry.requests[0].headers["host"] == host


def test_netrc_is_never_used(
    faulty_registry: FaultyRegistry, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login somebody password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    faulty_registry.auth = "bearer"
    connect(faulty_registry).resolve("latest")
    assert [request.authorization for request in faulty_registry.requests] == [None, None, "Bearer token-0"]


@pytest.mark.parametrize("cookie", ["session=1; Path=/", "a=b; Max-Age", "a=b; Expires=Mon, 30 Non 2026 12:00:30 GMT"])
def test_cookies_are_not_kept(faulty_registry: FaultyRegistry, connect: Connect, cookie: str) -> None:
    faulty_registry.fault("GET", "", headers(Set_Cookie=cookie))
    repository = connect(faulty_registry)
    repository.resolve("latest")
    repository.resolve("latest")
    assert all("cookie" not in request.headers for request in faulty_registry.requests)


# --- TLS and proxies


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_https_is_spoken_where_it_can_be_even_on_loopback(
    certificate: Certificate, connect: Connect, monkeypatch: pytest.MonkeyPatch, variable: str, name: str
) -> None:
    monkeypatch.setenv(variable, str(certificate.certificate))
    with FaultyRegistry(tls=certificate) as registry:
        registry.host = registry.host.replace("127.0.0.1", name)
        repository = connect(registry, push=True)
        assert read(repository, upload(repository, BLOB)) == BLOB


def test_a_certificate_that_is_not_trusted_is_refused_at_once_and_not_by_plain_http(
    certificate: Certificate, connect: Connect, sleeps: list[float]
) -> None:
    with FaultyRegistry(tls=certificate) as registry:
        with pytest.raises(Refused, match=r"certificate is not trusted: self-signed.*REQUESTS_CA_BUNDLE"):
            connect(registry).resolve("latest")
        assert registry.requests == []
    assert sleeps == []


def test_a_ca_bundle_that_does_not_exist_is_refused(
    certificate: Certificate, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    with FaultyRegistry(tls=certificate) as registry, pytest.raises(Refused, match="/nonexistent"):
        connect(registry).resolve("latest")


@pytest.mark.parametrize("host", ["registry.example.org", "local", "notlocalhost", "a.local.example.org", "192.0.2.1"])
def test_other_hosts_are_never_spoken_to_in_the_clear(
    faulty_registry: FaultyRegistry, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    resolve_to_loopback(monkeypatch)
    port = faulty_registry.host.partition(":")[2]
    repository = RegistryRepository(f"{host}:{port}", NAME, retry=Retry(sleep=lambda _: None))
    with pytest.raises(Unavailable, match=f"GET https://{host}:{port}/"):
        repository.resolve("latest")
    assert faulty_registry.requests == []


@pytest.mark.parametrize("host", ["registry.local", "a.b.localhost"])
def test_local_names_may_be_plain(faulty_registry: FaultyRegistry, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    resolve_to_loopback(monkeypatch)
    name = faulty_registry.host.replace("127.0.0.1", host)
    assert RegistryRepository(name, NAME).resolve("latest") is None


def test_the_environment_names_the_proxy_which_sees_no_credentials(
    monkeypatch: pytest.MonkeyPatch, faulty_registry: FaultyRegistry, configure: Configure
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", faulty_registry.url)
    configure(docker_config("registry.example.org"))
    repository = RegistryRepository("registry.example.org", NAME, retry=Retry(tries=1))
    with pytest.raises(Unavailable, match="no answer"):
        repository.resolve("latest")
    assert [(request.method, request.target) for request in faulty_registry.requests] == [
        ("CONNECT", "registry.example.org:443")
    ]
    assert authorized(faulty_registry) == []


def test_no_proxy_is_honoured(monkeypatch: pytest.MonkeyPatch, faulty_registry: FaultyRegistry) -> None:
    resolve_to_loopback(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", faulty_registry.url)
    monkeypatch.setenv("NO_PROXY", "example.org")
    with pytest.raises(Unavailable):
        RegistryRepository("registry.example.org:1", NAME, retry=Retry(tries=1)).resolve("latest")
    assert faulty_registry.requests == []


def test_a_proxy_is_not_asked_for_loopback(
    monkeypatch: pytest.MonkeyPatch, faulty_registry: FaultyRegistry, store: FaultyRegistry, connect: Connect
) -> None:
    monkeypatch.setenv("HTTP_PROXY", store.url)
    connect(faulty_registry).resolve("latest")
    assert store.requests == []
