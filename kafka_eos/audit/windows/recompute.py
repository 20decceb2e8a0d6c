"""What windows should have made: a row goes to the windows that its time is in, and the rows of each are put together.

A window must have made its result if event time had come to its end when the job ended, and must not if it had not;
the newest checkpoint tells how far it was. Rules: rows that an output tells were late are left out; a session is all
that is less than a gap apart. Where a row came behind its partition's watermark it may have found its session closed:
then, and only then, what is made is marked ``loose``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit import tasks
from kafka_eos.audit.subject import Cut
from kafka_eos.audit.windows import rows
from kafka_eos.audit.windows.assign import sessions, windows_of
from kafka_eos.audit.windows.judged import Clock, Judged, Operator
from kafka_eos.audit.windows.late import AGAIN, ASIDE, COUNTED, with_fates
from kafka_eos.audit.windows.rows import ARRIVED, TAKEN, Wanted, part_of
from kafka_eos.state.keygroups import OLDEST

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PRIME = 16381
_NEVER = -(2**63)
_SPANS = "array<struct<start: bigint, end: bigint>>"
_IN_THEIR_ORDER = ("grp", "fate", "turn", "source", "s_partition", "s_offset", "lane", "branch", "ordinal")


@dataclass(frozen=True)
class Windowed:
    """``outputs`` as ``tasks.EXPECTED``. ``chancy``: sinks where another output may be right, too."""

    outputs: tuple[DataFrame, ...] = ()
    chancy: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Windowing:
    """Everything that decides how to compute again."""

    app: str
    cut: Cut
    judged: Judged
    hold: Callable[[DataFrame], DataFrame]
    """Keeps a table that is used more than once."""

    def made(self, records: DataFrame, visible: DataFrame) -> Windowed:
        """``records`` are ``tasks.INPUT``, ``visible`` the first copies of outputs."""
        sources = frozenset(source.name for source in self.cut.whole.sources)
        outputs: list[DataFrame] = []
        if wanted := self._sinks(sources):
            outputs.append(records.mapInArrow(partial(rows.arrivals, *self._where, wanted), tasks.EXPECTED))
        clocks = {clock.node for each in self._sessions for clock in each.clocks.values() if clock.delay is not None}
        wanted = Wanted(stages=self.judged.stages, clocks=frozenset(clocks))
        arrived = self.hold(records.mapInArrow(partial(rows.arrivals, *self._where, wanted), ARRIVED))
        arrived = arrived.withColumn("passed", F.lit(False))
        newest = _newest(arrived.where(F.col("stage").isin(clocks))) if clocks else None
        chancy: frozenset[str] = frozenset()
        for operator in self.judged.operators:
            taken, may_differ = self._taken(arrived.where(F.col("stage") == operator.stage), operator, visible, newest)
            if may_differ:
                chancy |= self.judged.sinks & self.cut.whole.below(operator.name)
            if wanted := self._sinks(frozenset({operator.name})):
                outputs.append(self._results(taken, operator, wanted, tasks.EXPECTED))
            if wanted := self._stages(operator):
                passed = self.hold(self._results(taken, operator, wanted, ARRIVED))
                arrived = arrived.unionByName(passed.withColumn("passed", F.lit(True)))
        return Windowed(tuple(outputs), chancy)

    @property
    def _where(self) -> tuple[str, int]:
        return self.app, self.cut.parallelism

    @property
    def _sessions(self) -> list[Operator]:
        return [operator for operator in self.judged.operators if operator.is_session]

    def _sinks(self, heads: frozenset[str]) -> Wanted | None:
        """Sinks that rows reach from ``heads`` without further windows."""
        part = part_of(self.cut.whole, heads, Wanted(sinks=self.judged.sinks))
        found = self.judged.sinks.intersection(node.name for node in part.nodes)
        return Wanted(sinks=found) if found else None

    def _stages(self, operator: Operator) -> Wanted | None:
        """The same of the next windows."""
        part = part_of(self.cut.whole, frozenset({operator.name}), Wanted(stages=self.judged.stages))
        found = self.judged.stages.intersection(node.name for node in part.nodes if node.inputs)
        return Wanted(stages=found) if found else None

    def _results(self, taken: DataFrame, operator: Operator, wanted: Wanted, schema: str) -> DataFrame:
        return taken.mapInArrow(partial(rows.results, *self._where, operator.name, wanted), schema)

    # ------------------------------------------------------------ which rows are in which windows

    def _taken(
        self, arrived: DataFrame, operator: Operator, visible: DataFrame, newest: DataFrame | None
    ) -> tuple[DataFrame, bool]:
        """The rows of an operator that count, as ``rows.TAKEN``, and whether other windows may be right, too."""
        lateness, time = operator.node.lateness, F.col("time")
        told = with_fates(arrived, operator, visible).withColumn("group", _group(operator))
        told = told.withColumn("floor", _floor(operator))
        loose = F.lit(False)
        if operator.is_session:
            gap = operator.node.assigner.gap  # type: ignore[union-attr]
            told, loose = _behind(told, operator, newest)
            last = time + gap
        else:
            told = told.withColumn("windows", windows_of(operator.node.assigner, time))  # type: ignore[arg-type]
            last = F.element_at("windows", -1)["end"]
        # No row was late for a window that was not over when the job ended.
        early = (F.col("fate") == ASIDE) & (last - 1 + lateness > F.col("floor"))
        told = told.withColumn("fate", F.when(early, COUNTED).otherwise(F.col("fate")))
        told = told.withColumn("loose", loose)
        may_differ = False
        if not operator.follows:
            again = F.col("fate") == AGAIN
            told = told.withColumn("loose", F.col("loose") | again)
            told = told.withColumn("fate", F.when(again, COUNTED).otherwise(F.col("fate")))
            told = self.hold(told)
            may_differ = not told.where(F.col("loose") & (F.col("fate") == COUNTED)).isEmpty()
        if operator.is_session:
            aside = told.where(F.col("fate") == ASIDE).withColumn("windows", F.array().cast(_SPANS))
            told = sessions(told.where(F.col("fate") == COUNTED), gap).unionByName(aside)
        else:
            told = _of_keys(told, operator)
        over = F.filter("windows", lambda window: window["end"] - 1 <= F.col("floor"))
        marked = F.transform(over, lambda w: F.struct(w["start"], w["end"], F.col("loose").alias("loose")))
        told = told.withColumn("windows", marked).where((F.size("windows") > 0) | (F.col("fate") == ASIDE))
        ordered = told.repartition("grp").sortWithinPartitions(*_IN_THEIR_ORDER)
        return ordered.select(*TAKEN), may_differ


def _of_keys(told: DataFrame, operator: Operator) -> DataFrame:
    """``loose`` for all rows of a key of which nothing tells in which order some made results again, or of which."""
    key = Window.partitionBy("grp")
    if not operator.node.lateness:
        return told
    if not operator.follows:
        return told.withColumn("loose", F.max("loose").over(key))
    of_again = F.when(F.col("fate") == AGAIN, F.col("turn.partition"))
    several = F.min(of_again).over(key) != F.max(of_again).over(key)
    return told.withColumn("loose", F.coalesce(several, F.lit(False)) & (F.col("fate") == AGAIN))


def _group(operator: Operator) -> Column:
    """The key group: the remainder of a checksum, which is all that provenance and the checkpoint need of it."""
    checksum = F.crc32("grp")
    if operator.key_hash == OLDEST:
        return (checksum % operator.groups).cast("int")
    return F.floor(checksum % _PRIME * operator.groups / _PRIME).cast("int")


def _floor(operator: Operator) -> Column:
    """How far event time had come for a key at the end."""
    found = F.lit(_NEVER)
    for first, last, time in operator.floors:
        found = F.when(F.col("group").between(first, last), F.lit(time)).otherwise(found)
    return found


# ---------------------------------------------------------------- rows behind a watermark


def _newest(times: DataFrame) -> DataFrame:
    """Of each record the newest time of its partition before it."""
    records = times.groupBy("source", "s_partition", "s_offset").agg(F.max("time").alias("newest"))
    before = Window.partitionBy("source", "s_partition").orderBy("s_offset").rowsBetween(Window.unboundedPreceding, -1)
    return records.withColumn("newest", F.max("newest").over(before))


def _behind(told: DataFrame, operator: Operator, newest: DataFrame | None) -> tuple[DataFrame, Column]:
    """May a row have come behind a watermark? None can that is not so by the order of its own partition."""
    place = ["source", "s_partition", "s_offset"]
    if newest is None:
        told = told.withColumn("newest", F.lit(None).cast("long"))
    else:
        told = told.join(newest, place, "left")
    behind = F.lit(False)
    for source, clock in operator.clocks.items():
        behind = F.when(F.col("source") == source, _is_behind(clock)).otherwise(behind)
    # What windows made comes before the watermark that closed them, unless a row made it.
    return told, F.when(F.col("passed"), F.col("source").isin([*operator.clocks])).otherwise(behind)


def _is_behind(clock: Clock) -> Column:
    if clock.delay is None:
        return F.lit(True)
    late = F.coalesce(F.col("time") <= F.col("newest") - clock.delay - 1, F.lit(False))
    return late | ~F.col("s_partition").isin([*clock.partitions])
