"""The scans: what is visible, what should be, and every record that breaks a check.

Parsing, joining, ordering and counting run in the JVM; Python workers only run the pipeline's own functions
(``tasks``). Each topic is read once for each isolation level, and what follows works on the parsed tables.
Rule: each check looks at the records themselves; nothing is derived from offset arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit import reads
from kafka_eos.audit.ledger import Ledger
from kafka_eos.audit.reads import Bounds
from kafka_eos.audit.recompute import Recompute
from kafka_eos.audit.subject import Cut, Subject
from kafka_eos.audit.verdict import Check, Offender
from kafka_eos.ids import Epoch, EpochId, Term

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN = 5
"""Offending records that are kept for each check."""

Found = dict[Check, tuple[int, tuple[Offender, ...]]]
ByEpoch = Mapping[EpochId | None, tuple[int, Offender]]
"""How many records, and the first of them; None for records without provenance."""


@dataclass(frozen=True)
class Scope:
    """What to scan: everything is fixed before the first scan."""

    app: str
    """Where workers find the user's file, as ``AppRef.parse`` reads it."""
    subject: Subject
    cut: Cut
    ledger: Ledger
    inputs: Mapping[str, Bounds]
    """By source: from the job's start to the position of its last committed epoch."""
    ahead: Mapping[str, Bounds]
    """By source: from there to the pinned end."""
    outputs: Mapping[str, Bounds]
    """By sink: the whole topic up to the pinned end."""

    @property
    def streams(self) -> int:
        """Input partitions with something in them."""
        return sum(end > start for bounds in self.inputs.values() for start, end in bounds.values())


@dataclass(frozen=True)
class Expected:
    """What the recompute makes: outputs, those whose values cannot be compared (see ``recompute``), and keys."""

    outputs: int = 0
    loose: int = 0
    keys: int = 0


