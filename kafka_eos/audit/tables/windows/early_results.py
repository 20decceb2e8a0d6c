"""Results of windows before their end: those that follow from the input, and those that depend on chance.

    by count    for a key whose rows come from one stream, they follow from the input and are compared like all others
    else        the rows that had arrived by then are unknown. Only the number of results is compared, and that none is
                duplicated; for results by the clock also that rows exist at the time of the firing

Rule: whatever is not compared here is counted, for the headline.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.tables.windows.judgeable_windows import JudgeableWindows, JudgedOperator
from kafka_eos.audit.tables.windows.late_rows import COUNTED, ROW, branch_of_path
from kafka_eos.core.provenance import PROCESSING_TIMERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def known(operator: JudgedOperator) -> Column:
    """Return whether the arrival order of the rows of a row's key is known at ``operator``."""
    if not operator.ordered:
        return F.lit(False)
    key, stream = Window.partitionBy("grp"), F.struct("source", "s_partition", "lane")
    return F.min(stream).over(key) == F.max(stream).over(key)


def free(taken: DataFrame, operator: JudgedOperator) -> DataFrame:
    """Return the rows that may have emitted an additional early result, by sink. ``taken``: with ``known``."""
    sinks = F.explode(F.array(*map(F.lit, sorted(operator.early)))).alias("sink")
    return taken.where((F.col("fate") == COUNTED) & ~F.col("known")).select(*ROW, sinks).distinct()


def untold(visible: DataFrame, judged: JudgeableWindows, free: Sequence[DataFrame]) -> DataFrame | None:
    """Return ``sink`` and ``id`` of outputs that may exist or not; None if there is no such operator.

    ``visible``: the first copies of outputs.
    """
    found = [visible.where(_by_the_clock(each)).select("sink", "id") for each in judged.operators if each.by_clock]
    named = visible.withColumn("branch", branch_of_path(r"\d+$"))
    found += [named.join(rows, ["sink", *ROW], "left_semi").select("sink", "id") for rows in free]
    return reduce(lambda one, other: one.unionByName(other), found) if found else None


def _by_the_clock(operator: JudgedOperator) -> Column:
    assert operator.by_clock is not None
    mine = F.col("sink").isin([*operator.early]) & (F.col("source") == operator.name)
    return mine & (F.col("s_topic") == PROCESSING_TIMERS) & (F.col("s_offset") % operator.by_clock.every == 0)
