"""Which rows were late for their windows, as far as outputs tell: nothing else depends on how far event time was.

    refused     a dead letter of the operator: it is in no window; what was the fault, lateness or the row, it tells
    aside       an output of the stream of late rows: it is in no window either
    again       a result that comes from the row, and from no firing: it came to a window that was over

Rule: a row of which no output tells is in its windows. So a late row that was counted all the same, and one that was
lost on its way aside, both make a result that is not what it should be. And no output is believed that calls a row
late whose window cannot have been over: it was open when the job ended, or the rows that were before it in its
partition are not new enough.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kafka_eos.audit.tables.plan_cut import refuser_of
from kafka_eos.audit.tables.windows.judgeable_windows import Operator
from kafka_eos.runtime.operators.operator_chain import refuser

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RECORD = ("source", "s_topic", "s_partition", "s_offset")
ROW = (*_RECORD, "lane", "branch")
"""What names a row on its way into windows."""
COUNTED, AGAIN, ASIDE, REFUSED = 0, 1, 2, 3
"""What became of a row, as outputs tell; ``REFUSED`` for being late."""
_TURN = "struct<sink: string, partition: int, offset: bigint>"


def with_fates(rows: DataFrame, operator: Operator, visible: DataFrame) -> DataFrame:
    """``rows`` that an operator took, with their ``fate``, and the ``turn`` of those that made a result again.

    ``visible``: the first copies of outputs.
    """
    told: list[DataFrame] = []
    if operator.letters:
        refused = _refused(visible, operator)
        rows = rows.join(refused.where("not late"), [*ROW], "left_anti")
        told.append(refused.where("late").select(*ROW, F.lit(REFUSED).alias("fate"), _no_turn()))
    if operator.aside:
        told.append(_told(visible, operator, operator.aside, ASIDE))
    if operator.again:
        told.append(_told(visible, operator, operator.again, AGAIN))
    if not told:
        return rows.withColumns({"fate": F.lit(COUNTED), "turn": _no_turn()})
    every = reduce(lambda one, other: one.unionByName(other), told)
    one_each = every.groupBy(*ROW).agg(F.max("fate").alias("fate"), F.min("turn").alias("turn"))
    return rows.join(one_each, [*ROW], "left").withColumn("fate", F.coalesce("fate", F.lit(COUNTED)))


def any_is_called_late(operator: Operator, visible: DataFrame) -> bool:
    """Does an output say so of a row?"""
    of_rows = F.col("sink").isin([*operator.aside, *operator.again]) & (F.col("source") != operator.name)
    letters = F.col("sink").isin([*operator.letters]) & F.col("late")
    return not visible.where(of_rows | letters).isEmpty()


def _refused(visible: DataFrame, operator: Operator) -> DataFrame:
    letters = visible.where(F.col("sink").isin([*operator.letters]))
    mine = letters.where(refuser_of("id") == str(refuser(operator.name)))
    lane = F.regexp_extract("path", r"(\d+)-\d+-\d+$", 1).cast("int").alias("lane")
    return mine.select(*_RECORD, lane, branch_of_path(r"\d+-\d+-\d+$"), "late").distinct()


def _told(visible: DataFrame, operator: Operator, sinks: frozenset[str], fate: int) -> DataFrame:
    """``turn``: where the result stands."""
    found = visible.where(F.col("sink").isin([*sinks]) & (F.col("source") != operator.name))
    turn = F.struct("sink", "partition", "offset").alias("turn")
    return found.select(*_RECORD, "lane", branch_of_path(r"\d+$"), F.lit(fate).alias("fate"), turn)


def branch_of_path(number: str) -> Column:
    """What an output calls itself, without ``number``: what its place among the outputs of its row adds."""
    return F.regexp_replace("path", number, "").alias("branch")


def _no_turn() -> Column:
    return F.lit(None).cast(_TURN).alias("turn")
