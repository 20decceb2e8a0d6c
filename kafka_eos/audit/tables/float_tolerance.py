"""Comparison of values that were added up from parts: the order of the parts may change the last digits of a float.

Rule: two texts are equal if they are equal apart from their floats, and each float is near its counterpart. A float is
a separate number with a point or an exponent, as in JSON. Everything else is compared byte by byte. Values in binary
formats are first converted to text by ``legible``. Floats that are near and still differ by more than the order of the
parts explains are counted as not compared.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

NEAR: Final = 1e-9
"""Relative to the greater of two numbers and 1. A greater difference is a finding."""
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


def rounding_error(additions: int) -> float:
    """Return how far apart two sums of so many positive numbers may be, as ``NEAR``, if only their order differs."""
    return min(NEAR, (additions + 8) * sys.float_info.epsilon)


def same_value(before: str = "", made: str = "", *, tolerance: float = NEAR) -> Column:
    """Return whether an output equals the recomputed one. ``before``, ``made``: prefixes of the columns' names."""
    one, other = F.col(f"{before}floats"), F.col(f"{made}e_floats")

    def near(one: Column, other: Column) -> Column:
        scale = F.greatest(F.abs(one), F.abs(other), F.lit(1.0))
        return F.coalesce(F.abs(one - other) <= scale * tolerance, F.lit(False))

    return F.col(f"{before}value_hash").eqNullSafe(F.col(f"{made}e_value_hash")) & (
        one.eqNullSafe(other) | F.coalesce(F.forall(F.zip_with(one, other, near), lambda close: close), F.lit(False))
    )
