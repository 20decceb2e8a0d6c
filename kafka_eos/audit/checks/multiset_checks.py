"""Checks of outputs without provenance: they are compared as multisets of key, value, headers and timestamp.

Rule: an output that was computed n times must exist n times. Outputs whose value depends on an unknown order are only
counted, as are the outputs that take their place.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.checks.verdict import Check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SAID = ("key_hash", "value_hash", "headers_hash")


def flagged(there: DataFrame, made: DataFrame, sinks: Collection[str]) -> DataFrame:
    """Return the violations: ``check``, ``sink``, location and ``detail``, one row per missing or additional output."""
    shown = ("time", "topic", "partition", "offset", "preview")
    is_there = there.select("sink", *_SAID, *shown, F.lit(False).alias("loose"), F.lit(1).alias("n"))
    should = made.where(F.col("sink").isin([*sinks])).select(
        "sink", *(F.col(f"e_{c}").alias(c) for c in (*_SAID, *shown)), "loose", F.lit(-1).alias("n")
    )
    every = is_there.unionByName(should)
    blind = every.groupBy("sink").agg(
        F.max(F.col("time").isNull()).alias("any_untimed"), F.count_if("loose").alias("any")
    )
    both = every.join(F.broadcast(blind), "sink")
    # Outputs whose value cannot be known are equal; if some timestamps cannot, those of all.
    compared_columns = F.when(
        ~F.col("loose"), F.struct(*_SAID, F.when(~F.col("any_untimed"), F.col("time")).alias("time"))
    )
    spot = F.struct("topic", "partition", "offset", "preview")
    grouped = both.groupBy("sink", "any", compared_columns.alias("said")).agg(
        F.sum("n").alias("more"),
        F.count(F.when(F.col("n") < 0, 1)).alias("made"),
        F.max(F.when(F.col("n") > 0, spot)).alias("last"),
        F.min(F.when(F.col("n") < 0, spot)).alias("first"),
    )
    wrong = _answered(grouped).where("more != 0").select("*", F.explode(F.sequence(F.lit(1), F.abs("more"))))
    check = F.when(F.col("more") < 0, Check.LOST.name).when(F.col("made") > 0, Check.DUPLICATE.name)
    at = F.when(F.col("more") < 0, F.col("first")).otherwise(F.col("last"))
    detail = F.concat_ws(
        "", F.lit("it is visible "), (F.col("made") + F.col("more")).cast("string"), F.lit(" times: expected "),
        F.col("made").cast("string"), F.lit(" times: "), at["preview"],
    )  # fmt: skip
    return wrong.select(
        check.otherwise(Check.UNEXPECTED.name).alias("check"), "sink",
        *(at[c].alias(c) for c in ("topic", "partition", "offset")), detail.alias("detail"),
    )  # fmt: skip


def _answered(grouped: DataFrame) -> DataFrame:
    """Match unexpected outputs with ``any`` expected outputs of unknown value, until one of the two runs out.

    Copies of known outputs are matched last. Unmatched outputs are unexpected; unmatched expectations are lost.
    """
    in_turn = Window.partitionBy("sink").orderBy("made", F.xxhash64("said")).rowsBetween(Window.unboundedPreceding, 0)
    surplus = F.when(F.col("said").isNotNull(), F.greatest("more", F.lit(0))).otherwise(0)
    sums = grouped.select(
        "*", F.sum(surplus).over(in_turn).alias("so_far"), F.sum(surplus).over(Window.partitionBy("sink")).alias("all")
    )
    left = (
        F.when(F.col("said").isNull(), F.least(F.col("all") - F.col("any"), F.lit(0)))
        .when(F.col("more") > 0, F.greatest(F.least("more", F.col("so_far") - F.col("any")), F.lit(0)))
        .otherwise(F.col("more"))
    )
    return sums.withColumn("more", left)
