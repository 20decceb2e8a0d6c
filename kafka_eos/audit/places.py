"""Which partition a record belongs to by its key, as the partitioner of its producer chooses.

Rule: an answer only for partitioners that go by the key alone; a record that they would send anywhere has no place.
Partitions may have been added while a job wrote: what was right with fewer of them stays where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.partitioners import is_known

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RANDOM = "random"
"""The partitioner that looks at no key."""
_ENOUGH = 10_000
"""Records of an epoch: no number of partitions suits so many by chance."""


def numbers(first: Collection[tuple[int, int]], now: int) -> frozenset[int] | None:
    """The numbers of partitions that a topic may have had, as ``first`` tells: hash and partition of records of the
    first epoch of a job. ``now`` is how many there are. None if that is not how their partitions were chosen: with two
    partitions every other record is right by chance.

    A topic that has grown had one of the smaller numbers then, and every record has the place which that one gives it.
    """
    before = [n for n in range(1, now) if all(number % n == partition for number, partition in first)]
    right = sum(number % now == partition for number, partition in first)
    return frozenset({now, *before}) if before or 4 * right >= 3 * len(first) else None


@dataclass(frozen=True)
class Spread:
    """How a sink's records are spread over the partitions of its topic."""

    partitioner: str | None
    now: int
    """Partitions that there are."""
    ever: Collection[int] | None = None
    """The numbers that there were while the job wrote; None if nobody has noted them."""


def with_homes(visible: DataFrame, topics: Mapping[str, Spread]) -> DataFrame:
    """Adds ``home``: for a record of the job that is where it should not be the partition where it should be.

    ``visible`` has ``place``, see ``partitioners.key_hash``. ``topics``: by sink. Where nobody knows how partitions
    were chosen, the records of a key belong together, where most of them are.
    """
    counts = _counts(visible, {sink: spread for sink, spread in topics.items() if is_known(spread.partitioner)})
    home = _home(counts)
    unknown = [s for s, spread in topics.items() if counts.get(s) is None and spread.partitioner != RANDOM]
    if unknown:
        most = F.mode(F.when(_ours(), F.col("partition"))).over(Window.partitionBy("key_hash", "sink"))
        away = F.col("sink").isin(unknown) & F.col("has_key") & (most != F.col("partition"))
        home = F.when(away, most).otherwise(home)
    return visible.withColumn("home", F.when(_ours(), home))


def _ours() -> Column:
    return F.col("ours") & ~F.col("before")


def _home(counts: Mapping[str, frozenset[int] | None]) -> Column:
    """By the hash of the key; null where the record is at home."""
    home = F.lit(None).cast("long")
    for some in {some for some in counts.values() if some is not None}:
        sinks = F.col("sink").isin([sink for sink, its in counts.items() if its == some])
        away = sinks & ~is_at_home(F.col("place"), F.col("partition"), some)
        home = F.when(away, F.col("place") % max(some)).otherwise(home)
    return home


def _counts(visible: DataFrame, topics: Mapping[str, Spread]) -> dict[str, frozenset[int] | None]:
    """How many partitions each topic may have had at any time; None if that does not tell the places of records."""
    counts: dict[str, frozenset[int] | None] = {s: frozenset({*(t.ever or ()), t.now}) for s, t in topics.items()}
    untold = {sink: counts[sink] for sink, spread in topics.items() if spread.ever is None}
    if not untold:
        return counts
    astray = visible.where(_ours() & _home(untold).isNotNull()).select("sink").distinct().collect()
    first = _first(visible, [row["sink"] for row in astray])
    return counts | {sink: numbers(found, topics[sink].now) for sink, found in first.items()}


def _first(visible: DataFrame, sinks: Collection[str]) -> dict[str, list[tuple[int, int]]]:
    """By sink: ``place`` and partition of records of the first epoch that has any."""
    if not sinks:
        return {}
    epoch, of_sink = F.struct("epoch", "term"), Window.partitionBy("sink")
    written = visible.where(F.col("sink").isin([*sinks]) & _ours() & F.col("place").isNotNull())
    first = written.withColumn("first", F.min(epoch).over(of_sink)).where(F.col("first") == epoch)
    some = first.select("sink", "place", "partition").distinct()
    number = F.row_number().over(of_sink.orderBy("place", "partition"))
    found: dict[str, list[tuple[int, int]]] = {sink: [] for sink in sinks}
    for row in some.withColumn("n", number).where(F.col("n") <= _ENOUGH).collect():
        found[row["sink"]].append((row["place"], row["partition"]))
    return found


def is_at_home(number: Column, partition: Column, counts: Collection[int]) -> Column:
    """Is the record where one of these numbers of partitions puts it?"""
    at_home = F.lit(False)
    for count in sorted(counts):
        at_home = at_home | (number % count == partition)
    return at_home
