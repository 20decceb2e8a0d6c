"""Topics and directories as tables that users' expressions read, and the narrow tables that the checks read.

Rule: what is shuffled is numbers. A record is its place, its offset and hashes; the text of an id or a value is
looked up for the few records that are shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, FractionalType, IntegralType, StringType

from kafka_eos.audit.facts.audit_subject import Topic
from kafka_eos.audit.facts.ledger_provenance import Files, ProvenanceFiles
from kafka_eos.audit.tables import topic_tables as reads
from kafka_eos.audit.tables.partition_placement import PartitionPlacement
from kafka_eos.audit.tables.registry_values import RegistryValues
from kafka_eos.audit.tables.topic_tables import Bounds
from kafka_eos.audit.topics.question import TopicAuditOptions, expression, is_json_path, quoted
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.provenance import HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RECORDS_PER_TASK = 1_000_000
"""The number of records per task, which keeps their numbers in memory."""
COPY = r"^[^/]+/((?:[^/]+/){4}[^/]+)"
"""Of a provenance, which output of which record it is. The update number tells which output of its key, and differs
where a record was applied twice."""


@dataclass(frozen=True)
class OffsetWindow:
    """The ranges to read and to judge, by topic and partition; the other records are counterparts only."""

    read: Mapping[str, Bounds]
    judged: Mapping[str, Bounds]
    files: Mapping[str, Sequence[str]]
    """By directory: names of the files to read."""
    since: datetime | None = None
    """Older records within the judged ranges are not judged: their counterparts may be before what is read."""

    @property
    def exact(self) -> bool:
        """Return whether everything that is read is judged."""
        return self.read == self.judged and self.since is None

    def of(self, names: Sequence[str]) -> dict[str, Bounds]:
        """Return the bounds of those of ``names`` that are topics with something to read."""
        return {name: self.read[name] for name in names if self.read.get(name)}


class Places:
    """Numbers for (topic, partition) and for directories, so that shuffles carry no names."""

    def __init__(self, window: OffsetWindow) -> None:
        self.names: list[tuple[str, int]] = []
        self._first: dict[str, int] = {}
        for topic, bounds in window.read.items():
            self._first[topic] = len(self.names)
            self.names += [(topic, p) for p in range(max(bounds, default=-1) + 1)]
        for directory in window.files:
            self._first[directory] = len(self.names)
            self.names.append((directory, 0))

    def column(self, topics: Sequence[str]) -> Column:
        """Return the number of a row's topic and partition, for rows of ``topics``."""
        number = F.lit(None).cast("int")
        for topic in topics:
            number = F.when(F.col("topic") == topic, F.lit(self._first[topic]) + F.col("partition")).otherwise(number)
        return number


def records(
    spark: SparkSession, question: TopicAuditOptions, bounds: Mapping[str, Bounds], files: Files, *, committed: bool
) -> DataFrame:
    """Read records: topic, partition, offset, timestamp, key and value (text), raw_key and raw_value, headers, json,
    provenance.

    ``file`` is null. ``files``: those of ledgers with provenance.
    """
    tables = [
        reads.read(spark, access.java(spark), some, committed=committed, records_per_task=RECORDS_PER_TASK)
        for access, topics in question.clusters
        if (some := {topic: parts for topic, parts in bounds.items() if topic in topics})
    ]
    table = reduce(lambda a, b: a.unionByName(b), tables)
    provenance_text = F.expr(f"cast(try_element_at(filter(headers, h -> h.key = '{HEADER}'), -1).value as string)")
    if files:
        lookup = ProvenanceFiles(question.bootstrap, dict(question.config), files)
        table = table.withColumn("told", lookup.text(F.col("topic"), F.col("partition"), F.col("offset")))
        provenance_text = F.coalesce("told", provenance_text)
    named = table.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "headers",
        provenance_text.alias("provenance"),
        F.lit(None).cast("string").alias("file"),
        F.col("key").alias("raw_key"),
        F.col("value").alias("raw_value"),
        _text(question, "key").alias("key"),
        _text(question, "value").alias("value"),
    )
    return _parsed(named, question)


def _text(question: TopicAuditOptions, column: str) -> Column:
    """Return keys or values as the text that expressions read."""
    if question.registry is None:
        return F.col(column).cast("string")
    return RegistryValues(question.registry, question.registry_config).text(F.col(column))


