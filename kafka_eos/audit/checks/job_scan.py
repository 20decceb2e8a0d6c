"""The scans of an audit: the counts of its tables, and every record that violates a check.

Parsing, joining, ordering and counting run in the JVM; Python workers only run the pipeline's own functions
(``tasks``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Row, Window
from pyspark.sql import functions as F

from kafka_eos.audit.checks import database_tables as relations
from kafka_eos.audit.checks import multiset_checks as unmarked
from kafka_eos.audit.checks import provenance_checks as flags
from kafka_eos.audit.checks.audit_scope import Scope
from kafka_eos.audit.checks.comparison_tables import ComparisonTables
from kafka_eos.audit.checks.epoch_commits import ByEpoch
from kafka_eos.audit.checks.observed_tables import ObservedTables, union
from kafka_eos.audit.checks.verdict import SHOWN, Check, Evidence, Violation
from kafka_eos.audit.facts.audit_subject import Directory
from kafka_eos.audit.tables.float_tolerance import rounding_error
from kafka_eos.audit.tables.topic_tables import Bounds
from kafka_eos.core.ids import Epoch, EpochId, Term

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class ExpectedCounts:
    """The recomputed outputs and keys.

    By sink: outputs whose values cannot be compared (see ``recompute``), outputs whose timestamps cannot, sums that are
    not the last of their span (see ``totals``), and outputs whose floats were not compared: they are near the
    recomputed ones, but not as near as sums of the same numbers, or they are in a multiset.
    """

    outputs: int = 0
    keys: int = 0
    loose: Mapping[str, int] = field(default_factory=dict)
    untimed: Mapping[str, int] = field(default_factory=dict)
    midway: Mapping[str, int] = field(default_factory=dict)
    near: Mapping[str, int] = field(default_factory=dict)


class Scan:
    """One audit's scans, over what is ``seen`` and what is ``compared``. ``close`` frees what Spark holds for them."""

    def __init__(self, spark: SparkSession, scope: Scope) -> None:
        self._scope = scope
        self.seen = ObservedTables(spark, scope)
        self.compared = ComparisonTables(scope, self.seen)

    def close(self) -> None:
        self.seen.close()

    @property
    def fickle(self) -> frozenset[str]:
        """Return the sinks whose values are not compared because functions change them in each run."""
        return self._scope.fickle.values

    def inputs(self) -> tuple[int, int]:
        """Count the input records that committed epochs cover, and those after them."""
        return self._count(self._scope.inputs), self._count(self._scope.ahead)

    def _count(self, bounds: Mapping[str, Bounds]) -> int:
        if all(start == end for by_partition in bounds.values() for start, end in by_partition.values()):
            return 0
        return self.seen.input(bounds).count()

    def visible(self) -> ByEpoch:
        """Return the outputs with a known epoch that read_committed readers see."""
        return _by_epoch(self.seen.all) if self.seen.marked else {}

    def plain(self) -> int:
        """Return the number of outputs without a known epoch."""
        return self.seen.plain.count() if self.seen.unmarked else 0

    def others(self) -> dict[str, dict[str, int]]:
        """Return the number of visible outputs of other jobs, by topic and job."""
        found: dict[str, dict[str, int]] = {}
        counted = union(self.seen.of_others()).groupBy("topic", "job").count()
        for row in counted.orderBy("topic", "job").collect():
            found.setdefault(row["topic"], {})[row["job"]] = row["count"]
        return found

    def hidden(self) -> ByEpoch:
        """Return the outputs that only read_uncommitted readers see."""
        # Read_committed readers see a part of what the others see: with equal counts there is nothing to look for.
        if not self.seen.marked or self.seen.uncommitted.count() == self.seen.committed.count():
            return {}
        return _by_epoch(self.seen.hidden)

    def doubled(self) -> bool:
        """Return whether any output is visible twice."""
        return bool(self.seen.marked) and not self.seen.visible.where("copy > 1").isEmpty()

    def differing(self, sinks: Collection[str]) -> dict[str, int]:
        """Return how many outputs of these sinks are missing or unexpected.

        These counts include differences that the order of records, expired state or the number of workers may explain.
        """
        found: dict[str, int] = {}
        if any(sink in sinks for sink in self.seen.replaced):
            found |= {sink: n for sink, n in relations.differing(self.compared.met).items() if sink in sinks}
        if blind := [s.node for s in self.seen.unmarked if s.node in sinks and s.node not in self.seen.replaced]:
            there = self.seen.plain.groupBy("sink").agg(F.count("*").alias("n"))
            made = self.compared.made.groupBy("sink").agg((-F.count("*")).alias("n"))
            counted = there.unionByName(made).groupBy("sink").agg(F.abs(F.sum("n")).alias("n"))
            found |= {row["sink"]: row["n"] for row in counted.where("n != 0").collect() if row["sink"] in blind}
        if self.seen.marked:
            wrong = self.compared.doubted(sinks).where("doubted")
            found |= {row["sink"]: row["count"] for row in wrong.groupBy("sink").count().collect()}
        if self._scope.cut.steady and found.keys().isdisjoint(self._scope.cut.letters):
            # What is not there was not refused either.
            return {sink: n for sink, n in found.items() if sink in self._scope.cut.copied}
        return found

    def refused(self) -> dict[str, int]:
        """Return how many outputs of each sink are missing because the sink rejected them: they have dead letters."""
        if not self.seen.marked:
            return {}
        counted = self.compared.pairs.where("answered and should").groupBy("sink").count()
        return {row["sink"]: row["count"] for row in counted.orderBy("sink").collect()}

    def untold(self) -> dict[str, int]:
        """Return the number of undecidable outputs, by sink."""
        untold = self.compared.untold
        counted = [] if untold is None else untold.groupBy("sink").count().orderBy("sink").collect()
        return {row["sink"]: row["count"] for row in counted}

    def excused(self) -> dict[str, int]:
        """Return the number of outputs of other code that were not compared, by sink."""
        if not self.seen.marked or self._scope.other_code is None:
            return {}
        counted = self.compared.pairs.where("excused").groupBy("sink").count()
        return {row["sink"]: row["count"] for row in counted.orderBy("sink").collect()}

    def differing_by_code(self) -> dict[str, str]:
        """Return the sinks without provenance that other code may have made differ from the recompute, with the reason.

        Their outputs do not show which code made them, so a sink that differs is not compared.
        """
        if not self.seen.unmarked or self._scope.other_code is None:
            return {}
        wrong = union(self._flag_plain([s.node for s in self.seen.unmarked])).select("sink").distinct()
        reason = f"{self._scope.other_code}, and no output tells which code made it"
        return {row["sink"]: reason for row in wrong.orderBy("sink").collect()}

    def _flag_plain(self, sinks: Sequence[str]) -> list[DataFrame]:
        """Flag the outputs without provenance that are missing or additional."""
        multisets = [sink for sink in sinks if sink not in self.seen.replaced]
        there = self.compared.comparable(self.seen.plain).where(F.col("sink").isin(multisets) & ~F.col("torn"))
        tables = [unmarked.flagged(there, self.compared.made, multisets)] if multisets else []
        if self.seen.replaced:
            tables.append(relations.flagged(self.compared.met.where(F.col("sink").isin([*sinks]))))
        return tables

    def expected(self, inputs: int) -> ExpectedCounts:
        """Run the recompute over this many records and count its outputs."""
        rows: list[Row] = []
        if self.seen.marked:
            near = F.col("sink").isin([*self._scope.rounded]) & flags.is_near(rounding_error(inputs))
            rows += self._totals(self.compared.pairs.where("should"), F.col("there") & F.col("time").isNull(), near)
        if self.seen.replaced:
            rows += relations.expected(self.compared.met).collect()
        if several := [s.node for s in self.seen.unmarked if s.node not in self.seen.replaced]:
            made = self.compared.made.where(F.col("sink").isin(several))
            blind = self.seen.plain.select("sink", "time").unionByName(made.selectExpr("sink", "e_time AS time"))
            untimed = {row["sink"] for row in blind.where("time is null").select("sink").distinct().collect()}
            # Of a multiset one value that is not known makes all of them unknown.
            # Floats that may differ in their last digits are not part of what a multiset compares.
            summed = F.col("e_floats").isNotNull()
            counted = self._totals(made, F.col("sink").isin([*untimed]), summed)
            rows += [Row(**{**row.asDict(), "loose": row["n"] if row["loose"] else 0}) for row in counted]
        each = [row for row in rows if row["sink"] not in self._scope.cut.totals]
        return ExpectedCounts(
            sum(row["n"] for row in each),
            sum(row["keys"] for row in rows),
            {row["sink"]: row["loose"] for row in each if row["loose"]},
            {row["sink"]: row["untimed"] for row in each if row["untimed"]},
            self._midway(),
            {row["sink"]: row["near"] for row in rows if row["near"]},
        )

    def _midway(self) -> dict[str, int]:
        if not self.seen.marked or not self._scope.cut.totals:
            return {}
        open_ = self.compared.pairs.where("summed and there and should and not closing and not again")
        return {row["sink"]: row["count"] for row in open_.groupBy("sink").count().collect()}

    def _totals(self, made: DataFrame, untimed: Column, near: Column) -> list[Row]:
        return made.groupBy("sink").agg(
            F.count("*").alias("n"),
            F.count(F.when(F.col("loose"), 1)).alias("loose"),
            F.count(F.when(F.col("e_time").isNotNull() & untimed, 1)).alias("untimed"),
            F.count_distinct(F.when(F.col("e_update").isNotNull(), F.col("grp"))).alias("keys"),
            F.count_if(near).alias("near"),
        ).collect()  # fmt: skip

    def find(
        self,
        checks: Collection[Check],
        undecided: Collection[EpochId],
        hidden: Collection[EpochId],
        excluded: Collection[str] = (),
    ) -> dict[Check, Evidence]:
        """Find every record that violates one of ``checks``; return their number and the first ones.

        ``undecided``: epochs with visible outputs that were never committed.
        ``hidden``: committed epochs with outputs that are not visible.
        ``excluded``: sinks where a missing or unexpected output is not reported if the order of records or the number
        of workers may explain it. The caller fills in ``looked_at``.
        """
        tables = [flags.visible(self.seen.at_home, undecided)] if self.seen.marked else []
        if Check.WRONG_EPOCH in checks:
            tables.append(flags.misdated(self.seen.firsts, self.seen.intervals()))
        if self.seen.marked and self._scope.windows.reached:
            # What is compared with a recompute is unexpected as it is.
            alone = self.seen.firsts.where(F.col("sink").isin([*self._scope.windows.why]))
            tables.append(flags.premature(alone, self._scope.windows.reached))
        if hidden:
            # The task that won wrote what one that lost did; so did the successor of a dead worker.
            there = self.seen.visible.select("sink", "id")
            tables.append(flags.hidden(self.seen.hidden.join(there, ["sink", "id"], "left_anti"), hidden))
        if Check.LOST in checks and self.seen.marked:
            suspected = {Check[row["check"]] for row in flags.suspects(self.compared.pairs, self._scope.cut).collect()}
            tables += flags.pairs(self.compared.doubted(excluded), self._scope.cut, excluded, suspected)
        if Check.MALFORMED in checks and any(isinstance(sink, Directory) for sink in self.seen.unmarked):
            tables.append(flags.malformed(self.seen.plain))
        if Check.LOST in checks and (plain := [s.node for s in self.seen.unmarked if s.node not in excluded]):
            tables += self._flag_plain(plain)
        if not tables:
            return {}
        every = union(tables).where(F.col("check").isin([check.name for check in checks]))
        order = Window.partitionBy("check", "sink").orderBy("topic", "partition", "offset", "detail")
        count = F.count("*").over(Window.partitionBy("check", "sink"))
        kept = every.withColumns({"n": count, "rank": F.row_number().over(order)})
        found: dict[Check, Evidence] = {}
        for row in kept.where(F.col("rank") <= SHOWN).orderBy("check", "rank", "sink").collect():
            check, offender = Check[row["check"]], Violation(*(row[c] for c in (*flags.AT, "detail")))
            so_far = found.get(check, Evidence(0))
            by_sink = {**so_far.by_sink, row["sink"]: row["n"]}
            first = (*so_far.examples, offender)[:SHOWN]
            found[check] = Evidence(0, sum(by_sink.values()), first, by_sink)
        return found


def _by_epoch(table: DataFrame) -> ByEpoch:
    # By partition first, where the least offset is a number: to find the least place of all rows, Spark sorts them.
    parts = table.groupBy("term", "epoch", "sink", "topic", "partition").agg(
        F.count("*").alias("n"), F.min("offset").alias("offset")
    )
    of_sink = parts.groupBy("term", "epoch", "sink")
    found: dict[EpochId | None, dict[str, tuple[int, Violation]]] = {}
    for row in of_sink.agg(F.sum("n").alias("n"), F.min(F.struct(*flags.AT)).alias("first")).collect():
        epoch = None if row["term"] is None else EpochId(Epoch(row["epoch"]), Term(row["term"]))
        at = row["first"]
        first = Violation(at.topic, at.partition, at.offset, "the first output of its epoch")
        found.setdefault(epoch, {})[row["sink"]] = row["n"], first
    return found
