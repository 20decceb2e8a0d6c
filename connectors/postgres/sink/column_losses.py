"""Descriptions of what a column would silently change in a value, by the column's type. Pure.

The server rounds numbers and times, takes the day out of a time, and spells bytes as text. Rule: a value comes back
equal, or it is rejected here. Values that the server itself rejects are not examined.
"""

from __future__ import annotations

import datetime
import decimal
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

_SQL_TYPE: Final = re.compile(
    r"(?P<name>[a-z ]+?)(?: ?\((?P<size>\d+)(?:,(?P<scale>-?\d+))?\))?(?P<more> with(?:out)? time zone)?"
    r"(?P<array>(?:\[\])*)(?: COLLATE .*)?"
)
_TIMES: Final = (datetime.datetime, datetime.time, datetime.timedelta)
_BYTES: Final = (bytes, bytearray, memoryview)
_EXACT: Final = decimal.Context(prec=2000, traps=[decimal.InvalidOperation])


class ColumnLosses:
    """The losses of values in a column of SQL type ``tp``.

    ``classes``: the classes of the values that it may change.
    """

    def __init__(self, tp: str) -> None:
        match = _SQL_TYPE.fullmatch(tp)
        name = match["name"] + (match["more"] or "") if match else ""
        self._size = int(match["size"]) if match and match["size"] else None
        self._scale = int(match["scale"] or 0) if match else 0
        self._array = bool(match and match["array"])
        self._describe, classes = _BY_TYPE.get(name, (_nothing, ()))
        self.classes = frozenset(classes)

    def describe(self, value: Any) -> str:
        """Return what the column would lose of a value, as the end of a sentence; empty if nothing."""
        if self._array and isinstance(value, list | tuple):
            return next(filter(None, map(self.describe, value)), "")
        return self._describe(self, value)

    def of_numeric(self, value: Any) -> str:
        if self._size is None or not isinstance(value, int | float | decimal.Decimal):
            return ""
        number = decimal.Decimal(repr(value)) if isinstance(value, float) else decimal.Decimal(value)
        step = decimal.Decimal((0, (1,), -self._scale))
        if not number.is_finite() or not _EXACT.remainder(number, step):
            return ""
        return f"keeps {self._scale} decimals, and would round {value}: round it first"

    def of_double(self, value: Any) -> str:
        return _of_float(value, float, "a double precision number")

    def of_real(self, value: Any) -> str:
        return _of_float(value, _as_real, "a real number")

    def of_text(self, value: Any) -> str:
        if isinstance(value, _BYTES):
            return "would store the hex digits of these bytes: decode them, or change the column to bytea"
        if self._size is not None and isinstance(value, str) and len(value) > self._size:
            return f"holds {self._size} characters, but this text has {len(value)}"
        return ""

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
    # A time in UTC loses nothing, because a time without a zone counts as UTC.
    if isinstance(value, datetime.datetime | datetime.time) and value.utcoffset():
        return f"has no time zone, and would lose that of {value}: write it in UTC"
    return ""


def _of_float(value: Any, convert: Callable[[Any], float], kind: str) -> str:
    if not isinstance(value, int | float | decimal.Decimal) or value != value:
        return ""
    try:
        found = convert(value)
    except OverflowError:
        return ""  # the server rejects it
    kept = decimal.Decimal(repr(found)) == value if isinstance(value, decimal.Decimal) else found == value
    return "" if kept else f"is {kind}, and would store {value} as {found!r}: round it, or change the column to numeric"


def _as_real(value: Any) -> float:
    """Return the number that is read from a four-byte column, which prints the shortest digits that identify it."""
    (real,) = struct.unpack("f", struct.pack("f", float(value)))
    shortest = (float(f"{real:.{digits}g}") for digits in range(6, 10))
    return next((each for each in shortest if struct.pack("f", each) == struct.pack("f", real)), float(real))


_Describe = Callable[[ColumnLosses, Any], str]
_BY_TYPE: Final[Mapping[str, tuple[_Describe, tuple[type, ...]]]] = {
    "numeric": (ColumnLosses.of_numeric, (int, float, decimal.Decimal)),
    "double precision": (ColumnLosses.of_double, (int, decimal.Decimal)),
    "real": (ColumnLosses.of_real, (int, float, decimal.Decimal)),
    "text": (ColumnLosses.of_text, _BYTES),
    "name": (ColumnLosses.of_text, _BYTES),
    "character": (ColumnLosses.of_text, (str, *_BYTES)),
    "character varying": (ColumnLosses.of_text, (str, *_BYTES)),
    "date": (ColumnLosses.of_date, (datetime.datetime,)),
    "time without time zone": (ColumnLosses.of_zoneless_time, (datetime.datetime, datetime.time)),
    "time with time zone": (ColumnLosses.of_time, (datetime.datetime, datetime.time)),
    "timestamp without time zone": (ColumnLosses.of_zoneless_timestamp, (datetime.datetime,)),
    "timestamp with time zone": (ColumnLosses.of_fraction, (datetime.datetime,)),
    "interval": (ColumnLosses.of_fraction, (datetime.timedelta,)),
}
