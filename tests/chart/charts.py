"""Renders the chart: values in, objects or a refusal out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate.utils
import yaml

CHART = Path(__file__).parents[2] / "chart"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
SHIM = f"registry.example.org/shim@sha256:{'1' * 64}"
DEBIAN = f"registry.example.org/debian-cloud@sha256:{'2' * 64}"
UBUNTU = f"registry.example.org/ubuntu@sha256:{'3' * 64}"
RELEASE, NAMESPACE = "pets", "zoo"
#: What a released chart has instead of its placeholders.
RELEASED: dict[str, Any] = {
    "shim": {"image": SHIM},
    "presets": {
        "debian-trixie": {"reference": DEBIAN, "provisioning": ["cloud-init", "exec"]},
        "ubuntu-noble": {"reference": UBUNTU, "provisioning": ["exec"]},
    },
}
#: The least that a machine is.
MACHINE: dict[str, Any] = {
    "source": {"kind": "preset", "name": "debian-trixie"},
    "security": {"mode": "privileged"},
}
KUBERNETES = ("1.30", "1.33", "1.35", "1.36", "1.37")
#: Where a machine in a user namespace renders.
KUBERNETES_USERNS = KUBERNETES[1:]

Object = dict[str, Any]
Values = dict[str, Any]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` laid over it, objects member by member; ``...`` takes a member out."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        if value is ...:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def one(over: Mapping[str, Any] | None = None, *, name: str = "web", **top: Any) -> Values:
    """Return values for one machine: the least that it is, with `over` laid over it; `top` are other values."""
    return merged(RELEASED, {"machines": {name: merged(MACHINE, over or {})}, **top})


def example(path: Path) -> Values:
    """Return an example's values, with what a release would have written."""
    values = yaml.safe_load(path.read_text())
    assert isinstance(values, dict)
    return merged(RELEASED, values)


@lru_cache
def load(chart: Path = CHART) -> helm.Chart:
    return helm.Chart.load(chart)


def render_texts(values: Values, *, chart: Path = CHART, release: str = RELEASE) -> dict[str, str]:
    """Return what each template renders to, by its file name; raises `helm.HelmRenderError` for a refusal."""
    texts = load(chart).render(values=values, name=release, namespace=NAMESPACE)
    return {Path(path).name: text for path, text in texts.items()}


def parse(text: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(text) if document]


def render(values: Values, *, chart: Path = CHART, release: str = RELEASE) -> list[Object]:
    """Return the objects that `values` render to, each valid, strictly, for every Kubernetes that they render for."""
    texts = render_texts(values, chart=chart, release=release)
    objects = [document for name, text in texts.items() if name.endswith(".yaml") for document in parse(text)]
    modes = {machine["security"]["mode"] for machine in values["machines"].values()}
    for version in KUBERNETES_USERNS if "userns" in modes else KUBERNETES:
        validate(objects, version)
    return objects


def refusal(values: Values, *, chart: Path = CHART, release: str = RELEASE) -> str:
    """Return the text of the refusal that `values` end in."""
    try:
        render_texts(values, chart=chart, release=release)
    except helm.HelmError as error:
        return str(error)
    raise AssertionError("it renders")


def notes(values: Values, **options: Any) -> str:
    return render_texts(values, **options)["NOTES.txt"]


def find(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """Return the only object of `kind` (and `name`)."""
    (found,) = (item for item in objects if item["kind"] == kind and name in (None, item["metadata"]["name"]))
    return found


def pod_of(values: Values, **options: Any) -> Object:
    """Return the pod template of the only machine."""
    template = find(render(values, **options), "StatefulSet")["spec"]["template"]
    assert isinstance(template, dict)
    return template


def container(template: Object, name: str) -> Object:
    spec = template["spec"]
    (found,) = (item for item in (*spec["initContainers"], *spec["containers"]) if item["name"] == name)
    assert isinstance(found, dict)
    return found


def environment(of: Object) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in of.get("env", [])}


def validate(objects: list[Object], version: str) -> None:
    """Raise unless each of `objects` is one of that Kubernetes, without unknown fields."""
    for document in objects:
        kubernetes_validate.validate(document, version, strict=True)


def sentences(text: str) -> Iterator[str]:
    """Yield the faults that a refusal lists."""
    _, _, faults = text.partition("\n* ")
    for sentence in faults.split("\n\n* "):
        yield sentence.strip()


# It reads and parses megabytes for each object that it validates.
_read: Callable[[str, str], Any] = kubernetes_validate.utils.schema_contents
kubernetes_validate.utils.schema_contents = lru_cache(maxsize=None)(_read)
