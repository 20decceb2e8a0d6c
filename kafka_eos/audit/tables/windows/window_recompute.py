"""Expected results of windows, joins and patterns.

Windows combine the rows whose times are in them, joins the matching rows of two streams, patterns the rows of one
stream that follow one another.

A window must have emitted its result exactly if the watermark had reached its end when the job ended. The newest
checkpoint contains the watermark and the pending timers. Rules: rows that an output calls late are left out; a session
contains the rows that are less than a gap apart. A row that arrived behind its partition's watermark may have found its
session closed, or some of its overlapping windows. Only then is the result marked ``loose``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.facts.checkpoint_state import Checkpoint
from kafka_eos.audit.tables import python_tasks as tasks
from kafka_eos.audit.tables.plan_cut import Cut
from kafka_eos.audit.tables.windows import early_results as early
from kafka_eos.audit.tables.windows import join_results as pairs
from kafka_eos.audit.tables.windows import pattern_results as sequences
from kafka_eos.audit.tables.windows import window_rows as rows
from kafka_eos.audit.tables.windows.join_sql import joined
from kafka_eos.audit.tables.windows.judgeable_windows import JudgeableWindows, JudgedOperator
from kafka_eos.audit.tables.windows.late_rows import AGAIN, ASIDE, COUNTED, REFUSED, any_is_called_late, with_fates
from kafka_eos.audit.tables.windows.pending_timers import without_unfired
from kafka_eos.audit.tables.windows.window_assignment import sessions, windows_of
from kafka_eos.audit.tables.windows.window_rows import ARRIVED, TAKEN, RequestedRows, part_of
from kafka_eos.plan import JoinNode, PatternNode
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PRIME = 16381
_NEVER = -(2**63)
_SPANS = "array<struct<start: bigint, end: bigint>>"
_IN_THEIR_ORDER = ("grp", "fate", "turn", "source", "s_partition", "s_offset", "lane", "branch", "ordinal")


@dataclass(frozen=True)
class WindowTables:
    """The recomputed outputs, as ``tasks.EXPECTED``, and the uncertain ones.

    ``chancy``: sinks where another output may be correct, too.
    ``free``: rows, by sink, that may have emitted results before the end of their windows; see ``early``.
    """

    outputs: tuple[DataFrame, ...] = ()
    chancy: frozenset[str] = frozenset()
    free: tuple[DataFrame, ...] = ()


@dataclass(frozen=True)
class WindowRecompute:
    """The plan and the settings of a recompute of windows."""

    app: str
    cut: Cut
    judged: JudgeableWindows
    hold: Callable[[DataFrame], DataFrame]
    """Keeps a table that is used more than once."""
    checkpoint: Checkpoint | None
    """The newest one that is committed."""

    def made(self, records: DataFrame, visible: DataFrame) -> WindowTables:
        """Compute the tables. ``records``: rows as in ``tasks.INPUT``; ``visible``: the first copies of outputs."""
        sources = frozenset(source.name for source in self.cut.whole.sources)
        outputs: list[DataFrame] = []
        if wanted := self._sinks(sources):
            outputs.append(records.mapInArrow(partial(rows.arrivals, *self._where, wanted), tasks.EXPECTED))
        asked = [each for each in self.judged.operators if each.may_miss or any_is_called_late(each, visible)]
        clocks = {clock.node for each in asked for clock in each.clocks.values() if clock.delay is not None}
        wanted = RequestedRows(stages=self.judged.stages, clocks=frozenset(clocks))
        arrived = self.hold(records.mapInArrow(partial(rows.arrivals, *self._where, wanted), ARRIVED))
        arrived = arrived.withColumn("passed", F.lit(False))
        newest = _newest(arrived.where(F.col("stage").isin(clocks))) if clocks else None
        chancy: frozenset[str] = frozenset()
        free: list[DataFrame] = []
        for operator in self.judged.operators:
            taken, may_differ = self._taken(arrived.where(F.col("stage") == operator.stage), operator, visible, newest)
            if operator.by_count is not None:
                taken = self.hold(taken)
                free.append(early.free(taken, operator))
            if may_differ:
                chancy |= self.judged.sinks & self.cut.whole.find_descendants(operator.name)
            if wanted := self._sinks(frozenset({operator.name})):
                outputs += self._results(taken, operator, wanted, tasks.EXPECTED)
            if wanted := self._stages(operator):
                for results in self._results(taken, operator, wanted, ARRIVED):
                    arrived = arrived.unionByName(self.hold(results).withColumn("passed", F.lit(True)))
        return WindowTables(tuple(outputs), chancy, tuple(free))

    @property
    def _where(self) -> tuple[str, int]:
        return self.app, self.cut.parallelism

    def _sinks(self, heads: frozenset[str]) -> RequestedRows | None:
        """Return the sinks that rows reach from ``heads`` without further windows."""
        part = part_of(self.cut.whole, heads, RequestedRows(sinks=self.judged.sinks))
        found = self.judged.sinks.intersection(node.name for node in part.nodes)
        return RequestedRows(sinks=found) if found else None

    def _stages(self, operator: JudgedOperator) -> RequestedRows | None:
        """Return the next windows that rows of the operator reach."""
        part = part_of(self.cut.whole, frozenset({operator.name}), RequestedRows(stages=self.judged.stages))
        found = self.judged.stages.intersection(node.name for node in part.nodes if node.inputs)
        return RequestedRows(stages=found) if found else None

    def _results(
        self, taken: DataFrame, operator: JudgedOperator, wanted: RequestedRows, schema: str
    ) -> list[DataFrame]:
        where = *self._where, operator.name, wanted
        if isinstance(operator.node, PatternNode):
            aside = taken.where(F.col("fate") == ASIDE).select(*TAKEN)
            return [
                _in_time(taken).mapInArrow(partial(sequences.results, *where), schema),
                aside.mapInArrow(partial(sequences.asides, *where), schema),
            ]
        if not isinstance(operator.node, JoinNode):
            return [_in_order(taken).mapInArrow(partial(rows.results, *where), schema)]
        found = joined(taken.where(F.col("fate") == COUNTED), operator.node)
        aside = taken.where(F.col("fate") == ASIDE).select(*TAKEN)
        return [
            found.mapInArrow(partial(pairs.results, *where), schema),
            aside.mapInArrow(partial(pairs.asides, *where), schema),
        ]

    # ------------------------------------------------------------ which rows are in which windows

    def _taken(
        self, arrived: DataFrame, operator: JudgedOperator, visible: DataFrame, newest: DataFrame | None
    ) -> tuple[DataFrame, bool]:
        """Return the rows of an operator with their fate, and whether other windows may be correct, too.

        Only rows of closed windows are included; by count, all rows.
        """
        fated = with_fates(arrived, operator, visible).withColumn("group", _group())
        fated = fated.withColumn("floor", _floor(operator))
        if operator.unfired and self.checkpoint is not None:
            fated = without_unfired(fated, self.checkpoint, operator.unfired, operator.assigner)
        fated = _with_newest(fated, newest)
        if operator.assigner is None:
            fated = _if_it_can_be(fated, operator, F.col("time") + 1)
            nothing = F.array().cast(_SPANS)
            return fated.withColumns({"loose": F.lit(False), "known": F.lit(False), "windows": nothing}), False
        if operator.is_session:
            fated, may_differ = self._in_sessions(fated, operator)
        else:
            fated, may_differ = self._in_windows(fated, operator)
        fated = fated.withColumn("known", early.known(operator))
        every = F.transform("windows", lambda window: _marked(window, window["end"] - 1 <= F.col("floor")))
        fated = fated.withColumn("windows", F.filter(every, lambda window: window["over"] | F.col("known")))
        kept = (F.size("windows") > 0) | (F.col("fate") == ASIDE) | F.lit(operator.by_count is not None)
        return fated.where(kept), may_differ

    def _in_sessions(self, fated: DataFrame, operator: JudgedOperator) -> tuple[DataFrame, bool]:
        """Return the rows with their sessions. A row that arrived after a watermark may have found its session
        closed.
        """
        gap = operator.assigner.gap  # type: ignore[union-attr]
        fated = _if_it_can_be(fated, operator, F.col("time") + gap)
        fated = self.hold(_counting_again(_behind(fated, operator)))
        counted = fated.where(F.col("fate") == COUNTED)
        aside = fated.where(F.col("fate") == ASIDE).withColumn("windows", F.array().cast(_SPANS))
        return sessions(counted, gap).unionByName(aside), not counted.where("loose").isEmpty()

    def _in_windows(self, fated: DataFrame, operator: JudgedOperator) -> tuple[DataFrame, bool]:
        """Return the rows with their windows. Where windows overlap it is unknown for which of them a row was late."""
        fated = fated.withColumn("windows", windows_of(operator.assigner, F.col("time")))  # type: ignore[arg-type]
        fated = _if_it_can_be(fated, operator, F.element_at("windows", -1)["end"])
        if not operator.may_miss:
            fated = fated.withColumn("loose", F.lit(False))
            return (_in_turn(fated) if operator.lateness else fated), False
        fated = self.hold(_counting_again(_behind(fated, operator)))
        may_differ = not fated.where((F.col("fate") == COUNTED) & F.col("loose")).isEmpty()
        if operator.lateness:
            fated = fated.withColumn("loose", F.max("loose").over(Window.partitionBy("grp")))
        return fated, may_differ


def _marked(window: Column, over: Column) -> Column:
    return F.struct(window["start"].alias("start"), window["end"].alias("end"), F.col("loose"), over.alias("over"))


def _in_order(taken: DataFrame) -> DataFrame:
    return taken.repartition("grp").sortWithinPartitions(*_IN_THEIR_ORDER).select(*TAKEN)


def _in_time(taken: DataFrame) -> DataFrame:
    """Return the rows that were counted, each with the final watermark."""
    counted = taken.where(F.col("fate") == COUNTED).repartition("grp")
    return counted.sortWithinPartitions("grp", "time", "s_partition", "s_offset").select(*TAKEN, "floor")


def _in_turn(fated: DataFrame) -> DataFrame:
    """Add a ``turn`` where offsets do not give the order in which rows emitted results again.

    That is the case if such rows of a key come from several input partitions. The results then define the order, if
    they are in one partition of the output; otherwise the rows are ``loose``.
    """
    key, again = Window.partitionBy("grp"), F.col("fate") == AGAIN
    stream = F.when(again, F.struct("source", "s_partition", "lane"))
    place = F.when(again, F.struct("turn.sink", "turn.partition"))
    streams, places = (F.min(c).over(key) != F.max(c).over(key) for c in (stream, place))
    fated = fated.withColumn("several", F.coalesce(streams, F.lit(False)))
    fated = fated.withColumn("loose", again & F.col("several") & F.coalesce(places, F.lit(False)))
    return fated.withColumn("turn", F.when(F.col("several"), F.col("turn"))).drop("several")


def _if_it_can_be(fated: DataFrame, operator: JudgedOperator, end: Column) -> DataFrame:
    """Count rows that an output calls late although they cannot have been late.

    ``end``: at least the end of a row's last window.
    """
    last = end + operator.lateness
    in_time = (last - 1 > F.col("floor")) | _comes_before(last, operator)
    late = F.col("fate").isin(ASIDE, REFUSED)
    fate = F.when(late & in_time, COUNTED).otherwise(F.col("fate"))
    if not operator.may_miss:
        fate = F.when((F.col("fate") == AGAIN) & _comes_before(end, operator), COUNTED).otherwise(fate)
    return fated.withColumn("fate", fate).where(F.col("fate") != REFUSED)


def _counting_again(fated: DataFrame) -> DataFrame:
    """Return the rows that emitted results again as ordinary rows, whose results are unknown."""
    again = F.col("fate") == AGAIN
    return fated.withColumns({"loose": F.col("loose") | again, "fate": F.when(again, COUNTED).otherwise(F.col("fate"))})


def _group() -> Column:
    """Return the key group: the remainder of a checksum, which is all that provenance and the checkpoint need."""
    return F.floor(F.crc32("grp") % _PRIME * MAX_KEY_GROUPS / _PRIME).cast("int")


def _floor(operator: JudgedOperator) -> Column:
    """Return the watermark of a key at the end."""
    found = F.lit(_NEVER)
    for first, last, time in operator.floors:
        found = F.when(F.col("group").between(first, last), F.lit(time)).otherwise(found)
    return found


# ---------------------------------------------------------------- rows behind a watermark


def _newest(times: DataFrame) -> DataFrame:
    """Return for each record the newest earlier time in its partition."""
    records = times.groupBy("source", "s_partition", "s_offset").agg(F.max("time").alias("newest"))
    before = Window.partitionBy("source", "s_partition").orderBy("s_offset").rowsBetween(Window.unboundedPreceding, -1)
    return records.withColumn("newest", F.coalesce(F.max("newest").over(before), F.lit(_NEVER)))


def _with_newest(fated: DataFrame, newest: DataFrame | None) -> DataFrame:
    """Add the newest time of the rows before each row, null where it is unknown.

    Rows behind windows are results: each precedes the watermark that closed its window, unless a row emitted it.
    """
    if newest is None:
        return fated.withColumn("newest", F.lit(None).cast("bigint"))
    fated = fated.join(newest, ["source", "s_partition", "s_offset"], "left")
    return fated.withColumn("newest", F.when(~F.col("passed"), F.col("newest")))


def _behind(fated: DataFrame, operator: JudgedOperator) -> DataFrame:
    """Mark rows as ``loose`` if they may have arrived after a watermark.

    A row whose time is in order within its partition cannot, because the slowest partition determines the watermark.
    """
    of_input = F.col("source").isin([*operator.clocks])
    return fated.withColumn("loose", of_input & ~_comes_before(F.col("time") + 1, operator))


def _comes_before(end: Column, operator: JudgedOperator) -> Column:
    """Return whether a row comes before the watermark reaches ``end``; False if the input does not show it.

    A watermark is no newer than what each partition has brought, if it was waited for from the first.
    """
    found = F.lit(False)
    for source, clock in operator.clocks.items():
        if clock.delay is not None:
            is_of_clock = (F.col("source") == source) & F.col("s_partition").isin([*clock.partitions])
            found |= is_of_clock & (end + clock.delay > F.col("newest"))
    return F.coalesce(found, F.lit(False))
