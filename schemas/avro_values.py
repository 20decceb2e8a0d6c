"""Plain values made ready for Avro: enums by their symbols, and no time without a zone.

Rule: what there is to do is found out once, from the schema; fields without such values are not looked at.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

Ready: TypeAlias = Callable[[Any], Any]


def ready(schema: Any) -> Ready:
    """What makes values of ``schema``, which may be changed, ready to be written."""
    return _Found().within(schema) or _as_it_is


class _Found:
    """What there is to do in the records of one schema, by name."""

    def __init__(self) -> None:
        self._records: dict[str, Ready] = {}

    def within(self, schema: Any) -> Ready | None:
        """None if there is nothing to do."""
        match schema:
            case str():
                return self._records.get(schema)
            case list():
                return self._union([each for each in schema if each != "null"])
            case {"logicalType": "timestamp-micros"}:
                return _aware
            case {"type": "enum"}:
                self._records[schema["name"]] = _symbol
                return _symbol
            case {"type": "array", "items": inner}:
                return _each(self.within(inner), lambda make, values: [make(value) for value in values])
            case {"type": "map", "values": inner}:
                return _each(
                    self.within(inner), lambda make, values: {key: make(value) for key, value in values.items()}
                )
            case {"type": "record"}:
                return self._record(schema)
        return None

    def _record(self, schema: Any) -> Ready:
        todo: list[tuple[str, Ready]] = []

        def fields(plain: Any) -> Any:
            for name, make in todo:
                if name in plain:
                    plain[name] = make(plain[name])
            return plain

        self._records[schema["name"]] = fields  # before its fields: it may hold itself
        found = [(field["name"], self.within(field["type"])) for field in schema["fields"]]
        todo.extend((name, make) for name, make in found if make is not None)
        return fields

    def _union(self, arms: list[Any]) -> Ready | None:
        found = [self.within(arm) for arm in arms]
        if not any(found):
            return None
        if len(found) > 1 or found[0] is None:
            return _whatever  # which arm a value is of, only the writer finds out
        only = found[0]
        return lambda value: None if value is None else only(value)


def _each(make: Ready | None, all_of: Callable[[Ready, Any], Any]) -> Ready | None:
    return None if make is None else partial(all_of, make)


def _as_it_is(value: Any) -> Any:
    return value


def _symbol(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _aware(value: Any) -> Any:
    """A datetime without a zone would be taken for local time, and come back as another value."""
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        raise ValueError(f"datetime {value.isoformat()} has no time zone")
    return value


def _whatever(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whatever(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whatever(each) for each in value]
    return _aware(_symbol(value))
