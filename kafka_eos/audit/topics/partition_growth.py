"""Detection of partitions that were added to a topic while it was written, from the topic's records.

Brokers do not store when partitions were added.

When partitions are added, a key moves at most once, and the new partitions have no earlier records. Rule: a key whose
records are spread over partitions in exactly this way is not reported as being in the wrong partition. It is not
reported as clean either, because one record in a wrong partition looks the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Run = Callable[["DataFrame"], list[Any]]
_BY_CHANCE = 0.01
"""So seldom may the keys that came first leave partitions empty that were there."""
_TRIED = 8
"""Numbers of partitions that a topic may have had, the likeliest first."""


def grown(records: DataFrame, partitions: Mapping[str, int], run: Run) -> list[str]:
    """Return the topics to which partitions may have been added, so that all moved keys moved legitimately.

    ``records``: ``topic``, ``partition``, ``key`` (a number) and ``time``. ``partitions``: the number of each topic.
    """
    keyed = records.where("key is not null").groupBy("topic", "key", "partition")
    parts = keyed.agg(F.min("time").alias("first"), F.max("time").alias("last"))
    begun: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
    for row in run(parts.groupBy("topic", "partition").agg(F.min("first").alias("first"))):
        begun[row["topic"]][row["partition"]] = row["first"]
    tried = [(topic, m, at) for topic, n in partitions.items() for m, at in _beginnings(begun[topic], n)]
    if not tried:
        return []
    in_turn = Window.partitionBy("topic", "key").orderBy("first", "last", "partition")
    parts = parts.withColumn("n", F.row_number().over(in_turn))
    parts = parts.withColumn("after", F.coalesce(F.lag("last").over(in_turn) <= F.col("first"), F.lit(True)))
    keys = parts.groupBy("topic", "key").agg(
        F.min("first").alias("began"),
        F.max("n").alias("places"),
        F.bool_and("after").alias("in_turn"),
        F.min(F.when(F.col("n") == 1, F.col("partition"))).alias("origin"),
        F.min(F.when(F.col("n") == 2, F.col("first"))).alias("moved"),
    )
    counts = []
    for i, (topic, m, at) in enumerate(tried):
        here, by_right = F.col("topic") == topic, F.col("in_turn") & (F.col("origin") < m) & (F.col("moved") >= at)
        counts.append(F.count(F.when(here & (F.col("began") < at), 1)).alias(f"before_{i}"))
        counts.append(F.count(F.when(here & (F.col("places") > 1) & ~by_right, 1)).alias(f"astray_{i}"))
    (row,) = run(keys.agg(*counts))
    found = [
        topic
        for i, (topic, m, _) in enumerate(tried)
        if not row[f"astray_{i}"] and not _is_chance(row[f"before_{i}"], m, partitions[topic])
    ]
    return sorted(set(found))


def _beginnings(begun: Mapping[int, int], partitions: int) -> Sequence[tuple[int, int]]:
    """Return possible numbers of partitions, and when the first of the added ones got a record.

    ``begun``: when each partition got its first record, if it has any.
    """
    never = max(begun.values(), default=0) + 1
    first = [min((begun.get(p, never) for p in range(m, partitions)), default=never) for m in range(partitions)]
    leaps = {m: first[m] - first[m - 1] for m in range(1, partitions) if first[m] < never}
    likely = sorted((m for m, leap in leaps.items() if leap > 0), key=lambda m: (-leaps[m], m))
    return [(m, first[m]) for m in likely[:_TRIED]]


def _is_chance(keys: int, partitions: int, of: int) -> bool:
    """Return whether by chance that many keys may all be in the first ``partitions`` of ``of`` partitions."""
    return keys * math.log(of / partitions) < -math.log(_BY_CHANCE)
