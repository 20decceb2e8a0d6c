"""Decimals that another program wrote: a logical type of our own that replaces fastavro's.

fastavro's accepts any number of bytes, needs minutes for a megabyte, and rounds numbers that are longer than the schema
says. Rule: a decimal has the digits of its schema, or is a ValueError; nothing is rounded.
"""

from __future__ import annotations

import decimal
from functools import lru_cache
from typing import Any, Final

import fastavro.read
from fastavro import _read_py as in_python

_NAME: Final = "decimal-of-its-schema"
_MOST_DIGITS: Final = 1000
"""The limit on digits, which some databases reach. Higher powers of ten take too long to compute."""


def with_own_decimals(schema: Any) -> Any:
    """Return the schema, not parsed yet, with the logical type of this module.

    As Avro's specification asks, an invalid logical type is ignored: its values are read as the underlying type.
    """
    if isinstance(schema, list):
        return [with_own_decimals(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: value if name == "default" else with_own_decimals(value) for name, value in schema.items()}
    if made.get("logicalType") == "decimal":
        precision, scale = made.pop("precision", None), made.pop("scale", 0)
        del made["logicalType"]
        numbers = type(precision) is type(scale) is int and 0 <= scale <= precision <= _MOST_DIGITS
        if numbers and precision and made.get("type") in ("bytes", "fixed"):
            made |= {"logicalType": _NAME, "precision": precision, "scale": scale}
    return made


def _read(data: bytes, writer: Any, reader: Any = None) -> decimal.Decimal:
    precision, scale = writer["precision"], writer["scale"]
    bound, most_bytes, exactly = _limits(precision)
    unscaled = int.from_bytes(data, "big", signed=True) if len(data) <= most_bytes else bound
    if not -bound < unscaled < bound:
        raise ValueError(f"a decimal has more digits than the {precision} of its schema")
    return exactly.create_decimal(unscaled).scaleb(-scale, exactly)


@lru_cache(_MOST_DIGITS + 1)
def _limits(precision: int) -> tuple[int, int, decimal.Context]:
    """Return the lowest number that is too large, the maximum of bytes to read, and a context that rounds nothing."""
    bound = 10**precision
    return bound, max(32, 2 * (bound.bit_length() // 8 + 1)), decimal.Context(prec=precision)


for _readers in (fastavro.read.LOGICAL_READERS, vars(in_python)["LOGICAL_READERS"]):
    for _kind in ("bytes", "fixed"):
        _readers[f"{_kind}-{_NAME}"] = _read
