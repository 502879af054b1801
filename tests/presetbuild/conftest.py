"""One throwaway key for all tests of the builder, and an honest upstream for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from presetbuild.build import Options
from tests.presetbuild.pgp import Signer
from tests.presetbuild.upstreams import KEY_MADE, NOW, Upstream


@pytest.fixture(scope="session")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer.create(tmp_path_factory.mktemp("signer"), at=KEY_MADE)


@pytest.fixture
def upstream(tmp_path: Path, signer: Signer) -> Upstream:
    """An upstream with one honest build for both platforms."""
    made = Upstream(tmp_path / "upstream", signer)
    made.write_catalog()
    made.add("amd64")
    made.add("arm64")
    return made


@pytest.fixture
def options(upstream: Upstream) -> Options:
    """What a build from that upstream is told; the clock stands a few days after the build."""
    return Options(signing_keys=upstream.keys, mirror=str(upstream.mirror), now=NOW)
