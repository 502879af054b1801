"""What the system tests share: real Debian root filesystems, made once per run or kept in a cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.system import debian


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("system")


@pytest.fixture(scope="session")
def debian_filesystems(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, debian.RootFilesystem]:
    """Debian trixie by architecture, amd64 and arm64; STATEFUL_PODS_TEST_CACHE names a directory to keep them in."""
    if reason := debian.unavailable():
        pytest.skip(reason)
    cache = os.environ.get("STATEFUL_PODS_TEST_CACHE")
    directory = Path(cache) if cache else tmp_path_factory.mktemp("debian")
    directory.mkdir(parents=True, exist_ok=True)
    return {architecture: debian.root_filesystem(architecture, directory) for architecture in ("amd64", "arm64")}
