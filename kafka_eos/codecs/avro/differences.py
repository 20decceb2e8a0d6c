"""Differences between two Avro schemas, as lines for messages.

Pure. Rule: each line names the field by its path, and states the registered and the declared version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from kafka_eos.codecs.avro.expansion import Names
from kafka_eos.codecs.comparison_lines import collect_lines

_NONE = object()
_MOST_SYMBOLS: Final = 20
"""Symbols of an enum in a message."""


def differences(there: Any, there_names: Names, here: Any, here_names: Names) -> list[str]:
    """Return the differences of schemas from ``foreign_schemas.parse_schema``. Documentation is ignored."""
    return collect_lines(_DifferenceFinder(there_names, here_names).between(there, here, ""))


class _DifferenceFinder:
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
            for registered, declared in zip(there, here, strict=True):
                yield from self.between(registered, declared, at)
        elif (registered := as_text(there, self._there)) != (declared := as_text(here, self._here)):
            yield f"{at or 'the schema'} is {registered} there, {declared} here"
        elif kinds[0] != kinds[1]:
            yield f"{at or 'the schema'} is {registered} in {kinds[0]} there, in {kinds[1]} here"

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
        registered = {field["name"]: field for field in there["fields"]}
        declared = {field["name"]: field for field in here["fields"]}
        for name in registered | declared:
            path = f"{at}.{name}" if at else name
            if name not in declared:
                yield f"{path} ({as_text(registered[name]['type'], self._there)}) is only there"
            elif name not in registered:
                yield f"{path} ({as_text(declared[name]['type'], self._here)}) is only here"
            else:
                yield from self.between(registered[name]["type"], declared[name]["type"], path)
                yield from _defaults(registered[name], declared[name], path)


def _defaults(there: Any, here: Any, at: str) -> Iterator[str]:
    registered, declared = there.get("default", _NONE), here.get("default", _NONE)
    if registered != declared or type(registered) is not type(declared):
        yield f"{at} has {_default(registered)} there, {_default(declared)} here"


def _default(value: Any) -> str:
    return "no default" if value is _NONE else f"the default {json.dumps(value)}"


def resolved(schema: Any, names: Names) -> Any:
    """Return the definition of a name."""
    return names.get(schema, schema) if isinstance(schema, str) else schema


def kind(schema: Any) -> str:
    """Return the kind of a resolved schema."""
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


def as_text(schema: Any, names: Names) -> str:
    """Return a type as text, for messages."""
    schema = resolved(schema, names)
    if isinstance(schema, list):
        return " | ".join(as_text(each, names) for each in schema)
    if not isinstance(schema, dict):
        return str(schema)
    match schema["type"]:
        case "record" | "fixed":
            return f"{schema['type']} {schema['name']}"
        case "enum":
            return f"enum {schema['name']} of {', '.join(schema['symbols'][:_MOST_SYMBOLS])}"
        case "array":
            return f"array of {as_text(schema['items'], names)}"
        case "map":
            return f"map of {as_text(schema['values'], names)}"
    if "precision" in schema:
        return f"decimal({schema['precision']}, {schema.get('scale', 0)})"
    return str(schema.get("logicalType", schema["type"]))
