"""The checks of any topics, as Spark plans of expressions, groupings and windows.

Rule: no Python in any plan (``plans`` shows them) unless ledgers tell of provenance: a record costs what hashing and
shuffling its numbers costs. Equal hashes count as equal records; what is shown is looked up and confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from kafka_eos.audit.checks.verdict import SHOWN, Check
from kafka_eos.audit.facts.ledger_provenance import Files
from kafka_eos.audit.tables import topic_tables as reads
from kafka_eos.audit.tables.partition_placement import PartitionPlacement, with_homes
from kafka_eos.audit.tables.topic_tables import Bounds
from kafka_eos.audit.topics import topic_tables as tables
from kafka_eos.audit.topics.id_groups import GROUPS, IdGroup, estimate_inputs_per_id
from kafka_eos.audit.topics.question import TopicAuditOptions
from kafka_eos.audit.topics.topic_tables import OffsetWindow, Places

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FINDING = (
    "check string, topic string, partition int, offset long, file string, other_topic string, other_partition int, "
    "other_offset long, outputs long, expected long, home int, text string"
)
"""The columns of ``TopicScan.findings``: a record that breaks a check, where it is, and why.

``other_…``: the record that it is compared with. ``outputs``, ``expected``: the actual and the expected number of
outputs. ``home``: the partition that its key belongs in. ``text``: a row that a query returns or does not return.
"""
TERM = r"^[^.]+\.\d+\."
"""The pattern of the job and the term, at the beginning of an attempt."""
Attempt = tuple[str, str]
"""A topic, and ``job.term.epoch/source`` of outputs in it."""
_WHY = {"offset": "offset", "file": "file", "outputs": "there", "expected": "should", "home": "home", "text": "text"}
"""Columns of a finding, and their names in the tables of the checks."""
_LOW = (1 << 32) - 1
_MERGED: Mapping[str, Callable[[Column | str], Column]] = {
    "xor": F.bit_xor, "id_xor": F.bit_xor, "first": F.min, "first_unnamed": F.min, "last": F.max,
}  # fmt: skip
"""How counts of groups become those of a place; all others are added."""
_ONE_TO_ONE = "n_in = 1 and n_out = 1 and output_key is not null"


@dataclass(frozen=True)
class Suspect:
    """A record that breaks a check: its place (a number of ``Places``), its offset, and why in numbers."""

    place: int
    offset: int
    file: str | None = None
    other: tuple[int, int] | None = None
    """Place and offset of the record that it is compared with."""
    counts: tuple[int, int] = (0, 0)
    """The actual and the expected number of outputs."""
    home: int | None = None
    """The partition that its key belongs in."""


@dataclass(frozen=True)
class Tally:
    """The contents of a place: records, and sums over the hashes of keys and values, independent of order."""

    records: int
    judged: int
    """Judged records that are compared. The others are counterparts only, or excluded by a condition."""
    sum: int
    xor: int
    first: int
    last: int
    compared: int
    """Records for which the condition (``where``) holds, judged or not."""
    unnamed: int
    """Compared records without an id."""
    first_unnamed: int | None
    unordered: int
    """Compared records with a key and without an order."""
    ordered: int
    excluded: int
    """Judged records for which the condition does not hold."""
    unknown: int
    """Records for which the condition is NULL."""
    older: int
    """Compared records that are not judged because they are too old, though they come after newer ones."""


@dataclass(frozen=True)
class ById:
    """A check as SQL over ids: which break it, how many records that is, and which record of an id is shown."""

    condition: str
    number: str = "1"
    spot: str = "first_in"


@dataclass(frozen=True)
class IdComparison:
    """Findings by the ids of inputs and outputs."""

    found: Mapping[Check, Suspects]
    """Findings that do not depend on records outside the range that was read."""
    untold: Mapping[Check, Suspects]
    """Ids that may be lost or duplicated, since they also occur outside of the judged range: it is unknown which of
    their inputs and outputs belong together, and counterparts may be outside of what was read."""
    shared: int
    """Ids of inputs and outputs."""
    repeated: int
    """Ids of several inputs; 0 if ids are compared in groups."""
    ordered: int
    """Ids of one input and one output with a key."""


Suspects = tuple[int, tuple[Suspect, ...]]


class TopicScan:
    """The tables of one audit. ``close`` frees what Spark holds for them."""

    def __init__(
        self,
        spark: SparkSession,
        question: TopicAuditOptions,
        window: OffsetWindow,
        files: Files,
        placings: Mapping[str, PartitionPlacement],
    ) -> None:
        """``files``: of ledgers that tell where outputs came from; ``placings``: by topic, how they were spread."""
        self._spark = spark
        self._question = question
        self._window = window
        self._files = files
        self._placings = placings
        self.places = Places(window)
        self.plans: list[str] = []
        """The physical plan of everything that was run."""
        self._held: list[DataFrame] = []
        self._wrong: dict[Check, list[DataFrame]] = {}
        """Of each check that found something, all rows, with some of the columns of ``Suspect``."""

    def close(self) -> None:
        for table in self._held:
            table.unpersist()

    # ------------------------------------------------------------ tables

    def read(self, bounds: Mapping[str, Bounds], *, committed: bool) -> DataFrame:
        """Read the records of topics; see ``tables.records``."""
        files = {} if bounds.keys() <= {*self._question.inputs} else self._files
        return tables.records(self._spark, self._question, bounds, files, committed=committed)

    def _records(self, names: Collection[str], *, committed: bool = True) -> DataFrame | None:
        """Read the records of topics and, if committed, the lines of directories; None if there are none."""
        bounds = self._window.of([*names])
        found = [self.read(bounds, committed=committed)] if bounds else []
        if committed:
            files = {name: self._window.files.get(name) for name in names}
            found += [tables.lines(self._spark, self._question, d, some) for d, some in files.items() if some]
        return reduce(lambda a, b: a.unionByName(b), found) if found else None

    @cached_property
    def _both(self) -> DataFrame:
        """Return inputs and outputs as numbers, read once. Those of one origin are kept together, so nothing that
        groups by id shuffles them again. If ids are compared in groups, only groups that differ are returned.

        ``slot`` is the origin; records without one are distributed.
        """
        both = self._narrow
        if self._copies is not None:
            both = both.where(_group().isin([group.number for group in self._groups if not group.agrees(self._copies)]))
        if self._question.id is not None:
            both = both.withColumn("slot", F.coalesce("origin", F.xxhash64("place", "offset"))).repartition("slot")
        self._held.append(both.persist(StorageLevel.MEMORY_AND_DISK))
        return both

    @cached_property
    def _narrow(self) -> DataFrame:
        """Return inputs and outputs as numbers. They are read again at each use."""
        question, parts = self._question, []
        if (table := self._records(question.inputs)) is not None:
            parts.append(tables.inputs(table, question, self.places, self._window))
        if (table := self._records(question.outputs)) is not None:
            parts.append(tables.outputs(table, question, self.places, self._window, self._placings))
        return reduce(lambda a, b: a.unionByName(b), parts)

    @property
    def _copies(self) -> int | None:
        """Return how many outputs each input should have, if ids are compared in groups; otherwise None.

        At the edges of a window of times, counterparts are outside of what is read, in all groups.
        """
        expected = self._question.expected
        return expected.least if self._question.unordered and self._window.exact and not expected.by_id else None

    @cached_property
    def _by_group(self) -> DataFrame:
        """Return the counts by place and by group of ids, from one pass that shuffles no record."""
        origin = F.col("origin")
        ids = {
            "ids": F.count(origin),
            "id_low": F.sum(origin.bitwiseAND(_LOW)),
            "id_high": F.sum(F.shiftrightunsigned(origin, 32)),
            "id_xor": F.bit_xor(origin),
        }
        named = [column.alias(name) for name, column in (_sums() | ids).items()]
        counted = self._narrow.groupBy("place", "is_input", _group().alias("number")).agg(*named)
        self._held.append(counted.persist(StorageLevel.MEMORY_AND_DISK))
        return counted

    @cached_property
    def _groups(self) -> list[IdGroup]:
        of_side = {
            f"{name}_{role}": _MERGED.get(name, F.sum)(F.when(side, F.col(name)))
            for name in ("ids", "id_low", "id_high", "id_xor")
            for role, side in (("in", F.col("is_input")), ("out", ~F.col("is_input")))
        }
        found = self._by_group.where("number is not null").groupBy("number")
        rows = self._run(found.agg(*(F.coalesce(column, F.lit(0)).alias(name) for name, column in of_side.items())))
        return [
            IdGroup(
                row.number, row.ids_in, row.ids_out,
                (_unsigned(row.id_low_in, row.id_high_in), _unsigned(row.id_low_out, row.id_high_out)),
                (row.id_xor_in, row.id_xor_out),
            )
            for row in rows
        ]  # fmt: skip

    @property
    def inputs_per_id(self) -> float | None:
        """Return an estimate of the number of inputs per id, if ids are compared in groups and are not unique."""
        return None if self._copies is None else estimate_inputs_per_id(self._groups)

    def _run(self, table: DataFrame) -> list[Any]:
        self.plans.append(table._jdf.queryExecution().executedPlan().toString())
        return table.collect()

    # ------------------------------------------------------------ what is there

    @cached_property
    def tallies(self) -> Mapping[tuple[str, int], Tally]:
        """Return the counts by topic and partition."""
        if self._copies is None:
            rows = self._both.groupBy("place").agg(*(column.alias(name) for name, column in _sums().items()))
        else:
            merged = (_MERGED.get(name, F.sum)(name).alias(name) for name in _sums())
            rows = self._by_group.groupBy("place").agg(*merged)
        return {self.places.names[row.place]: _tally(row.asDict()) for row in self._run(rows)}

    def uncommitted(self) -> dict[tuple[str, int], int]:
        """Return how many records read_uncommitted readers see of each output partition.

        A partition whose offsets are all visible has no other records, and is not read again.
        """
        bounds, tallies = self._window.of(self._question.outputs), self.tallies
        seen = {(t, p): tallies[t, p].records if (t, p) in tallies else 0 for t, parts in bounds.items() for p in parts}
        partly = {
            topic: some
            for topic, parts in bounds.items()
            if (some := {p: (start, end) for p, (start, end) in parts.items() if seen[topic, p] < end - start})
        }
        if not partly:
            return seen
        table = self.read(partly, committed=False)
        rows = self._run(table.groupBy("topic", "partition").agg(F.count("*").alias("n")))
        return seen | {(r.topic, r.partition): r.n for r in rows}

    def older(self, bounds: Mapping[str, Bounds], than: datetime) -> dict[str, int]:
        """Return how many records within ``bounds`` are older than a time, by topic and partition (``t/0``)."""
        if not bounds:
            return {}
        old = self.read(bounds, committed=True).where(F.col("timestamp") < F.lit(than))
        rows = self._run(old.groupBy("topic", "partition").agg(F.count("*").alias("n")))
        return {f"{row.topic}/{row.partition}": row.n for row in rows}

    def unnamed(self) -> Suspects:
        """Return the outputs without an id."""
        if not any(tally.unnamed for (name, _), tally in self.tallies.items() if name in self._question.outputs):
            return 0, ()
        return self._suspects(Check.FOREIGN, self._both, "not is_input and id is null and judged and kept")

    # ------------------------------------------------------------ ids

    @cached_property
    def _named(self) -> DataFrame:
        """Return one row per origin id: its number of inputs and of outputs; for an id that occurs once in each, their
        locations.

        The columns are numbers (except for file names), which Spark groups by hashing; it would sort other types.
        """
        is_input, judged = F.col("is_input"), F.col("judged")
        places = [("input", "place"), ("input", "offset"), ("output", "place"), ("output", "offset"), ("output", "key")]
        of_file = F.min(F.when(~is_input, F.col("file"))) if self._window.files else F.lit(None).cast("string")
        return (
            self._both.where("origin is not null")
            .groupBy("slot")
            .agg(
                F.count(F.when(is_input, 1)).alias("n_in"),
                F.count(F.when(~is_input, 1)).alias("n_out"),
                F.count(F.when(is_input & judged, 1)).alias("n_judged"),
                F.count(F.when(~is_input & judged, 1)).alias("n_out_judged"),
                *(
                    F.min(F.when(is_input if a == "input" else ~is_input, F.col(b))).alias(f"{a}_{b}")
                    for a, b in places
                ),
                of_file.alias("file"),
            )
        )

    def _places_of(self, condition: str, *, every: bool) -> DataFrame:
        """Return the places of the records of ``every`` id that meets a condition, or of the first ones: the first and
        the last record of each.
        """
        order = [F.coalesce(f"output_{c}", f"input_{c}") for c in ("place", "offset")]
        columns = ("slot", "n_in", "n_out")
        some = self._named.where(condition)
        some = some.select(*columns) if every else F.broadcast(some.orderBy(*order).select(*columns).limit(SHOWN))
        is_input, spot = F.col("is_input"), F.struct("place", "file", "offset")
        return (
            self._both.where("origin is not null")
            .join(some, "slot")
            .groupBy("slot", "n_in", "n_out")
            .agg(
                F.min(F.when(is_input, spot)).alias("first_in"),
                F.min(F.when(~is_input, spot)).alias("first_out"),
                F.max(F.when(~is_input, spot)).alias("last_out"),
            )
        )

    @cached_property
    def ids(self) -> IdComparison:
        """Compare inputs and outputs by their ids, in one pass."""
        conditions = self._conditions()
        doubts = {} if self._question.by_provenance else self._doubts()
        counted = {
            **{check.name: by for check, by in conditions.items()},
            **{f"{check.name}?": by for check, by in doubts.items()},
            "shared": ById("n_in > 0 and n_out > 0"),
            "repeated": ById("n_in > 1"),
            "ordered": ById(_ONE_TO_ONE),
        }
        sums = [F.sum(F.expr(f"if({by.condition}, {by.number}, 0)")).alias(name) for name, by in counted.items()]
        (row,) = self._run(self._named.agg(*sums))
        n = {name: row[name] or 0 for name in counted}
        found = {c: (n[c.name], self._first(c, by) if n[c.name] else ()) for c, by in conditions.items()}
        self._wrong |= {c: [self._records_of(c, by, every=True)] for c, by in conditions.items() if n[c.name]}
        untold = {c: (n[f"{c.name}?"], self._first(c, by) if n[f"{c.name}?"] else ()) for c, by in doubts.items()}
        if self._question.by_provenance:
            found[Check.DUPLICATE] = self._doubled()
        shared, repeated = n["shared"], n["repeated"]
        if self._copies is not None:  # only some ids were counted
            shared += sum(group.inputs for group in self._groups if group.agrees(self._copies))
            repeated = 0
        return IdComparison(found, untold, shared, repeated, n["ordered"])

    def _conditions(self) -> dict[Check, ById]:
        plain, inputs = not self._question.by_provenance, bool(self._question.inputs)
        conditions: dict[Check, ById] = {}
        expected = self._question.expected
        if inputs:
            least = expected.lower_bound("n_judged")
            few = f"n_out < {least}" if plain else "n_out = 0 and n_judged > 0"
            if expected.least:
                conditions[Check.LOST] = ById(few, f"{least} - n_out", "first_in")
            conditions[Check.UNEXPECTED] = ById("n_in = 0 and n_out_judged > 0", "n_out", "last_out")
        if plain and expected.most is not None:
            seen, most = "n_out_judged" if inputs else "n_out", expected.upper_bound("n_in")
            conditions[Check.DUPLICATE] = ById(f"{seen} > {most} and n_out_judged > 0", f"n_out - {most}", "last_out")
        return conditions

    def _doubts(self) -> dict[Check, ById]:
        if not self._question.inputs or self._window.exact:
            return {}
        expected = self._question.expected
        doubts: dict[Check, ById] = {}
        if expected.least:
            enough = f"n_out >= {expected.lower_bound('n_judged')} and n_out < {expected.lower_bound('n_in')}"
            doubts[Check.LOST] = ById(f"n_in > n_judged and n_judged > 0 and {enough}")
        if expected.most is not None:
            most = expected.upper_bound("n_in")
            many = f"n_in > 0 and n_out > {most} and n_out_judged between 1 and {most}"
            doubts[Check.DUPLICATE] = ById(many, spot="last_out")
        return doubts

    def _first(self, check: Check, by: ById) -> tuple[Suspect, ...]:
        return self._show(self._records_of(check, by, every=False))

    def _records_of(self, check: Check, by: ById, *, every: bool) -> DataFrame:
        """Return the record that is shown of ``every`` id that meets a condition, or of the first ones."""
        expected, doubled = self._question.expected, check is Check.DUPLICATE
        other = F.col("first_out" if doubled else "first_in")
        should = expected.upper_bound("n_in") if doubled else expected.lower_bound("n_in")
        return self._places_of(by.condition, every=every).select(
            f"{by.spot}.place", f"{by.spot}.offset", f"{by.spot}.file", other.alias("other"),
            F.col("n_out").alias("there"), F.expr(should).alias("should"),
        )  # fmt: skip

    def _doubled(self) -> Suspects:
        """Return outputs that share their whole provenance."""
        spot = F.struct("place", "file", "offset")
        copies = self._both.where("not is_input and id is not null").groupBy("slot", "id")
        counted = copies.agg(F.count("*").alias("there"), F.max(spot).alias("at"), F.min(spot).alias("other"),
                             F.max("judged").alias("judged"))  # fmt: skip
        many = counted.where("there > 1 and judged")
        n = self._run(many.agg(F.sum(F.col("there") - 1).alias("n")))[0].n or 0
        rows = many.select("at.place", "at.offset", "at.file", "other", "there", F.lit(1).alias("should"))
        return n, self._keep(Check.DUPLICATE, rows) if n else ()

    # ------------------------------------------------------------ order

    @cached_property
    def _ordered(self) -> DataFrame | None:
        """Return outputs with a key and a ``turn``, which must not decrease within a ``stream``; None if there is no
        order.
        """
        question = self._question
        if question.by_provenance or question.order is not None:
            return self._both.where("not is_input and key is not null and turn is not null")
        if question.id is None or not question.inputs:
            return None
        once = self._named.where(_ONE_TO_ONE)
        return once.select(
            *(F.col(f"output_{c}").alias(c) for c in ("place", "offset", "key")), "file",
            (F.col("n_out_judged") > 0).alias("judged"),
            F.col("input_place").cast("long").alias("stream"), F.col("input_offset").alias("turn"),
        )  # fmt: skip

    @property
    def in_order(self) -> int:
        """Return how many outputs can be compared with others of their key."""
        if self._question.unordered:
            return 0
        if self._question.by_provenance or self._question.order is not None:
            return sum(tally.ordered for tally in self.tallies.values())
        return self.ids.ordered if self._question.id is not None and self._question.inputs else 0

    def reordered(self) -> Suspects:
        """Return outputs of a key after one in their partition that should come later."""
        assert self._ordered is not None  # the auditor asks how many there are
        written = Over.partitionBy("key", "place", "stream").orderBy("file", "offset")
        before = F.lag(F.struct("place", "offset", "turn")).over(written)
        ordered = self._ordered.withColumn("other", before)
        return self._suspects(Check.REORDERED, ordered, "other.turn > turn and judged")

    def misplaced(self) -> Suspects:
        """Return records in another partition than the one to which their key belonged when they were written,
        according to ledgers.
        """
        outs = self._both.where(~F.col("is_input") & F.col("judged") & self._topic.isin([*self._placings]))
        attempt = F.split(F.substring_index("attempt", "/", 1), r"\.")
        output_keys = outs.select(
            self._topic.alias("sink"), F.col("place").alias("at"), "offset", self._partition.alias("partition"),
            F.col("key").alias("key_hash"), F.col("key").isNotNull().alias("has_key"), F.col("number").alias("place"),
            F.col("attempt").isNotNull().alias("ours"), F.lit(False).alias("before"),
            attempt[1].cast("int").alias("term"), attempt[2].cast("long").alias("epoch"),
        )  # fmt: skip
        away = with_homes(output_keys, self._placings).where("home is not null")
        place = F.col("at").alias("place")
        astray = away.select(place, "offset", F.lit(None).cast("string").alias("file"), "home")
        return self._suspects(Check.MISPLACED, astray, "true")

    def scattered(self, without: Collection[str]) -> int:
        """Return the number of keys with records in several partitions of a topic, except for topics in ``without``."""
        if all(
            len(parts) < 2 for topic, parts in self._window.of(self._question.outputs).items() if topic not in without
        ):
            return 0
        outs = self._both.where("not is_input and key is not null and file is null")
        if without:
            outs = outs.where(~self._topic.isin([*without]))
        keys = outs.groupBy(self._topic.alias("topic"), "key").agg((F.min("place") != F.max("place")).alias("several"))
        count: int = self._run(keys.agg(F.count_if("several").alias("n")))[0].n
        return count

    # ------------------------------------------------------------ attempts

    @cached_property
    def attempts(self) -> dict[Attempt, tuple[int, Suspect]]:
        """Return visible outputs by the attempt that wrote them."""
        return self._by_attempt(self._both.where("not is_input and attempt is not null"))

    def rivals(self, attempts: Collection[str]) -> list[tuple[str, list[str]]]:
        """Return topics, and the ``attempts`` that wrote outputs of the same record there, as the same epoch."""
        some = self._both.where(~F.col("is_input") & F.col("attempt").isin([*attempts]))
        written = some.groupBy(self._topic.alias("topic"), "slot", F.regexp_replace("attempt", TERM, "")).agg(
            F.array_sort(F.collect_set("attempt")).alias("attempts")
        )
        rows = self._run(written.where(F.size("attempts") > 1).select("topic", "attempts").distinct())
        return [(row.topic, row.attempts) for row in rows]

    def aborted(self) -> dict[Attempt, tuple[int, Suspect]]:
        """Return the same for outputs that only read_uncommitted readers see, without a visible copy.

        A task that lost against another attempt wrote the same as the winner, and so did the successor of a dead
        worker.
        """
        return self._by_attempt(self._without_copy)

    @property
    def _without_copy(self) -> DataFrame:
        there = self._both.where("not is_input and id is not null").select("id")
        return self._invisible.where("attempt is not null").join(there, "id", "left_anti")

    def keep_attempts(self, check: Check, attempts: Collection[Attempt]) -> None:
        """Keep the outputs of these attempts as findings: visible ones, or those of ``aborted``."""
        if not attempts:
            return
        table = self._both.where("not is_input") if check is Check.ABORTED_VISIBLE else self._without_copy
        those = [(F.col("attempt") == attempt) & (self._topic == topic) for topic, attempt in attempts]
        self._wrong.setdefault(check, []).append(table.where(reduce(lambda a, b: a | b, those)))

    def hidden(self) -> Suspects:
        """Return aborted outputs that have an input and no visible copy."""
        expected = self._named.where("n_out = 0 and n_judged > 0").select(F.col("slot").alias("origin"))
        hidden = self._invisible.join(expected, "origin", "left_semi")
        return self._suspects(Check.COMMITTED_HIDDEN, hidden, "true")

    @cached_property
    def _invisible(self) -> DataFrame:
        every = self._records(self._question.outputs, committed=False)
        assert every is not None  # there are more of them than visible ones
        narrow = tables.outputs(every, self._question, self.places, self._window, {})
        seen = self._both.where("not is_input").select("place", "offset")
        hidden = narrow.join(seen, ["place", "offset"], "left_anti")
        self._held.append(hidden.persist(StorageLevel.MEMORY_AND_DISK))
        return hidden

    def _by_attempt(self, table: DataFrame) -> dict[Attempt, tuple[int, Suspect]]:
        spot = F.min(F.struct("place", "offset", "file")).alias("at")
        rows = table.groupBy(self._topic.alias("topic"), "attempt").agg(F.count("*").alias("n"), spot)
        return {
            (r.topic, r.attempt): (r.n, Suspect(r["at"].place, r["at"].offset, r["at"].file)) for r in self._run(rows)
        }

    @property
    def _topic(self) -> Column:
        """Return the topic of a location."""
        return self._topic_of(F.col("place"))

    @property
    def _partition(self) -> Column:
        return self._partition_of(F.col("place"))

    def _topic_of(self, place: Column) -> Column:
        return F.element_at(F.array(*(F.lit(name) for name, _ in self.places.names)), place + 1)

    def _partition_of(self, place: Column) -> Column:
        return F.element_at(F.array(*(F.lit(number) for _, number in self.places.names)), place + 1)

    # ------------------------------------------------------------ recompute

    def recomputed(self) -> tuple[int, dict[Check, tuple[int, tuple[str, ...]]]]:
        """Compare the query's result with the existing outputs, as multisets: return its size and the differences."""
        question = self._question
        assert question.sql is not None  # the auditor asks
        self._name_views("input", question.inputs)
        made, outs = self._spark.sql(question.sql), self._records(question.outputs)
        if outs is not None and question.output_sql is not None:
            self._name_views("output", question.outputs)
            outs = self._spark.sql(question.output_sql)
        with_key = "key" in made.columns
        compared = [_said(made, with_key, -1)] + ([] if outs is None else [_said(outs, with_key, 1)])
        both = reduce(lambda a, b: a.unionByName(b), compared)
        grouped = both.groupBy("said").agg(
            F.count(F.when(F.col("n") > 0, 1)).alias("there"), F.count(F.when(F.col("n") < 0, 1)).alias("made"),
            F.min("text").alias("text"),
        )  # fmt: skip
        self._held.append(grouped.persist(StorageLevel.MEMORY_AND_DISK))
        kinds = {
            Check.LOST: ("made > there", "made - there"),
            Check.DUPLICATE: ("there > made and made > 0", "there - made"),
            Check.UNEXPECTED: ("made = 0", "there"),
        }
        sums = [F.sum(F.expr(f"if({c}, {n}, 0)")).alias(check.name) for check, (c, n) in kinds.items()]
        counts = self._run(grouped.agg(F.sum("made").alias("made"), *sums))[0].asDict()
        found: dict[Check, tuple[int, tuple[str, ...]]] = {}
        for check, (condition, _) in kinds.items():
            n = counts[check.name] or 0
            rows = self._run(grouped.where(condition).orderBy("text").limit(SHOWN)) if n else []
            if n:
                of_query = grouped.where(condition).withColumnRenamed("made", "should")
                self._wrong.setdefault(check, []).append(of_query)
            texts = [f"it is visible {r.there} times: expected {r.made} times: {r.text}" for r in rows]
            found[check] = (n, tuple(texts))
        return counts["made"] or 0, found

    def _name_views(self, role: str, names: Collection[str]) -> None:
        """Create a view of each topic under its name, and one of all of them named by their ``role``."""
        for name, some in (*((f"`{name}`", [name]) for name in names), (role, names)):
            if (table := self._records(some)) is not None:
                table.createOrReplaceTempView(name)

    # ------------------------------------------------------------ suspects

    def findings(self, checks: Collection[Check]) -> DataFrame:
        """Return every record that breaks one of ``checks``, with the columns of ``FINDING``.

        It is computed when it is used. Records with equal hashes of unequal ids are among them.
        """
        tables = [self._as_findings(check, each) for check in checks for each in self._wrong.get(check, ())]
        return reduce(lambda a, b: a.unionByName(b), [*tables, self._spark.createDataFrame([], FINDING)])

    def _as_findings(self, check: Check, table: DataFrame) -> DataFrame:
        values = {"check": F.lit(check.value)}
        values |= {name: F.col(column) for name, column in _WHY.items() if column in table.columns}
        spots = {"": "place"} if "place" in table.columns else {}
        if check in (Check.DUPLICATE, Check.REORDERED) and "other" in table.columns:
            spots["other_"] = "other.place"
            values["other_offset"] = F.col("other.offset")
        for prefix, place in spots.items():
            values[f"{prefix}topic"] = self._topic_of(F.col(place))
            values[f"{prefix}partition"] = self._partition_of(F.col(place))
        columns = (column.split() for column in FINDING.split(", "))
        return table.select(*(values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in columns))

    def _suspects(self, check: Check, table: DataFrame, condition: str) -> Suspects:
        """Return the number and the first of the rows that meet a condition, with the columns of ``Suspect``."""
        wrong = table.where(condition)
        n = self._run(wrong.agg(F.count("*").alias("n")))[0].n
        return n, self._keep(check, wrong) if n else ()

    def _keep(self, check: Check, table: DataFrame) -> tuple[Suspect, ...]:
        """Keep these rows as findings, and return the first ones."""
        self._wrong.setdefault(check, []).append(table)
        return self._show(table)

    def _show(self, table: DataFrame) -> tuple[Suspect, ...]:
        columns = [c for c in ("place", "offset", "file", "other", "there", "should", "home") if c in table.columns]
        rows = table.select(*columns).orderBy("place", "file", "offset").limit(SHOWN)
        return tuple(_suspect(row) for row in self._run(rows))


