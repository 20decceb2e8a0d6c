"""Descriptions of what a column would silently change in a value, by the column's type. Pure.

The server parses the text of a value by the column's type: it rounds numbers and times, pads texts, and takes a UUID of
digits for a number. Rule: a column takes only the class of values that it returns, and a value comes back equal, or it
is rejected here. Values that the server itself rejects are not examined.
"""

from __future__ import annotations

import datetime
import decimal
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka_eos.codecs.time_zones import describe_range
from kafka_eos.connectors.postgres.columns import PLAIN

_SQL_TYPE: Final = re.compile(
    r"(?P<name>[a-z ]+?)(?: ?\((?P<size>\d+)(?:,(?P<scale>-?\d+))?\))?(?P<more> with(?:out)? time zone)?"
    r"(?P<array>(?:\[\])*)(?: COLLATE .*)?"
)
_TIMES: Final = (datetime.datetime, datetime.time, datetime.timedelta)
_BYTES: Final = (bytes, bytearray, memoryview)
_BUILTINS: Final = (*PLAIN, *_BYTES, list, tuple, dict, set, frozenset)
_KEPT_BY: Final = {
    "minute": datetime.timedelta(minutes=1),
    "hour": datetime.timedelta(hours=1),
    "day": datetime.timedelta(days=1),
}
"""The finest step that an interval keeps, by the last of its fields."""
_EXACT: Final = decimal.Context(prec=2000, traps=[decimal.InvalidOperation])


class ColumnLosses:
    """The losses of values in a column of SQL type ``tp``. If it is empty, the column is left to the server.

    ``unchanged``: the classes of the values that it returns as they are.
    ``returned``: what it returns, for messages; empty if unknown.
    """

    def __init__(self, tp: str) -> None:
        match = _SQL_TYPE.fullmatch(tp)
        name = match["name"] + (match["more"] or "") if match else ""
        self._type = tp
        self._size = int(match["size"]) if match and match["size"] else None
        self._scale = int(match["scale"] or 0) if match else 0
        self._array = bool(match and match["array"])
        self._fields = name.removeprefix("interval").split() if name.startswith("interval") else []
        self._describe, self._taken, examined = _BY_TYPE.get("interval" if self._fields else name, _OTHER)
        taken = {*self._taken, type(None)} - {*examined} if tp else PLAIN
        self.unchanged = frozenset[type]() if self._array else frozenset[type](taken)
        returned = _RETURNED.get(name) or next((f"a {cls.__name__}" for cls in self._taken), "")
        self.returned = "a list" if self._array else returned

    def takes(self, cls: type) -> bool:
        """Return whether the column returns values of a class."""
        return cls in self._taken and not self._array

    def describe(self, value: Any) -> str:
        """Return the loss of a value in the column, as the end of a sentence; empty if it loses nothing."""
        if not self._type or value is None:
            return ""
        if self._array and not isinstance(value, list):
            return self._of_other(value)
        return self._of_item(value)

    def _of_item(self, value: Any) -> str:
        if self._array and isinstance(value, list):
            return next((loss for each in value if (loss := self._of_item(each))), "")
        return "" if value is None else self._describe(self, value) or self._of_class(value)

    def _of_class(self, value: Any) -> str:
        """Values of a type that is unknown here are left to the server, unless another type has their class."""
        taken = self._taken or (() if isinstance(value, _BUILTINS) else (object,))
        if isinstance(value, taken) and (bool in taken or not isinstance(value, bool)):
            return ""
        return self._of_other(value)

    def _of_other(self, value: Any) -> str:
        returned = f"returns {self.returned}, not" if self.returned else "would not return"
        return f"of type {self._type} {returned} a {type(value).__name__}: convert the value"

    def of_numeric(self, value: Any) -> str:
        if self._size is None or not isinstance(value, decimal.Decimal) or not value.is_finite():
            return ""
        if not _EXACT.remainder(value, decimal.Decimal((0, (1,), -self._scale))):
            return ""
        return f"keeps {self._scale} decimals, and would round {value}: round it first"

    def of_real(self, value: Any) -> str:
        if not isinstance(value, float) or value != value or (found := _as_real(value)) == value:
            return ""
        return f"is a real number, and would store {value} as {found!r}: change it to double precision"

    def of_text(self, value: Any) -> str:
        if isinstance(value, _BYTES):
            return "would store the hex digits of these bytes: decode them, or change the column to bytea"
        if self._size is not None and isinstance(value, str) and len(value) > self._size:
            return f"holds {self._size} characters, but this text has {len(value)}"
        return ""

    def of_padded_text(self, value: Any) -> str:
        if isinstance(value, str) and len(value) < (self._size or 1):
            return f"would pad this text to {self._size} characters: change the column to varchar({self._size})"
        return self.of_text(value)

    def of_name(self, value: Any) -> str:
        if isinstance(value, str) and len(value) > 15 and len(value.encode(errors="replace")) > 63:
            return "holds 63 bytes, and would cut this text"
        return self.of_text(value)

    def of_date(self, value: Any) -> str:
        if isinstance(value, datetime.datetime):
            return f"is a date, and would drop the time of {value}: write its .date()"
        return ""

    def of_time(self, value: Any) -> str:
        if isinstance(value, datetime.datetime):
            return f"is a time, and would drop the date of {value}: write its .timetz() or .time()"
        return self.of_fraction(value)

    def of_zoneless_time(self, value: Any) -> str:
        return self.of_time(value) or _of_zone(value)

    def of_zoned_time(self, value: Any) -> str:
        return self.of_time(value) or _of_no_zone(value)

    def of_zoned_timestamp(self, value: Any) -> str:
        if missing := _of_no_zone(value):
            return missing
        if isinstance(value, datetime.datetime) and (wrong := describe_range(value)):
            return f"could not return {value}, which {wrong}"
        return self.of_fraction(value)

    def of_interval(self, value: Any) -> str:
        if self._fields and isinstance(value, datetime.timedelta) and self._fields[-1] != "second":
            step = _KEPT_BY.get(self._fields[-1])
            if value if step is None else value % step:
                return f"keeps no part of an interval below its {self._fields[-1]}s, and would round {value}"
        return self.of_fraction(value)

    def of_zoneless_timestamp(self, value: Any) -> str:
        return self.of_fraction(value) or _of_zone(value)

    def of_fraction(self, value: Any) -> str:
        if self._size is None or not isinstance(value, _TIMES):
            return ""
        micros = value.microseconds if isinstance(value, datetime.timedelta) else value.microsecond
        if micros % 10 ** max(6 - self._size, 0) == 0:
            return ""
        return f"keeps {self._size} digits of a second, and would round {value}: round it first"