def lines(spark: SparkSession, question: TopicAuditOptions, directory: str, names: Sequence[str]) -> DataFrame:
    """Read the lines of files with the columns of ``records``; of an envelope its value and its provenance.

    ``offset`` increases within a file; it is the number of the line if the file was read in one piece.
    """
    inside = F.regexp_extract("value", reads.ENVELOPE, 2)
    wrapped = inside != ""
    value = F.when(wrapped, inside).otherwise(F.col("value"))
    number = F.monotonically_increasing_id() % (1 << 33)
    root = os.path.abspath(directory)
    # The address of a file is encoded, and its slashes are not: they tell what lies below the directory.
    parts = F.split(F.regexp_replace("_metadata.file_path", "^[a-z]+:/*", ""), "/")
    below = F.slice(parts, len(Path(root).parts), F.size(parts))
    table = spark.read.text([f"{root}/{name}" for name in names], lineSep="\n").select(
        F.lit(directory).alias("topic"),
        F.lit(0).alias("partition"),
        (F.col("_metadata.file_block_start") + number).alias("offset"),
        F.lit(None).cast("timestamp").alias("timestamp"),
        F.lit(None).cast("array<struct<key string, value binary>>").alias("headers"),
        F.when(wrapped, F.regexp_extract("value", reads.ENVELOPE, 1)).alias("provenance"),
        F.array_join(below, "/").alias("file"),
        F.lit(None).cast("binary").alias("raw_key"),
        value.cast("binary").alias("raw_value"),
        F.lit(None).cast("string").alias("key"),
        value.alias("value"),
    )
    return _parsed(table, question)


def _parsed(table: DataFrame, question: TopicAuditOptions) -> DataFrame:
    json = F.try_parse_json("value") if question.schema is None else F.from_json("value", question.schema)
    return table.withColumn("json", json)


# ---------------------------------------------------------------- ids


def with_id(table: DataFrame, text: str | None, column: str = "named") -> DataFrame:
    """Return the table with the ids of its records, as text. Null: the record has none, or one that others may share.

    Of a field of a JSON value it is the token: ``1`` and ``"1"`` are two ids. Numbers are exact (up to 38 digits); a
    number that only fits into a double is no id, nor is an empty text, nor text that is no UTF-8, nor a field that an
    object has twice. ConfigError for an expression that makes a double.
    """
    if text is None:
        return table.withColumn(column, F.lit(None).cast("string"))
    if is_json_path(text):
        # In a step of its own, so that a value is parsed once.
        found = table.withColumn(column, F.expr(f"variant_get(try_parse_json(value), {quoted(text)})"))
        exact = F.expr(f"schema_of_variant({column}) not in ('DOUBLE', 'FLOAT', 'VOID') and is_valid_utf8(value)")
        return found.withColumn(column, F.when(exact, F.nullif(F.to_json(column), F.lit('""'))))
    found = table.withColumn(column, F.expr(expression(text)))
    if isinstance(found.schema[column].dataType, DoubleType | FloatType):
        raise ConfigError(
            f"the id {text!r} is a floating-point number, which different ids may share: make it a long, a decimal or "
            "a string"
        )
    return found.withColumn(column, F.nullif(F.col(column).cast("string"), F.lit("")))


# ---------------------------------------------------------------- narrow


def inputs(table: DataFrame, question: TopicAuditOptions, places: Places, window: OffsetWindow) -> DataFrame:
    """Return one row per input: location, offset, hash of its id, content, whether it is judged, and whether ``where``
    holds.
    """
    origin: Column = F.lit(None).cast("long")
    if question.by_provenance:
        origin = F.xxhash64("topic", "partition", "offset")
    elif question.id is not None:
        table, origin = with_id(table, question.input_id or question.id), _hash(F.col("named"))
    kept = _holds(question.where)
    name = F.when(kept, origin)
    return table.select(
        F.lit(True).alias("is_input"),
        places.column(question.inputs).alias("place"),
        "offset",
        name.alias("origin"),
        name.alias("id"),
        F.lit(None).cast("long").alias("key"),
        _content().alias("content"),
        *_judged(window, question.inputs),
        kept.alias("kept"),
        F.lit(None).cast("string").alias("attempt"),
        F.lit(None).cast("long").alias("stream"),
        F.lit(None).alias("turn"),
        "file",
        F.lit(None).cast("long").alias("number"),
    )


