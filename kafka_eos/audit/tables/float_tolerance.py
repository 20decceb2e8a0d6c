"""Comparison of values that were added up from parts: the order of the parts may change the last digits of a float.

Rule: two texts are equal if they are equal apart from their floats, and each float is near its counterpart. A float is
a separate number with a point or an exponent, as in JSON. Everything else is compared byte by byte. Values in binary
formats are first converted to text by ``legible``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

NEAR: Final = 1e-9
"""Relative to the greater of two numbers and 1."""
_FLOAT: Final = r"(?<![^\s:,\[=(])-?\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)(?![^\s,\]})])"


def floats(value: Column, summed: Column) -> Column:
    """Return the floats in a text, in order; null if the value is not ``summed`` or contains none."""
    found = F.regexp_extract_all(value.cast("string"), F.lit(_FLOAT), F.lit(0)).cast("array<double>")
    return F.when(summed, F.nullif(found, F.array().cast("array<double>")))


def value_hash(value: Column, summed: Column) -> Column:
    """Return the hash of a value. The floats of a ``summed`` value are excluded, because they are compared
    separately.
    """
    without = F.regexp_replace(value.cast("string"), _FLOAT, "#")
    return F.when(floats(value, summed).isNotNull(), F.xxhash64(without)).otherwise(F.xxhash64(value))


def same_value(before: str = "", made: str = "") -> Column:
    """Return whether an output equals the recomputed one. ``before``, ``made``: prefixes of the columns' names."""
    one, other = F.col(f"{before}floats"), F.col(f"{made}e_floats")
    return F.col(f"{before}value_hash").eqNullSafe(F.col(f"{made}e_value_hash")) & (
        one.eqNullSafe(other) | F.coalesce(F.forall(F.zip_with(one, other, _near), lambda near: near), F.lit(False))
    )


def _near(one: Column, other: Column) -> Column:
    scale = F.greatest(F.abs(one), F.abs(other), F.lit(1.0))
    return F.coalesce(F.abs(one - other) <= scale * NEAR, F.lit(False))
