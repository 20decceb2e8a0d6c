"""Topics and files as Spark tables: input records, outputs with their provenance, and output that only appears
committed.

Rule: the caller pins offsets once, and every scan uses them, so all scans read the same records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.cluster.cluster_admin import PATIENCE_MS
from kafka_eos.audit.cluster.java_client_config import java_config
from kafka_eos.audit.facts.audit_subject import Directory, Topic
from kafka_eos.audit.facts.ledger_provenance import Files, ProvenanceFiles
from kafka_eos.audit.tables.float_tolerance import floats, value_hash
from kafka_eos.audit.tables.partitioner_hashes import key_hash
from kafka_eos.audit.tables.readable_values import ReadableValues
from kafka_eos.connectors.kafka.sink.dead_letters import LEFT_OUT
from kafka_eos.core.ids import NAME
from kafka_eos.core.provenance import ENCODED_NAME, HEADER
from kafka_eos.runtime.operators.windows.window_operator import LateRow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Bounds = Mapping[int, tuple[int, int]]
"""First offset and end (exclusive) to read, by partition."""

_INT, _LONG = r"(?:0|[1-9]\d{0,8})", r"(?:0|[1-9]\d{0,17})"
PROVENANCE = (
    rf"^{NAME}\.{_INT}\.{_LONG}/[^/]+/{ENCODED_NAME}/{_INT}/-?{_LONG}/{_INT}\.{_LONG}(?:-{_LONG})*(?:/{_LONG})?\z"
)
"""As a sink writes it: numbers that their types hold, and nothing behind it. (``$`` would let a line end follow.)"""
_ERRORS = ("dead_letter.operator", "dead_letter.error", "dead_letter.message")
_CALLED_LATE = f"exists(headers, h -> h.key = 'dead_letter.error' and h.value = cast('{LateRow.__name__}' as binary))"
_IS_SHORTENED = f"value is null and exists(headers, h -> h.key = '{LEFT_OUT}')"
_NEVER = 1 << 62
"""After every epoch."""
_CREATE_TIME = 0
"""The type of a timestamp that the producer gave; the other one is the broker's."""
ENVELOPE = r'(?s)^\{"provenance":"([^"]*)","value":(.*)\}\z'
PREVIEW = 60
"""The number of bytes of a value that findings show."""


def read(
    spark: SparkSession,
    config: Mapping[str, str],
    bounds: Mapping[str, Bounds],
    *,
    committed: bool,
    records_per_task: int | None = None,
) -> DataFrame:
    """Read the records of topics of one cluster within ``bounds``, with the connector's columns.

    ``config``: the result of ``java_config`` for the cluster. ``records_per_task`` splits larger partitions; None reads
    each in one task, in the order of its offsets.
    """
    options = {f"kafka.{name}": value for name, value in config.items()}
    options |= {
        "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        "assign": json.dumps({topic: sorted(parts) for topic, parts in bounds.items()}),
        "startingOffsets": json.dumps({t: {str(p): start for p, (start, _) in b.items()} for t, b in bounds.items()}),
        "endingOffsets": json.dumps({t: {str(p): end for p, (_, end) in b.items()} for t, b in bounds.items()}),
        "includeHeaders": "true",
        "kafka.max.poll.records": "10000",
        # A range may end with a transaction's marker: nothing comes after it that is worth a wait.
        "kafka.fetch.max.wait.ms": "20",
        "failOnDataLoss": "true",
        # Longer than a broker needs to start again, shorter than a user waits for one that is gone.
        "kafkaConsumer.pollTimeoutMs": "60000",
        "kafka.default.api.timeout.ms": str(PATIENCE_MS),
        "kafka.request.timeout.ms": str(PATIENCE_MS),
        "fetchOffset.numRetries": "2",
    }
    if records_per_task is not None:
        options["maxRecordsPerPartition"] = str(records_per_task)
    return spark.read.format("kafka").options(**options).load()


def inputs(spark: SparkSession, topic: Topic, bounds: Bounds) -> DataFrame:
    """Read raw records for the recompute, as ``tasks.INPUT``."""
    # No null: Spark asks for a batch's size after each row, and Arrow then counts all nulls of a list again.
    headers = F.coalesce("headers", F.array())
    config = java_config(topic.bootstrap, topic.config)
    return read(spark, config, {topic.topic: bounds}, committed=True).select(
        F.lit(topic.node).alias("source"),
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp"),
        "key",
        "value",
        headers.alias("headers"),
    )


