"""What an engine and the coordinator hand to each other. Rule: plain values; neither knows how the other got them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.interfaces import Committable, InFlight, Positions, StateHandle
from kafka_eos.records import Tally


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where an attempt starts: the job's identity, its term, the decided epoch it continues, all positions."""

    identity: JobIdentity
    term: Term
    base: EpochId
    first_epoch: Epoch
    states: tuple[StateHandle, ...]
    positions: Mapping[str, Positions]
    in_flight: tuple[InFlight, ...] = ()


@dataclass(frozen=True, slots=True)
class Acked:
    """What the subtasks acknowledged for one epoch, put together."""

    positions: Mapping[str, Positions]
    states: tuple[StateHandle, ...]
    committables: tuple[Committable, ...]
    in_flight: tuple[InFlight, ...] = ()
    parallelism: int = 1
    tally: Tally = field(default_factory=Tally)
    """What was read in this epoch, what was refused, and what was late."""
    watermarks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How far each split has come in event time, by the operator that makes its watermarks."""
    timers: Mapping[str, int] = field(default_factory=dict)
    """How many are pending, by operator."""

    @property
    def figures(self) -> dict[str, object]:
        """What is shown of the epoch, whichever engine made it."""
        sizes: Counter[str] = Counter()
        for handle in self.states:
            sizes[handle.operator] += sum(file.size for file in handle.files)
        shown: dict[str, object] = {
            "state_bytes": sizes.total(),
            "state_bytes_by_operator": dict(sorted(sizes.items())),
            "committables": len(self.committables),
            "records_by_sink": by_sink(self.committables),
        }
        if self.timers:
            shown["pending_timers"] = dict(sorted(self.timers.items()))
        return {**shown, "watermarks": self.watermarks} if self.watermarks else shown


def figures_of(manifest: Manifest, expires_in: float) -> dict[str, object]:
    """What is shown of an epoch that is committed. ``expires_in``: as ``Epochs.finish`` returns."""
    return {
        "epoch": manifest.epoch,
        "records": sum(committable.records for committable in manifest.committables),
        "records_by_sink": by_sink(manifest.committables),
        "expires_in": expires_in if math.isfinite(expires_in) else None,
    }


def by_sink(committables: Iterable[Committable]) -> dict[str, int]:
    """How many records they make visible, by sink."""
    return dict(sorted(summed(committable.by_sink for committable in committables).items()))


def summed(told: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Of all parts together, by name."""
    found: dict[str, int] = {}
    for each in told:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found


def by_operator(told: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Watermarks of all splits, of what each subtask has told of its own."""
    found: dict[str, dict[str, int]] = {}
    for each in told:
        for operator, splits in each.items():
            found.setdefault(operator, {}).update(splits)
    return found