def _nothing(losses: ColumnLosses, value: Any) -> str:
    return ""


def _of_zone(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.time) and value.tzinfo is not None:
        return f"has no time zone, and would lose that of {value}: write it without one, or change the column"
    return ""


def _of_no_zone(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.time) and value.utcoffset() is None:
        return f"has a time zone, and {value} has none: write it with its zone, such as datetime.UTC"
    return ""


def _as_real(value: Any) -> float:
    """Return the number that is read from a four-byte column, which prints the shortest digits that identify it."""
    (real,) = struct.unpack("f", struct.pack("f", float(value)))
    shortest = (float(f"{real:.{digits}g}") for digits in range(6, 10))
    return next((each for each in shortest if struct.pack("f", each) == struct.pack("f", real)), float(real))


_RETURNED: Final = {
    "integer": "an int",
    "bigint": "an int",
    "smallint": "an int",
    "time without time zone": "a time without a zone",
    "time with time zone": "a time with a zone",
    "timestamp without time zone": "a datetime without a zone",
    "timestamp with time zone": "a datetime with a zone",
}
"""The classes that columns return, for columns whose description needs more than the class name."""
_Describe = Callable[[ColumnLosses, Any], str]
_Type = tuple[_Describe, tuple[type, ...], tuple[type, ...]]
"""The check of a value, the classes that the column returns, and those of them that it may change."""
_OTHER: Final[_Type] = (_nothing, (), ())
_BY_TYPE: Final[Mapping[str, _Type]] = {
    "boolean": (_nothing, (bool,), ()),
    **dict.fromkeys(("smallint", "integer", "bigint"), (_nothing, (int,), ())),
    "numeric": (ColumnLosses.of_numeric, (decimal.Decimal,), (decimal.Decimal,)),
    "double precision": (_nothing, (float,), ()),
    "real": (ColumnLosses.of_real, (float,), (float,)),
    **dict.fromkeys(("text", "bpchar", "xml", "bit", "bit varying"), (ColumnLosses.of_text, (str,), ())),
    "name": (ColumnLosses.of_name, (str,), (str,)),
    "character": (ColumnLosses.of_padded_text, (str,), (str,)),
    "character varying": (ColumnLosses.of_text, (str,), (str,)),
    "bytea": (_nothing, (bytes,), ()),
    "uuid": (_nothing, (uuid.UUID,), ()),
    "date": (ColumnLosses.of_date, (datetime.date,), ()),
    "time without time zone": (ColumnLosses.of_zoneless_time, (datetime.time,), (datetime.time,)),
    "time with time zone": (ColumnLosses.of_zoned_time, (datetime.time,), (datetime.time,)),
    "timestamp without time zone": (ColumnLosses.of_zoneless_timestamp, (datetime.datetime,), (datetime.datetime,)),
    "timestamp with time zone": (ColumnLosses.of_zoned_timestamp, (datetime.datetime,), (datetime.datetime,)),
    "interval": (ColumnLosses.of_interval, (datetime.timedelta,), (datetime.timedelta,)),
}
