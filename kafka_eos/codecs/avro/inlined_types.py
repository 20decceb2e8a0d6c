"""Inlining of named types, as fastavro needs it.

fastavro resolves a definition against a definition. If one schema defines a type where the other one only names it,
which depends on the order of fields, it fails on a union of the reader: for example, an optional field of a type that
an earlier list contains, too. Rule: the order of fields does not change the meaning of a schema.
"""

from __future__ import annotations

from typing import Any

_NAMES = "__named_schemas"
"""The key under which fastavro keeps the definitions of a parsed schema."""


def inline_named_types(parsed: Any) -> Any:
    """Inline named types in a parsed schema, in place. A recursive type contains itself afterwards.

    A union at the top keeps its names: fastavro parses it again with each value.
    """
    if not isinstance(parsed, dict) or _NAMES not in parsed:
        return parsed
    waiting: list[Any] = [parsed]
    names, seen = parsed[_NAMES], {id(parsed)}
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict) and "fields" in each:
            each["fields"] = _UnshownFields(each["fields"])
        for holder, place in _places(each):
            part = holder[place]
            if isinstance(part, str):
                part = holder[place] = names.get(part, part)
            if isinstance(part, dict | list) and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return parsed


class _UnshownFields(list[Any]):
    """Fields of a record that are not part of its text.

    fastavro's error for a value that does not fit contains the text of both schemas: of inlined types that double per
    level, with all types in each place.
    """

    def __repr__(self) -> str:
        return "[…]"


def _places(schema: Any) -> list[tuple[Any, Any]]:
    """Return the positions (container and key) of the schemas directly below a schema."""
    if isinstance(schema, list):
        return [(schema, index) for index in range(len(schema))]
    match schema["type"]:
        case "record" | "error":
            return [(field, "type") for field in schema["fields"]]
        case "array":
            return [(schema, "items")]
        case "map":
            return [(schema, "values")]
    return []
