"""Expansion of Avro schemas: the number of values that one byte may become, and the depth of their nesting.

Pure. Rule: both are computed from the schema before a value is read, visiting each type once. Records and nulls take no
bytes: a schema of 2 kB whose records double at each level describes 2^40 values of no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, TypeAlias

Names: TypeAlias = dict[str, Any]
"""Definitions by full name."""

NAMED: Final = ("record", "error", "enum", "fixed")
RECORDS: Final = ("record", "error")
_MOST_VALUES: Final = 100
"""Values that a byte may become. Usual schemas reach ten: records whose first field is a record, and null fields."""


class Expansion:
    """The expansion of values of a schema. Raises ValueError if bytes cannot bound it."""

    def __init__(self, schema: Any, names: Names) -> None:
        self._names = names
        self._all = list(self._within(schema))
        records = [each for each in self._all if _is_record(each)]
        self._weights: dict[str, tuple[int, int | None]] = {}
        """For each record: its values before the first one that takes bytes, and those of its first byte; None if it
        takes no bytes."""
        self.levels_per_byte = self._measure({each["name"]: each for each in records})
        """The most levels of nested values that follow each other without a byte between them."""
        self.levels = self._depth(records)
        """The most levels of nested values; None if a value can contain another one of its own type."""
        self._expect_few(schema)

    def resolved(self, schema: Any) -> Any:
        return self._names.get(schema, schema) if isinstance(schema, str) else schema

    def _within(self, schema: Any) -> Iterator[Any]:
        """Yield every schema within a schema, each definition once."""
        waiting, seen = [schema], set()
        while waiting:
            each = self.resolved(waiting.pop())
            if isinstance(each, dict) and each["type"] in NAMED:
                if each["name"] in seen:
                    continue
                seen.add(each["name"])
            yield each
            waiting.extend(parts(each))

    def _measure(self, records: dict[str, Any]) -> int:
        """Count the values of each record, the innermost first; return the longest chain of records."""
        held = {
            name: [each["name"] for part in parts(record) if _is_record(each := self.resolved(part))]
            for name, record in records.items()
        }
        try:
            depths = _count_levels(held)
        except CycleError as error:
            raise ValueError(f"{error.args[1][0]} contains itself, so its values have no end") from None
        for name in depths:
            self._weights[name] = self._weight_of(records[name])
        return max(depths.values(), default=1)

    def _weight_of(self, record: Any) -> tuple[int, int | None]:
        free, first = 1, None
        for part in parts(record):
            weightless, heavy = self._weight(part)
            free += weightless
            first = heavy if first is None else first
        return free, None if first is None else free + first

    def _weight(self, schema: Any) -> tuple[int, int | None]:
        """Return the values that take no bytes, and those of the first byte; None if there is none."""
        each = self.resolved(schema)
        if _is_record(each):
            free, first = self._weights[each["name"]]
            return (free, None) if first is None else (0, first)
        return (0, 1) if _takes_bytes(each) else (1, None)

    def _free(self, schema: Any) -> int:
        """Return the values of a schema that takes no bytes; 0 if it takes some."""
        weightless, first = self._weight(schema)
        return weightless if first is None else 0

    def _expect_few(self, top: Any) -> None:
        for each in (*self._all, top):
            if isinstance(each, dict) and each["type"] == "array" and self._free(each["items"]):
                name = _name(each["items"])
                raise ValueError(f"arrays of {name} are not read: they can claim any number of values in a few bytes")
            if (values := self._values(each)) > _MOST_VALUES:
                raise ValueError(
                    f"one byte of {_name(each)} can become {values:,} values, and at most {_MOST_VALUES} are read: "
                    "it has records within records that take no bytes"
                )

    def _values(self, schema: Any) -> int:
        """Return the most values that one byte becomes, or that none become."""
        if isinstance(schema, list):
            return 1 + max(map(self._free, schema), default=0)
        if isinstance(schema, dict) and schema["type"] == "map":
            return 1 + self._free(schema["values"])
        weightless, first = self._weight(schema)
        return max(weightless, first or 0)

    def _depth(self, records: list[Any]) -> int | None:
        held = {each["name"]: list(self._records_below(each)) for each in records}
        try:
            return max(_count_levels(held).values(), default=1)
        except CycleError:
            return None

    def _records_below(self, schema: Any) -> Iterator[str]:
        """Yield the records that a value of the schema contains, not those nested in them."""
        waiting = list(parts(schema))
        while waiting:
            each = self.resolved(waiting.pop())
            if _is_record(each):
                yield each["name"]
            else:
                waiting.extend(parts(each))


def parts(schema: Any) -> Iterator[Any]:
    """Yield the schemas directly below a schema."""
    if isinstance(schema, list):
        yield from schema
    elif isinstance(schema, dict):
        match schema["type"]:
            case "record" | "error":
                yield from (field["type"] for field in schema["fields"])
            case "array":
                yield schema["items"]
            case "map":
                yield schema["values"]


def _count_levels(held: dict[str, list[str]]) -> dict[str, int]:
    """Return the levels of records in each record, the innermost record first. ``held``: the records in each.

    Raises CycleError if a record contains itself.
    """
    levels: dict[str, int] = {}
    for name in TopologicalSorter(held).static_order():
        levels[name] = 1 + max((levels[each] for each in held[name]), default=0)
    return levels


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] in RECORDS


def _takes_bytes(schema: Any) -> bool:
    """Return whether a value takes bytes, of a schema that is not a record's. A union writes the index of its type."""
    if isinstance(schema, dict):
        return bool(schema["size"]) if schema["type"] == "fixed" else bool(schema["type"] != "null")
    return bool(schema != "null")


def _name(schema: Any) -> str:
    if isinstance(schema, dict):
        return str(schema.get("name", schema["type"]))
    return "a union" if isinstance(schema, list) else str(schema)