def records(
    spark: SparkSession, topics: Iterable[tuple[Topic, Bounds]], files: Files, *, committed: bool
) -> list[DataFrame]:
    """Read the records of sinks with topics, for ``parsed``: one table per cluster. ``files``: those of the job's
    ledger.
    """
    last = F.try_element_at("headers", F.lit(-1))
    # Spark interprets functions over lists; a writer puts the provenance last.
    anywhere = F.expr(f"try_element_at(filter(headers, h -> h.key = '{HEADER}'), -1).value")
    text = F.when(last["key"] == HEADER, last["value"]).otherwise(anywhere)
    provenance_text = F.coalesce(F.col("told"), text.cast("string"))
    clusters: dict[str, list[tuple[Topic, Bounds]]] = {}
    for topic, bounds in topics:
        clusters.setdefault(json.dumps(java_config(topic.bootstrap, topic.config)), []).append((topic, bounds))
    return [
        _with_ledger_provenance(
            read(spark, json.loads(config), {t.topic: bounds for t, bounds in some}, committed=committed), some, files
        ).select(
            _named({t.topic: t.node for t, _ in some}).alias("sink"),
            "topic",
            "partition",
            "offset",
            "key",
            "value",
            headers_hash(_given(some, F.col("told")), _of(some, "letters"), ~_of(some, "marked")).alias("headers_hash"),
            F.when(F.col("timestampType") == _CREATE_TIME, F.unix_millis("timestamp")).alias("time"),
            F.lit(None).cast("long").alias("file_epoch"),
            places([topic for topic, _ in some], F.col("key"), provenance_text).alias("place"),
            provenance_text.alias("text"),
            (_of(some, "letters") & F.expr(_CALLED_LATE)).alias("late"),
            (_of(some, "letters") & F.expr(_IS_SHORTENED)).alias("shortened"),
            F.lit(False).alias("torn"),
        )
        for config, some in clusters.items()
    ]


def _named(nodes: Mapping[str, str]) -> Column:
    """Return the name of the sink that writes to a topic."""
    return F.create_map(*(F.lit(word) for pair in nodes.items() for word in pair))[F.col("topic")]


def _of(topics: Sequence[tuple[Topic, Bounds]], what: str) -> Column:
    """Return whether the record's topic has this attribute."""
    return F.col("topic").isin([topic.topic for topic, _ in topics if getattr(topic, what)])


def _with_ledger_provenance(table: DataFrame, topics: Sequence[tuple[Topic, Bounds]], files: Files) -> DataFrame:
    """Add ``told``, the origin of a record according to the job's ledger."""
    sinks = {topic.topic: topic.node for topic, _ in topics if topic.marked}
    if not files or not sinks:
        return table.withColumn("told", F.lit(None).cast("string"))
    first, _ = topics[0]
    text = ProvenanceFiles(first.bootstrap, dict(first.config), files, sinks).text(
        F.col("topic"), F.col("partition"), F.col("offset")
    )
    return table.withColumn("told", text)


def _given(topics: Sequence[tuple[Topic, Bounds]], ledger_text: Column) -> Column:
    """Return the headers that the sink received. Its writer appends the provenance to them, or writes it to the
    ledger.
    """
    headers = F.col("headers")
    stamped = _of(topics, "marked") & ledger_text.isNull() & (F.try_element_at(headers, F.lit(-1))["key"] == HEADER)
    return F.when(stamped, F.slice(headers, 1, F.size(headers) - 1)).otherwise(headers)


def places(topics: Sequence[Topic], key: Column, text: Column) -> Column:
    """Return ``partitioners.key_hash``; null in other ``topics``. ``text`` is the provenance, which contains the
    epoch.
    """
    by_partitioner: dict[tuple[tuple[int, str | None], ...], list[str]] = {}
    for topic in topics:
        by_partitioner.setdefault((*topic.earlier, (_NEVER, topic.partitioner)), []).append(topic.topic)
    epoch = F.regexp_extract(text, r"^[^.]+\.\d+\.(\d{1,18})/", 1).try_cast("long")
    places = []
    for partitioners, names in by_partitioner.items():
        place = F.lit(None).cast("bigint")
        for until, partitioner in reversed(partitioners):
            chosen = key_hash(partitioner, key)
            place = chosen if until == _NEVER else F.when(epoch <= until, chosen).otherwise(place)
        places.append(F.when(F.col("topic").isin(names), place))
    return F.coalesce(*places)


