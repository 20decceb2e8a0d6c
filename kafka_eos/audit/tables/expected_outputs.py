"""The expected outputs, as a Spark table: the plan's operators run over the input again.

Rule: if the order of a key's input is undefined (it comes from several partitions), the recompute follows the update
numbers of the visible outputs, if these are complete. Otherwise such outputs are marked ``loose``, and their values are
not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.facts.epoch_intervals import Spans
from kafka_eos.audit.tables import python_tasks as tasks
from kafka_eos.audit.tables import topic_tables as reads
from kafka_eos.audit.tables.float_tolerance import floats, value_hash
from kafka_eos.audit.tables.plan_cut import Cut
from kafka_eos.audit.tables.readable_values import ReadableValues
from kafka_eos.plan import KeyByNode
from kafka_eos.runtime.operators.rejections import hash_operator

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Recompute:
    """The plan and the settings of a recompute."""

    app: str
    cut: Cut
    sinks: frozenset[str]
    """Audited sinks."""
    streams: int
    """The number of input partitions with records."""
    savepoint: str | None
    """The location of the state with which the recompute begins; None if it begins without state."""
    unmarked: tuple[str, ...]
    """Sinks of these whose outputs have no provenance."""
    spans: Spans
    """The ends of epochs in the input, by the ledger, for outputs that sum up an epoch."""
    hold: Callable[[DataFrame], DataFrame]
    """Keeps a table that is used more than once."""
    rounded: frozenset[str] = frozenset()
    """Sinks whose floats are compared separately, see ``sums``."""

    def expected(
        self, records: DataFrame, visible: DataFrame, more_outputs: Sequence[DataFrame] = ()
    ) -> tuple[DataFrame, bool]:
        """Return one row per expected output, and whether some keys have an unknown order.

        The columns are ``sink``, ``id``, location, update, hashes, ``grp`` (key) and ``loose``. For keys with an
        unknown order, only ``loose`` outputs are known.

        ``records``: rows as in ``tasks.INPUT``.
        ``visible``: the first copies of outputs.
        ``more_outputs``: outputs that are computed elsewhere, after windows and after broadcast state.
        """
        cut, free = self.cut, False
        parts = [records.sparkSession.createDataFrame([], tasks.EXPECTED), *more_outputs]
        # What waits for time does nothing here, and what reaches its sinks is ``beside`` it.
        timeless = ~F.col("sink").isin([*cut.timed])
        if cut.serial and cut.lasting:
            ordered, several = self.serial(records)
            serial = partial(tasks.serial_outputs, self.app, cut.parallelism, self.savepoint, several)
            parts.append(ordered.mapInArrow(serial, tasks.EXPECTED).where(timeless))
            free = several or bool(cut.below & cut.shuffled)
        else:
            if cut.head_sinks & self.sinks:
                parts.append(
                    records.mapInArrow(partial(tasks.head_outputs, self.app, self.cut.parallelism), tasks.EXPECTED)
                )
            if cut.lasting:
                rows, free = self.keyed(records, visible)
                tail = partial(tasks.tail_outputs, self.app, cut.parallelism, self.savepoint)
                parts.append(rows.mapInArrow(tail, tasks.EXPECTED).where(timeless))
        made = reduce(lambda a, b: a.unionByName(b), parts)
        return _identified(made, cut, self.unmarked, ReadableValues.of(self.app, cut, self.rounded)), free

    def serial(self, records: DataFrame) -> tuple[DataFrame, bool]:
        """Return ``records`` in one task and order, and whether the job may have read them in another order."""
        several = self.streams > 1 or (self.cut.parallelism > 1 and bool(self.cut.parted))
        # A table that has not changed since is whole before a stream begins.
        place = (~F.col("source").isin([*self.cut.tables]), "source", "topic", "partition", "offset")
        return records.repartition(1).sortWithinPartitions(*place), several

    def keyed(self, records: DataFrame, visible: DataFrame | None) -> tuple[DataFrame, bool]:
        """Return the rows that reach the stages, grouped and ordered by key, with ``loose``.

        Also return whether some keys have an unknown order. ``visible`` is None if no outputs are read: they give no
        order then.
        """
        rows = records.mapInArrow(partial(tasks.captures, self.app, self.cut.parallelism, self.spans), tasks.CAPTURED)
        rows, free = self._in_their_order(self.hold(rows.repartition("grp", "stage")), visible)
        place = ("source", "s_partition", "s_offset", "lane", *_NUMBER)
        ordered = rows.sortWithinPartitions("stage", "span", "turn", *place)
        return ordered.select(*tasks.CAPTURED_COLUMNS, "loose"), free

    def _in_their_order(self, rows: DataFrame, visible: DataFrame | None) -> tuple[DataFrame, bool]:
        """Add ``turn``, the order of a key's rows where offsets do not define one, and ``loose``; return whether such
        keys exist.
        """
        if not self.cut.lookups:
            return self._by_streams(rows, visible)
        looking = F.col("stage").isin([*self.cut.lookups])
        looked = tables_first(rows.where(looking), self.cut.tables)
        others, free = self._by_streams(rows.where(~looking), visible)
        moved = not looked.where("loose").isEmpty()
        return looked.unionByName(others, allowMissingColumns=True), free or moved

    def _by_streams(self, rows: DataFrame, visible: DataFrame | None) -> tuple[DataFrame, bool]:
        """Order rows by the offsets of their stream, and by update numbers."""
        shuffled = bool(self.cut.shuffled.intersection(self.cut.stages))
        streams = rows.select("grp", "stage") if shuffled else rows.select("grp", "stage", *_STREAM).distinct()
        if streams.groupBy("grp", "stage").count().where("count > 1").isEmpty():
            return rows.withColumns({"loose": F.lit(False), "turn": F.lit(0)}), False
        key, stream = Window.partitionBy("grp", "stage"), F.concat_ws("/", *_STREAM)
        several = F.count("*").over(key) > 1 if shuffled else F.min(stream).over(key) != F.max(stream).over(key)
        rows = rows.withColumn("several", several)
        if self.cut.one_to_one and visible is not None:
            place = ["s_offset", "source", "s_topic", "s_partition", "lane", "path"]
            turns = visible.where("update is not null").groupBy(*place).agg(F.min("update").alias("turn"))
            rows = rows.withColumn("path", self._path()).join(turns, place, "left").drop("path")
        else:
            rows = rows.withColumn("turn", F.lit(None).cast("long"))
        unknown = F.count(F.when(F.col("turn").isNull(), 1)).over(key) > 0
        # Within one stream the offsets are the order, whatever the output claims.
        turn = F.when(F.col("several"), F.col("turn"))
        return rows.withColumns({"turn": turn, "loose": F.col("several") & unknown}), True

    def _path(self) -> Column:
        """Return the path of a captured row's only output: behind an exchange its branch identifies each row."""
        local = any(
            isinstance(node := self.cut.plan.node(stage), KeyByNode) and node.local for stage in self.cut.stages
        )
        return F.concat("branch", F.col("ordinal").cast("string") if local else F.lit("0"))


