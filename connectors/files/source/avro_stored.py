"""Avro schemas under which every value has a Python object, as the file stores it.

Pure. Rule: both schemas read the same bytes, so the rows behind a value that Python cannot represent are known.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any


def as_stored(schema: Any) -> Any:
    """Return a schema with numbers in place of times and decimals, and bytes in place of text.

    ``schema``: a parsed one, with inlined types; a type may contain itself.
    """
    return _stored(schema, {})


def with_stored_fields(schema: Any, names: Set[str]) -> Any:
    """Return the schema of a record whose fields of these names are read as they are stored."""
    return {
        **schema,
        "fields": [
            {**field, "type": as_stored(field["type"])} if field["name"] in names else field
            for field in schema["fields"]
        ],
    }


def _stored(schema: Any, made: dict[int, Any]) -> Any:
    """Return the stored form. ``made``: those of the types that contain this one, by the identity of their schemas."""
    if isinstance(schema, str):
        return "bytes" if schema == "string" else schema
    if id(schema) in made:
        return made[id(schema)]
    if isinstance(schema, list):
        return [_stored(each, made) for each in schema]
    found = made[id(schema)] = {name: value for name, value in schema.items() if name != "logicalType"}
    match schema["type"]:
        case "record" | "error":
            found["fields"] = [{**field, "type": _stored(field["type"], made)} for field in schema["fields"]]
        case "array":
            found["items"] = _stored(schema["items"], made)
        case "map":
            found["values"] = _stored(schema["values"], made)
        case "string":
            found["type"] = "bytes"
    return found
