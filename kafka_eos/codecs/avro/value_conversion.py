"""Preparation of plain values for Avro: enums by their symbols, values of unions with the matching arm.

Rule: a value is accepted if decoding returns an equal one, else it is a ValueError: fastavro would turn 1.5 into an
int, and a time without zone into local time. The conversion is computed once, from the schema. One exception follows
from the schema: a float has 32 bits, so the nearest one is written.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kafka_eos.codecs.time_zones import describe_range, describe_ruled_zone

Preparer: TypeAlias = Callable[[Any], Any]
TypedPreparer: TypeAlias = tuple[frozenset[type], Preparer]
"""Types that need no preparation, and the preparer of other values."""


def build_preparer(schema: Any, siblings: frozenset[str] = frozenset()) -> Preparer:
    """Build the function that prepares values of a schema."""
    return _PreparerBuilder(siblings).within(schema)[1]


class _PreparerBuilder:
    """Builds preparers from a schema; knows its named types."""

    def __init__(self, siblings: frozenset[str]) -> None:
        self._named: dict[str, Preparer] = {}
        self._beside = siblings

    def within(self, schema: Any) -> TypedPreparer:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return (frozenset(), self._named[schema]) if schema in self._named else _of_kind(schema)
        match schema["type"]:
            case "record" | "error":
                return frozenset(), self._record(schema)
            case "enum":
                self._named[schema["name"]] = _symbol(schema["symbols"])
                return frozenset(), self._named[schema["name"]]
            case "array":
                return frozenset(), _each(*self.within(schema["items"]))
            case "map":
                return frozenset(), _map(*self.within(schema["values"]))
            case dict() | list() as inner:
                return self.within(inner)
        found = _of_kind(schema.get("logicalType", ""), schema["type"])
        if schema["type"] == "fixed":
            self._named[schema["name"]] = found[1]
        return found

    def _record(self, schema: Any) -> Preparer:
        name, fields = schema["name"], list[tuple[str, frozenset[type], Preparer]]()
        known = {field["name"] for field in schema["fields"]} | self._beside

        def of(plain: Any) -> Any:
            if type(plain) is not dict and not isinstance(plain, Mapping):  # a check against an ABC is slow
                raise _unfit(plain, name)
            if not known.issuperset(plain):
                raise ValueError(f"no field for {', '.join(sorted(map(str, plain.keys() - known)))}")
            made: dict[str, Any] = {}
            for field, exact, make in fields:
                if field in plain and type(value := plain[field]) not in exact:
                    try:
                        made[field] = make(value)
                    except (ValueError, OverflowError) as error:
                        raise ValueError(f"{field}: {error}") from None
            return {**plain, **made} if made else plain

        self._named[name] = of  # before its fields: the type may be recursive
        fields.extend((field["name"], *self.within(field["type"])) for field in schema["fields"])
        return of

    def _union(self, arms: Sequence[Any]) -> TypedPreparer:
        found = [(_name(arm), *self.within(arm)) for arm in arms]
        rest = [each for each in found if each[0] != "null"]
        exact = frozenset[type]({type(None)}) if len(rest) < len(found) else frozenset[type]()
        if len(rest) == 1:
            ((_, taken, make),) = rest
            return exact | taken, lambda value: None if value is None and exact else make(value)
        return exact, _first(rest, bool(exact))


def _first(arms: Sequence[tuple[str, frozenset[type], Preparer]], nullable: bool) -> Preparer:
    """Return a preparer that pairs the value with the first matching arm, as fastavro expects it."""

    def of(value: Any) -> Any:
        if value is None and nullable:
            return None
        for name, exact, make in arms:
            try:
                return name, value if type(value) in exact else make(value)
            except (ValueError, OverflowError):
                continue
        raise _unfit(value, f"union of {', '.join(name for name, _, _ in arms)}")

    return of


def _name(arm: Any) -> str:
    """Return fastavro's name of the arm of a union."""
    if isinstance(arm, str):
        return arm
    return str(arm["name"] if "name" in arm else arm["type"])


