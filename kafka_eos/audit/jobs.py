"""The scans: what is visible, what should be, and every record that breaks a check.

Parsing, joining, ordering and counting run in the JVM; Python workers only run the pipeline's own functions
(``tasks``). Each topic is read once for each isolation level, and what follows works on the parsed tables.
Rule: each check looks at the records themselves; nothing is derived from offset arithmetic.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Row, Window
from pyspark.sql import functions as F

from kafka_eos.audit import flags, letters, reads, relations, totals, unmarked
from kafka_eos.audit.beginning import Beginning
from kafka_eos.audit.beside import Files
from kafka_eos.audit.broadcasts.judged import Ruled
from kafka_eos.audit.broadcasts.recompute import Ruling
from kafka_eos.audit.commits import ByEpoch
from kafka_eos.audit.formats import rows
from kafka_eos.audit.intervals import Spans, spans
from kafka_eos.audit.ledger import Ledger
from kafka_eos.audit.legible import Legible
from kafka_eos.audit.places import Placing, with_homes
from kafka_eos.audit.reads import Bounds
from kafka_eos.audit.recompute import Recompute
from kafka_eos.audit.stored import Checkpoint
from kafka_eos.audit.subject import Cut, DatabaseTable, Directory, Place, Subject, Topic
from kafka_eos.audit.verdict import SHOWN, Check, Evidence, Offender
from kafka_eos.audit.windows import early
from kafka_eos.audit.windows.judged import Judged
from kafka_eos.audit.windows.recompute import Windowed, Windowing
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.operators.chain import refuser

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class Scope:
    """What to scan: everything is fixed before the first scan."""

    app: str
    """Where workers find the user's file, as ``AppRef.parse`` reads it."""
    subject: Subject
    cut: Cut
    ledger: Ledger
    inputs: Mapping[str, Bounds]
    """By stream: from the job's start to the position of its last committed epoch."""
    ahead: Mapping[str, Bounds]
    """By stream: from there to the pinned end."""
    outputs: Mapping[str, Bounds]
    """By sink: the whole topic up to the pinned end."""
    files: Mapping[str, Sequence[str]]
    """By sink: the names of its files."""
    beginning: Beginning | None = None
    """The savepoint that the recompute begins with."""
    strict: bool = True
    """No epoch processed input that lies behind its barrier."""
    provenance: Files = field(default_factory=dict)
    """Of outputs that do not say themselves where they come from."""
    windows: Judged = field(default_factory=Judged)
    ruled: Ruled = field(default_factory=Ruled)
    checkpoint: Checkpoint | None = None
    """The newest one that is committed."""

    @property
    def changed(self) -> bool:
        """Was a table read beyond the end before which no stream was?"""
        first = self.ledger.first_ends
        return any(
            end > first.get(source.stream, {}).get(partition, 0)
            for source in self.subject.sources
            if source.node in self.cut.tables
            for partition, (_, end) in self.inputs.get(source.stream, {}).items()
        )

    @property
    def rounded(self) -> frozenset[str]:
        """Sinks of values that were put together of parts, in whatever order."""
        return self.cut.totals | self.windows.sinks

    @property
    def spans(self) -> Spans:
        """See ``intervals.spans``; none where no output sums up an epoch."""
        return spans(self.ledger.entries.values()) if self.cut.totals and self.strict else {}

    @property
    def streams(self) -> int:
        """Input partitions with something in them."""
        return sum(end > start for bounds in self.inputs.values() for start, end in bounds.values())


@dataclass(frozen=True)
class Expected:
    """What the recompute makes: outputs and keys. By sink: outputs whose values cannot be compared (see
    ``recompute``), those whose timestamps cannot, and sums that stand before the last of their span (see ``totals``).
    """

    outputs: int = 0
    keys: int = 0
    loose: Mapping[str, int] = field(default_factory=dict)
    untimed: Mapping[str, int] = field(default_factory=dict)
    midway: Mapping[str, int] = field(default_factory=dict)


