"""Which rows were late for their windows, as far as outputs tell: nothing else depends on how far event time was.

    refused     a dead letter of the operator: it is in no window
    aside       an output of the stream of late rows: so is this one
    again       a result that comes from the row, and from no firing: it came to a window that was over

Rule: a row of which no output tells is in its windows. So a late row that was counted all the same, and one that was
lost on its way aside, both make a result that is not what it should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kafka_eos.audit.flags import refuser_of
from kafka_eos.audit.windows.judged import Operator
from kafka_eos.operators.chain import refuser

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RECORD = ("source", "s_topic", "s_partition", "s_offset")
ROW = (*_RECORD, "lane", "branch")
"""What names a row on its way into windows."""
COUNTED, AGAIN, ASIDE = 0, 1, 2
"""What became of a row."""
_TURN = "struct<sink: string, partition: int, offset: bigint>"


def with_fates(rows: DataFrame, operator: Operator, visible: DataFrame) -> DataFrame:
    """``rows`` that an operator took, with their ``fate``, and the ``turn`` of those that made a result again.

    ``visible``: the first copies of outputs.
    """
    if operator.letters:
        rows = rows.join(_refused(visible, operator), [*ROW], "left_anti")
    told = [
        _told(visible, operator, sinks, fate)
        for sinks, fate in ((operator.aside, ASIDE), (operator.again, AGAIN))
        if sinks
    ]
    if not told:
        return rows.withColumns({"fate": F.lit(COUNTED), "turn": F.lit(None).cast(_TURN)})
    every = told[0] if len(told) == 1 else told[0].unionByName(told[1])
    one_each = every.groupBy(*ROW).agg(F.max("fate").alias("fate"), F.min("turn").alias("turn"))
    return rows.join(one_each, [*ROW], "left").withColumn("fate", F.coalesce("fate", F.lit(COUNTED)))


def _refused(visible: DataFrame, operator: Operator) -> DataFrame:
    letters = visible.where(F.col("sink").isin([*operator.letters]))
    mine = letters.where(refuser_of("id") == str(refuser(operator.name)))
    lane = F.regexp_extract("path", r"(\d+)-\d+-\d+$", 1).cast("int").alias("lane")
    return mine.select(*_RECORD, lane, _branch(r"\d+-\d+-\d+$")).distinct()


def _told(visible: DataFrame, operator: Operator, sinks: frozenset[str], fate: int) -> DataFrame:
    """``turn``: where the result stands."""
    found = visible.where(F.col("sink").isin([*sinks]) & (F.col("source") != operator.name))
    turn = F.struct("sink", "partition", "offset").alias("turn")
    return found.select(*_RECORD, "lane", _branch(r"\d+$"), F.lit(fate).alias("fate"), turn)


def _branch(number: str) -> Column:
    """What an output calls itself, without what its place among the outputs of its row adds."""
    return F.regexp_replace("path", number, "").alias("branch")
