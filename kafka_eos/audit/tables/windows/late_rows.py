"""Rows that were late for their windows, according to outputs: nothing else depends on the watermark.

    refused     a dead letter of the operator, with the reason (lateness or the row): the row is in no window
    aside       an output of the stream of late rows: the row is in no window either
    again       a result that comes from the row, and from no firing: the row arrived at a closed window

Rule: a row that no output calls late is in its windows. So two errors make a wrong result: a late row that was counted,
and a late row that was lost on its way to the stream of late rows. An output that calls a row late is not believed if
the row's window cannot have been closed: the window was open when the job ended, or the earlier rows of the partition
are not new enough.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kafka_eos.audit.tables.plan_cut import refuser_of
from kafka_eos.audit.tables.windows.judgeable_windows import JudgedOperator
from kafka_eos.runtime.operators.rejections import hash_operator

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RECORD = ("source", "s_topic", "s_partition", "s_offset")
ROW = (*_RECORD, "lane", "branch")
"""The columns that identify a row before its windows."""
COUNTED, AGAIN, ASIDE, REFUSED = 0, 1, 2, 3
"""The fate of a row, as outputs show it; ``REFUSED``: rejected because it was late."""
_TURN = "struct<sink: string, partition: int, offset: bigint>"


def with_fates(rows: DataFrame, operator: JudgedOperator, visible: DataFrame) -> DataFrame:
    """Add the ``fate`` of the rows that an operator received, and the ``turn`` of those that emitted a result again.

    ``visible``: the first copies of outputs.
    """
    late_tables: list[DataFrame] = []
    if operator.letters:
        refused = _refused(visible, operator)
        rows = rows.join(refused.where("not late"), [*ROW], "left_anti")
        late_tables.append(refused.where("late").select(*ROW, F.lit(REFUSED).alias("fate"), _no_turn()))
    if operator.aside:
        late_tables.append(_outputs_with_fate(visible, operator, operator.aside, ASIDE))
    if operator.again:
        late_tables.append(_outputs_with_fate(visible, operator, operator.again, AGAIN))
    if not late_tables:
        return rows.withColumns({"fate": F.lit(COUNTED), "turn": _no_turn()})
    every = reduce(lambda one, other: one.unionByName(other), late_tables)
    one_each = every.groupBy(*ROW).agg(F.max("fate").alias("fate"), F.min("turn").alias("turn"))
    return rows.join(one_each, [*ROW], "left").withColumn("fate", F.coalesce("fate", F.lit(COUNTED)))


def any_is_called_late(operator: JudgedOperator, visible: DataFrame) -> bool:
    """Return whether an output of the operator marks any row as late."""
    of_rows = F.col("sink").isin([*operator.aside, *operator.again]) & (F.col("source") != operator.name)
    letters = F.col("sink").isin([*operator.letters]) & F.col("late")
    return not visible.where(of_rows | letters).isEmpty()


def _refused(visible: DataFrame, operator: JudgedOperator) -> DataFrame:
    letters = visible.where(F.col("sink").isin([*operator.letters]))
    mine = letters.where(refuser_of("id") == str(hash_operator(operator.name)))
    lane = F.regexp_extract("path", r"(\d+)-\d+-\d+$", 1).cast("int").alias("lane")
    return mine.select(*_RECORD, lane, branch_of_path(r"\d+-\d+-\d+$"), "late").distinct()


def _outputs_with_fate(visible: DataFrame, operator: JudgedOperator, sinks: frozenset[str], fate: int) -> DataFrame:
    """Return the rows that outputs mark with a fate. ``turn``: the position of the result."""
    found = visible.where(F.col("sink").isin([*sinks]) & (F.col("source") != operator.name))
    turn = F.struct("sink", "partition", "offset").alias("turn")
    return found.select(*_RECORD, "lane", branch_of_path(r"\d+$"), F.lit(fate).alias("fate"), turn)


def branch_of_path(number: str) -> Column:
    """Return an output's path without ``number``, its index among the outputs of its row."""
    return F.regexp_replace("path", number, "").alias("branch")


def _no_turn() -> Column:
    return F.lit(None).cast(_TURN).alias("turn")