_STREAM = ("source", "s_topic", "s_partition", "lane")
_NUMBER = ("branch", "ordinal")


def tables_first(rows: DataFrame, tables: Collection[str]) -> DataFrame:
    """Return the input of a table look-up, with ``turn`` and ``loose``: the table's rows, then those of streams.

    Rows of streams have no order among themselves. The newest row of a key is known only if the key is in one
    partition.
    """
    of_table = F.col("source").isin([*tables])
    stream, key = F.when(of_table, F.concat_ws("/", *_STREAM)), Window.partitionBy("grp", "stage")
    moved = F.coalesce(F.min(stream).over(key) != F.max(stream).over(key), F.lit(False))
    return rows.withColumns({"turn": F.when(of_table, 0).otherwise(1).cast("long"), "loose": moved})


def _identified(made: DataFrame, cut: Cut, unmarked: tuple[str, ...], legible: ReadableValues) -> DataFrame:
    """Add the id of each output, and the hashes of its content."""
    number, letter = F.col("sub"), F.col("sink").isin([*cut.letters])
    # The first phase of a fold is the one that refuses records.
    for fold in cut.merging:
        whom, who = (f"-{hash_operator(name)}-" for name in (fold.name, fold.inputs[0]))
        renamed = F.replace("branch", F.lit(whom), F.lit(who))
        made = made.withColumn("branch", F.when(letter, renamed).otherwise(F.col("branch")))
    if cut.fans_out or cut.letters:
        one_record = Window.partitionBy("sink", "source", "s_topic", "s_partition", "s_offset", "lane", "branch")
        counted = F.row_number().over(one_record.orderBy("ordinal", "sub")) - 1
        number = counted if cut.fans_out else F.when(letter, counted).otherwise(number)
    path = F.concat_ws(".", "lane", F.concat("branch", number.cast("string")))
    value, summed = legible.text(F.col("sink"), F.col("value")), F.col("sink").isin([*legible.rounded])
    headers = reads.headers_hash(F.col("headers"), letter, F.col("sink").isin([*unmarked]))
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
        value_hash(value, summed).alias("e_value_hash"),
        floats(value, summed).alias("e_floats"),
        headers.alias("e_headers_hash"),
        # Of a dead letter it may be the time of writing; its headers have that of the record.
        F.when(~letter, F.col("time")).alias("e_time"),
        reads.preview("value").alias("e_preview"),
        F.when(F.col("grp").isNotNull(), F.xxhash64("grp")).alias("grp"),
        # An encoded key starts with a byte that tells its type; people want the rest.
        F.regexp_replace(F.col("grp").cast("string"), "[\\p{Cntrl}\\x{FFFD}]", "").alias("grp_text"),
        "loose",
        "span",
    )
