"""Normalization of JSON schemas to draft-07, which every registry compares; other drafts are converted to it.

Pure. Rule: keywords are recognized only where a schema is expected. Names of properties, constants and defaults are the
user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from kafka_eos.core.json_values import Json

Schema: TypeAlias = "dict[str, Any] | bool"

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_NAMED: Final = ("properties", "patternProperties", "definitions")
_SEVERAL: Final = ("anyOf", "oneOf", "allOf")
_ONE: Final = (
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else",
)  # fmt: skip
_SHAPES: Final[Mapping[str, tuple[type, ...]]] = {
    "$ref": (str,),
    "type": (str, list),
    "required": (list,),
    "enum": (list,),
    **{f"{end}{what}": (int, float) for end in ("min", "max") for what in ("imum", "Length", "Items", "Properties")},
    **{f"exclusive{end}": (int, float) for end in ("Minimum", "Maximum")},
}
"""The type of value of each compared keyword."""
_DEEPEST: Final = 100


def draft_07(schema: Json) -> Schema:
    """Return the same schema in draft-07, with all definitions at its top. Raises ValueError if it is invalid."""
    definitions: dict[str, Any] = {}
    made = _made(schema, definitions, 0)
    if isinstance(made, bool):
        return made
    name = _defined(made.get("$ref"))
    if set(made) == {"$ref"} and name in definitions:
        made = definitions[name]  # draft-07 ignores keywords beside a reference, definitions too
    return {**made, "definitions": definitions} if definitions else made


def _defined(reference: object) -> str | None:
    """Return the name of the referenced definition; None if it is not in the same schema."""
    if not isinstance(reference, str):
        return None
    found = next((reference.removeprefix(at) for at in ("#/definitions/", "#/$defs/") if reference.startswith(at)), "")
    return found if found and "/" not in found else None


def _made(schema: Json, definitions: dict[str, Any], depth: int) -> Schema:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict) or depth > _DEEPEST:
        raise ValueError("it is no JSON schema" if depth <= _DEEPEST else "the schema is nested too deeply")

    def below(part: Json) -> Schema:
        return _made(part, definitions, depth + 1)

    made: dict[str, Any] = {}
    for word, content in _of_draft_07(schema).items():
        if word in _SHAPES and not isinstance(content, _SHAPES[word]):
            raise ValueError(f"it is no JSON schema: {word} is {content!r:.100}")
        if word == "required" and not all(isinstance(each, str) for each in content):
            raise ValueError("it is no JSON schema: required names what is no text")
        if word == "definitions":
            for name, each in _named(content, below).items():
                if definitions.setdefault(name, each) != each:
                    raise ValueError(f"two of its definitions are called {name}")
        elif word in _NAMED:
            made[word] = _named(content, below)
        elif word in _SEVERAL or (word == "items" and isinstance(content, list)):
            made[word] = [below(each) for each in _listed(content)]
        elif word in _ONE:
            made[word] = below(content)
        else:
            made[word] = content
    return _alone(made)


def _of_draft_07(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return one schema, without those in it, with the keywords of draft-07."""
    words = {"definitions" if word == "$defs" else word: content for word, content in schema.items()}
    for word in ("$schema", "discriminator"):  # "discriminator" is OpenAPI's, and redundant
        words.pop(word, None)
    if "$defs" in schema and "definitions" in schema:
        words["definitions"] = {**schema["$defs"], **schema["definitions"]}
    if "prefixItems" in words:
        if "items" in words:
            words["additionalItems"] = words["items"]
        words["items"] = words.pop("prefixItems")
    return words


def _alone(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a reference by itself: draft-07 ignores keywords beside one."""
    if "$ref" not in schema:
        return schema
    name = _defined(schema["$ref"])
    reference = {"$ref": schema["$ref"] if name is None else f"#/definitions/{name}"}
    rest = {word: content for word, content in schema.items() if word != "$ref"}
    return {"allOf": [reference, *rest.pop("allOf", [])], **rest} if rest else reference


def _named(content: Any, below: Callable[[Any], Schema]) -> dict[str, Schema]:
    if not isinstance(content, dict):
        raise ValueError("it is no JSON schema")
    return {name: below(each) for name, each in content.items()}


def _listed(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise ValueError("it is no JSON schema")
    return content


def map_schemas(schema: Schema, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Schema:
    """Apply a function to every subschema, and return the result."""
    if isinstance(schema, bool):
        return schema
    made: dict[str, Any] = {}
    for word, content in schema.items():
        if word in _NAMED:
            made[word] = {name: map_schemas(each, change) for name, each in content.items()}
        elif word in _SEVERAL or (word == "items" and isinstance(content, list)):
            made[word] = [map_schemas(each, change) for each in content]
        else:
            made[word] = map_schemas(content, change) if word in _ONE else content
    return change(made)


def closed(schema: Schema) -> Schema:
    """Forbid properties that are not named, where the schema names some and does not say whether others are allowed.

    This is true of all data that we write, and a registry then accepts an additional field with a default as
    compatible.
    """

    def change(each: dict[str, Any]) -> dict[str, Any]:
        if "properties" not in each:
            return each
        return {**each, "additionalProperties": each.get("additionalProperties", False)}

    return map_schemas(schema, change)


def of_document(schema: Schema, name: str) -> Schema:
    """Return the schema with its internal references as references into the document ``name``, for use by other
    schemas."""

    def named(each: dict[str, Any]) -> dict[str, Any]:
        return {**each, "$ref": f"{name}{each['$ref']}"} if str(each.get("$ref", "")).startswith("#") else each

    return map_schemas(schema, named)
