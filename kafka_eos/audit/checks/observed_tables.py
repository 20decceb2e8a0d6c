"""Tables of the observed data: the input, and the outputs as their readers see them.

Each topic is read once per isolation level; everything else works on the parsed tables. Rule: each table is built from
the records themselves, and nothing is derived from offset arithmetic.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from kafka_eos.audit.checks import database_tables as relations
from kafka_eos.audit.checks.audit_scope import Scope
from kafka_eos.audit.facts.audit_subject import DatabaseTable, Directory, Place, Topic
from kafka_eos.audit.tables import topic_tables as reads
from kafka_eos.audit.tables.file_formats import rows
from kafka_eos.audit.tables.partition_placement import PartitionPlacement, with_homes
from kafka_eos.audit.tables.readable_values import ReadableValues
from kafka_eos.audit.tables.topic_tables import Bounds
from kafka_eos.core.ids import EpochId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class ObservedTables:
    """The tables of one audit's observed data. ``close`` frees what Spark caches for them and for callers of
    ``hold``.
    """

    def __init__(self, spark: SparkSession, scope: Scope) -> None:
        self._spark, self._scope = spark, scope
        self._held: list[DataFrame] = []
        sinks = scope.subject.sinks
        self.marked, self.unmarked = [s for s in sinks if s.marked], [s for s in sinks if not s.marked]
        """Sinks whose outputs say where they come from, and the others."""
        self.replaced = [table.node for table in scope.subject.tables if table.keyed]
        """Sinks in which a row replaces the previous row of its key."""

    def close(self) -> None:
        for table in self._held:
            table.unpersist()

    def hold(self, table: DataFrame) -> DataFrame:
        """Cache a table that is used more than once; return it with the cache as its whole plan.

        Otherwise the plans of all later tables contain the plan of this one, and Spark analyzes it again for each.
        """
        self._held.append(table.persist())
        cached = table._jdf.queryExecution().withCachedData()
        jvm: Any = self._spark._jvm
        return DataFrame(
            jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._spark._jsparkSession, cached), self._spark
        )

    def input(self, bounds: Mapping[str, Bounds]) -> DataFrame:
        sources = self._scope.subject.sources
        return union([reads.inputs(self._spark, source, bounds[source.stream]) for source in sources])

    def _output(self, sinks: Sequence[Place], *, committed: bool) -> DataFrame:
        return self._parsed(union(self._records(sinks, committed=committed)))

    def _parsed(self, records: DataFrame) -> DataFrame:
        scope = self._scope
        return reads.parsed(records, ReadableValues.of(scope.app, scope.cut, scope.rounded))

    def _records(self, sinks: Sequence[Place], *, committed: bool) -> list[DataFrame]:
        """Read the outputs of sinks. Hidden uncommitted files and uncommitted rows of tables are not included."""
        scope = self._scope
        regimes, topics = scope.ledger.regimes, [sink for sink in sinks if isinstance(sink, Topic)]
        dated = [(topic.dated(regimes.get(topic.node, ())), scope.outputs[topic.node]) for topic in topics]
        files = [(sink, scope.files[sink.node]) for sink in sinks if isinstance(sink, Directory)]
        kept, plain = scope.provenance, [each for each in files if each[0].lines]
        others = [each for each in files if not each[0].lines]
        tables, workers = [sink for sink in sinks if isinstance(sink, DatabaseTable)], scope.cut.parallelism
        return [
            *reads.records(self._spark, dated, kept, committed=committed),
            *reads.lines(self._spark, plain),
            *rows(self._spark, others, scope.app, workers),
            *relations.rows(self._spark, tables, scope.app, workers),
        ]

    @cached_property
    def committed(self) -> DataFrame:
        """Return the marked outputs of all jobs that read_committed readers see."""
        return self.hold(self._output(self.marked, committed=True).withColumn("before", self._is_before()))

    @property
    def all(self) -> DataFrame:
        """Return the marked outputs that read_committed readers see. ``before``: written before the savepoint."""
        return self.committed.where(~self._is_of_another_job)

    @property
    def _is_of_another_job(self) -> Column:
        """Return whether an output says that another job wrote it. Without provenance it is unknown who did."""
        return F.coalesce(~F.col("job").isin([*self._scope.subject.jobs]), F.lit(False))

    def of_others(self) -> list[DataFrame]:
        """Return the visible outputs of other jobs: marked ones, and others."""
        tables = [self.committed] if self.marked else []
        tables += [self._plain] if self.unmarked else []
        return [table.where(self._is_of_another_job).select("topic", "job") for table in tables]

    @cached_property
    def visible(self) -> DataFrame:
        """Return ``all`` with ``copy``, the number of each copy with the same provenance.

        Copies are rare, so hashes are compared first. Equal texts have equal hashes, so every copy is found.
        """
        hashed = self.all.where("ours").groupBy("s_offset", F.xxhash64("sink", "id")).count()
        if hashed.where("count > 1").isEmpty():
            return self.all.withColumn("copy", F.when(F.col("ours"), F.lit(1)))
        copies = Window.partitionBy("s_offset", "id", "sink").orderBy("before", "topic", "partition", "offset")
        return self.hold(self.all.withColumn("copy", F.when(F.col("ours"), F.row_number().over(copies))))

    @property
    def firsts(self) -> DataFrame:
        """Return the first copy of each visible output that is judged."""
        return self.visible.where("copy = 1 and not before")

    def _is_before(self) -> Column:
        beginning = self._scope.beginning
        return F.lit(False) if beginning is None else F.coalesce(F.col("term") <= beginning.term.n, F.lit(False))

    @property
    def at_home(self) -> DataFrame:
        """Return ``visible`` with ``home``; see ``places``."""
        scope, regimes = self._scope, self._scope.ledger.regimes
        topics = {
            sink.node: PartitionPlacement(sink.partitioner, len(scope.outputs[sink.node]), regimes.get(sink.node, ()))
            for sink in self.marked
            if isinstance(sink, Topic)
        }
        return with_homes(self.visible, topics)

    @cached_property
    def _plain(self) -> DataFrame:
        return self.hold(self._output(self.unmarked, committed=True))

    @property
    def plain(self) -> DataFrame:
        """Return the outputs of sinks without provenance."""
        return self._plain.where(~self._is_of_another_job)

    @cached_property
    def hidden(self) -> DataFrame:
        """Return the marked outputs that only read_uncommitted readers see."""
        place = ["offset", "partition", "topic"]
        absent = self.uncommitted.join(self.committed.select(*place), place, "left_anti")
        return self.hold(self._parsed(absent).where(~self._is_of_another_job))

    @property
    def uncommitted(self) -> DataFrame:
        """Return the marked outputs of all jobs that read_uncommitted readers see, as they were read."""
        return union(self._records(self.marked, committed=False))

    def intervals(self) -> DataFrame:
        """Return the offsets of each input partition that each epoch processed, by the term and epoch in outputs."""
        ledger = self._scope.ledger
        labels: dict[EpochId, list[EpochId]] = {}
        for given_up, into in ledger.carried.items():
            labels.setdefault(into, []).append(given_up)
        # There are as many as epochs and partitions together: numbers take less room than rows.
        streams: list[str] = []
        numbers = [array("q") for _ in range(5)]
        for each in ledger.intervals:
            for label in (each.epoch, *labels.get(each.epoch, ())):
                streams.append(each.stream)
                row = (label.term.n, label.epoch.n, each.partition, each.begin, each.end)
                for column, number in zip(numbers, row, strict=True):
                    column.append(number)
        names = ("stream", "term", "epoch", "s_partition", "first", "end")
        kinds = (pa.string(), pa.int32(), pa.int64(), pa.int32(), pa.int64(), pa.int64())
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        arrays = [pa.array(column, kind) for column, kind in zip((streams, *numbers), kinds, strict=True)]
        return self._spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))


def union(tables: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b), tables)
