"""The partition of a record by its key, as its producer's partitioner chooses it.

Rule: only partitioners that use nothing but the key are judged; other records have no expected partition. Partitions
may have been added, or the partitioner changed, while the job wrote: records stay in the partition that was correct at
that time. The ledger records the partitioning of each epoch; for missing epochs, the first records show it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from msgspec.structs import replace
from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.abc.committer import Spread
from kafka_eos.audit.facts.partitioning_history import Regime
from kafka_eos.audit.tables.partitioner_hashes import is_known

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RANDOM = "random"
"""The partitioner that looks at no key."""
_ENOUGH = 10_000
"""Records per epoch with which no wrong number of partitions fits by chance."""


def numbers(first: Collection[tuple[int, int]], now: int) -> frozenset[int] | None:
    """Return the possible numbers of partitions of a topic, from the hashes and partitions of its first epoch; None if
    the partitions of its records were chosen in another way.

    ``first``: hash and partition of each record of the job's first epoch. With two partitions, every other record
    matches by chance.
    ``now``: the present number of partitions. A topic that has grown had a smaller number then, which every record
    matches.
    """
    before = [n for n in range(1, now) if all(number % n == partition for number, partition in first)]
    right = sum(number % now == partition for number, partition in first)
    return frozenset({now, *before}) if before or 4 * right >= 3 * len(first) else None


@dataclass(frozen=True)
class PartitionPlacement:
    """The distribution of a sink's records over the partitions of its topic."""

    partitioner: str | None
    """The partitioner that its client uses now."""
    now: int
    """Partitions that there are."""
    regimes: tuple[Regime, ...] = ()
    """The ledger's facts about the epochs that wrote the records."""

    @property
    def is_told(self) -> bool:
        """Return whether the ledger contains the partitioning of every epoch."""
        return bool(self.regimes) and all(regime.spread is not None for regime in self.regimes)

    def number(self) -> Column:
        """Return the index of a record's regime; the number of regimes for a record of a later epoch."""
        found = F.lit(len(self.regimes))
        for i, regime in reversed(list(enumerate(self.regimes))):
            found = F.when(F.col("epoch") <= regime.until, i).otherwise(found)
        return found

    def spreads(self) -> list[Spread | None]:
        """Return the spreads in the order of ``number``. Epochs after the last recorded one have its spread."""
        spreads = [regime.spread for regime in self.regimes]
        last = spreads[-1] if spreads else None
        return [*spreads, None if last is None else replace(last, most=max(last.most, self.now))]


def with_homes(visible: DataFrame, topics: Mapping[str, PartitionPlacement]) -> DataFrame:
    """Add ``home``: the expected partition of a record that is in another one.

    ``visible`` has ``place``, see ``partitioners``. ``topics``: by sink. If it is unknown how partitions were chosen,
    the records of a key are expected together, where most of them are. If the number of partitions may also have
    changed, nothing is expected.
    """
    counts = _counts(visible, {sink: placing for sink, placing in topics.items() if is_known(placing.partitioner)})
    alike: dict[tuple[PartitionPlacement, frozenset[int] | None], list[str]] = {}
    for sink, placing in topics.items():
        alike.setdefault((placing, counts.get(sink)), []).append(sink)
    home, number, together = F.lit(None).cast("long"), F.lit(0), F.lit(False)
    for (placing, some), sinks in alike.items():
        here = F.col("sink").isin(sinks)
        number = F.when(here, placing.number()).otherwise(number)
        home = F.when(here, _home(placing, some)).otherwise(home)
        by_key = [i for i, spread in enumerate(placing.spreads()) if _together(placing, spread, some)]
        together = together | (here & placing.number().isin(by_key)) if by_key else together
    if any(_together(placing, spread, some) for placing, some in alike for spread in placing.spreads()):
        visible = visible.withColumn("regime", number)
        most = F.mode(F.when(_ours(), F.col("partition"))).over(Window.partitionBy("key_hash", "sink", "regime"))
        away = together & F.col("has_key") & (most != F.col("partition"))
        return visible.withColumn("home", F.when(_ours(), F.when(away, most).otherwise(home))).drop("regime")
    return visible.withColumn("home", F.when(_ours(), home))


