"""A JSON schema in parts: types that have subjects of their own are referred to by the names of their documents.

Pure. Rule: read with all that it refers to, each part means what the whole schema does. A definition that several parts
use stands in each of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kafka_eos.codecs.json_schema.draft_07 import DRAFT, Schema, everywhere
from kafka_eos.codecs.registry.schema_registration import Draft, Need
from kafka_eos.core.errors import PlanError

_HERE: Final = "#/definitions/"


def in_parts(schema: Schema, subjects: Mapping[str, str]) -> Draft:
    """``schema`` as ``draft_07`` gives it; ``subjects``: by the names of definitions in it.

    PlanError if two parts need each other.
    """
    if isinstance(schema, bool):
        return Draft("JSON", json.dumps(schema))
    definitions = schema.get("definitions", {})
    return _draft({word: part for word, part in schema.items() if word != "definitions"}, definitions, subjects, ())


def _draft(
    body: dict[str, Any], definitions: Mapping[str, Any], subjects: Mapping[str, str], outer: tuple[str, ...]
) -> Draft:
    """One part; ``outer``: the definitions that are being made a part, this one is the last."""
    inside, needed = dict[str, Any](), set[str]()
    waiting = [body]
    while waiting:
        for name in _named(waiting.pop()):
            if name in subjects:
                needed.add(name)
            elif name not in inside:
                inside[name] = definitions[name]
                waiting.append(inside[name])
    needed -= {*outer[-1:]}  # a part may hold itself
    if both := needed & {*outer}:
        raise PlanError(f"references={{…}}: {' and '.join(sorted(both | {*outer[-1:]}))} hold each other")
    needs = tuple(
        Need(_document(name), subjects[name], _draft(definitions[name], definitions, subjects, (*outer, name)))
        for name in sorted(needed)
    )
    made = {"$schema": DRAFT, **body, **({"definitions": inside} if inside else {})}
    return Draft("JSON", json.dumps(everywhere(made, lambda each: _elsewhere(each, subjects, outer[-1:]))), needs)


def _document(name: str) -> str:
    return f"{name}.json"


def _named(schema: Schema) -> set[str]:
    """The definitions that a schema refers to, not those that they refer to."""
    found = set[str]()

    def look(each: dict[str, Any]) -> dict[str, Any]:
        if str(each.get("$ref", "")).startswith(_HERE):
            found.add(each["$ref"].removeprefix(_HERE))
        return each

    everywhere(schema, look)
    return found


def _elsewhere(schema: dict[str, Any], subjects: Mapping[str, str], own: tuple[str, ...]) -> dict[str, Any]:
    """With what it refers to where that is: in another document, or all of its own."""
    name = str(schema.get("$ref", "")).removeprefix(_HERE)
    if name in own:
        return {**schema, "$ref": "#"}
    return {**schema, "$ref": _document(name)} if name in subjects else schema
