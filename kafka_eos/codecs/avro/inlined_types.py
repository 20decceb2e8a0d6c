"""Schemas as fastavro reads with them: where a type is named, the type itself stands.

fastavro resolves a definition against a definition. Where one of two schemas defines a type and the other one names it,
which depends on the order of fields alone, it fails on a reader's union: an optional field of a type that a list before
it has, too. Rule: whatever the order of fields is, a schema means the same.
"""

from __future__ import annotations

from typing import Any

_NAMES = "__named_schemas"
"""Where fastavro keeps the definitions of a schema that it has parsed."""


def linked(parsed: Any) -> Any:
    """The same parsed schema, changed in place. A type that holds itself does so afterwards.

    A union at the top keeps its names: fastavro parses it anew with each value.
    """
    if not isinstance(parsed, dict) or _NAMES not in parsed:
        return parsed
    waiting: list[Any] = [parsed]
    names, seen = parsed[_NAMES], {id(parsed)}
    while waiting:
        for holder, place in _places(waiting.pop()):
            part = holder[place]
            if isinstance(part, str):
                part = holder[place] = names.get(part, part)
            if isinstance(part, dict | list) and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return parsed


def _places(schema: Any) -> list[tuple[Any, Any]]:
    """Where the schemas right below one stand."""
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
