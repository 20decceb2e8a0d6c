"""Files in formats other than plain lines, as a Spark table: the sink in the user's file reads them, in Spark's
workers.

Rule: a file with an unreadable part yields a torn row. A file that is missing, or that the operating system or the
object store cannot return, aborts the audit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.sql import functions as F

from kafka_eos import plan as plans
from kafka_eos.abc.auditable import AuditableFiles
from kafka_eos.audit.facts.audit_subject import Directory
from kafka_eos.audit.tables.python_tasks import cut_of
from kafka_eos.core.errors import KafkaEosError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ: Final = (
    "sink string, topic string, partition int, offset long, file_epoch long, value binary, text string, torn boolean"
)
_AT_ONCE: Final = 4096


def rows(
    spark: SparkSession, files: Iterable[tuple[Directory, Sequence[str]]], app: str, workers: int
) -> list[DataFrame]:
    """Return the rows of the named files of sinks, with the columns of ``reads.lines``: one table, or none without
    files.

    ``partition`` is the subtask, and ``offset`` the row.
    """
    found = [
        (each.node, name, int(match[2]), int(match[1]), each.marked)
        for each, names in files
        for name in names
        if (match := re.fullmatch(each.names, name.rpartition("/")[2]))
    ]
    if not found:
        return []

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan = cut_of(app, workers).plan
        for batch in batches:
            for file in batch.to_pylist():
                node = plan.node(file["node"])
                assert isinstance(node, plans.SinkNode)
                yield from _rows(cast("AuditableFiles", node.sink), file)

    columns = "node string, name string, subtask int, epoch long, marked boolean"
    some = spark.createDataFrame(found, columns).repartition(min(len(found), 4 * spark.sparkContext.defaultParallelism))
    table = some.mapInArrow(read, _READ)
    nothing = F.lit(None).cast("long")
    return [
        table.select(
            "sink",
            "topic",
            "partition",
            "offset",
            F.lit(None).cast("binary").alias("key"),
            "value",
            nothing.alias("headers_hash"),
            nothing.alias("time"),
            "file_epoch",
            nothing.alias("place"),
            "text",
            F.lit(False).alias("late"),
            F.lit(False).alias("shortened"),
            "torn",
        )
    ]


def _rows(sink: AuditableFiles, file: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    begin = 0
    for values, texts, torn in _some(sink, file):
        count = len(values)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([file["node"]] * count, pa.string()),
                pa.array([file["name"]] * count, pa.string()),
                pa.array([file["subtask"]] * count, pa.int32()),
                pa.array(range(begin, begin + count), pa.int64()),
                pa.array([file["epoch"]] * count, pa.int64()),
                pa.array(values, pa.binary()),
                pa.array(texts, pa.string()),
                pa.array(torn, pa.bool_()),
            ],
            names=["sink", "topic", "partition", "offset", "file_epoch", "value", "text", "torn"],
        )
        begin += count


def _some(sink: AuditableFiles, file: dict[str, Any]) -> Iterator[tuple[list[bytes], list[str | None], list[bool]]]:
    values: list[bytes] = []
    texts: list[str | None] = []
    torn: list[bool] = []
    try:
        for value, text in sink.audit_read(file["name"]):
            values.append(value)
            texts.append(text if file["marked"] else None)
            torn.append(file["marked"] and text is None)
            if len(values) >= _AT_ONCE:
                yield values, texts, torn
                values, texts, torn = [], [], []
    except Exception as error:  # readers of formats raise what they like at damaged bytes
        # Errors of the system have a number, those of readers have none.
        if isinstance(error, KafkaEosError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        values.append(f"not readable: {error}".encode(errors="backslashreplace"))
        texts.append(None)
        torn.append(True)
    if values:
        yield values, texts, torn
