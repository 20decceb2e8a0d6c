"""What subtasks have answered for the epochs of one attempt, until one is decided and its answers are put together.

Rule: ``protocol.attempt`` decides; here is only what its decisions are made of.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Tally
from kafka_eos.protocol.actions import Decide
from kafka_eos.runtime.epoch_reports import Acked, by_operator, shown, summed
from kafka_eos.runtime.worker.control_messages import Ack


class Answers:
    """Of one attempt."""

    def __init__(self) -> None:
        self._acks: dict[EpochId, dict[int, Ack]] = {}
        self._counted = Tally()
        """What all subtasks had counted up to the epoch that was decided last."""

    def triggered(self, epoch: EpochId) -> None:
        self._acks[epoch] = {}

    def add(self, ack: Ack, subtask: int) -> bool:
        """Keep a subtask's answer. False, and nothing is kept, if the epoch is over."""
        waits = ack.epoch in self._acks
        if waits:
            self._acks[ack.epoch][subtask] = ack
        return waits

    def drop(self, epoch: EpochId) -> None:
        """The epoch is given up."""
        self._acks.pop(epoch, None)

    def spans(self, epoch: EpochId) -> list[dict[str, object]]:
        """When each phase of an epoch was, in each subtask that has answered."""
        return shown((subtask, span) for subtask, ack in sorted(self._acks[epoch].items()) for span in ack.spans)

    def take(self, decision: Decide) -> tuple[Acked, Mapping[str, object]]:
        """All answers for the epoch as one, with the output of those given up before it; and what to show of it."""
        acks = [ack for _, ack in sorted(self._acks.pop(decision.epoch).items())]
        acked = self._together(acks, decision)
        return acked, {
            "seconds": decision.seconds,
            "blocked_ms": max(ack.blocked_ms for ack in acks),
            "aligning_ms": max(ack.aligning_ms for ack in acks),
            "unanswered": any(ack.unanswered for ack in acks),
            **acked.figures,
            "in_flight_bytes": sum(file.size for part in acked.in_flight for file in part.files),
        }

    def _together(self, acks: Sequence[Ack], decision: Decide) -> Acked:
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
                if decision.takes(EpochId(sealed.epoch, ack.epoch.term))
                for committable in sealed.committables
            ),
            in_flight=tuple(part for ack in acks for part in ack.in_flight),
            tally=self._counted.since(before),
            watermarks=by_operator(ack.watermarks for ack in acks),
            timers=summed(ack.timers for ack in acks),
        )