class Scan:
    """One audit's tables. ``close`` frees what Spark holds for them."""

    def __init__(self, spark: SparkSession, scope: Scope) -> None:
        self._spark, self._scope = spark, scope
        self._held: list[DataFrame] = []
        sinks = scope.subject.sinks
        self._marked, self._unmarked = [s for s in sinks if s.marked], [s for s in sinks if not s.marked]
        self._replaced = [table.node for table in scope.subject.tables if table.keyed]

    def close(self) -> None:
        for table in self._held:
            table.unpersist()

    def hold(self, table: DataFrame) -> DataFrame:
        self._held.append(table.persist())
        return table

    # ------------------------------------------------------------ tables

    def _input(self, bounds: Mapping[str, Bounds]) -> DataFrame:
        sources = self._scope.subject.sources
        return _union([reads.inputs(self._spark, source, bounds[source.stream]) for source in sources])

    def _output(self, sinks: Sequence[Place], *, committed: bool) -> DataFrame:
        return self._parsed(_union(self._records(sinks, committed=committed)))

    def _parsed(self, records: DataFrame) -> DataFrame:
        scope = self._scope
        return reads.parsed(records, Legible.of(scope.app, scope.cut, scope.rounded))

    def _records(self, sinks: Sequence[Place], *, committed: bool) -> list[DataFrame]:
        """Uncommitted files are hidden and no part of it, nor are uncommitted rows of tables."""
        scope = self._scope
        told, topics = scope.ledger.regimes, [sink for sink in sinks if isinstance(sink, Topic)]
        dated = [(topic.dated(told.get(topic.node, ())), scope.outputs[topic.node]) for topic in topics]
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
    def _seen(self) -> DataFrame:
        """Marked outputs that read_committed readers see; ``before`` are those of before the savepoint."""
        return self.hold(self._output(self._marked, committed=True).withColumn("before", self._is_before()))

    @cached_property
    def _visible(self) -> DataFrame:
        """The same; ``copy`` counts those with the same provenance.

        Copies are rare: hashes say first whether there may be any. Equal texts have equal hashes, so none escapes.
        """
        hashed = self._seen.where("ours").groupBy("s_offset", F.xxhash64("sink", "id")).count()
        if hashed.where("count > 1").isEmpty():
            return self._seen.withColumn("copy", F.when(F.col("ours"), F.lit(1)))
        copies = Window.partitionBy("s_offset", "id", "sink").orderBy("before", "topic", "partition", "offset")
        return self.hold(self._seen.withColumn("copy", F.when(F.col("ours"), F.row_number().over(copies))))

    def _intervals(self) -> DataFrame:
        """Which offsets of which input partition each epoch processed, by the term and epoch that outputs name."""
        ledger = self._scope.ledger
        labels: dict[EpochId, list[EpochId]] = {}
        for given_up, into in ledger.carried.items():
            labels.setdefault(into, []).append(given_up)
        # There are as many as epochs and partitions together: numbers take less room than rows.
        streams: list[str] = []
        numbers = [array("q") for _ in range(5)]
        for each in ledger.intervals:
            for said in (each.epoch, *labels.get(each.epoch, ())):
                streams.append(each.stream)
                row = (said.term.n, said.epoch.n, each.partition, each.begin, each.end)
                for column, number in zip(numbers, row, strict=True):
                    column.append(number)
        names = ("stream", "term", "epoch", "s_partition", "first", "end")
        kinds = (pa.string(), pa.int32(), pa.int64(), pa.int32(), pa.int64(), pa.int64())
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        arrays = [pa.array(column, kind) for column, kind in zip((streams, *numbers), kinds, strict=True)]
        return self._spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))

    def _is_before(self) -> Column:
        beginning = self._scope.beginning
        return F.lit(False) if beginning is None else F.coalesce(F.col("term") <= beginning.term.n, F.lit(False))

    @property
    def _at_home(self) -> DataFrame:
        """``_visible`` with ``home``, see ``places``."""
        scope, regimes = self._scope, self._scope.ledger.regimes
        topics = {
            sink.node: Placing(sink.partitioner, len(scope.outputs[sink.node]), regimes.get(sink.node, ()))
            for sink in self._marked
            if isinstance(sink, Topic)
        }
        return with_homes(self._visible, topics)

    @property
    def _firsts(self) -> DataFrame:
        """Each visible output that is judged, once."""
        return self._visible.where("copy = 1 and not before")

    def _is_letter(self) -> Column:
        return F.col("sink").isin([*self._scope.cut.letters])

    def _comparable(self, table: DataFrame) -> DataFrame:
        """Without those of which nobody can tell whether they should be there."""
        unknown = flags.refuser_of("id").isin([*self._scope.cut.refusers()])
        return table.where(~F.col("sink").isin([*self.not_recomputed]) & ~(self._is_letter() & unknown))

    @cached_property
    def not_recomputed(self) -> dict[str, str]:
        """Sinks that are not compared with a recompute, and why."""
        cut = self._scope.cut
        unmarked = {sink.node for sink in self._unmarked}
        reason = "its outputs depend on where epochs of a fold with merge= ended"
        why = dict.fromkeys((cut.summed - cut.totals) | (cut.summed & unmarked), reason)
        why |= self._scope.windows.why
        if self._scope.changed:
            why |= dict.fromkeys(
                cut.looking, "a table has changed since the job began, and which rows met that nothing tells"
            )
        why |= {name: cut.why_unknown(name) for name in cut.asked - self._scope.ruled.sinks}
        why |= self._scope.ruled.why
        why |= dict.fromkeys(cut.copied & unmarked, "how often an output is there depends on the number of workers")
        if self._scope.beginning is not None:
            why |= dict.fromkeys(unmarked, "its outputs do not tell which of them were there before the savepoint")
        if cut.totals and cut.letters and self._refused_below():
            why |= dict.fromkeys(cut.totals, "records were refused behind a fold with merge=")
        return {sink.node: why[sink.node] for sink in self._scope.subject.sinks if sink.node in why}

    def _refused_below(self) -> bool:
        cut = self._scope.cut
        whom = [str(refuser(name)) for name in cut.summed]
        unseen = not {*cut.letters} <= {sink.node for sink in self._marked}
        return unseen or not self._visible.where(self._is_letter() & flags.refuser_of("id").isin(whom)).isEmpty()

    @cached_property
    def _plain(self) -> DataFrame:
        """Outputs that do not say where they come from."""
        return self.hold(self._output(self._unmarked, committed=True))

    @cached_property
    def _met(self) -> DataFrame:
        """Of tables with one row a key: what is there beside what should be."""
        scope, there = self._scope, F.col("sink").isin(self._replaced)
        blind = relations.unordered(scope.cut, self._replaced)
        plain = self._comparable(self._plain)
        return self.hold(relations.met(plain.where(there), self._made.where(there), blind))

    @cached_property
    def _hidden(self) -> DataFrame:
        """Marked outputs that only read_uncommitted readers see."""
        place = ["offset", "partition", "topic"]
        every = _union(self._records(self._marked, committed=False))
        absent = every.join(self._seen.select(*place), place, "left_anti")
        return self.hold(self._parsed(absent))

    @property
    def free(self) -> bool:
        """Are there keys with an order that nothing tells?"""
        return self._recomputed[1]

    @property
    def _made(self) -> DataFrame:
        """What the recompute makes for audited sinks."""
        return self._recomputed[0]

    @property
    def _recompute(self) -> Recompute:
        scope = self._scope
        sinks = frozenset(sink.node for sink in scope.subject.sinks)
        savepoint = None if scope.beginning is None else str(scope.beginning.path)
        return Recompute(
            scope.app, scope.cut, sinks, scope.streams, savepoint, scope.subject.unmarked, scope.spans, self.hold,
            scope.rounded,
        )  # fmt: skip

    @property
    def steps(self) -> tuple[DataFrame, bool]:
        """What a recompute of state runs through: what reaches the stages, in the order of its keys; all input, if the
        plan must run in one task. And whether the order of some of it is not known.
        """
        scope, recompute, records = self._scope, self._recompute, self._input(self._scope.inputs)
        if scope.cut.serial:
            return recompute.serial(records)
        tells = bool(self._marked) and scope.cut.one_to_one and scope.streams > 1
        return recompute.keyed(records, self._firsts if tells else None)

    @cached_property
    def _windowed(self) -> Windowed:
        scope = self._scope
        if not scope.windows.operators:
            return Windowed()
        seen = self._firsts if self._marked else self._plain
        windowing = Windowing(scope.app, scope.cut, scope.windows, self.hold, scope.checkpoint)
        return windowing.made(self._input(scope.inputs), seen)

    @cached_property
    def _ruling(self) -> Ruling | None:
        scope = self._scope
        if not scope.ruled.sinks:
            return None
        return Ruling(scope.app, scope.cut.parallelism, scope.ruled, self._input(scope.inputs), scope.inputs)

    @cached_property
    def _untold(self) -> DataFrame | None:
        """Outputs of which nothing tells whether they should be there: results before the end of windows, and of rows
        that may have met other rules.
        """
        if not self._marked:
            return None
        found = [early.untold(self._firsts, self._scope.windows, self._windowed.free)]
        found += [None if self._ruling is None else self._ruling.untold(self._firsts)]
        some = [each for each in found if each is not None]
        return self.hold(_union(some)) if some else None

    @property
    def _told_firsts(self) -> DataFrame:
        """``_firsts`` without them."""
        untold = self._untold
        return self._firsts if untold is None else self._firsts.join(untold, ["sink", "id"], "left_anti")

    def untold(self) -> dict[str, int]:
        """How many of them there are, by sink."""
        untold = self._untold
        counted = [] if untold is None else untold.groupBy("sink").count().orderBy("sink").collect()
        return {row["sink"]: row["count"] for row in counted}

    @property
    def ruled(self) -> frozenset[str]:
        """Sinks behind broadcast state that are compared."""
        return self._scope.ruled.sinks

    @property
    def chancy(self) -> frozenset[str]:
        """Sinks behind windows of which other ones may be right, too."""
        return self._windowed.chancy

    @cached_property
    def _recomputed(self) -> tuple[DataFrame, bool]:
        seen = self._firsts if self._marked else self._plain
        beside = [*self._windowed.outputs, *([] if self._ruling is None else [self._ruling.outputs])]
        every, free = self._recompute.expected(self._input(self._scope.inputs), seen, beside)
        expiring = F.col("sink").isin([*self._scope.cut.expiring])
        made = self._comparable(every.where(F.col("sink").isin([sink.node for sink in self._scope.subject.sinks])))
        made = made.withColumn("loose", F.col("loose") | expiring)
        return self.hold(made) if self._unmarked else made, free

    @cached_property
    def _pairs(self) -> DataFrame:
        """Each marked output that exists or should, once: what is there beside what the recompute made.

        The rows of one ``series`` (a key, or without keys the outputs of one input partition) are kept together.
        """
        first = self._comparable(self._told_firsts).withColumn("there", F.lit(True))
        should = self._made.where(F.col("sink").isin([s.node for s in self._marked]))
        should = should.withColumn("should", F.lit(True)).withColumn("s_offset", F.col("e_offset"))
        # Spark sorts both by these, and numbers fast: the offset leads, though the id tells it too.
        pairs = first.join(should, ["s_offset", "id", "sink"], "full")
        # An output may carry a number that its operator gives no longer; nothing is known of that.
        pairs = pairs.withColumn("update", F.when(F.col("e_update").isNotNull(), F.col("update")))
        place = (F.coalesce(F.col(a), F.col(b)).cast("string") for a, b in _PLACES)
        series = F.when(F.col("grp").isNotNull(), F.col("grp")).otherwise(F.xxhash64(*place))
        strict = F.col("there") & F.col("should") & ~F.col("loose")
        summed = F.col("sink").isin([*self._scope.cut.totals])
        pairs = pairs.withColumn("series", series).withColumn("strict", strict).withColumn("summed", summed)
        pairs = self._answered(self.hold(pairs.repartition("series", "sink")))
        return self.hold(totals.closed(pairs)) if self._scope.cut.totals else totals.none(pairs)

    def _answered(self, pairs: DataFrame) -> DataFrame:
        """With ``answered``: a dead letter that stands for an output which its sink refused, or that output."""
        found = letters.answered(pairs, self._scope.cut.letters)
        if not self._scope.cut.letters or found.isEmpty():
            return pairs.withColumn("answered", F.lit(False))
        joined = pairs.join(found.withColumn("answered", F.lit(True)), ["sink", "id"], "left")
        return self.hold(joined.withColumn("answered", F.coalesce("answered", F.lit(False))))

    def _doubted(self, sinks: Collection[str]) -> DataFrame:
        """``_pairs`` with ``doubted``: what is alone there in one of ``sinks``, and may be so by right."""
        cut = self._scope.cut
        pairs = self._pairs.withColumn("doubted", flags.doubtful(sinks, cut) if sinks else F.lit(False))
        if not sinks or not cut.steady:
            return pairs
        # Every record makes its output or a dead letter: with another order it is the other one of both.
        place = {f"at_{b}": F.coalesce(F.col(a), F.col(b)) for a, b in (*_PLACES[:3], ("s_offset", "e_offset"))}
        both = F.max(F.col("there").isNull()) & F.max(F.col("should").isNull())
        pairs = pairs.withColumns(place)
        swapped = pairs.where("doubted").groupBy(*place).agg(both.alias("swapped"))
        joined = pairs.join(F.broadcast(swapped), [*place], "left").drop(*place)
        kept = F.col("doubted") & (F.col("sink").isin([*cut.copied]) | F.coalesce("swapped", F.lit(False)))
        return joined.withColumn("doubted", kept).drop("swapped")

    # ------------------------------------------------------------ totals

    def inputs(self) -> tuple[int, int]:
        """Input records that committed epochs cover, and those after them."""
        return self._count(self._scope.inputs), self._count(self._scope.ahead)

    def _count(self, bounds: Mapping[str, Bounds]) -> int:
        if all(start == end for by_partition in bounds.values() for start, end in by_partition.values()):
            return 0
        return self._input(bounds).count()

    def visible(self) -> ByEpoch:
        """What read_committed readers see of outputs that tell their epoch."""
        return _by_epoch(self._seen) if self._marked else {}

    def plain(self) -> int:
        """How many outputs do not tell it."""
        return self._plain.count() if self._unmarked else 0

    def hidden(self, visible: int) -> ByEpoch:
        """What only read_uncommitted readers see; ``visible`` is how many records the others see."""
        # Read_committed readers see a part of what the others see: with equal counts there is nothing to look for.
        if not self._marked or _union(self._records(self._marked, committed=False)).count() == visible:
            return {}
        return _by_epoch(self._hidden)

    def doubled(self) -> bool:
        """Is any output visible twice?"""
        return bool(self._marked) and not self._visible.where("copy > 1").isEmpty()

    def differing(self, sinks: Collection[str]) -> dict[str, int]:
        """How many outputs of these sinks are there and should not be, or the other way round, as far as the order of
        records, expired state or the number of workers may be why.
        """
        found: dict[str, int] = {}
        if any(sink in sinks for sink in self._replaced):
            found |= {sink: n for sink, n in relations.differing(self._met).items() if sink in sinks}
        if blind := [s.node for s in self._unmarked if s.node in sinks and s.node not in self._replaced]:
            there = self._plain.groupBy("sink").agg(F.count("*").alias("n"))
            made = self._made.groupBy("sink").agg((-F.count("*")).alias("n"))
            counted = there.unionByName(made).groupBy("sink").agg(F.abs(F.sum("n")).alias("n"))
            found |= {row["sink"]: row["n"] for row in counted.where("n != 0").collect() if row["sink"] in blind}
        if self._marked:
            wrong = self._doubted(sinks).where("doubted")
            found |= {row["sink"]: row["count"] for row in wrong.groupBy("sink").count().collect()}
        if self._scope.cut.steady and found.keys().isdisjoint(self._scope.cut.letters):
            # What is not there was not refused either.
            return {sink: n for sink, n in found.items() if sink in self._scope.cut.copied}
        return found

    def refused(self) -> dict[str, int]:
        """How many outputs of each sink are not there because the sink refused them: their dead letters are."""
        if not self._marked:
            return {}
        counted = self._pairs.where("answered and should").groupBy("sink").count()
        return {row["sink"]: row["count"] for row in counted.orderBy("sink").collect()}

    def expected(self) -> Expected:
        """Run the recompute and count what it makes."""
        rows: list[Row] = []
        if self._marked:
            rows += self._totals(self._pairs.where("should"), F.col("there") & F.col("time").isNull())
        if self._replaced:
            rows += relations.expected(self._met).collect()
        if several := [s.node for s in self._unmarked if s.node not in self._replaced]:
            made = self._made.where(F.col("sink").isin(several))
            blind = self._plain.select("sink", "time").unionByName(made.selectExpr("sink", "e_time AS time"))
            untimed = {row["sink"] for row in blind.where("time is null").select("sink").distinct().collect()}
            # Of a multiset one value that is not known makes all of them unknown.
            counted = self._totals(made, F.col("sink").isin([*untimed]))
            rows += [Row(**{**row.asDict(), "loose": row["n"] if row["loose"] else 0}) for row in counted]
        each = [row for row in rows if row["sink"] not in self._scope.cut.totals]
        return Expected(
            sum(row["n"] for row in each),
            sum(row["keys"] for row in rows),
            {row["sink"]: row["loose"] for row in each if row["loose"]},
            {row["sink"]: row["untimed"] for row in each if row["untimed"]},
            self._midway(),
        )

    def _midway(self) -> dict[str, int]:
        if not self._marked or not self._scope.cut.totals:
            return {}
        open_ = self._pairs.where("summed and there and should and not closing and not again")
        return {row["sink"]: row["count"] for row in open_.groupBy("sink").count().collect()}

    def _totals(self, made: DataFrame, untimed: Column) -> list[Row]:
        return made.groupBy("sink").agg(
            F.count("*").alias("n"),
            F.count(F.when(F.col("loose"), 1)).alias("loose"),
            F.count(F.when(F.col("e_time").isNotNull() & untimed, 1)).alias("untimed"),
            F.count_distinct(F.when(F.col("e_update").isNotNull(), F.col("grp"))).alias("keys"),
        ).collect()  # fmt: skip

    # ------------------------------------------------------------ findings

    def find(
        self,
        checks: Collection[Check],
        undecided: Collection[EpochId],
        hidden: Collection[EpochId],
        apart: Collection[str] = (),
    ) -> dict[Check, Evidence]:
        """Every record that breaks one of ``checks``: how many, and the first of them.

        ``undecided`` are epochs with visible outputs that were never committed, ``hidden`` committed ones with
        outputs that are not visible. In sinks that stand ``apart`` nothing is lost or unexpected that the order of
        records, or the number of workers, may explain.
        ``looked_at`` is left to the caller.
        """
        tables = [flags.visible(self._at_home, undecided)] if self._marked else []
        if Check.WRONG_EPOCH in checks:
            tables.append(flags.misdated(self._firsts, self._intervals()))
        if self._marked and self._scope.windows.reached:
            # What is compared with a recompute is unexpected as it is.
            alone = self._firsts.where(F.col("sink").isin([*self._scope.windows.why]))
            tables.append(flags.premature(alone, self._scope.windows.reached))
        if hidden:
            # The task that won wrote what one that lost did; so did whoever took the place of a dead worker.
            there = self._visible.select("sink", "id")
            tables.append(flags.hidden(self._hidden.join(there, ["sink", "id"], "left_anti"), hidden))
        if Check.LOST in checks and self._marked:
            suspected = {Check[row["check"]] for row in flags.suspects(self._pairs, self._scope.cut).collect()}
            tables += flags.pairs(self._doubted(apart), self._scope.cut, apart, suspected)
        if Check.TORN in checks and any(isinstance(sink, Directory) for sink in self._unmarked):
            tables.append(flags.torn(self._plain))
        if Check.LOST in checks and (plain := [s.node for s in self._unmarked if s.node not in apart]):
            multisets = [sink for sink in plain if sink not in self._replaced]
            there = self._comparable(self._plain).where(F.col("sink").isin(multisets) & ~F.col("torn"))
            if multisets:
                tables.append(unmarked.flagged(there, self._made, multisets))
            if self._replaced:
                tables.append(relations.flagged(self._met.where(F.col("sink").isin(plain))))
        if not tables:
            return {}
        every = _union(tables).where(F.col("check").isin([check.name for check in checks]))
        order = Window.partitionBy("check", "sink").orderBy("topic", "partition", "offset", "detail")
        count = F.count("*").over(Window.partitionBy("check", "sink"))
        kept = every.withColumn("n", count).withColumn("rank", F.row_number().over(order))
        found: dict[Check, Evidence] = {}
        for row in kept.where(F.col("rank") <= SHOWN).orderBy("check", "rank", "sink").collect():
            check, offender = Check[row["check"]], Offender(*(row[c] for c in (*flags.AT, "detail")))
            so_far = found.get(check, Evidence(0))
            by_sink = {**so_far.by_sink, row["sink"]: row["n"]}
            first = (*so_far.first, offender)[:SHOWN]
            found[check] = Evidence(0, sum(by_sink.values()), first, by_sink)
        return found


_PLACES = (("source", "e_source"), ("s_topic", "e_topic"), ("s_partition", "e_partition"), ("lane", "e_lane"))


def _by_epoch(table: DataFrame) -> ByEpoch:
    # By partition first, where the least offset is a number: to find the least place of all rows, Spark sorts them.
    parts = table.groupBy("term", "epoch", "sink", "topic", "partition").agg(
        F.count("*").alias("n"), F.min("offset").alias("offset")
    )
    of_sink = parts.groupBy("term", "epoch", "sink")
    found: dict[EpochId | None, dict[str, tuple[int, Offender]]] = {}
    for row in of_sink.agg(F.sum("n").alias("n"), F.min(F.struct(*flags.AT)).alias("first")).collect():
        epoch = None if row["term"] is None else EpochId(Epoch(row["epoch"]), Term(row["term"]))
        at = row["first"]
        first = Offender(at.topic, at.partition, at.offset, "the first output of its epoch")
        found.setdefault(epoch, {})[row["sink"]] = row["n"], first
    return found


def _union(tables: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b), tables)
