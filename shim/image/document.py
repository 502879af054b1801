"""JSON documents that mean the same to every reader, or are refused.

Source: RFC 8259 (JSON), which leaves open what two equal keys mean; Go's encoding/json, which ignores the case of keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shim.errors import FormatError, printable

#: The keys that readers know in an object, by what they become where case is folded; and what is known of the object,
#: or the list of objects, that one holds (None: it holds none, or one whose keys are names that people choose).
Shape = Mapping[str, "tuple[str, Shape | None]"]


def shape(keys: str, **objects: Shape) -> Shape:
    """Return the shape of an object that has `keys`, separated by spaces, and `objects` by their keys."""
    return {_fold(key): (key, objects.get(key)) for key in (*keys.split(), *objects)}


def read_object(raw: bytes, known: Shape, what: str) -> dict[str, Any]:
    """Return the JSON object that `raw` holds.

    Raises `FormatError`, in which `what` names the document, for anything that another reader could take for another
    document: a key that stands twice, one that is a `known` one but for its case, numbers that JSON does not have, and
    text that is no Unicode.
    """
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        if b"\\ud" in raw.lower():  # half of a surrogate pair is text that nobody could write again
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what} is not a JSON document: {printable(str(error))}") from error
    if not isinstance(document, dict):
        raise FormatError(f"{what} is not a JSON object")
    _check_keys(document, known, what)
    return document


def _check_keys(value: object, known: Shape, what: str) -> None:
    """Raise `FormatError` for keys of `value`, an object or a list of them, that are others where case is folded.

    Go takes ``Layers`` for ``layers``, and the last of the two where both are there: such a document is one image to
    us and another to a runtime.
    """
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            continue
        seen: dict[str, str] = {}
        for key, inner in item.items():
            folded = _fold(key)
            meant, deeper = known.get(folded, (key, None))
            if key != seen.setdefault(folded, meant):
                raise FormatError(f"{what} has a key {key[:99]!a}, which some readers take for {seen[folded][:99]!a}")
            if deeper:
                _check_keys(inner, deeper, what)


def _fold(key: str) -> str:
    return key.replace("\u017f", "s").lower()  # the long s; the Kelvin sign becomes a k by itself


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    # Two readers may keep different ones of two equal keys, so a document that has them has no one meaning.
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
