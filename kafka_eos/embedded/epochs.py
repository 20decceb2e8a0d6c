"""The epochs of one attempt that are on their way: what was triggered, who has answered, what is decided next.

Rule: ``protocol.checkpoint.Flights`` decides; here are the answers that it counts, put together when it says so.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.coordinator import Acked
from kafka_eos.embedded.control import Ack
from kafka_eos.failpoints import hit
from kafka_eos.ids import EpochId
from kafka_eos.interfaces import Positions
from kafka_eos.protocol.checkpoint import Cadence, Flights, Kind
from kafka_eos.records import Tally


@dataclass(frozen=True, slots=True)
class Complete:
    """An epoch that may be decided: all answers together, and what to show of it."""

    epoch: EpochId
    acked: Acked
    facts: Mapping[str, object]


class Epochs:
    """At most ``limit`` epochs are on their way at once. All times are of the monotonic clock, in seconds."""

    def __init__(self, cadence: Cadence, limit: int, subtasks: Sequence[int]) -> None:
        self._cadence, self.limit, self._subtasks = cadence, limit, frozenset(subtasks)
        self._flights = Flights(limit)
        self._acks: dict[EpochId, dict[int, Ack]] = {}
        self._triggered: dict[EpochId, float] = {}
        self._reasons: dict[EpochId, str] = {}
        """Why epochs were declined."""
        self._kinds: dict[EpochId, Kind] = {}
        self._counted = Tally()
        """What all subtasks had counted up to the epoch that was decided last."""
        self._last_triggered = self._last_completed = time.monotonic()

    @property
    def none(self) -> bool:
        """Nothing is on its way."""
        return not self._flights.pending and not self._flights.committing

    @property
    def full(self) -> bool:
        """May no other be triggered now?"""
        return self._flights.full or any(self._kinds[pending.id].drains for pending in self._flights.pending)

    @property
    def others(self) -> bool:
        """Is any epoch on its way that is not decided?"""
        return bool(self._flights.pending)

    @property
    def due(self) -> float:
        """When the next one should be triggered, room provided."""
        return self._cadence.next_trigger(self._last_triggered, self._last_completed)

    def trigger(self, epoch: EpochId, now: float, kind: Kind) -> None:
        """One more is on its way. If it drains, no other may be triggered before it is decided or given up."""
        self._flights = self._flights.trigger(epoch, self._subtasks, now)
        self._triggered[epoch] = self._last_triggered = now
        self._acks[epoch], self._kinds[epoch] = {}, kind

    def ack(self, ack: Ack, subtask: int) -> None:
        """A subtask has answered; changes nothing if nobody waits for that."""
        before, self._flights = self._flights, self._flights.ack(ack.epoch, subtask)
        if self._flights != before:
            self._acks[ack.epoch][subtask] = ack
            hit("coordinator.ack")

    def decline(self, epoch: EpochId, subtask: int, reason: str) -> None:
        """A subtask cannot answer; changes nothing if nobody waits for that."""
        before, self._flights = self._flights, self._flights.decline(epoch, subtask)
        if self._flights != before:
            self._reasons[epoch] = f"declined by subtask {subtask}: {reason}"

    def hopeless(self) -> tuple[EpochId, str] | None:
        """The epoch to give up now because it was declined, and why that was."""
        epoch = self._flights.hopeless()
        return None if epoch is None else (epoch, self._reasons[epoch])

    def expired(self, now: float) -> tuple[EpochId, ...]:
        """Epochs that have taken too long."""
        return self._flights.expired(self._cadence, now)

    def kind(self, epoch: EpochId) -> Kind:
        """What an epoch on its way was triggered for."""
        return self._kinds[epoch]

    def triggered_at(self, epoch: EpochId) -> float:
        """When an epoch on its way was triggered."""
        return self._triggered[epoch]

    def missing(self, epoch: EpochId) -> list[int]:
        """Who has not answered."""
        return sorted(self._subtasks - self._acks[epoch].keys())

    def abort(self, epoch: EpochId) -> None:
        """Give it up; its output goes into the next one."""
        self._flights = self._flights.abort(epoch)
        self._acks.pop(epoch, None)
        self._kinds.pop(epoch, None)
        self._reasons.pop(epoch, None)

    def ready(self) -> Complete | None:
        """The epoch to decide now."""
        epoch = self._flights.ready()
        if epoch is None:
            return None
        acks = list(self._acks.pop(epoch).values())
        acked = self._together(acks)
        facts = {
            "seconds": time.monotonic() - self._triggered[epoch],
            "blocked_ms": max(ack.blocked_ms for ack in acks),
            "aligning_ms": max(ack.aligning_ms for ack in acks),
            "state_bytes": sum(file.size for handle in acked.states for file in handle.files),
            "in_flight_bytes": sum(file.size for part in acked.in_flight for file in part.files),
        }
        return Complete(epoch, acked, facts)

    def decided(self, epoch: EpochId) -> None:
        self._flights = self._flights.decided(epoch)

    def committed(self, manifest: Manifest) -> float:
        """The receipt is written. Returns the seconds since the trigger."""
        self._flights = self._flights.committed(manifest.id)
        self._last_completed = time.monotonic()
        began = self._triggered[manifest.id]
        self._triggered = {epoch: at for epoch, at in self._triggered.items() if epoch > manifest.id}
        self._kinds = {epoch: kind for epoch, kind in self._kinds.items() if epoch > manifest.id}
        return self._last_completed - began

    def _together(self, acks: Sequence[Ack]) -> Acked:
        """The answers of all subtasks as one, with the output of epochs that were given up before this one."""
        before, self._counted = self._counted, functools.reduce(Tally.plus, (ack.tally for ack in acks), Tally())
        positions: dict[str, Positions] = {}
        for ack in acks:
            for source, at in ack.positions.items():
                positions.setdefault(source, {}).update(at)
        return Acked(
            positions=positions,
            parallelism=len(acks),
            states=tuple(handle for ack in acks for handle in ack.states),
            committables=tuple(
                committable
                for ack in acks
                for sealed in ack.sealed
                if self._flights.takes(EpochId(sealed.epoch, ack.epoch.term))
                for committable in sealed.committables
            ),
            in_flight=tuple(part for ack in acks for part in ack.in_flight),
            tally=self._counted.since(before),
        )
