"""Outputs of a fold with ``merge=``: one for each key and epoch, with what the key had at the end of the epoch.

The recompute makes an output for every record, in the order of *spans* of the input, which end where an epoch ended
with nothing under way (``intervals.spans``). The last of a key and span says what the key had then, however its
records were summed up. Where every epoch ended so, there is one output of each key and span, and it says just that.

Rule: of a key with records in a span there is an output at least, at most one of each epoch that wrote some, and the
one with the highest update number has the value of the end. Of others nothing is known but that they may be there.
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
    """``pairs`` in which outputs that are ``summed`` should say what the recompute makes at the end of their span, and

    ``closing``  is true of an output that is there and is the last of its key and span: it must say that
    ``absent``   is true where the last output of a key and span should be, if there is none at all
    ``again``    is true of an output of the same key, span and epoch as one before it

    Of outputs that are not ``summed`` all three are false.
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
    """As ``closed``, of a plan without such a fold."""
    return pairs.withColumns(dict.fromkeys(("closing", "absent", "again"), F.lit(False)))


def _said(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
