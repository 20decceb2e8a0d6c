"""Topics as Spark tables: input records, visible outputs with their provenance, and what only looks committed.

Rule: offsets are pinned once by the caller and used by every scan, so all scans speak of the same records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kafka_eos.audit.cluster import java_config
from kafka_eos.audit.subject import Topic
from kafka_eos.provenance import HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Bounds = Mapping[int, tuple[int, int]]
"""First offset and end (exclusive) to read, by partition."""

_PROVENANCE = r"^\d+\.\d+/[^/]+/[^/]+/\d+/\d+/\d+\.\d+(/\d+)?$"
PREVIEW = 60
"""How many bytes of a value are carried along, to show in findings."""


def read(spark: SparkSession, topic: Topic, bounds: Bounds, *, committed: bool = True) -> DataFrame:
    """The records of ``topic`` within ``bounds``, with the connector's columns."""
    options = {f"kafka.{name}": value for name, value in java_config(topic.bootstrap, topic.config).items()}
    options |= {
        "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        "assign": json.dumps({topic.topic: sorted(bounds)}),
        "startingOffsets": json.dumps({topic.topic: {str(p): start for p, (start, _) in bounds.items()}}),
        "endingOffsets": json.dumps({topic.topic: {str(p): end for p, (_, end) in bounds.items()}}),
        "includeHeaders": "true",
        "kafka.max.poll.records": "10000",
        "failOnDataLoss": "true",
    }
    return spark.read.format("kafka").options(**options).load()


def inputs(spark: SparkSession, topic: Topic, bounds: Bounds) -> DataFrame:
    """Raw records for the recompute, as ``tasks.INPUT``."""
    headers = F.when(F.size("headers") > 0, F.col("headers"))
    return read(spark, topic, bounds).select(
        F.lit(topic.node).alias("source"),
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp"),
        "key",
        "value",
        headers.alias("headers"),
    )


def outputs(spark: SparkSession, topics: Iterable[tuple[Topic, Bounds]], *, committed: bool) -> DataFrame:
    """Records of sinks with their parsed provenance; ``ours`` is false where there is none.

    ``id`` names an output whatever attempt wrote it: two visible records that share it are a duplicate.
    """
    tables = [read(spark, t, bounds, committed=committed).withColumn("sink", F.lit(t.node)) for t, bounds in topics]
    header = f"try_element_at(filter(headers, h -> h.key = '{HEADER}'), -1).value"
    table = reduce(lambda a, b: a.unionByName(b), tables).withColumn("text", F.expr(f"cast({header} as string)"))
    ours = F.coalesce(F.col("text").rlike(_PROVENANCE), F.lit(False))
    part = F.split(F.when(ours, F.col("text")), "/")
    attempt, path = F.split(part[0], r"\."), F.split(part[5], r"\.")
    return table.select(
        "sink",
        "topic",
        "partition",
        "offset",
        ours.alias("ours"),
        F.concat_ws("/", part[1], part[2], part[3], part[4], part[5]).alias("id"),
        attempt[0].cast("int").alias("term"),
        attempt[1].cast("long").alias("epoch"),
        part[1].alias("source"),
        part[2].alias("s_topic"),
        part[3].cast("int").alias("s_partition"),
        part[4].cast("long").alias("s_offset"),
        path[0].cast("int").alias("lane"),
        path[1].cast("int").alias("ordinal"),
        F.get(part, F.lit(6)).cast("long").alias("update"),
        F.xxhash64("key").alias("key_hash"),
        F.xxhash64("value").alias("value_hash"),
        preview("value").alias("preview"),
    )


def preview(column: str) -> Column:
    """The start of a value, to show to people."""
    return F.coalesce(F.substring(F.col(column), 1, PREVIEW).cast("string"), F.lit("null"))
