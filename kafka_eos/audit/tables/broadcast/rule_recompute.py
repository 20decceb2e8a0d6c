"""Outputs after broadcast state, recomputed in Spark: every row with the rules of the turns before its own.

Rule: a row that may have been processed with other rules is neither recomputed nor compared; it is counted, for the
headline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kafka_eos.audit.tables.broadcast import python_tasks as tasks
from kafka_eos.audit.tables.broadcast.judgeable_sinks import SharedRules
from kafka_eos.audit.tables.python_tasks import EXPECTED, INPUT_COLUMNS
from kafka_eos.audit.tables.topic_tables import Bounds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TURNS = "stream string, s_partition int, first long, end long, turn long"
_NEVER = (1 << 63) - 1


@dataclass(frozen=True)
class RuleRecompute:
    """The plan and the input of a recompute of broadcast state.

    ``records``: rows as in ``tasks.INPUT``, all within ``inputs``. Those of other sources than ``met`` has are ignored.
    """

    app: str
    workers: int
    met: SharedRules
    records: DataFrame
    inputs: Mapping[str, Bounds]

    @property
    def outputs(self) -> DataFrame:
        """Return the expected outputs of rows that were read in even turns; ``tasks.EXPECTED``."""
        is_rule, made = self._is_rule(), partial(tasks.outputs, self.app, self.workers, self._sinks)
        rows = self._read.where(is_rule | ~self._doubted)
        place = ("turn", ~is_rule, "source", "partition", "offset")
        ordered = rows.repartition(1).sortWithinPartitions(*place).select(*INPUT_COLUMNS)
        return ordered.mapInArrow(made, EXPECTED).where(~is_rule)

    def untold(self, visible: DataFrame) -> DataFrame:
        """Return ``sink`` and ``id`` of visible outputs of rows that may have been processed with other rules; see
        ``early.untold``.
        """
        mine = visible.where(F.col("sink").isin([*self._sinks]))
        mine = mine.withColumn("stream", F.concat_ws("/", "source", "s_topic"))
        with_turns = mine.join(self._turns, ["stream", "s_partition"], "left")
        at = F.col("s_offset").between(F.col("first"), F.col("end") - 1)
        return with_turns.where(at & (self._is_rule() | self._doubted)).select("sink", "id")

    # ------------------------------------------------------------ turns

    @property
    def _sinks(self) -> tuple[str, ...]:
        return tuple(sorted(self.met.sinks))

    def _is_rule(self) -> Column:
        return F.col("source").isin([*self.met.rules])

    @property
    def _turns(self) -> DataFrame:
        """Return the offsets of each turn, by input partition."""
        rows = [
            (stream, partition, first, end, number)
            for stream, parts in self.met.turns.items()
            for partition, ends in parts.items()
            for number, (first, end) in enumerate(zip([0, *ends], [*ends, _NEVER], strict=True))
        ]
        return F.broadcast(self.records.sparkSession.createDataFrame(rows, _TURNS))

    @property
    def _read(self) -> DataFrame:
        """Return the records with ``turn``."""
        turns = self._turns.withColumnRenamed("s_partition", "partition")
        mine = self.records.where(F.col("source").isin([*self.met.sources]))
        records = mine.withColumn("stream", F.concat_ws("/", "source", "topic"))
        with_turns = records.join(turns, ["stream", "partition"])
        return with_turns.where(F.col("offset").between(F.col("first"), F.col("end") - 1))

    @cached_property
    def _doubted(self) -> Column:
        """Return whether a row of ``turn`` may have met other rules than those of all earlier turns."""
        first, last = self._all_there, self._in_any_order
        return (F.col("turn") % 2 == 1) | (F.col("turn") < first) | (F.col("turn") > last)

    @property
    def _all_there(self) -> int:
        """Return the first turn whose rules are all known. Compaction removes rules that were replaced later."""
        rules = [parts for stream, parts in self.inputs.items() if stream.partition("/")[0] in self.met.rules]
        bounds = [each for parts in rules for each in parts.values()]
        there = self.records.where(self._is_rule()).count()
        return 0 if there == sum(end - begin for begin, end in bounds) else self.met.last_change

    @property
    def _in_any_order(self) -> int:
        """Return the last turn whose rules do not depend on the order of partitions."""
        rules = self._read.where(self._is_rule())
        if rules.select("source", "partition").distinct().limit(2).count() < 2:
            return _NEVER
        ordered = rules.repartition(1).sortWithinPartitions("turn", "source", "partition", "offset")
        seek = partial(tasks.first_doubt, self.app, self.workers, self._sinks)
        found = ordered.select("turn", *INPUT_COLUMNS).mapInArrow(seek, tasks.DOUBTED).collect()
        return min((row["turn"] for row in found), default=_NEVER)