class Scan:
    """One audit's tables. ``close`` frees what Spark holds for them."""

    def __init__(self, spark: SparkSession, scope: Scope) -> None:
        self._spark, self._scope = spark, scope
        self._held: list[DataFrame] = []

    def close(self) -> None:
        for table in self._held:
            table.unpersist()

    def _hold(self, table: DataFrame) -> DataFrame:
        self._held.append(table.persist())
        return table

    # ------------------------------------------------------------ tables

    def _input(self, bounds: Mapping[str, Bounds]) -> DataFrame:
        sources = self._scope.subject.sources
        return _union([reads.inputs(self._spark, source, bounds[source.node]) for source in sources])

    def _output(self, *, committed: bool) -> DataFrame:
        topics = [(sink, self._scope.outputs[sink.node]) for sink in self._scope.subject.sinks]
        return reads.outputs(self._spark, topics, committed=committed)

    @cached_property
    def _visible(self) -> DataFrame:
        """Outputs that read_committed readers see; ``copy`` counts those with the same provenance."""
        copies = Window.partitionBy("sink", "id").orderBy("topic", "partition", "offset")
        return self._hold(
            self._output(committed=True).withColumn("copy", F.when(F.col("ours"), F.row_number().over(copies)))
        )

    @cached_property
    def _hidden(self) -> DataFrame:
        """Outputs that only read_uncommitted readers see."""
        seen = self._visible.select("topic", "partition", "offset")
        return self._hold(self._output(committed=False).join(seen, ["topic", "partition", "offset"], "left_anti"))

    @cached_property
    def _pairs(self) -> DataFrame:
        """Each output that exists or should, once: what is there beside what the recompute made.

        The rows of one ``series`` (a key, or without keys the outputs of one input partition) are kept together.
        """
        sinks = frozenset(sink.node for sink in self._scope.subject.sinks)
        first = self._visible.where("copy = 1")
        recompute = Recompute(self._scope.app, self._scope.cut, sinks, self._scope.streams, self._hold)
        made = recompute.expected(self._input(self._scope.inputs), first)
        should = made.where(F.col("sink").isin(*sinks)).withColumn("should", F.lit(True))
        pairs = first.withColumn("there", F.lit(True)).join(should, ["sink", "id"], "full")
        place = (F.coalesce(F.col(a), F.col(b)).cast("string") for a, b in _PLACES)
        series = F.when(F.col("grp").isNotNull(), F.col("grp")).otherwise(F.xxhash64(*place))
        strict = F.col("there") & F.col("should") & ~F.col("loose")
        return self._hold(pairs.withColumn("series", series).withColumn("strict", strict).repartition("sink", "series"))

    # ------------------------------------------------------------ totals

    def inputs(self) -> tuple[int, int]:
        """Input records that committed epochs cover, and those after them."""
        return self._count(self._scope.inputs), self._count(self._scope.ahead)

    def _count(self, bounds: Mapping[str, Bounds]) -> int:
        if all(start == end for by_partition in bounds.values() for start, end in by_partition.values()):
            return 0
        return self._input(bounds).count()

    def visible(self) -> ByEpoch:
        """What read_committed readers see."""
        return _by_epoch(self._visible)

    def hidden(self, visible: int) -> ByEpoch:
        """What only read_uncommitted readers see; ``visible`` is how many records the others see."""
        # Read_committed readers see a part of what the others see: with equal counts there is nothing to look for.
        return {} if self._output(committed=False).count() == visible else _by_epoch(self._hidden)

    def expected(self) -> Expected:
        """Run the recompute and count what it makes."""
        row = self._pairs.agg(
            F.count(F.when(F.col("should"), 1)),
            F.count(F.when(F.col("should") & F.col("loose"), 1)),
            F.count(F.when(F.col("e_update") == 1, 1)),
        ).first()
        return Expected(*row) if row is not None else Expected()

    # ------------------------------------------------------------ findings

    def find(self, checks: Collection[Check], undecided: Collection[EpochId], hidden: Collection[EpochId]) -> Found:
        """Every record that breaks one of ``checks``: how many, and the first of them. One Spark action.

        ``undecided`` are epochs with visible outputs that were never committed, ``hidden`` committed ones with
        outputs that are not visible.
        """
        tables = [_flagged(self._visible, _visible_flags(undecided))]
        if hidden:
            tables.append(_flagged(self._hidden, _hidden_flags(hidden)))
        if Check.LOST in checks or Check.WRONG_VALUE in checks:
            tables += [_flagged(self._pairs, _pair_flags()), self._wrong_totals(), _flagged(*self._gaps())]
            tables += [_flagged(*self._overtaking())]
        every = _union(tables).where(F.col("check").isin([check.name for check in checks]))
        order = Window.partitionBy("check").orderBy("topic", "partition", "offset", "detail")
        count = F.count("*").over(Window.partitionBy("check"))
        kept = every.withColumn("n", count).withColumn("rank", F.row_number().over(order))
        found: Found = {}
        for row in kept.where(F.col("rank") <= SHOWN).orderBy("check", "rank").collect():
            check, offender = Check[row["check"]], Offender(*(row[c] for c in (*_AT, "detail")))
            found[check] = (row["n"], (*found.get(check, (0, ()))[1], offender))
        return found

    def _wrong_totals(self) -> DataFrame:
        comparable = self._pairs.where("should and not loose and e_update is not null")
        is_last = F.max_by(F.struct(*_AT, "value_hash", "preview"), F.col("update"))
        should_last = F.max_by(F.struct(*(f"e_{c}" for c in _AT), "e_value_hash", "e_preview"), F.col("e_update"))
        grouped = comparable.groupBy("sink", "series").agg(
            is_last.alias("x"), should_last.alias("y"), F.first("grp_text").alias("grp_text")
        )
        wrong = grouped.where(~F.col("x.value_hash").eqNullSafe(F.col("y.e_value_hash")))
        detail = _text("the last value of key ", "grp_text", " is ", "x.preview", " and should be ", "y.e_preview")
        at = [F.coalesce(F.col(f"x.{c}"), F.col(f"y.e_{c}")).alias(c) for c in _AT]
        return wrong.select(F.lit(Check.WRONG_TOTAL.name).alias("check"), *at, detail.alias("detail"))

    def _gaps(self) -> tuple[DataFrame, list[Column]]:
        """Update numbers that do not follow the one before them."""
        numbered = self._pairs.where("there and should and update is not null")
        of_key = Window.partitionBy("sink", "series").orderBy("update", "topic", "partition", "offset")
        table = numbered.withColumn("before", F.coalesce(F.lag("update").over(of_key), F.lit(0)))
        detail = _text("key ", "grp_text", " has update ", "update", " after update ", "before")
        return table, [_flag(Check.UPDATE_GAP, F.col("update") != F.col("before") + 1, detail)]

    def _overtaking(self) -> tuple[DataFrame, list[Column]]:
        """Outputs that stand behind a later one in the output, or before an earlier one of their input partition."""
        keyed = F.col("update").isNotNull()
        number = F.when(keyed, F.col("update")).otherwise(F.col("s_offset"))
        turn = F.struct(number.alias("number"), F.when(keyed, F.lit(0)).otherwise(F.col("ordinal")).alias("then"))
        both = self._pairs.where("there and should").withColumn("turn", turn)
        written = Window.partitionBy("sink", "series", "partition").orderBy("offset")
        read = Window.partitionBy("sink", "series", "s_topic", "s_partition", "lane").orderBy("s_offset", "ordinal")
        table = both.withColumn("written", F.lag(F.struct("turn", "id")).over(written)).withColumn(
            "read", F.lag(F.struct("turn", "id")).over(read)
        )
        late = F.col("turn") < F.col("written.turn")
        early = keyed & (F.col("turn") < F.col("read.turn"))
        detail = F.when(late, _text("the output ", "id", " comes after ", "written.id", ", which is later")).otherwise(
            _text("the output ", "id", " has a lower update than ", "read.id", ", which was read before it")
        )
        return table, [_flag(Check.REORDERED, late | early, detail)]


