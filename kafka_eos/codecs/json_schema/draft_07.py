"""Normalization of JSON schemas to draft-07, which every registry compares; other drafts are converted to it.

Pure. Rule: keywords are recognized only where a schema is expected. Names of properties, constants and defaults are the
user's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urljoin

from kafka_eos.core.json_values import Json

Schema: TypeAlias = "dict[str, Any] | bool"

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_REFERENCES_ALONE: Final = tuple(f"http://json-schema.org/draft-0{number}/" for number in (3, 4, 6, 7))
_HERE: Final = "#/definitions/"
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
_MOST_CHARACTERS: Final = 16 << 20
"""The limit on characters of all addresses in a schema: each address contains those of the schemas around it."""


def draft_07(schema: Json) -> Schema:
    """Return the same schema in draft-07, with all definitions at its top. Raises ValueError if it is invalid."""
    walk = _Conversion()
    made = walk.convert(schema, "", "#", 0)
    names = walk.names()

    def refer(each: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in each:
            return each
        address = each["$ref"]
        local = address.removeprefix(walk.root) or "#"
        return {**each, "$ref": f"{_HERE}{names[address]}" if address in names else local}

    definitions = {names[address]: map_schemas(each, refer) for address, each in walk.definitions.items()}
    made = map_schemas(made, refer)
    if isinstance(made, dict) and set(made) == {"$ref"}:
        # draft-07 ignores keywords beside a reference, definitions too
        made = definitions.get(made["$ref"].removeprefix(_HERE), made)
    return {**made, "definitions": definitions} if definitions and isinstance(made, dict) else made


class _Conversion:
    """The conversion of a schema. References become addresses: the id of a document, ``#`` and a path in it."""

    def __init__(self) -> None:
        self.root = ""
        self.definitions: dict[str, Schema] = {}
        """The definitions, by address."""
        self._ids: dict[str, str] = {}
        """The addresses of definitions by the ids that they have themselves."""
        self._left = _MOST_CHARACTERS
        self._references_alone = False
        """Whether the draft of the schema ignores keywords beside a reference."""

    def convert(self, schema: Json, base: str, at: str, depth: int) -> Schema:
        """Convert one schema. ``base``: the id of its document; ``at``: its own address."""
        self._left -= len(at) + len(base)
        if self._left < 0:
            raise ValueError("the schema has too long names for its size")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or depth > _DEEPEST:
            raise ValueError("it is not a JSON schema" if depth <= _DEEPEST else "the schema is nested too deeply")
        if depth == 0:
            self._references_alone = str(schema.get("$schema")).startswith(_REFERENCES_ALONE)
        words = _of_draft_07(schema)
        if self._references_alone and "$ref" in words:
            words = {word: words[word] for word in ("$ref", "definitions") if word in words}
        if isinstance(words.get("$id"), str) and not words["$id"].startswith("#"):
            base = urljoin(base, words["$id"]).rstrip("#")
            self._ids[base] = at
            at = f"{base}#"
            if depth == 0:
                self.root = base
            else:
                del words["$id"]

        def below(part: Json, *path: str) -> Schema:
            return self.convert(part, base, "/".join((at, *(each.replace("/", "~1") for each in path))), depth + 1)

        made: dict[str, Any] = {}
        for word, content in words.items():
            if word in _SHAPES and not isinstance(content, _SHAPES[word]):
                raise ValueError(f"it is not a JSON schema: {word} is {content!r:.100}")
            if word == "required" and not all(isinstance(each, str) for each in content):
                raise ValueError("it is not a JSON schema: required must list names")
            if word == "definitions":
                for name, each in _named(content, word, below).items():
                    address = "/".join((at, word, name.replace("/", "~1")))
                    if self.definitions.setdefault(address, each) != each:
                        raise ValueError(f"two of its definitions are called {name}")
            elif word == "$ref":
                made[word] = base + content if content.startswith("#") else urljoin(base, content)
                made[word] = made[word].replace("/$defs/", "/definitions/")
            elif word in _NAMED:
                made[word] = _named(content, word, below)
            elif word in _SEVERAL or (word == "items" and isinstance(content, list)):
                made[word] = [below(each, word, str(index)) for index, each in enumerate(_listed(content))]
            else:
                made[word] = below(content, word) if word in _ONE else content
        return _alone(made)

    def names(self) -> dict[str, str]:
        """Return names for all definitions at the top, by their addresses and ids."""
        found, taken, count = dict[str, str](), set[str](), dict[str, int]()
        for address in sorted(self.definitions, key=lambda each: not each.startswith(f"{self.root}{_HERE}")):
            name = last = re.split("/|~1", address)[-1]
            number = count.get(last, 1)
            while name in taken:
                number += 1
                name = f"{last}_{number}"
            taken.add(name)
            found[address], count[last] = name, number
        return found | {own: found[address] for own, address in self._ids.items() if address in found}


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
    reference = {"$ref": schema.pop("$ref")}
    return {"allOf": [reference, *schema.pop("allOf", [])], **schema} if schema else reference


def _named(content: Any, word: str, below: Callable[..., Schema]) -> dict[str, Schema]:
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON schema")
    return {name: below(each, word, name) for name, each in content.items()}


def _listed(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise ValueError("it is not a JSON schema")
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
    """Forbid additional properties in objects that name some and do not say whether others are allowed.

    The data that we write has no others, and a registry then accepts a new field with a default as compatible.
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
