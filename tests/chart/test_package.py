"""The chart as a package: what is in it, through a real registry and back, and rendered as from the tree."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import helm_python as helm
import pytest

from tests.chart.charts import CHART, EXAMPLES, NAMESPACE, RELEASE, example, parse, render_texts
from tests.chart.conftest import ChangedChart
from tests.chart.helms import Helm, as_yaml
from tests.chart.release import Unreleased, placeholders
from tests.chart.release import package as package_release
from tests.registries import RegistryAt


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(helm.package(CHART, destination=tmp_path / "package"))


def test_the_package_holds_the_chart_and_nothing_for_editors(package: Path) -> None:
    with tarfile.open(package) as tar:
        names = {name.removeprefix("stateful-pods/") for name in tar.getnames()}
    tracked = {
        str(path.relative_to(CHART))
        for path in CHART.rglob("*")
        if path.is_file() and path.name != "values.schema.json"
    }
    assert names == tracked


def test_a_render_from_the_package_is_one_from_the_tree(package: Path) -> None:
    for path in EXAMPLES:
        values = example(path)
        assert render_texts(values, chart=package) == render_texts(values)


def test_the_package_comes_back_from_a_registry_unchanged(
    package: Path, docker_registry: RegistryAt, tmp_path: Path
) -> None:
    with helm.RegistryClient(plain_http=True, credentials_file=tmp_path / "credentials") as client:
        helm.push(package, f"oci://{docker_registry.name}", client=client, plain_http=True)
        (tmp_path / "pulled").mkdir()
        helm.pull(
            f"oci://{docker_registry.name}/stateful-pods",
            client=client,
            version="0.1.0",
            destination=tmp_path / "pulled",
            plain_http=True,
        )
    (pulled,) = (tmp_path / "pulled").iterdir()
    assert pulled.read_bytes() == package.read_bytes()


def test_real_helm_installs_it_from_a_registry_by_digest(
    package: Path, docker_registry: RegistryAt, helm_binary: Helm, tmp_path: Path
) -> None:
    with helm.RegistryClient(plain_http=True, credentials_file=tmp_path / "credentials") as client:
        helm.push(package, f"oci://{docker_registry.name}", client=client, plain_http=True)
        digest = client.resolve(f"{docker_registry.name}/stateful-pods:0.1.0")["digest"]
    values = example(EXAMPLES[0])
    reference = f"oci://{docker_registry.name}/stateful-pods@{digest}"
    file = helm_binary.home / "values.json"
    file.write_text(json.dumps(values))
    done = helm_binary.run("template", RELEASE, reference, "--plain-http", "--namespace", NAMESPACE, "--values", file)
    assert done.returncode == 0, done.stderr
    texts = render_texts(values)
    expected = [item for name, text in texts.items() if name.endswith(".yaml") for item in parse(text)]
    assert as_yaml(parse(done.stdout)) == as_yaml(expected)


def test_a_release_refuses_to_package_placeholders(tmp_path: Path) -> None:
    with pytest.raises(Unreleased, match=r"values.yaml: shim.image, presets.yaml: debian-trixie.reference"):
        package_release(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_release_packages_a_chart_without_placeholders(changed_chart: ChangedChart, tmp_path: Path) -> None:
    image = f"image@sha256:{'1' * 64}"
    chart = changed_chart(
        {
            "values.yaml": lambda text: text.replace('image: ""', f"image: registry.example.org/{image}"),
            "presets.yaml": lambda text: text.replace('reference: ""', f"reference: registry.example.org/{image}"),
        }
    )
    # The comment in presets.yaml explains the placeholder, and is not one.
    assert placeholders(chart) == []
    assert package_release(tmp_path / "package", chart).name == "stateful-pods-0.1.0.tgz"