def _ours() -> Column:
    return F.col("ours") & ~F.col("before")


def _together(placing: PartitionPlacement, spread: Spread | None, counts: frozenset[int] | None) -> bool:
    """Return whether the records of a key are expected in one partition, because no better rule is known."""
    if spread is None:
        return counts is None and placing.partitioner != RANDOM
    is_judged = spread.partitioner == RANDOM or is_known(spread.partitioner)
    return not is_judged and spread.fewest == spread.most


def _home(placing: PartitionPlacement, counts: frozenset[int] | None) -> Column:
    """Return the expected partition by the hash of the key; null if the record is there. ``counts``: see
    ``_counts``.
    """
    home = F.lit(None).cast("long")
    for i, spread in enumerate(placing.spreads()):
        some = counts if spread is None else _between(spread)
        if some is not None:
            away = (placing.number() == i) & ~is_at_home(F.col("place"), F.col("partition"), some)
            home = F.when(away, F.col("place") % max(some)).otherwise(home)
    return home


def _between(spread: Spread) -> frozenset[int] | None:
    """Return the possible numbers of partitions; None if they do not determine the places of records."""
    return frozenset(range(spread.fewest, spread.most + 1)) if is_known(spread.partitioner) else None


def _counts(visible: DataFrame, topics: Mapping[str, PartitionPlacement]) -> dict[str, frozenset[int] | None]:
    """Return the possible numbers of partitions of each topic in epochs that the ledger lacks.

    None if they do not determine the places of records.
    """
    counts: dict[str, frozenset[int] | None] = {sink: frozenset({t.now}) for sink, t in topics.items()}
    untold = {sink: placing for sink, placing in topics.items() if not placing.is_told}
    if not untold:
        return counts
    visible = visible.where(_ours() & reduce(or_, (_is_untold(sink, placing) for sink, placing in untold.items())))
    away = reduce(or_, ((F.col("sink") == sink) & _away(placing.now) for sink, placing in untold.items()))
    astray = [row["sink"] for row in visible.where(away).select("sink").distinct().collect()]
    first = _first(visible, astray)
    return counts | {sink: numbers(found, topics[sink].now) for sink, found in first.items()}


def _is_untold(sink: str, placing: PartitionPlacement) -> Column:
    unknown = [i for i, spread in enumerate(placing.spreads()) if spread is None]
    return (F.col("sink") == sink) & placing.number().isin(unknown)


def _away(count: int) -> Column:
    return F.coalesce(~is_at_home(F.col("place"), F.col("partition"), [count]), F.lit(False))


def _first(visible: DataFrame, sinks: Collection[str]) -> dict[str, list[tuple[int, int]]]:
    """Return ``place`` and partition of the records of the first epoch that has any, by sink."""
    if not sinks:
        return {}
    epoch, of_sink = F.struct("epoch", "term"), Window.partitionBy("sink")
    written = visible.where(F.col("sink").isin([*sinks]) & F.col("place").isNotNull())
    first = written.withColumn("first", F.min(epoch).over(of_sink)).where(F.col("first") == epoch)
    some = first.select("sink", "place", "partition").distinct()
    number = F.row_number().over(of_sink.orderBy("place", "partition"))
    found: dict[str, list[tuple[int, int]]] = {sink: [] for sink in sinks}
    for row in some.withColumn("n", number).where(F.col("n") <= _ENOUGH).collect():
        found[row["sink"]].append((row["place"], row["partition"]))
    return found


def is_at_home(number: Column, partition: Column, counts: Collection[int]) -> Column:
    """Return whether the record is in the partition that one of these partition counts gives."""
    at_home = F.lit(False)
    for count in sorted(counts):
        at_home = at_home | (number % count == partition)
    return at_home
