"""``python -m tests.chart.generate``: writes what is made from the comments of the chart's values.yaml.

* ``inputs.yaml``: what the templates check the owner's values against, and take the defaults from;
* ``values.schema.json``: the same, strictly, for editors;
* the tables of inputs in ``README.md``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.chart.inputs import ENTRY, Input, read_inputs

CHART = Path(__file__).parents[2] / "chart"

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_HOST_LABEL = "[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?"
_PORT = "(:[0-9]{1,5})"
_HOST = rf"(localhost{_PORT}?|{_HOST_LABEL}(\.{_HOST_LABEL})+{_PORT}?|{_HOST_LABEL}{_PORT}|\[[0-9A-Fa-f:.]+\]{_PORT}?)"
_COMPONENT = "[a-z0-9]+((\\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = rf"{_HOST}/{_COMPONENT}(/{_COMPONENT})*(:[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})?"
_DIGEST = "@sha256:[0-9a-f]{64}"

#: The types of scalars: the kinds of value, of strings the form, and what a sentence says is accepted and to be done.
#: The patterns are in the syntax that Go's RE2, JSON schema and Python have in common.
TYPES: dict[str, dict[str, Any]] = {
    "boolean": {"kinds": ["bool"], "accepted": "true or false, without quotes", "remedy": "Write one of the two, bare"},
    "text": {"kinds": ["string"], "accepted": "a string", "remedy": "Put it into quotes"},
    "revision": {
        "kinds": ["string", "integer"],
        "accepted": "a string or a whole number",
        "remedy": "Put it into quotes",
    },
    "label": {
        "kinds": ["string"],
        "pattern": f"^{_LABEL}$",
        "longest": 63,
        "accepted": "a DNS label: lower-case letters, digits and - inside, at most 63 characters",
        "remedy": "Choose another",
    },
    "name": {
        "kinds": ["string"],
        "pattern": rf"^{_LABEL}(\.{_LABEL})*$",
        "longest": 253,
        "accepted": "a name as Kubernetes has it: lower-case letters, digits, - and . inside, at most 253 characters",
        "remedy": "Give the name of an object that is there",
    },
    "node": {
        "kinds": ["string"],
        "pattern": rf"^{_LABEL}(\.{_LABEL})*$",
        "longest": 63,
        "accepted": "a node's host name, the value of its label kubernetes.io/hostname, at most 63 characters",
        "remedy": "Take one from `kubectl get nodes -L kubernetes.io/hostname`",
    },
    "storage-class": {
        "kinds": ["string"],
        "pattern": rf"^({_LABEL}(\.{_LABEL})*)?$",
        "longest": 253,
        "accepted": 'the name of a StorageClass, "" for no provisioning, or nothing for the cluster\'s default',
        "remedy": "Take one from `kubectl get storageclass`",
    },
    "port-name": {
        "kinds": ["string"],
        "pattern": "^([0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$",
        "longest": 15,
        "accepted": "a port's name: lower-case letters, digits and single - inside, a letter among them, at most 15 "
        "characters",
        "remedy": "Choose another",
    },
    "address": {
        "kinds": ["string"],
        "pattern": r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+)$",
        "accepted": "an IP address",
        "remedy": "A name server goes by its address: a name could not be resolved",
    },
    "size": {
        "kinds": ["string"],
        "pattern": r"^[0-9]*[1-9][0-9]*(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?$",
        "accepted": "a size such as 8Gi: a number above 0 and Ki, Mi, Gi, Ti, or k, M, G, T",
        "remedy": "Write it so",
    },
    "quantity": {
        "kinds": ["string", "number"],
        "pattern": r"^[0-9]+(\.[0-9]+)?(m|[KMGTPE]i|[kMGTPE])?$",
        "accepted": "a quantity as Kubernetes has it, such as 500m, 2 or 4Gi",
        "remedy": "Write it so",
    },
    "path": {
        "kinds": ["string"],
        "pattern": r"^/[^:\x00-\x1f\x7f]*$",
        "accepted": "an absolute path in the machine, without a colon",
        "remedy": "Write it from the machine's own root, such as /srv",
    },
    "profile": {
        "kinds": ["string"],
        "pattern": r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$",
        "accepted": "a path below the kubelet's seccomp directory, such as profiles/stateful-pods-machine.json",
        "remedy": "Write it from there on",
    },
    "url": {
        "kinds": ["string"],
        "pattern": r"^https://[^/?#@\s]+/[^#\s]*$",
        "accepted": "an https URL without a user name, a password or a fragment",
        "remedy": "Give the address of the archive itself",
    },
    "sha256": {
        "kinds": ["string"],
        "pattern": "^[0-9a-fA-F]{64}$",
        "accepted": "64 hexadecimal digits, quoted",
        "remedy": "Take it from whom you trust for the archive, such as a signed SHA256SUMS",
    },
    "reference": {
        "kinds": ["string"],
        "pattern": f"^{_IMAGE}({_DIGEST})?$",
        "accepted": "an image that names its registry, HOST/REPOSITORY[:TAG][@sha256:DIGEST]",
        "remedy": "Write it out, with the registry's host",
    },
    "pinned-image": {
        "kinds": ["string"],
        "pattern": f"^{_IMAGE}{_DIGEST}$",
        "accepted": "an image pinned by digest, HOST/REPOSITORY@sha256:DIGEST: a tag can be moved, a digest cannot",
        "remedy": "Give what `presetbuild`, or whoever pushed it, printed",
    },
}  # fmt: skip
#: The types of objects that Kubernetes takes as they are: their members, by type; a * marks one that is required.
OBJECTS: dict[str, dict[str, str]] = {
    "affinity": {"nodeAffinity": "object", "podAffinity": "object", "podAntiAffinity": "object"},
    "dns-option": {"name*": "text", "value": "text"},
    "secret": {"name*": "name"},
    "toleration": {
        "key": "text",
        "operator": "Exists|Equal",
        "value": "text",
        "effect": "NoSchedule|PreferNoSchedule|NoExecute",
        "tolerationSeconds": "integer 0..2147483647",
    },
}
_JSON_KINDS = {"bool": "boolean", "string": "string", "integer": "integer", "number": "number"}


def rule_of(type_: str) -> dict[str, Any]:
    """Return the rule for a type that has no members of its own."""
    if match := re.fullmatch(r"(list|map|material) (?:of )?(.+)", type_):
        if match[1] == "material":
            return {"type": "material", "of": match[2]}
        return {"type": match[1], "of": rule_of(match[2])}
    if match := re.fullmatch(r"integer (\d+)\.\.(\d+)", type_):
        return {"type": "integer", "least": int(match[1]), "most": int(match[2])}
    if "|" in type_:
        return {"type": "one", "of": type_.split("|")}
    if type_ in OBJECTS:
        members = {name.rstrip("*"): rule_of(member) for name, member in OBJECTS[type_].items()}
        for name in OBJECTS[type_]:
            if name.endswith("*"):
                members[name.rstrip("*")]["required"] = True
        return {"type": "members", "members": members}
    if type_ in TYPES or type_ == "object":
        return {"type": type_}
    raise ValueError(f"no such type of input: {type_}")


def rule(given: Input) -> dict[str, Any]:
    """Return the rule that the templates check `given` by."""
    made: dict[str, Any]
    if ENTRY in given.members:
        named = given.type.removeprefix("map by ")
        made = {"type": "entries", "named": named, "members": rules(given.members[ENTRY]), "default": {}}
    elif given.type == "object" and given.members:
        made = {"type": "members", "members": rules(given)}
        if not _demands(given):
            made["default"] = {}  # so that the defaults of its members are filled in
    else:
        made = rule_of(given.type)
    if given.default is not None:
        made["default"] = given.default
    if given.required:
        made["required"] = True
    return made


def rules(parent: Input) -> dict[str, Any]:
    """Return the rules for the members of `parent`, by name."""
    return {name: rule(member) for name, member in parent.members.items()}


def _demands(given: Input) -> bool:
    return given.required or any(member.required for member in given.members.values())


def schema(given: Input) -> dict[str, Any]:
    """Return the JSON schema of `given`."""
    made: dict[str, Any]
    if ENTRY in given.members:
        named = TYPES[given.type.removeprefix("map by ")]
        names = {"pattern": named["pattern"], "maxLength": named["longest"]}
        made = {"type": "object", "propertyNames": names, "additionalProperties": _object(given.members[ENTRY])}
    elif given.type == "object" and given.members:
        made = _object(given)
    else:
        made = _schema_of(rule_of(given.type))
    if given.meaning:
        made["description"] = given.meaning
    if given.default is not None:
        made["default"] = given.default
    if not given.required and "type" in made:  # null is as good as nothing
        kinds = made["type"] if isinstance(made["type"], list) else [made["type"]]
        made["type"] = [*kinds, "null"]
        if "enum" in made:
            made["enum"] = [*made["enum"], None]
    return made


def _object(parent: Input) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "additionalProperties": False}
    made["properties"] = {name: schema(member) for name, member in parent.members.items()}
    if required := [name for name, member in parent.members.items() if member.required]:
        made["required"] = required
    return made


def _schema_of(rule: dict[str, Any]) -> dict[str, Any]:
    match rule["type"]:
        case "list":
            return {"type": "array", "items": _schema_of(rule["of"])}
        case "map":
            return {"type": "object", "additionalProperties": _schema_of(rule["of"])}
        case "one":
            return {"type": "string", "enum": rule["of"]}
        case "integer":
            return {"type": "integer", "minimum": rule["least"], "maximum": rule["most"]}
        case "members":
            members = {name: _schema_of(member) for name, member in rule["members"].items()}
            required = [name for name, member in rule["members"].items() if "required" in member]
            only = {"type": "object", "additionalProperties": False, "properties": members}
            return {**only, "required": required} if required else only
        case "object":
            return {"type": "object"}
        case "material":
            return _material(rule["of"])
    type_ = TYPES[rule["type"]]
    kinds = [_JSON_KINDS[kind] for kind in type_["kinds"]]
    made: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    if "pattern" in type_:
        made["pattern"] = type_["pattern"]
    if "longest" in type_:
        made["maxLength"] = type_["longest"]
    return made


def _material(of: str) -> dict[str, Any]:
    value = {"text": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}}
    name_and_key = {
        "type": "object",
        "additionalProperties": False,
        "required": ["name", "key"],
        "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
    }
    origin = {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {"secretKeyRef": name_and_key, "configMapKeyRef": name_and_key},
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {"value": value.get(of, {"type": "boolean"}), "valueFrom": origin},
    }


def table(inputs: list[Input], prefix: str) -> str:
    """Return a Markdown table of `inputs`, their paths without `prefix`."""
    lines = ["| input | type | default | meaning |", "|---|---|---|---|"]
    for given in inputs:
        default = "" if given.default is None else f"`{given.default if given.default else json.dumps(given.default)}`"
        default = "**required**" if given.required else default.replace("`True`", "`true`")
        type_ = given.type.replace("|", " \\| ")
        meaning = given.meaning + (" *Permanent.*" if given.permanent else "")
        lines.append(f"| `{given.path.removeprefix(prefix)}` | {type_} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def generated(chart: Path = CHART) -> dict[Path, str]:
    """Return the whole content of each file that is made, or made in part, from values.yaml."""
    root = read_inputs((chart / "values.yaml").read_text())
    inputs = {"types": TYPES, "inputs": rules(root)}
    heading = (
        "# Made from the comments of values.yaml by tests/chart/generate.py. What the templates check values against.\n"
    )
    # A chart that depends on this one hands it `global` too.
    dialect = "https://json-schema.org/draft/2020-12/schema"
    strict = {"$schema": dialect, "title": "Values of the stateful-pods chart", **_object(root)}
    strict["properties"]["global"] = {"type": "object"}
    readme = (chart / "README.md").read_text()
    machine = root.members["machines"].members[ENTRY]
    rest = [given for given in root.walk() if not given.path.startswith(machine.path)]
    for name, text in (("chart", table(rest, "")), ("machine", table(list(machine.walk()), machine.path + "."))):
        begin, end = f"<!-- inputs of the {name}, from values.yaml -->\n", f"<!-- end of the inputs of the {name} -->"
        before, _, after = readme.partition(begin)
        readme = f"{before}{begin}{text}{end}{after.partition(end)[2]}"
    return {
        chart / "inputs.yaml": heading + yaml.safe_dump(inputs, sort_keys=False, width=10_000),
        chart / "values.schema.json": json.dumps(strict, indent=2) + "\n",
        chart / "README.md": readme,
    }


def main() -> None:
    """Write the files."""
    for path, content in generated().items():
        path.write_text(content)


if __name__ == "__main__":
    main()