def outputs(
    table: DataFrame,
    question: TopicAuditOptions,
    places: Places,
    window: OffsetWindow,
    placings: Mapping[str, PartitionPlacement],
) -> DataFrame:
    """Return one row per output, with the columns of ``inputs``.

    ``stream`` and ``turn`` define the order where one is known. ``number``: how the partition was chosen (see
    ``partitioners``), in topics of ``placings``. Of outputs that are not compared (``output_where``, ``jobs``) only
    location and content are known.
    """
    # Kafka's clients treat an empty key like none.
    nothing, key = F.lit(None).cast("long"), F.when(F.length("raw_key") > 0, F.col("raw_key"))
    if question.key is not None:
        key = F.expr(expression(question.key))
    origin = name = stream = turn = nothing
    attempt: Column = F.lit(None).cast("string")
    if question.by_provenance:
        text = F.when(F.col("provenance").rlike(reads.PROVENANCE), F.col("provenance"))
        part = F.split(text, "/")
        lane = F.substring_index(part[5], ".", 1)  # branches of one source are written one after the other
        attempt, turn = F.concat(part[0], F.lit("/"), part[1]), part[4].cast("long")
        stream = F.when(text.isNotNull(), F.xxhash64(F.concat_ws("/", part[1], part[2], part[3], lane)))
        origin = F.when(text.isNotNull(), F.xxhash64(part[2], part[3].cast("int"), turn))
        # Sinks of one stream write the same provenance, each into its own topic.
        name = F.when(text.isNotNull(), F.xxhash64("topic", F.regexp_extract(text, COPY, 1)))
    elif question.id is not None:
        table = with_id(table, question.id)
        origin = name = _hash(F.col("named"))
    if question.order is not None:
        stream, turn = F.lit(0).cast("long"), _comparable(table, F.expr(expression(question.order)))
    kept = _holds(question.output_where)
    if question.jobs:
        kept &= F.coalesce(F.substring_index(attempt, ".", 1).isin([*question.jobs]), F.lit(True))
    known = {
        "origin": origin,
        "id": name,
        "key": _hash(key),
        "attempt": attempt,
        "stream": stream,
        "turn": turn,
        "number": _number_of_key(question, placings),
    }
    return table.select(
        F.lit(False).alias("is_input"),
        places.column(question.outputs).alias("place"),
        "offset",
        _content().alias("content"),
        *_judged(window, question.outputs),
        kept.alias("kept"),
        "file",
        *(F.when(kept, column).alias(column_name) for column_name, column in known.items()),
    )


def _holds(condition: str | None) -> Column:
    """Return whether a record meets a condition; null where that is unknown."""
    return F.lit(True) if condition is None else F.expr(expression(condition)).cast("boolean")


def _number_of_key(question: TopicAuditOptions, placings: Mapping[str, PartitionPlacement]) -> Column:
    topics = [
        Topic(name, name, question.bootstrap, question.config, partitioner=placing.partitioner).dated(placing.regimes)
        for name, placing in placings.items()
    ]
    place = reads.places(topics, F.col("raw_key"), F.col("provenance")) if topics else F.lit(None)
    return place.cast("long")


def _content() -> Column:
    return F.xxhash64(*reads.hashed(F.col("raw_key"), F.col("raw_value")))


def _hash(column: Column) -> Column:
    """Return the hash of a value's text: a number in the input equals the same number as a string in the output."""
    return F.when(column.isNotNull(), F.xxhash64(column.cast("string")))


def _comparable(table: DataFrame, column: Column) -> Column:
    """Return the values of an order in a type that distinguishes adjacent ones: not all 64-bit ids fit into a double.

    Text is read as a number if possible, otherwise as a time in ISO 8601.
    """
    kind = table.select(column).schema[0].dataType
    if isinstance(kind, IntegralType):
        return column.cast("long")
    if isinstance(kind, FractionalType):
        return column
    if isinstance(kind, StringType):
        as_time = F.unix_micros(column.try_cast("timestamp")).cast("decimal(38,9)")
        return F.coalesce(column.try_cast("decimal(38,9)"), as_time)
    return column.cast("decimal(38,9)")


def _judged(window: OffsetWindow, topics: Sequence[str]) -> tuple[Column, Column]:
    """Return ``judged``, and ``older``: whether a row is not judged only because it is older than ``since``."""
    inside = _inside(window, topics)
    older = F.lit(False) if window.since is None else inside & (F.col("timestamp") < F.lit(window.since))
    return (inside & ~older).alias("judged"), older.alias("older")


def _inside(window: OffsetWindow, topics: Sequence[str]) -> Column:
    """Return whether a row is within the judged ranges; a constant where everything that is read is."""
    judged = F.lit(True)
    for topic in topics:
        bounds = window.judged.get(topic, {})
        if bounds == window.read.get(topic, {}):
            continue
        inside = F.lit(False)
        for partition, (start, end) in bounds.items():
            there = (F.col("partition") == partition) & (F.col("offset") >= start) & (F.col("offset") < end)
            inside = inside | there
        judged = F.when(F.col("topic") == topic, inside).otherwise(judged)
    return judged
