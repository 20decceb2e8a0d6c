"""In what two Avro schemas differ, in lines for people.

Pure. Rule: each line names the field by its path, and says what is there (in the registry) and what is here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kafka_eos.codecs.avro.foreign_schemas import Names

_NONE = object()


def differences(there: Any, there_names: Names, here: Any, here_names: Names) -> list[str]:
    """Schemas as ``foreign.parsed`` gives them, with their definitions. Documentation does not count."""
    return list(_Walk(there_names, here_names).between(there, here, ""))


class _Walk:
    def __init__(self, there: Names, here: Names) -> None:
        self._there, self._here = there, here
        self._met: set[tuple[str, str]] = set()

    def between(self, there: Any, here: Any, at: str) -> Iterator[str]:
        there, here = resolved(there, self._there), resolved(here, self._here)
        kinds = kind(there), kind(here)
        if kinds == ("record", "record"):
            yield from self._records(there, here, at)
        elif kinds == ("array", "array"):
            yield from self.between(there["items"], here["items"], f"{at}[]")
        elif kinds == ("map", "map"):
            yield from self.between(there["values"], here["values"], f"{at}{{}}")
        elif kinds == ("union", "union") and [*map(self._kind_there, there)] == [*map(self._kind_here, here)]:
            for theirs, ours in zip(there, here, strict=True):
                yield from self.between(theirs, ours, at)
        elif (theirs := as_text(there, self._there)) != (ours := as_text(here, self._here)):
            yield f"{at or 'the schema'} is {theirs} there, {ours} here"
        elif kinds[0] != kinds[1]:
            yield f"{at or 'the schema'} is {theirs} in {kinds[0]} there, in {kinds[1]} here"

    def _kind_there(self, schema: Any) -> str:
        return kind(resolved(schema, self._there))

    def _kind_here(self, schema: Any) -> str:
        return kind(resolved(schema, self._here))

    def _records(self, there: Any, here: Any, at: str) -> Iterator[str]:
        both = there["name"], here["name"]
        if both in self._met:
            return
        self._met.add(both)
        if there["name"] != here["name"]:
            yield f"{at or 'the record'} is called {there['name']} there, {here['name']} here"
        theirs = {field["name"]: field for field in there["fields"]}
        ours = {field["name"]: field for field in here["fields"]}
        for name in theirs | ours:
            path = f"{at}.{name}" if at else name
            if name not in ours:
                yield f"{path} ({as_text(theirs[name]['type'], self._there)}) is only there"
            elif name not in theirs:
                yield f"{path} ({as_text(ours[name]['type'], self._here)}) is only here"
            else:
                yield from self.between(theirs[name]["type"], ours[name]["type"], path)
                yield from _defaults(theirs[name], ours[name], path)


def _defaults(there: Any, here: Any, at: str) -> Iterator[str]:
    theirs, ours = there.get("default", _NONE), here.get("default", _NONE)
    if theirs != ours or type(theirs) is not type(ours):
        yield f"{at} has {_default(theirs)} there, {_default(ours)} here"


def _default(value: Any) -> str:
    return "no default" if value is _NONE else f"the default {json.dumps(value)}"


def resolved(schema: Any, names: Names) -> Any:
    """What a name stands for."""
    return names.get(schema, schema) if isinstance(schema, str) else schema


def kind(schema: Any) -> str:
    """Of a schema that is resolved."""
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


def as_text(schema: Any, names: Names) -> str:
    """A type for people."""
    schema = resolved(schema, names)
    if isinstance(schema, list):
        return " | ".join(as_text(each, names) for each in schema)
    if not isinstance(schema, dict):
        return str(schema)
    match schema["type"]:
        case "record" | "fixed":
            return f"{schema['type']} {schema['name']}"
        case "enum":
            return f"enum {schema['name']} of {', '.join(schema['symbols'])}"
        case "array":
            return f"array of {as_text(schema['items'], names)}"
        case "map":
            return f"map of {as_text(schema['values'], names)}"
    if "precision" in schema:
        return f"decimal({schema['precision']}, {schema.get('scale', 0)})"
    return str(schema.get("logicalType", schema["type"]))