def lines(spark: SparkSession, files: Iterable[tuple[Directory, Sequence[str]]]) -> list[DataFrame]:
    """Read the lines of the named files of sinks, for ``parsed``: one table, or none without files.

    ``topic`` is the file's name, ``partition`` the subtask, ``file_epoch`` the epoch in the name, and ``offset`` the
    line. With an envelope, the value is its content, and a line that is not a complete envelope is ``torn``.
    """
    found = [(directory, names) for directory, names in files if names]
    if not found:
        return []
    paths = [f"{directory.path}/{name}" for directory, names in found for name in names]
    file, block = F.col("_metadata.file_name"), F.col("_metadata.file_block_start")
    raw = spark.read.text(paths, lineSep="\n").select(
        "value", file.alias("name"), block.alias("block"), F.monotonically_increasing_id().alias("n")
    )
    of = {directory.node: F.regexp_extract("name", f"^{directory.names}$", 2) for directory, _ in found}
    of_epoch = [F.regexp_extract("name", f"^{directory.names}$", 1) for directory, _ in found]
    # In brackets, since a parser is content with the first value of several.
    marked = F.col("sink").isin([directory.node for directory, _ in found if directory.marked])
    inside = F.regexp_extract("value", ENVELOPE, 2)
    row = F.row_number().over(Window.partitionBy("name").orderBy("block", "n")) - 1
    sink = F.coalesce(*(F.when(subtask != "", F.lit(node)) for node, subtask in of.items()))
    return [
        raw.withColumn("sink", sink).select(
            "sink",
            F.col("name").alias("topic"),
            F.coalesce(*(F.nullif(subtask, F.lit("")) for subtask in of.values())).cast("int").alias("partition"),
            row.cast("long").alias("offset"),
            F.lit(None).cast("binary").alias("key"),
            F.when(marked, inside).otherwise(F.col("value")).cast("binary").alias("value"),
            F.lit(None).cast("long").alias("headers_hash"),
            F.lit(None).cast("long").alias("time"),
            F.coalesce(*(F.nullif(epoch, F.lit("")) for epoch in of_epoch)).cast("long").alias("file_epoch"),
            F.lit(None).cast("long").alias("place"),
            F.when(marked, F.regexp_extract("value", ENVELOPE, 1)).alias("text"),
            F.lit(False).alias("late"),
            F.lit(False).alias("shortened"),
            (marked & ((inside == "") | F.try_parse_json(F.concat(F.lit("["), inside, F.lit("]"))).isNull())).alias(
                "torn"
            ),
        )
    ]


def parsed(table: DataFrame, legible: ReadableValues) -> DataFrame:
    """Parse the provenance of outputs (``records`` and ``lines``); ``ours`` is false if there is none.

    ``id`` identifies an output, whichever attempt wrote it: two visible records with the same id are a duplicate.
    """
    has_provenance = F.coalesce(F.col("text").rlike(PROVENANCE), F.lit(False)) & ~F.col("torn")
    value, summed = legible.text(F.col("sink"), F.col("value")), F.col("sink").isin([*legible.rounded])
    part = F.split(F.when(has_provenance, F.col("text")), "/")
    attempt, path = F.split(part[0], r"\."), F.split(part[5], r"\.")
    return table.select(
        "sink",
        "topic",
        "partition",
        "offset",
        "torn",
        has_provenance.alias("ours"),
        F.concat_ws("/", part[1], part[2], part[3], part[4], part[5]).alias("id"),
        attempt[0].alias("job"),
        attempt[1].cast("int").alias("term"),
        attempt[2].cast("long").alias("epoch"),
        part[1].alias("source"),
        part[2].alias("s_topic"),  # encoded, as in expected outputs
        part[3].cast("int").alias("s_partition"),
        part[4].cast("long").alias("s_offset"),
        path[0].cast("int").alias("lane"),
        path[1].alias("path"),
        F.get(part, F.lit(6)).cast("long").alias("update"),
        F.xxhash64("key").alias("key_hash"),
        F.col("key").isNotNull().alias("has_key"),
        value_hash(value, summed).alias("value_hash"),
        floats(value, summed).alias("floats"),
        "headers_hash",
        "time",
        "file_epoch",
        "place",
        "late",
        "shortened",
        preview("value").alias("preview"),
    )


def headers_hash(headers: Column, letters: Column, unmarked: Column) -> Column:
    """Return the hash of the headers that a sink received, null if there are none.

    For dead ``letters``, error texts are excluded, because they may differ between runs. For ``unmarked`` records,
    provenance is excluded: they may be from a time when their sink wrote it.
    """
    kept = F.filter(headers, lambda h: ~(unmarked & (h["key"] == HEADER)))

    def header_hash_input(header: Column) -> Column:
        text = F.when(~(letters & header["key"].isin([*_ERRORS])), header["value"])
        return F.struct(header["key"].alias("key"), *(c.alias(f"v{i}") for i, c in enumerate(hashed(text))))

    # Spark interprets functions over lists; mostly there is no header but the provenance.
    none = F.size(headers) == 0
    return F.when(none, F.lit(None)).when(F.size(kept) > 0, F.xxhash64(F.transform(kept, header_hash_input)))


def hashed(*columns: Column) -> list[Column]:
    """Return the columns to hash in place of ``columns``.

    A hash ignores nulls: without the added columns (a, null) would equal (null, a).
    """
    return [part for column in columns for part in (column.isNull(), column)]


def preview(column: str) -> Column:
    """Return the start of a value, for display."""
    return F.coalesce(F.substring(F.col(column), 1, PREVIEW).cast("string"), F.lit("null"))
