"""The expected outputs of a job, joined with its visible outputs.

The pipeline's own functions compute the expected outputs from the input, in Spark's Python workers (``tasks``); all
other work runs in the JVM. Rule: an output whose correct value is unknown is reported as not compared.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kafka_eos.audit.checks import database_tables as relations
from kafka_eos.audit.checks import dead_letters as letters
from kafka_eos.audit.checks import provenance_checks as flags
from kafka_eos.audit.checks.audit_scope import FickleSinks, Scope
from kafka_eos.audit.checks.observed_tables import ObservedTables, union
from kafka_eos.audit.facts.code_changes import OtherCode
from kafka_eos.audit.tables import epoch_totals as totals
from kafka_eos.audit.tables.broadcast.rule_recompute import RuleRecompute
from kafka_eos.audit.tables.expected_outputs import Recompute
from kafka_eos.audit.tables.plan_cut import refuser_of
from kafka_eos.audit.tables.windows import early_results as early
from kafka_eos.audit.tables.windows.window_recompute import WindowRecompute, WindowTables
from kafka_eos.runtime.operators.rejections import hash_operator

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PLACES = (("source", "e_source"), ("s_topic", "e_topic"), ("s_partition", "e_partition"), ("lane", "e_lane"))


class ComparisonTables:
    """Tables of one audit: the recomputed outputs, and the visible outputs joined with them."""

    def __init__(self, scope: Scope, seen: ObservedTables) -> None:
        self._scope, self._seen = scope, seen

    def _is_letter(self) -> Column:
        return F.col("sink").isin([*self._scope.cut.letters])

    def comparable(self, table: DataFrame) -> DataFrame:
        """Drop the rows that may exist or not."""
        unknown = refuser_of("id").isin([*self._scope.cut.refusers()])
        answering = refuser_of("id").isin([str(hash_operator(name)) for name in self._scope.windows.sinks])
        unknown &= ~(answering | letters.is_of_timer(self._timers))
        return table.where(~F.col("sink").isin([*self.not_recomputed]) & ~(self._is_letter() & unknown))

    @property
    def _timers(self) -> list[str]:
        """Return the operators whose dead letters account for missing outputs of their timers."""
        return [node.name for node in self._scope.cut.whole.timer_operators]

    @cached_property
    def not_recomputed(self) -> dict[str, str]:
        """Return the sinks that are not compared with a recompute, with the reason."""
        cut = self._scope.cut
        unmarked = {sink.node for sink in self._seen.unmarked}
        reason = "its outputs depend on where epochs of a fold with merge= ended"
        why = dict.fromkeys((cut.summed - cut.totals) | (cut.summed & unmarked), reason)
        why |= self._scope.windows.why
        if self._scope.changed:
            why |= dict.fromkeys(
                cut.looking, "a table has changed since the job began, and no record shows which rows met the change"
            )
        why |= {name: cut.why_unknown(name) for name in cut.asked - self._scope.ruled.sinks}
        why |= self._scope.ruled.why
        why |= dict.fromkeys(
            self._scope.fickle.existence, "the functions before it return other outputs when they run again"
        )
        why |= dict.fromkeys(
            cut.copied & unmarked, "the number of copies of an output depends on the number of workers"
        )
        if self._scope.beginning is not None:
            why |= dict.fromkeys(unmarked, "its outputs do not show which of them are older than the savepoint")
        if cut.totals and cut.letters and self._refused_below():
            why |= dict.fromkeys(cut.totals, "records were rejected behind a fold with merge=")
        return {sink.node: why[sink.node] for sink in self._scope.subject.sinks if sink.node in why}

    def _refused_below(self) -> bool:
        cut = self._scope.cut
        whom = [str(hash_operator(name)) for name in (*cut.summed, *(fold.name for fold in cut.merging))]
        unseen = not {*cut.letters} <= {sink.node for sink in self._seen.marked}
        return unseen or not self._seen.visible.where(self._is_letter() & refuser_of("id").isin(whom)).isEmpty()

    @property
    def free(self) -> bool:
        """Return whether the order of the rows of some keys is unknown."""
        return self._recomputed[1]

    @property
    def made(self) -> DataFrame:
        """Return the recomputed outputs of the audited sinks."""
        return self._recomputed[0]

    @property
    def _recompute(self) -> Recompute:
        scope = self._scope
        sinks = frozenset(sink.node for sink in scope.subject.sinks)
        savepoint = None if scope.beginning is None else str(scope.beginning.path)
        return Recompute(
            scope.app, scope.cut, sinks, scope.streams, savepoint, scope.subject.unmarked, scope.spans, self._seen.hold,
            scope.rounded,
        )  # fmt: skip

    @property
    def steps(self) -> tuple[DataFrame, bool]:
        """Return the input of a recompute of state, and whether part of it has an unknown order.

        The input consists of the rows that reach the stages, in the order of their keys. If the plan must run in one
        task, it is all input.
        """
        scope, recompute, records = self._scope, self._recompute, self._seen.input(self._scope.inputs)
        if scope.cut.serial:
            return recompute.serial(records)
        tells = bool(self._seen.marked) and scope.cut.one_to_one and scope.streams > 1
        return recompute.keyed(records, self._seen.firsts if tells else None)

    @cached_property
    def windowed(self) -> WindowTables:
        scope = self._scope
        if not scope.windows.operators:
            return WindowTables()
        seen = self._seen.firsts if self._seen.marked else self._seen.plain
        windowing = WindowRecompute(scope.app, scope.cut, scope.windows, self._seen.hold, scope.checkpoint)
        return windowing.made(self._seen.input(scope.inputs), seen)

    @cached_property
    def _rulings(self) -> list[RuleRecompute]:
        """Return one recompute per set of rules that the rows of some sinks were joined with."""
        scope, workers = self._scope, self._scope.cut.parallelism
        if not scope.ruled.met:
            return []
        records = self._seen.input(scope.inputs)
        return [RuleRecompute(scope.app, workers, met, records, scope.inputs) for met in scope.ruled.met]

    @cached_property
    def untold(self) -> DataFrame | None:
        """Return the outputs that may exist or not: results before the end of windows, and those of rows that may have
        been joined with other rules.
        """
        if not self._seen.marked:
            return None
        found = [early.untold(self._seen.firsts, self._scope.windows, self.windowed.free)]
        found += [ruling.untold(self._seen.firsts) for ruling in self._rulings]
        some = [each for each in found if each is not None]
        return self._seen.hold(union(some)) if some else None

    @property
    def told_firsts(self) -> DataFrame:
        """Return ``ObservedTables.firsts`` without the rows of ``untold``."""
        untold = self.untold
        return self._seen.firsts if untold is None else self._seen.firsts.join(untold, ["sink", "id"], "left_anti")

    @property
    def ruled(self) -> frozenset[str]:
        """Return the sinks after broadcast state that are compared."""
        return self._scope.ruled.sinks

    @property
    def chancy(self) -> frozenset[str]:
        """Return the sinks after windows for which other windows may be correct, too."""
        return self.windowed.chancy

    @cached_property
    def _recomputed(self) -> tuple[DataFrame, bool]:
        seen = self._seen.firsts if self._seen.marked else self._seen.plain
        more_outputs = [*self.windowed.outputs, *(ruling.outputs for ruling in self._rulings)]
        every, free = self._recompute.expected(self._seen.input(self._scope.inputs), seen, more_outputs)
        unknown = F.col("sink").isin([*self._scope.cut.expiring, *self._scope.fickle.values])
        made = self.comparable(every.where(F.col("sink").isin([sink.node for sink in self._scope.subject.sinks])))
        made = made.withColumn("loose", F.col("loose") | unknown)
        return self._seen.hold(made) if self._seen.unmarked else made, free

    def find_fickle(self, sinks: Collection[str]) -> FickleSinks:
        """Run the functions before these sinks again, and return the sinks where they make something else."""
        # Spark takes an equal plan for one that it has run.
        records = self._seen.input(self._scope.inputs).where(F.lit(True))
        again, _ = self._recompute.expected(records, self._seen.firsts if self._seen.marked else self._seen.plain)
        unmarked = [sink.node for sink in self._seen.unmarked]
        runs = [self.made.where(F.col("sink").isin(unmarked))] if unmarked else []
        runs += [self.pairs.where("should")] if self._seen.marked else []
        hashes = F.struct("e_key_hash", "e_value_hash", "e_headers_hash", "e_time")
        first = union([run.select("sink", "id", hashes.alias("first")) for run in runs])
        second = self.comparable(again).select("sink", "id", hashes.alias("second"))
        computed = ~F.col("sink").isin([*self._scope.cut.timed, *self.ruled])
        both = first.join(second, ["sink", "id"], "full").where(F.col("sink").isin([*sinks]) & computed)
        alone = F.col("first").isNull() | F.col("second").isNull()
        other = both.withColumn("alone", alone).where(alone | ~F.col("first").eqNullSafe(F.col("second")))
        found = {
            row["sink"]: row["alone"] for row in other.groupBy("sink").agg(F.max("alone").alias("alone")).collect()
        }
        existence = frozenset(sink for sink, is_alone in found.items() if is_alone)
        return FickleSinks(frozenset(found) - existence, existence)

    @cached_property
    def met(self) -> DataFrame:
        """Return the visible rows of tables with one row per key, joined with the expected rows."""
        scope, there = self._scope, F.col("sink").isin(self._seen.replaced)
        blind = relations.unordered(scope.cut, self._seen.replaced)
        plain = self.comparable(self._seen.plain)
        return self._seen.hold(relations.met(plain.where(there), self.made.where(there), blind))

    @cached_property
    def pairs(self) -> DataFrame:
        """Return each marked output that exists or is expected, once, as both sides of a join.

        The rows of one ``series`` (a key, or without keys the outputs of one input partition) are kept together.
        """
        first = self.comparable(self.told_firsts).withColumn("there", F.lit(True))
        should = self.made.where(F.col("sink").isin([s.node for s in self._seen.marked]))
        should = should.withColumns({"should": F.lit(True), "s_offset": F.col("e_offset")})
        # Spark sorts both by these, and numbers fast: the offset leads, though the id tells it too.
        pairs = first.join(should, ["s_offset", "id", "sink"], "full")
        place = (F.coalesce(F.col(a), F.col(b)).cast("string") for a, b in PLACES)
        series = F.when(F.col("grp").isNotNull(), F.col("grp")).otherwise(F.xxhash64(*place))
        # Of a dead letter without the contents of its record, only its place is compared.
        strict = F.col("there") & F.col("should") & ~F.col("loose") & ~F.col("shortened")
        summed = F.col("sink").isin([*self._scope.cut.totals])
        # An output may carry a number that its operator gives no longer; nothing is known of that.
        update = F.when(F.col("e_update").isNotNull(), F.col("update"))
        pairs = pairs.withColumns({"update": update, "series": series, "strict": strict, "summed": summed})
        pairs = self._answered(self._seen.hold(pairs.repartition("series", "sink")))
        return self._excused(self._seen.hold(totals.closed(pairs)) if self._scope.cut.totals else totals.none(pairs))

    def _excused(self, pairs: DataFrame) -> DataFrame:
        """Add ``excused``: true for the outputs of other code in sinks where one of them differs from the recompute."""
        if self._scope.other_code is None:
            return pairs.withColumn("excused", F.lit(False))
        marked = pairs.withColumn("excused", self._is_of(self._scope.other_code))
        differing = marked.where(F.col("excused") & flags.differs()).select("sink").distinct().collect()
        excused = F.col("excused") & F.col("sink").isin([row["sink"] for row in differing])
        compared = ("strict", "closing", "absent", "again")
        return marked.withColumns({"excused": excused, **{column: F.col(column) & ~excused for column in compared}})

    def _is_of(self, other: OtherCode) -> Column:
        """Return whether an output is of a record that other code processed, or depends on state."""
        cut = self._scope.cut
        source, topic, partition = (F.coalesce(F.col(a), F.col(b)) for a, b in PLACES[:3])
        ends = {f"{stream}/{p}": end for stream, parts in other.ends.items() for p, end in parts.items()}
        known = F.create_map(*(F.lit(each) for place in ends.items() for each in place))
        end = known[F.concat_ws("/", source, topic, partition.cast("string"))] if ends else F.lit(None)
        stateful = cut.below | cut.timed | frozenset(cut.letters if cut.stages else ())
        return F.col("sink").isin([*stateful]) | F.coalesce(F.col("s_offset") < end, F.lit(False))

    def _answered(self, pairs: DataFrame) -> DataFrame:
        """Add ``answered``: true for a dead letter of an output that its sink rejected, and for that output."""
        found = letters.answered(pairs, self._scope.cut.letters, self._timers)
        if not self._scope.cut.letters or found.isEmpty():
            return pairs.withColumn("answered", F.lit(False))
        joined = pairs.join(found.withColumn("answered", F.lit(True)), ["sink", "id"], "left")
        return self._seen.hold(joined.withColumn("answered", F.coalesce("answered", F.lit(False))))

    def doubted(self, sinks: Collection[str]) -> DataFrame:
        """Return ``pairs`` with ``doubted``: true for a row of ``sinks`` without a counterpart, if that may be
        correct.
        """
        cut = self._scope.cut
        pairs = self.pairs.withColumn("doubted", flags.doubtful(sinks, cut) if sinks else F.lit(False))
        if not sinks or not cut.steady:
            return pairs
        # Every record makes its output or a dead letter: with another order it is the other one of both.
        place = {f"at_{b}": F.coalesce(F.col(a), F.col(b)) for a, b in (*PLACES[:3], ("s_offset", "e_offset"))}
        both = F.max(F.col("there").isNull()) & F.max(F.col("should").isNull())
        pairs = pairs.withColumns(place)
        swapped = pairs.where("doubted").groupBy(*place).agg(both.alias("swapped"))
        joined = pairs.join(F.broadcast(swapped), [*place], "left").drop(*place)
        kept = F.col("doubted") & (F.col("sink").isin([*cut.copied]) | F.coalesce("swapped", F.lit(False)))
        return joined.withColumn("doubted", kept).drop("swapped")
