"""What `docker login` wrote, and what is made of it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from shim.errors import FormatError
from shim.image import credentials
from tests.registries import Configure

HOST = "registry.example.org:5000"
AUTH = base64.b64encode(b"user:pass:word").decode()


@pytest.mark.parametrize(
    "key", [HOST, f"https://{HOST}", f"http://{HOST}", f"https://{HOST}/", f"https://{HOST}/v1/", f"https://{HOST}/v2"]
)
def test_every_form_of_the_host_is_found(configure: Configure, key: str) -> None:
    configure({"auths": {"other.example.org": {"auth": "eDp5"}, key: {"auth": AUTH}}})
    found = credentials.load(HOST)
    assert (found.username, found.password) == ("user", "pass:word")
    assert found.basic == f"Basic {AUTH}"


@pytest.mark.parametrize(
    "key",
    [
        "registry.example.org",
        "registry.example.org:50001",
        "xregistry.example.org:5000",
        f"{HOST}.evil.example.org",
        f"https://evil.example.org/{HOST}",
        f"{HOST}/namespace",
        f"https://{HOST}@evil.example.org/v1/",
        "",
    ],
)
def test_the_credentials_of_another_host_are_not_ours(configure: Configure, key: str) -> None:
    configure({"auths": {key: {"auth": AUTH}}})
    assert not credentials.load(HOST)


@pytest.mark.parametrize(
    ("entry", "username", "password", "token"),
    [
        ({"username": "user", "password": "pass"}, "user", "pass", ""),
        ({"auth": base64.b64encode(b"user:pass\0").decode()}, "user", "pass", ""),
        ({"auth": base64.b64encode("ü:ö".encode()).decode()}, "ü", "ö", ""),
        ({"identitytoken": "t"}, "", "", "t"),
        ({"auth": base64.b64encode(b"<token>:").decode(), "identitytoken": "t"}, "<token>", "", "t"),
    ],
)
def test_every_form_of_an_entry_is_read(
    configure: Configure, entry: dict[str, str], username: str, password: str, token: str
) -> None:
    configure({"auths": {HOST: entry}})
    found = credentials.load(HOST)
    assert (found.username, found.password, found.identity_token) == (username, password, token)
    assert found


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"auths": []},
        {"auths": {HOST: "x"}},
        {"auths": {HOST: {"auth": 7}}},
        {"auths": {HOST: {"auth": "c2VjcmV0!"}}},
        {"auths": {HOST: {"auth": "c2VjcmV0"}}},
        {"auths": {HOST: {"auth": "//8="}}},
        {"auths": {HOST: {"username": "me", "password": "secret\ud800"}}},
        {"auths": {HOST: {"identitytoken": "secret\udfff"}}},
        {"credHelpers": "x"},
    ],
)
def test_a_malformed_file_is_refused_without_showing_a_secret(configure: Configure, document: Any) -> None:
    configure(document)
    with pytest.raises(FormatError, match=r"config\.json") as caught:
        credentials.load(HOST)
    assert "c2VjcmV0" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_is_no_json_is_refused(configure: Configure, tmp_path: Path) -> None:
    configure({})
    (tmp_path / "config.json").write_bytes(b"\xff{")
    with pytest.raises(FormatError, match="is not a JSON document"):
        credentials.load(HOST)


@pytest.mark.parametrize("document", [{"credsStore": "desktop"}, {"credHelpers": {HOST: "desktop"}}])
def test_a_credential_helper_is_named_and_not_run(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]
) -> None:
    helper = tmp_path / "docker-credential-desktop"
    helper.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    configure(document | {"auths": {HOST: {}}})
    found = credentials.load(HOST)
    assert not found
    assert "the credential helper desktop, which is not run from here" in found.note
    assert not (tmp_path / "ran").exists()


def test_an_entry_wins_over_a_helper(configure: Configure) -> None:
    configure({"credsStore": "desktop", "auths": {HOST: {"auth": AUTH}}})
    assert credentials.load(HOST)


def test_docker_config_wins_over_the_home_directory(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {HOST: {"auth": AUTH}}}))
    monkeypatch.setenv("HOME", str(home))
    assert credentials.load(HOST).username == "user"
    configure({})
    assert not credentials.load(HOST)


def test_without_a_file_there_are_none() -> None:
    found = credentials.load(HOST)
    assert not found
    assert found.note.endswith(".docker/config.json does not exist")


def test_a_password_is_not_shown(configure: Configure) -> None:
    configure({"auths": {HOST: {"auth": AUTH, "identitytoken": "secret"}}})
    assert "pass" not in repr(credentials.load(HOST)).replace("password", "")
    assert "secret" not in repr(credentials.load(HOST))
