"""What every test gets: a known environment, the registries, and the rule about skips."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.allowed_skips", "tests.registries", "pytester"]

# What a developer's or a CI machine may set, and what would then decide a test's outcome: credentials, proxies,
# the defaults of the tools that are called, and our own options.
_FOREIGN = ("DOCKER_", "GIT_", "GNUPG", "GPG_", "PRESETBUILD_", "REGISTRY_", "SHIM_", "TAR_", "XDG_", "XZ_", "ZSTD_")
_FOREIGN_NAMES = {
    "ALL_PROXY",
    "COLUMNS",
    "CURL_CA_BUNDLE",
    "FORCE_COLOR",
    "FTP_PROXY",
    "GZIP",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANGUAGE",
    "NETRC",
    "NO_COLOR",
    "NO_PROXY",
    "POSIXLY_CORRECT",
    "PYTHONPATH",
    "REQUESTS_CA_BUNDLE",
    "SOURCE_DATE_EPOCH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TAPE",
}


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with nothing in it: no `~/.docker`, no `~/.netrc`, no `~/.gnupg`."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, empty_home: Path) -> None:
    """Run the test with an empty home, UTC, the C locale, and none of the variables that would change its outcome."""
    for name in os.environ:
        upper = name.upper()
        if upper in _FOREIGN_NAMES or upper.startswith((*_FOREIGN, "LC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(empty_home))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LANG", "C.UTF-8")
