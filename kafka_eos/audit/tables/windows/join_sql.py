"""Matching rows of two streams, in Spark SQL: pairs, and rows without a partner.

Rule: this follows from the definition of the kinds of joins, and shares nothing with ``runtime.operators.joins``.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.plan import AsOfJoinNode, IntervalJoinNode, JoinNode

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PAIR, LEFT, RIGHT = 0, 1, 2
"""The kinds of results at one time, in this order: pairs, rows of the first stream, rows of the second."""
JOINED: Final = ("grp", "group", "at", "kind", "left", "right", "loose")
"""The columns of a result of a key at one time. ``left`` and ``right``: sort key in event time and the row, or null."""
_ROW: Final = "struct<time: bigint, s_partition: int, s_offset: bigint, payload: binary>"


def joined(rows: DataFrame, node: JoinNode) -> DataFrame:
    """Return ``JOINED`` for all rows that are not late, up to the final watermark, in the order of keys."""
    match node:
        case IntervalJoinNode():
            parts = _in_intervals(rows, node)
        case AsOfJoinNode():
            parts = [_as_of(rows)]
        case _:
            parts = _in_windows(rows, node)
    made = reduce(lambda one, other: one.unionByName(other), parts).where(F.col("at") <= F.col("floor")).select(*JOINED)
    return made.repartition("grp").sortWithinPartitions("grp", "at", "kind")


def _in_intervals(rows: DataFrame, node: IntervalJoinNode) -> list[DataFrame]:
    lower, upper = node.interval.lower, node.interval.upper
    left, right = (_side(rows, side, "grp", "group", "floor", "loose") for side in (0, 1))
    behind = F.col("r.row.time") - F.col("l.row.time")
    near = (F.col("l.grp") == F.col("r.grp")) & behind.between(lower, upper)
    pairs = left.alias("l").join(right.alias("r"), near)
    later = F.greatest(F.col("l.row.time"), F.col("r.row.time"))
    found = [_made(pairs, later, PAIR, F.col("l.row"), F.col("r.row"), "l", F.col("l.loose") | F.col("r.loose"))]
    if node.unmatched[0] is not None:
        alone = left.alias("l").join(right.alias("r"), near, "left_anti")
        found.append(_made(alone, F.col("row.time") + max(upper, 0), LEFT, F.col("row"), None, "l", F.col("loose")))
    if node.unmatched[1] is not None:
        alone = right.alias("r").join(left.alias("l"), near, "left_anti")
        found.append(_made(alone, F.col("row.time") + max(-lower, 0), RIGHT, None, F.col("row"), "r", F.col("loose")))
    return found


def _as_of(rows: DataFrame) -> DataFrame:
    """Join each row of the first stream with the newest row of the second that is not later, or with none."""
    is_left = F.pmod("lane", F.lit(2)) == 0
    with_row = rows.select("*", F.struct("time", "s_partition", "s_offset", "payload").alias("row"))
    # Of one time the second stream's come first.
    order = Window.partitionBy("grp").orderBy("time", is_left, "s_partition", "s_offset", "payload")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    version = F.last(F.when(~is_left, F.col("row")), ignorenulls=True).over(so_far)
    found = with_row.withColumn("version", version).where(is_left).alias("l")
    return _made(found, F.col("time"), PAIR, F.col("row"), F.col("version"), "l", F.col("loose"))


def _in_windows(rows: DataFrame, node: JoinNode) -> list[DataFrame]:
    """Join rows within their closed windows."""
    opened = rows.withColumn("window", F.explode("windows")).withColumns(
        {"loose": F.col("window.loose"), "window": F.struct("window.start", "window.end")}
    )
    left, right = (_side(opened, side, "grp", "group", "floor", "loose", "window") for side in (0, 1))
    same = (F.col("l.grp") == F.col("r.grp")) & (F.col("l.window") == F.col("r.window"))
    pairs = left.alias("l").join(right.alias("r"), same)
    over = F.col("l.window.end") - 1
    found = [_made(pairs, over, PAIR, F.col("l.row"), F.col("r.row"), "l", F.col("l.loose") | F.col("r.loose"))]
    over = F.col("window.end") - 1
    if node.unmatched[0] is not None:
        alone = left.alias("l").join(right.alias("r"), same, "left_anti")
        found.append(_made(alone, over, LEFT, F.col("row"), None, "l", F.col("loose")))
    if node.unmatched[1] is not None:
        alone = right.alias("r").join(left.alias("l"), same, "left_anti")
        found.append(_made(alone, over, RIGHT, None, F.col("row"), "r", F.col("loose")))
    return found


def _side(rows: DataFrame, side: int, *others: str) -> DataFrame:
    """Return the rows of one stream, which their lanes identify."""
    mine = rows.where(F.pmod("lane", F.lit(2)) == side)
    return mine.select(*others, F.struct("time", "s_partition", "s_offset", "payload").alias("row"))


def _made(
    found: DataFrame, at: Column, kind: int, left: Column | None, right: Column | None, of: str, loose: Column
) -> DataFrame:
    """Build the rows of a result. ``of``: the side that provides key, key group and final watermark."""
    nothing = F.lit(None).cast(_ROW)
    return found.select(
        F.col(f"{of}.grp").alias("grp"),
        F.col(f"{of}.group").alias("group"),
        F.col(f"{of}.floor").alias("floor"),
        at.alias("at"),
        F.lit(kind).alias("kind"),
        (nothing if left is None else left).alias("left"),
        (nothing if right is None else right).alias("right"),
        loose.alias("loose"),
    )
