"""Cells that drivers of MySQL and MariaDB write as other values. Pure.

They write a list as the list of an SQL expression, so that ``[1]`` is stored as 1, the text ``str()`` of a class that
they do not know, and a time without its offset. Rule: such a cell rejects its row.
"""

from __future__ import annotations

import datetime
import decimal
from types import NoneType
from typing import Any, Final

_WRITTEN: Final = (
    str, int, float, bytes, bytearray, decimal.Decimal, NoneType,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


def find_change(cell: Any) -> str | None:
    """Return why a cell would come back as another value, with the remedy; None if the driver writes it as it is."""
    if not isinstance(cell, _WRITTEN):
        return (
            f"the driver has no counterpart of a {type(cell).__name__}: map it to a text or a number, or override row()"
        )
    if isinstance(cell, datetime.datetime | datetime.time) and cell.tzinfo is not None:
        return (
            f"{cell} would lose its offset: convert it with .astimezone(datetime.UTC).replace(tzinfo=None), or "
            "override row()"
        )
    return None
