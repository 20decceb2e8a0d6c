"""The partitioner and the partition counts of a sink's records over time, from the epoch ledger.

Pure. Rule: epochs without these facts in the ledger form a separate regime with unknown values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafka_eos.abc.committer import Spread
from kafka_eos.storage.epoch_ledger import LedgerEntry


@dataclass(frozen=True, slots=True)
class Regime:
    """The partitioning of the epochs after the previous regime, up to this number; ``spread`` is None if unknown."""

    until: int
    spread: Spread | None


def regimes(entries: Iterable[LedgerEntry]) -> dict[str, tuple[Regime, ...]]:
    """Return the regimes by sink, in the order of epochs. ``entries`` are in the same order."""
    found: dict[str, list[Regime]] = {}
    before, entries = -1, list(entries)
    sinks = {sink for entry in entries for sink in entry.outputs}
    for entry in entries:
        epoch = entry.id.epoch.n
        written_sinks = entry.outputs if not entry.unattributed else sinks
        for sink in written_sinks:
            _add(found.setdefault(sink, []), epoch, entry.spread.get(sink), gap=epoch > before + 1)
        before = epoch
    return {sink: tuple(_joined(each)) for sink, each in found.items()}


def _add(so_far: list[Regime], epoch: int, spread: Spread | None, *, gap: bool) -> None:
    """Add an epoch. ``gap``: epochs without an entry precede this one; outputs may name them."""
    if gap and epoch > 0:
        known = so_far[-1].spread if so_far else None
        so_far.append(Regime(epoch - 1, _either(known, spread)))
    so_far.append(Regime(epoch, spread))


def _either(one: Spread | None, other: Spread | None) -> Spread | None:
    return None if one is None or other is None else one.joined(other)


def _joined(each: Iterable[Regime]) -> list[Regime]:
    """Merge adjacent entries that are the same."""
    joined: list[Regime] = []
    for regime in each:
        if joined and joined[-1].spread == regime.spread:
            joined.pop()
        joined.append(regime)
    return joined
