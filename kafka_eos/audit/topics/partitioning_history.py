"""How the partitions of topics were chosen, as the ledgers of the jobs that wrote them tell it.

Pure. Rule: where several sinks wrote one topic, each record is judged by what holds of all; if nothing does, the topic
is none of those that are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka_eos.abc.committer import Spread
from kafka_eos.audit.facts.partitioning_history import Regime
from kafka_eos.audit.tables.partition_placement import Placing

_ALWAYS = (1 << 63) - 1


def placings(ledgers: Iterable[Mapping[str, tuple[Regime, ...]]], partitions: Mapping[str, int]) -> dict[str, Placing]:
    """By topic. ``ledgers``: regimes by sink; ``partitions``: how many each audited topic has."""
    told: dict[str, list[tuple[Regime, ...]]] = {}
    for regimes in (regimes for ledger in ledgers for regimes in ledger.values()):
        for topic in {regime.spread.topic for regime in regimes if regime.spread is not None}:
            told.setdefault(topic, []).append(regimes)
    found: dict[str, Placing] = {}
    for topic, now in partitions.items():
        if regimes := _of_all(told.get(topic, [])):
            spreads = [regime.spread for regime in regimes if regime.spread is not None]
            found[topic] = Placing(spreads[-1].partitioner, now, regimes)
    return found


def _of_all(told: list[tuple[Regime, ...]]) -> tuple[Regime, ...]:
    """What holds of the records of all sinks; empty if nothing does."""
    if len({*told}) <= 1:
        return told[0] if told else ()
    joined: Spread | None = None
    for spread in (regime.spread for regimes in told for regime in regimes):
        joined = spread if joined is None or spread is None else joined.joined(spread)
        if joined is None:
            return ()
    return (Regime(_ALWAYS, joined),)
