"""Acknowledgements of subtasks for the epochs of one attempt, collected and merged when an epoch is decided.

Rule: ``protocol.attempt`` decides; this module only collects the contents of its decisions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RecordCounts
from kafka_eos.protocol.actions import DecideEpoch
from kafka_eos.runtime.epoch_reports import EpochContents, merge_watermarks, spans_to_json, sum_by_name
from kafka_eos.runtime.worker.control_messages import AcknowledgeCheckpoint


class EpochAcks:
    """The acknowledgements of each pending epoch of one attempt."""

    def __init__(self) -> None:
        self._acks: dict[EpochId, dict[int, AcknowledgeCheckpoint]] = {}
        self._counted = RecordCounts()
        """Record counts of all subtasks up to the epoch decided last."""

    def open(self, epoch: EpochId) -> None:
        self._acks[epoch] = {}

    def add(self, ack: AcknowledgeCheckpoint, subtask: int) -> bool:
        """Keep a subtask's acknowledgement. Return False, and keep nothing, if the epoch is over."""
        waits = ack.epoch in self._acks
        if waits:
            self._acks[ack.epoch][subtask] = ack
        return waits

    def drop(self, epoch: EpochId) -> None:
        """Drop the acknowledgements of an aborted epoch."""
        self._acks.pop(epoch, None)

    def spans(self, epoch: EpochId) -> list[dict[str, object]]:
        """Return the time span of each phase of an epoch, for each subtask that has acknowledged it."""
        return spans_to_json(
            (subtask, span) for subtask, ack in sorted(self._acks[epoch].items()) for span in ack.spans
        )

    def merge(self, decision: DecideEpoch) -> tuple[EpochContents, Mapping[str, object]]:
        """Merge the acknowledgements of a decided epoch; also return figures for observers."""
        acks = [ack for _, ack in sorted(self._acks.pop(decision.epoch).items())]
        acked = self._together(acks, decision)
        return acked, {
            "seconds": decision.seconds,
            "blocked_ms": max(ack.blocked_ms for ack in acks),
            "aligning_ms": max(ack.aligning_ms for ack in acks),
            "unanswered": any(ack.has_overdue_request for ack in acks),
            **acked.metrics,
            "in_flight_bytes": sum(file.size for part in acked.in_flight for file in part.files),
        }

    def _together(self, acks: Sequence[AcknowledgeCheckpoint], decision: DecideEpoch) -> EpochContents:
        before, self._counted = (
            self._counted,
            functools.reduce(RecordCounts.plus, (ack.tally for ack in acks), RecordCounts()),
        )
        positions: dict[str, Positions] = {}
        for ack in acks:
            for source, at in ack.positions.items():
                positions.setdefault(source, {}).update(at)
        return EpochContents(
            positions=positions,
            parallelism=len(acks),
            states=tuple(handle for ack in acks for handle in ack.states),
            committables=tuple(
                committable
                for ack in acks
                for sealed in ack.sealed
                if decision.includes(EpochId(sealed.epoch, ack.epoch.term))
                for committable in sealed.committables
            ),
            in_flight=tuple(part for ack in acks for part in ack.in_flight),
            tally=self._counted.since(before),
            watermarks=merge_watermarks(ack.watermarks for ack in acks),
            timers=sum_by_name(ack.timers for ack in acks),
        )
