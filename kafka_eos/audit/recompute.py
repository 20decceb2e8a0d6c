"""What the outputs should be: the plan's operators over the input again, as a Spark table.

Rule: where the pipeline was free to choose an order (a key whose input comes from several partitions), its own
update numbers are followed if they are complete; otherwise such outputs are marked ``loose`` and their values
are not compared.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit import reads, tasks
from kafka_eos.audit.subject import Cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def expected(
    app: str, cut: Cut, sinks: frozenset[str], records: DataFrame, visible: DataFrame, streams: int
) -> DataFrame:
    """One row for each output that should exist: ``sink``, ``id``, place, update, hashes, ``grp`` (its key), ``loose``.

    ``records`` are ``tasks.INPUT``; ``visible`` the first copies of outputs; ``streams`` how many input partitions
    hold records.
    """
    parts: list[DataFrame] = []
    if cut.serial:
        ordered = records.repartition(1).sortWithinPartitions("source", "partition", "offset")
        parts.append(ordered.mapInArrow(partial(tasks.serial_outputs, app, streams > 1), tasks.EXPECTED))
    else:
        if cut.head_sinks & sinks:
            parts.append(records.mapInArrow(partial(tasks.head_outputs, app), tasks.EXPECTED))
        if cut.below & sinks:
            parts.append(_keyed(app, cut, records, visible, streams))
    return _identified(reduce(lambda a, b: a.unionByName(b), parts), cut)


def _keyed(app: str, cut: Cut, records: DataFrame, visible: DataFrame, streams: int) -> DataFrame:
    rows = records.mapInArrow(partial(tasks.captures, app), tasks.CAPTURED)
    if streams > 1 or cut.fans_out:
        rows = _in_their_order(cut, rows, visible)
    else:
        rows = rows.withColumn("loose", F.lit(False)).withColumn("turn", F.lit(0)).repartition("stage", "grp")
    ordered = rows.sortWithinPartitions("stage", "turn", "source", "s_partition", "s_offset", "lane", "ordinal")
    return ordered.drop("turn").mapInArrow(partial(tasks.tail_outputs, app), tasks.EXPECTED)


def _in_their_order(cut: Cut, rows: DataFrame, visible: DataFrame) -> DataFrame:
    """Adds ``turn``, the order among the rows of a key where offsets do not give one, and ``loose``."""
    if cut.one_to_one:
        place = ["source", "s_topic", "s_partition", "s_offset", "lane", "ordinal"]
        turns = visible.where("update is not null").groupBy(*place).agg(F.min("update").alias("turn"))
        rows = rows.join(turns, place, "left")
    else:
        rows = rows.withColumn("turn", F.lit(None).cast("long"))
    key = Window.partitionBy("stage", "grp")
    stream = F.concat_ws("/", "source", "s_topic", "s_partition", "lane")
    several = F.min(stream).over(key) != F.max(stream).over(key)
    unknown = F.count(F.when(F.col("turn").isNull(), 1)).over(key) > 0
    # Within one stream the offsets are the order, whatever the output claims.
    return rows.select(
        *[c for c in rows.columns if c != "turn"],
        F.when(several, F.col("turn")).alias("turn"),
        (several & unknown).alias("loose"),
    )


def _identified(made: DataFrame, cut: Cut) -> DataFrame:
    number = F.col("sub")
    if cut.fans_out:
        outputs_of_a_record = Window.partitionBy("sink", "source", "s_topic", "s_partition", "s_offset", "lane")
        number = F.row_number().over(outputs_of_a_record.orderBy("ordinal", "sub")) - 1
    path = F.concat_ws(".", "lane", number)
    return made.select(
        "sink",
        F.concat_ws("/", "source", "s_topic", "s_partition", "s_offset", path).alias("id"),
        F.col("source").alias("e_source"),
        F.col("lane").alias("e_lane"),
        F.col("s_topic").alias("e_topic"),
        F.col("s_partition").alias("e_partition"),
        F.col("s_offset").alias("e_offset"),
        F.col("update").alias("e_update"),
        F.xxhash64("key").alias("e_key_hash"),
        F.xxhash64("value").alias("e_value_hash"),
        reads.preview("value").alias("e_preview"),
        F.when(F.col("grp").isNotNull(), F.xxhash64("grp")).alias("grp"),
        # An encoded key starts with a byte that tells its type; people want the rest.
        F.regexp_replace(F.col("grp").cast("string"), "[\\p{Cntrl}\\x{FFFD}]", "").alias("grp_text"),
        "loose",
    )
