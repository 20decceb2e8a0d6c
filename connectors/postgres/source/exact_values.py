"""Reading of values that psycopg would change: months of an interval, and numbers in JSON.

psycopg converts a month to 30 days, and reads a number in JSON as a float. Rule: such a value is read unchanged, or its
row is rejected, like any value that Python cannot represent.
"""

from __future__ import annotations

import decimal
import json
import re
from typing import Any, Final

import psycopg
from psycopg.types.datetime import IntervalLoader
from psycopg.types.json import set_json_loads

from kafka_eos.connectors.postgres.connection import Connection

_MONTHS: Final = re.compile(rb"[1-9]\d* (?:year|mon)")


def register_exact_loaders(connection: Connection) -> None:
    """Make a connection raise DataError for a value that would come back as another one."""
    connection.adapters.register_loader("interval", _ExactIntervalLoader)
    set_json_loads(_load_exact_json, connection)


class _ExactIntervalLoader(IntervalLoader):
    def load(self, data: Any) -> Any:
        if _MONTHS.search(bytes(data)):
            raise psycopg.DataError(
                f"the interval {bytes(data).decode()} has months, whose length is not known: read it as text, from a "
                "view or a copy of the table"
            )
        return super().load(data)


def _load_exact_json(data: str | bytes) -> Any:
    try:
        return json.loads(data, parse_float=_exact_float)
    except (ValueError, ArithmeticError, RecursionError) as error:  # PostgreSQL stores what exceeds Python's limits
        raise psycopg.DataError(f"Python cannot read the JSON: {type(error).__name__}") from None


def _exact_float(text: str) -> float:
    number = float(text)
    if decimal.Decimal(repr(number)) != decimal.Decimal(text):
        raise psycopg.DataError(
            f"the number {text} in JSON would be read as {number!r}: write it as a string there, or "
            "read the column as text, from a view or a copy of the table"
        )
    return number
