"""Values that parts were added up to: they may differ in the last digits of a float, with the order of the parts.

Rule: texts are the same if they are the same but for their floats, and each float is near its counterpart. A float is
a number with a point or an exponent that stands by itself, as in JSON. All else is compared byte for byte. Of formats
that are no texts ``legible`` makes some.
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
    """The floats in a text, in their order; null of what is not ``summed`` and where there are none."""
    found = F.regexp_extract_all(value.cast("string"), F.lit(_FLOAT), F.lit(0)).cast("array<double>")
    return F.when(summed, F.nullif(found, F.array().cast("array<double>")))


def value_hash(value: Column, summed: Column) -> Column:
    """Of a value; without its floats if it is ``summed``, since those are compared by themselves."""
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
