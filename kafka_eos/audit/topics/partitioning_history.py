"""The partitioning of topics over time, from the ledgers of the jobs that wrote them.

Pure. Rule: where several sinks wrote one topic, each record is judged by what holds for all sinks. If nothing does, the
topic is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka_eos.abc.committer import Spread
from kafka_eos.audit.facts.partitioning_history import Regime
from kafka_eos.audit.tables.partition_placement import PartitionPlacement

_ALWAYS = (1 << 63) - 1


def placings(
    ledgers: Iterable[Mapping[str, tuple[Regime, ...]]], partitions: Mapping[str, int]
) -> dict[str, PartitionPlacement]:
    """Return the placement of each topic. ``ledgers``: regimes by sink; ``partitions``: counts by audited topic."""
    regimes_by_topic: dict[str, list[tuple[Regime, ...]]] = {}
    for regimes in (regimes for ledger in ledgers for regimes in ledger.values()):
        for topic in {regime.spread.topic for regime in regimes if regime.spread is not None}:
            regimes_by_topic.setdefault(topic, []).append(regimes)
    found: dict[str, PartitionPlacement] = {}
    for topic, now in partitions.items():
        if regimes := _of_all(regimes_by_topic.get(topic, [])):
            spreads = [regime.spread for regime in regimes if regime.spread is not None]
            found[topic] = PartitionPlacement(spreads[-1].partitioner, now, regimes)
    return found


def _of_all(all_regimes: list[tuple[Regime, ...]]) -> tuple[Regime, ...]:
    """Return the regimes that hold for the records of all sinks; empty if none does."""
    if len({*all_regimes}) <= 1:
        return all_regimes[0] if all_regimes else ()
    joined: Spread | None = None
    for spread in (regime.spread for regimes in all_regimes for regime in regimes):
        joined = spread if joined is None or spread is None else joined.joined(spread)
        if joined is None:
            return ()
    return (Regime(_ALWAYS, joined),)
