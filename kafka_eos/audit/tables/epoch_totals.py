"""Outputs of a fold with ``merge=``: one per key and epoch, with the key's accumulator at the end of the epoch.

The recompute emits an output for every record, in the order of *spans* of the input. A span ends where an epoch ended
without in-flight rows (``intervals.spans``). The last output of a key and span has the key's value at that time,
however its records were combined. If every epoch ended in this way, there is one output per key and span, with this
value.

Rule: a key with records in a span has at least one output, and at most one per epoch that wrote any. The output with
the highest update number has the value at the end. Nothing else is known of the other outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_VALUES = ("e_value_hash", "e_floats", "e_key_hash", "e_headers_hash", "e_preview")
_SPAN = ("series", "sink", "grp_text", "span")


def closed(pairs: DataFrame) -> DataFrame:
    """Return ``pairs`` in which ``summed`` outputs are compared with the recomputed value at the end of their span.

    ``closing``: the output exists and is the last of its key and span, so its value must be equal.
    ``absent``: the key and span has no output at all, and the last one is expected.
    ``again``: an earlier output has the same key, span and epoch. All three are false for outputs that are not
    ``summed``.
    """
    of_span = Window.partitionBy(*_SPAN)
    # Those that the recompute does not make have no key; they are unexpected.
    summed = F.col("summed") & F.col("should")
    is_last = F.col("e_update") == F.max("e_update").over(of_span)
    highest = F.max(F.when(F.col("there"), F.col("update"))).over(of_span)
    missing = F.max("there").over(of_span).isNull() & ~F.max("answered").over(of_span)
    one_epoch = Window.partitionBy(*_SPAN, "there", "term", "epoch").orderBy("update", "topic", "partition", "offset")
    marked = pairs.withColumns({
        "closing": _said(summed & F.col("there") & (F.col("update") == highest)),
        "absent": _said(summed & is_last & missing),
        "again": _said(summed & F.col("there") & (F.row_number().over(one_epoch) > 1)),
        "end": F.when(summed, F.max_by(F.struct(*_VALUES, "e_time"), "e_update").over(of_span)),
    })  # fmt: skip
    # Its timestamp is that of the record that it names, or a function of its value.
    time = F.when(F.col("time").eqNullSafe(F.col("e_time")), F.col("e_time")).otherwise(F.col("end.e_time"))
    values = {column: F.when(summed, F.col(f"end.{column}")).otherwise(F.col(column)) for column in _VALUES}
    return marked.withColumns({**values, "e_time": F.when(summed, time).otherwise(F.col("e_time"))}).drop("end")


def none(pairs: DataFrame) -> DataFrame:
    """Return the result of ``closed`` for a plan without such a fold."""
    return pairs.withColumns(dict.fromkeys(("closing", "absent", "again"), F.lit(False)))


def _said(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
