"""Checks of outputs without provenance: they are compared as multisets of key, value, headers and timestamp.

Rule: an output that was computed n times must exist n times. Values that depend on an unknown order are only counted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

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
        F.max("loose").alias("any_loose"), F.max(F.col("time").isNull()).alias("any_untimed")
    )
    both = every.join(F.broadcast(blind), "sink")
    # Where some values cannot be known, all outputs of the sink count as equal; some timestamps, those of all.
    compared_columns = F.when(
        ~F.col("any_loose"), F.struct(*_SAID, F.when(~F.col("any_untimed"), F.col("time")).alias("time"))
    )
    spot = F.struct("topic", "partition", "offset", "preview")
    grouped = both.groupBy("sink", compared_columns.alias("said")).agg(
        F.sum("n").alias("more"),
        F.count(F.when(F.col("n") < 0, 1)).alias("made"),
        F.max(F.when(F.col("n") > 0, spot)).alias("last"),
        F.min(F.when(F.col("n") < 0, spot)).alias("first"),
    )
    wrong = grouped.where("more != 0").select("*", F.explode(F.sequence(F.lit(1), F.abs("more"))))
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
