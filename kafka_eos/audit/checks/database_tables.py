"""Database tables that sinks write: their rows as a Spark table, and the checks of tables with one row per key.

Rows have no provenance. A table without a key is compared as a multiset (``unmarked``). A table with a key holds the
newest value of each key, so it is compared with the last recomputed output of the key. If the last one is unknown, the
row must equal one of the outputs. Rule: the sink itself reads each row once, in one snapshot. If a server stops
responding, the audit is aborted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.sql import functions as F

from kafka_eos import plan as plans
from kafka_eos.abc.auditable import AuditableTable
from kafka_eos.audit.checks.provenance_checks import AT
from kafka_eos.audit.checks.verdict import Check
from kafka_eos.audit.facts.audit_subject import DatabaseTable
from kafka_eos.audit.tables.float_tolerance import same_value
from kafka_eos.audit.tables.plan_cut import Cut
from kafka_eos.audit.tables.python_tasks import cut_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_READ: Final = "sink string, topic string, offset long, key binary, value binary"
_AT_ONCE: Final = 4096
_GONE: Final = "null"
"""The text that ``reads.preview`` shows for None. The text of a row begins with a bracket."""


def rows(spark: SparkSession, tables: Sequence[DatabaseTable], app: str, workers: int) -> list[DataFrame]:
    """Return the rows of the tables of sinks, with the columns of ``reads.lines``: one Spark table, or none if there
    are no rows.
    """
    if not tables:
        return []

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan = cut_of(app, workers).plan
        for batch in batches:
            for table in batch.to_pylist():
                node = plan.node(table["node"])
                assert isinstance(node, plans.SinkNode)
                yield from _rows(cast("AuditableTable", node.sink), table)

    listed = spark.createDataFrame([(table.node, table.name) for table in tables], "node string, name string")
    found = listed.repartition(min(len(tables), spark.sparkContext.defaultParallelism)).mapInArrow(read, _READ)
    nothing, false = F.lit(None).cast("long"), F.lit(False)
    return [
        found.select(
            "sink",
            "topic",
            F.lit(-1).alias("partition"),
            "offset",
            "key",
            "value",
            nothing.alias("headers_hash"),
            nothing.alias("time"),
            nothing.alias("file_epoch"),
            nothing.alias("place"),
            F.lit(None).cast("string").alias("text"),
            false.alias("late"),
            false.alias("shortened"),
            false.alias("torn"),
        )
    ]


def _rows(sink: AuditableTable, table: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    begin, every = 0, sink.audit_table_rows()
    while some := list(islice(every, _AT_ONCE)):
        keys, values = zip(*some, strict=True)
        count = len(some)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([table["node"]] * count, pa.string()),
                pa.array([table["name"]] * count, pa.string()),
                pa.array(range(begin, begin + count), pa.int64()),
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
            ],
            names=["sink", "topic", "offset", "key", "value"],
        )
        begin += count


# ---------------------------------------------------------------- one row a key


def unordered(cut: Cut, sinks: Collection[str]) -> list[str]:
    """Return those of ``sinks`` where the last output of a key is unknown."""
    return [sink for sink in sinks if sink in cut.timed or sink in cut.expiring or _mixed(cut, sink)]


def _mixed(cut: Cut, sink: str) -> bool:
    """Return whether rows of a key reach the sink unordered, or from several states that number their updates."""
    todo, seen, stateful = [sink], {sink}, 0
    below_state = True
    while todo:
        node = cut.plan.node(todo.pop())
        stateful += node.keyed
        below_state = below_state and not stateful
        if below_state and len(node.inputs) > 1:
            return True
        todo += [name for name in node.inputs if name not in seen]
        seen.update(node.inputs)
    return stateful > 1 or sink in cut.letters or sink in (cut.astray if stateful else cut.shuffled)


def met(there: DataFrame, made: DataFrame, blind: Collection[str]) -> DataFrame:
    """Return one row per sink and key.

    ``seen``: the existing row; ``newest``: the expected one; ``gone``: whether that is a deletion.
    ``open``: whether it is unknown which output is the newest; ``made``: whether the row equals any of the outputs.
    ``blind``: sinks where all keys are open.
    """
    seen = there.select(
        "sink", F.col("key_hash"), F.struct("value_hash", "floats", *AT, "preview").alias("seen")
    )  # no two have one key: the table has a unique index on it
    numbered = F.col("e_update").isNotNull()
    stream = F.concat_ws("/", "e_source", "e_topic", "e_partition", "e_lane")
    number = F.split(F.substring_index("id", ".", -1), "-")
    shown = F.struct(
        F.coalesce("e_update", "e_offset").alias("at"),
        F.col("e_offset").alias("then"),
        F.transform(number, lambda part: F.coalesce(part.try_cast("bigint"), F.lit(0))).alias("number"),
        "e_value_hash",
        "e_floats",
        *(F.col(f"e_{name}").alias(name) for name in (*AT, "preview")),
    )
    outputs = made.select(
        "sink",
        F.col("e_key_hash").alias("key_hash"),
        shown.alias("said"),
        F.when(numbered, F.col("grp").cast("string")).otherwise(stream).alias("series"),
        (F.col("loose") | F.col("sink").isin([*blind])).alias("loose"),
        (F.col("e_preview") == _GONE).alias("gone"),
    )
    same = ~F.col("gone") & F.col("seen").isNotNull() & same_value("seen.", "said.")
    return (
        outputs.join(seen, ["sink", "key_hash"], "full")
        .groupBy("sink", "key_hash")
        .agg(
            F.first("seen", ignorenulls=True).alias("seen"),
            F.max("said").alias("newest"),
            F.coalesce(F.max("loose") | (F.min("series") != F.max("series")), F.lit(False)).alias("open"),
            F.coalesce(F.max("gone"), F.lit(False)).alias("any_gone"),
            F.coalesce(F.max(same), F.lit(False)).alias("made"),
        )
        .withColumn("gone", F.coalesce(F.col("newest.preview") == _GONE, F.lit(False)))
    )


def expected(pairs: DataFrame) -> DataFrame:
    """Count the rows of ``met`` by sink: the expected rows ``n``, and those whose value is unknown."""
    certain = F.col("newest").isNotNull() & F.when(F.col("open"), ~F.col("any_gone")).otherwise(~F.col("gone"))
    return pairs.groupBy("sink").agg(
        F.count(F.when(certain, 1)).alias("n"),
        F.count(F.when(F.col("open"), 1)).alias("loose"),
        F.lit(0).cast("long").alias("untimed"),
        F.count(F.when(certain, 1)).alias("keys"),
        F.lit(0).cast("long").alias("near"),
    )


def flagged(pairs: DataFrame) -> DataFrame:
    """Return the violations in ``met``: ``check``, ``sink``, location and ``detail``."""
    there, should = F.col("seen").isNotNull(), F.col("newest").isNotNull()
    sure = ~F.col("open")
    lost = ~there & should & F.when(sure, ~F.col("gone")).otherwise(~F.col("any_gone"))
    unexpected = there & (~should | (sure & F.col("gone")))
    other = F.when(sure, ~same_value("seen.", "newest.")).otherwise(~F.col("made"))
    check = (
        F.when(lost, Check.LOST.name)
        .when(unexpected, Check.UNEXPECTED.name)
        .when(there & should & other, Check.WRONG_TOTAL.name)
    )
    seen, newest = F.col("seen.preview"), F.col("newest.preview")
    detail = (
        F.when(lost, F.concat(F.lit("the row of its key is missing: expected "), newest))
        .when(should & unexpected, F.concat(F.lit("the last output of its key deletes it: "), seen))
        .when(unexpected, F.concat(F.lit("no output has its key: "), seen))
        .when(sure, F.concat(F.lit("it is "), seen, F.lit(": expected "), newest))
        .otherwise(F.concat(F.lit("it is none of the outputs of its key: "), seen))
    )
    place = (F.when(lost, F.col(f"newest.{name}")).otherwise(F.col(f"seen.{name}")).alias(name) for name in AT)
    return pairs.select(check.alias("check"), "sink", *place, detail.alias("detail")).where("check is not null")


def differing(pairs: DataFrame) -> dict[str, int]:
    """Return the number of differing keys of each sink."""
    wrong: Column = F.count(F.lit(1)).alias("n")
    return {row["sink"]: row["n"] for row in flagged(pairs).groupBy("sink").agg(wrong).collect()}
