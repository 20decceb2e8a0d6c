"""A JSON schema divided into parts: types with subjects of their own are referred to by document names.

Pure. Rule: together with its references, each part means the same as the whole schema. A definition that several parts
use is repeated in each of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kafka_eos.codecs.json_schema.draft_07 import DRAFT, Schema, map_schemas
from kafka_eos.codecs.registry.schema_registration import SchemaDependency, UnregisteredSchema
from kafka_eos.core.errors import PlanError

_HERE: Final = "#/definitions/"


def in_parts(schema: Schema, subjects: Mapping[str, str]) -> UnregisteredSchema:
    """Split a schema from ``draft_07``. ``subjects``: by the names of definitions in it.

    Raises PlanError if two parts need each other.
    """
    if isinstance(schema, bool):
        return UnregisteredSchema("JSON", json.dumps(schema))
    definitions = schema.get("definitions", {})
    return _draft({word: part for word, part in schema.items() if word != "definitions"}, definitions, subjects, ())


def _draft(
    body: dict[str, Any], definitions: Mapping[str, Any], subjects: Mapping[str, str], outer: tuple[str, ...]
) -> UnregisteredSchema:
    """Build one part; ``outer``: the definitions that are being turned into parts, this one last."""
    inside, needed = dict[str, Any](), set[str]()
    waiting = [body]
    while waiting:
        for name in _named(waiting.pop()):
            if name in subjects:
                needed.add(name)
            elif name not in inside:
                inside[name] = definitions[name]
                waiting.append(inside[name])
    needed -= {*outer[-1:]}  # a part may be recursive
    if both := needed & {*outer}:
        raise PlanError(f"references={{…}}: {' and '.join(sorted(both | {*outer[-1:]}))} contain each other")
    needs = tuple(
        SchemaDependency(
            _document(name), subjects[name], _draft(definitions[name], definitions, subjects, (*outer, name))
        )
        for name in sorted(needed)
    )
    made = {"$schema": DRAFT, **body, **({"definitions": inside} if inside else {})}
    return UnregisteredSchema(
        "JSON", json.dumps(map_schemas(made, lambda each: _elsewhere(each, subjects, outer[-1:]))), needs
    )


def _document(name: str) -> str:
    return f"{name}.json"


def _named(schema: Schema) -> set[str]:
    """Return the definitions that a schema refers to directly."""
    found = set[str]()

    def look(each: dict[str, Any]) -> dict[str, Any]:
        if str(each.get("$ref", "")).startswith(_HERE):
            found.add(each["$ref"].removeprefix(_HERE))
        return each

    map_schemas(schema, look)
    return found


def _elsewhere(schema: dict[str, Any], subjects: Mapping[str, str], own: tuple[str, ...]) -> dict[str, Any]:
    """Replace references to other parts by references to their documents; keep references within the part."""
    name = str(schema.get("$ref", "")).removeprefix(_HERE)
    if name in own:
        return {**schema, "$ref": "#"}
    return {**schema, "$ref": _document(name)} if name in subjects else schema
