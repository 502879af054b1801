"""What values.yaml says of the inputs is what the templates, the schema, the README and the catalog say."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.chart.charts import CHART, EXAMPLES, Values, example, merged, one, refusal, sentences
from tests.chart.generate import generated, rule_of
from tests.chart.inputs import ENTRY, Input, InputsError, read_inputs
from tests.chart.test_render import EVERYTHING

ROOT = read_inputs((CHART / "values.yaml").read_text())
MACHINE = ROOT.members["machines"].members[ENTRY]
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_what_is_made_from_values_yaml_is_up_to_date(path: Path) -> None:
    assert path.read_text() == generated()[path], "run: python -m tests.chart.generate"


def test_an_input_without_a_comment_is_found() -> None:
    with pytest.raises(InputsError, match=r"line 1: shim needs a comment of the form \[TYPE, FLAG…\] MEANING"):
        read_inputs('shim:\n  image: ""\n')


def test_a_type_that_does_not_exist_is_found() -> None:
    with pytest.raises(ValueError, match="no such type of input: strnig"):
        rule_of("strnig")


def objects(parent: Input) -> list[Input]:
    return [given for given in [parent, *parent.walk()] if given.members and ENTRY not in given.members]


def within(path: str, leaf: Any) -> Any:
    """Return values that have `leaf` at `path`."""
    for name in reversed(path.split(".")):
        leaf = {name: leaf}
    return leaf


@pytest.mark.parametrize("given", objects(MACHINE), ids=lambda given: given.path)
def test_an_unknown_input_is_refused_with_the_list_of_those_that_there_are(given: Input) -> None:
    path = given.path.replace("machines.NAME", "machines.web").replace("NAME", "some")
    values = merged(one(), within(path, {"unheardOf": 1}))
    (sentence,) = (text for text in sentences(refusal(values)) if ".unheardOf: " in text)
    assert sentence == (
        f"{path}.unheardOf: there is no such input; the ones here are {', '.join(sorted(given.members))}. "
        "Remove it, or correct its name"
    )


def test_the_tests_render_every_input_of_a_machine() -> None:
    def paths(value: object, at: str = "") -> set[str]:
        if not isinstance(value, dict):
            return {at}
        return {at} | {path for name, member in value.items() for path in paths(member, f"{at}.{name}")}

    given = {re.sub(r"\.(data|old|http)\b", ".NAME", path).removeprefix(".") for path in paths(EVERYTHING)}
    of_other_kinds = {"source.kind", "source.name", "source.reference", "source.url", "source.sha256", "security.mode"}
    assert {given.path.removeprefix("machines.NAME.") for given in MACHINE.walk()} <= given | of_other_kinds


def test_values_yaml_is_what_helm_takes_for_the_defaults() -> None:
    assert yaml.safe_load((CHART / "values.yaml").read_text()) == {"shim": {"image": ""}, "presets": {}, "machines": {}}


# The schema


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "values", [*map(example, EXAMPLES), one(EVERYTHING)], ids=[*(path.stem for path in EXAMPLES), "everything"]
)
def test_the_schema_accepts_what_renders(values: Values) -> None:
    jsonschema.validate(values, SCHEMA)


@pytest.mark.parametrize(
    "over",
    [
        {"replicas": 2},
        {"rootfs": {"size": "8 GB"}},
        {"rootfs": {"sizes": "8Gi"}},
        {"source": ...},
        {"source": {"sha256": 12}},
        {"cloudInit": {"user": "ada"}},
        {"cloudInit": {"user": {"value": "ada", "valueFrom": {}}}},
        {"network": {"ports": {"http": {"port": 0}}}},
        {"running": "no"},
        {"labels": {"a": 1}},
        {"volumes": {"My_Data": {"mountPath": "/srv"}}},
    ],
)
def test_the_schema_is_strict(over: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(one(over), SCHEMA)


# The README


README = (CHART / "README.md").read_text()


def test_every_input_stands_in_the_readme_once() -> None:
    tables = "".join(re.findall(r"<!-- inputs .*? -->\n(.*?)<!-- end", README, re.DOTALL))
    rows = re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)
    expected = [given.path.removeprefix("machines.NAME.") for given in ROOT.walk()]
    assert sorted(rows) == sorted(expected)


def test_the_readme_names_the_capabilities_that_are_rendered() -> None:
    from tests.chart.test_render import PRIVILEGED

    assert f"| {' '.join(PRIVILEGED)} |" in README


def test_the_machine_of_the_readme_renders() -> None:
    from tests.chart.charts import DEBIAN, SHIM, render

    text = next(block for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "machines:" in block)
    values = yaml.safe_load(text.replace("registry.example.org/pets/debian-cloud@sha256:…", DEBIAN))
    values["machines"]["web"]["cloudInit"]["sshAuthorizedKeys"]["value"] = ["ssh-ed25519 AAAA ada@example.org"]
    assert render({**values, "shim": {"image": SHIM}})


def test_files_that_the_readme_points_to_exist() -> None:
    for target in re.findall(r"\]\(([^):]+)\)", README):
        assert (CHART / target).exists(), target


# The presets


def test_presets_are_those_of_the_catalog_with_what_can_set_them_up() -> None:
    catalog = tomllib.loads((CHART.parent / "presetbuild/catalog.toml").read_text())["presets"]
    table = yaml.safe_load((CHART / "presets.yaml").read_text())
    assert {name: preset["provisioning"] for name, preset in table.items()} == {
        name: preset["provisioning"] for name, preset in catalog.items()
    }


def test_a_preset_is_a_placeholder_or_an_image_by_digest() -> None:
    pattern = re.compile(yaml.safe_load((CHART / "inputs.yaml").read_text())["types"]["pinned-image"]["pattern"])
    for preset in yaml.safe_load((CHART / "presets.yaml").read_text()).values():
        assert set(preset) == {"reference", "provisioning", "unpackedSize"}
        assert preset["reference"] == "" or pattern.fullmatch(preset["reference"])