# ---------------------------------------------------------------- flags

_AT = ("topic", "partition", "offset")
_PLACES = (("source", "e_source"), ("s_topic", "e_topic"), ("s_partition", "e_partition"), ("lane", "e_lane"))
_COLUMNS = frozenset({
    "copy", "id", "epoch", "term", "sink", "preview", "e_preview", "update", "e_update", "before", "grp_text",
    "written.id", "read.id", "x.preview", "y.e_preview",
})  # fmt: skip


def _visible_flags(undecided: Collection[EpochId]) -> list[Column]:
    return [
        _flag(Check.FOREIGN, ~F.col("ours"), F.lit("it has no valid kafka_eos header")),
        _flag(
            Check.DUPLICATE,
            F.col("copy") > 1,
            _text("copy ", "copy", " of the output ", "id", ", written by epoch ", "epoch", " of term ", "term"),
        ),
        _flag(
            Check.ABORTED_VISIBLE,
            _written_by(undecided),
            _text("it was written by epoch ", "epoch", " of term ", "term", ", which was never committed: ", "id"),
        ),
    ]


def _hidden_flags(hidden: Collection[EpochId]) -> list[Column]:
    detail = _text("epoch ", "epoch", " of term ", "term", " is committed, but this output of it is not: ", "id")
    return [_flag(Check.COMMITTED_HIDDEN, _written_by(hidden), detail)]


def _pair_flags() -> list[Column]:
    wrong_value = ~F.col("value_hash").eqNullSafe(F.col("e_value_hash"))
    wrong_key = ~F.col("key_hash").eqNullSafe(F.col("e_key_hash"))
    wrong_update = ~F.col("update").eqNullSafe(F.col("e_update"))
    what = (
        F.when(wrong_value, _text("id", ": it is ", "preview", " and should be ", "e_preview"))
        .when(wrong_key, _text("id", ": its key is not what the recompute makes"))
        .otherwise(_text("id", ": its update number is ", "update", " and should be ", "e_update"))
    )
    missing = _text("its output ", "id", " to sink ", "sink", " is missing: ", "e_preview")
    return [
        _flag(Check.LOST, F.col("there").isNull(), missing, at="e_"),
        _flag(Check.UNEXPECTED, F.col("should").isNull(), _text("the recompute does not make ", "id", ": ", "preview")),
        _flag(Check.WRONG_VALUE, F.col("strict") & (wrong_value | wrong_key | wrong_update), what),
    ]


def _flag(check: Check, broken: Column, detail: Column, at: str = "") -> Column:
    """The offender that a row is, null if it is none."""
    place = [F.col(f"{at}{c}").alias(c) for c in _AT]
    return F.when(broken, F.struct(F.lit(check.name).alias("check"), *place, detail.alias("detail")))


def _flagged(table: DataFrame, flags: Sequence[Column]) -> DataFrame:
    """One row for each flag of each row."""
    offender = F.explode(F.array_compact(F.array(*flags))).alias("offender")
    return table.select(offender).select("offender.*")


def _written_by(epochs: Collection[EpochId]) -> Column:
    attempts = [f"{epoch.term}.{epoch.epoch}" for epoch in epochs]
    return F.concat_ws(".", "term", "epoch").isin(attempts) & F.col("ours")


def _text(*parts: str) -> Column:
    """A sentence: names of columns give their values, everything else stands for itself."""
    return F.concat_ws("", *(F.col(part).cast("string") if part in _COLUMNS else F.lit(part) for part in parts))


def _by_epoch(table: DataFrame) -> ByEpoch:
    first = F.min(F.struct(*_AT)).alias("first")
    grouped = table.groupBy("term", "epoch").agg(F.count("*").alias("n"), first)
    return {
        None if row["term"] is None else EpochId(Epoch(row["epoch"]), Term(row["term"])): (
            row["n"],
            Offender(row["first"].topic, row["first"].partition, row["first"].offset, "the first output of its epoch"),
        )
        for row in grouped.collect()
    }


def _union(tables: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b), tables)