def _each(exact: frozenset[type], make: Preparer) -> Preparer:
    def of(value: Any) -> Any:
        if type(value) is not list and not isinstance(value, list):
            raise _unfit(value, "array")
        return [each if type(each) in exact else make(each) for each in value]

    return of


def _map(exact: frozenset[type], make: Preparer) -> Preparer:
    def of(value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _unfit(value, "map")
        return {key: each if type(each) in exact else make(each) for key, each in value.items()}

    return of


def _symbol(symbols: Sequence[str]) -> Preparer:
    known = frozenset(symbols)

    def of(value: Any) -> Any:
        found = value.value if isinstance(value, enum.Enum) else value
        if not isinstance(found, str) or found not in known:
            raise _unfit(value, f"enum of {', '.join(symbols)}")
        return found

    return of


def _of_kind(kind: str, otherwise: str = "") -> TypedPreparer:
    """Return the preparer of a logical type, or of its underlying type if it is unknown."""
    kind = kind if kind in _KINDS else otherwise
    taken, why = _KINDS[kind]
    exact = frozenset({taken}) if why is None else frozenset[type]()

    def make(value: Any) -> Any:
        if type(value) is not taken:
            value = _of_type(value, taken, kind)
        if why is not None and (reason := why(value)):
            raise ValueError(f"{value} {reason}")
        return value

    return exact, make


def _of_type(value: Any, taken: type, kind: str) -> Any:
    """Convert a value of a subclass or a similar type to the type, or to its base type."""
    if isinstance(value, enum.Enum) and isinstance(value, str):
        value = value.value
    if type(value) is int and taken is float and float(value) == value:
        value = float(value)
    if isinstance(value, bytearray) and taken is bytes:
        value = bytes(value)
    if not isinstance(value, taken) or (type(value) is not taken and isinstance(value, bool | datetime.datetime)):
        raise _unfit(value, kind)
    return value


def _zoned(value: datetime.datetime) -> str:
    return "has no time zone" if value.tzinfo is None else describe_range(value)


def _unzoned(value: datetime.datetime | datetime.time) -> str:
    return "has a time zone" if value.tzinfo is not None else ""


def _coarse(value: datetime.datetime | datetime.time) -> str:
    return "is finer than milliseconds" if value.microsecond % 1000 else ""


def _narrow(value: int) -> str:
    return "" if -(1 << 31) <= value < 1 << 31 else "is too large for an int"


def _near(value: float) -> str:
    struct.pack("<f", value)  # raises OverflowError if it is too large
    return ""


_KINDS: Final[Mapping[str, tuple[type, Callable[[Any], str] | None]]] = {
    "null": (type(None), None),
    "boolean": (bool, None),
    "int": (int, _narrow),
    "long": (int, None),
    "float": (float, _near),
    "double": (float, None),
    "string": (str, None),
    "bytes": (bytes, None),
    "fixed": (bytes, None),
    "date": (datetime.date, None),
    "uuid": (uuid.UUID, None),
    "decimal": (decimal.Decimal, None),
    "timestamp-micros": (datetime.datetime, _zoned),
    "timestamp-millis": (datetime.datetime, lambda value: _zoned(value) or _coarse(value)),
    "local-timestamp-micros": (datetime.datetime, _unzoned),
    "local-timestamp-millis": (datetime.datetime, lambda value: _unzoned(value) or _coarse(value)),
    "zoned-datetime": (datetime.datetime, describe_ruled_zone),
    "time-micros": (datetime.time, _unzoned),
    "time-millis": (datetime.time, lambda value: _unzoned(value) or _coarse(value)),
}
"""For each kind: the accepted type, and the check of a value's range."""


def _unfit(value: Any, kind: str) -> ValueError:
    return ValueError(f"a {type(value).__name__} is not a valid {kind}: {value!r:.100}")