def _sums() -> dict[str, Column]:
    """Return the aggregates of ``Tally``, by their names."""
    content, kept, judged = F.col("content"), F.col("kept"), F.col("judged")
    unnamed, keyed = kept & F.col("id").isNull(), kept & ~F.col("is_input") & F.col("key").isNotNull()
    conditions = {
        "judged": judged & kept,
        "compared": kept,
        "unnamed": unnamed,
        "unordered": keyed & F.col("turn").isNull(),
        "ordered": keyed & F.col("turn").isNotNull(),
        "excluded": judged & ~kept,
        "unknown": kept.isNull(),
        "older": F.col("older") & kept,
    }
    return {
        "records": F.count("*"),
        "low": F.sum(content.bitwiseAND(_LOW)),
        "high": F.sum(F.shiftrightunsigned(content, 32)),
        "xor": F.bit_xor(content),
        "first": F.min("offset"),
        "last": F.max("offset"),
        "first_unnamed": F.min(F.when(unnamed, F.col("offset"))),
        **{name: F.count_if(condition) for name, condition in conditions.items()},
    }


def _group() -> Column:
    """Return the number of the group of an id."""
    return F.pmod("origin", F.lit(GROUPS))


def _unsigned(low: int, high: int) -> int:
    """Return the sum of hashes, modulo 2 ** 64, of the sums of their halves."""
    return (low + (high << 32)) % (1 << 64)


def _tally(row: dict[str, Any]) -> Tally:
    low, high = row.pop("low"), row.pop("high")
    del row["place"]
    return Tally(**{**row, "sum": _unsigned(low, high), "xor": row["xor"] % (1 << 64)})


def _suspect(row: Any) -> Suspect:
    known = row.asDict()
    other = known.get("other")
    return Suspect(
        row.place, row.offset, row.file,
        None if other is None else (other["place"], other["offset"]),
        (known.get("there", 0), known.get("should", 0)),
        known.get("home"),
    )  # fmt: skip


def _said(table: DataFrame, with_key: bool, n: int) -> DataFrame:
    compared = [_text(table, name) for name in ("key", "value")[not with_key :]]
    text = F.substring(F.concat_ws(" = ", *(F.coalesce(word, F.lit("null")) for word in compared)), 1, 120)
    return table.select(F.xxhash64(*reads.hashed(*compared)).alias("said"), F.lit(n).alias("n"), text.alias("text"))


def _text(table: DataFrame, name: str) -> Column:
    """Return a column as the text that a topic would contain."""
    kind = table.schema[name].dataType.typeName()
    return F.to_json(name) if kind in ("struct", "map", "array", "variant") else F.col(name).cast("string")
