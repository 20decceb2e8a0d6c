"""Acknowledgements of an epoch: what is decided has the part of each subtask."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.records import RecordCounts
from kafka_eos.embedded.ack_collector import EpochAcks
from kafka_eos.protocol.actions import DecideEpoch
from kafka_eos.runtime.epoch_reports import EpochContents, PhaseSpan
from kafka_eos.runtime.worker.control_messages import AcknowledgeCheckpoint, SealedOutput

TERM = Term(7)


def ref(name: str) -> FileRef:
    return FileRef(name, "0" * 64, 10)


def state(subtask: int) -> StateHandle:
    return StateHandle("total", "memory", (subtask, subtask), (ref(f"state-{subtask}"),), ())


def rows(subtask: int) -> InFlightRows:
    return InFlightRows("by-key", {}, (ref(f"rows-{subtask}"),), False)


def output(subtask: int, epoch: int) -> Committable:
    return Committable("memory", {"at": f"{subtask}/{epoch}"}, 1)


def ack(subtask: int, epoch: int, *sealed: int) -> AcknowledgeCheckpoint:
    """What differs between the subtasks is a number of theirs, and counts are powers of ten."""
    return AcknowledgeCheckpoint(
        session=7,
        epoch=EpochId(Epoch(epoch), TERM),
        positions={"n": {SplitId(f"n/{subtask}"): {"index": epoch}}},
        states=(state(subtask),),
        sealed=tuple(SealedOutput(Epoch(each), (output(subtask, each), output(9, each))) for each in sealed),
        in_flight=(rows(subtask),),
        tally=RecordCounts(read={"n": epoch * 10**subtask}),
        watermarks={"times": {f"n/{subtask}": 1000 + subtask}},
        blocked_ms=float(5 - subtask % 2),
        aligning_ms=float(subtask % 2),
        timers={"total": 10**subtask},
        has_overdue_request=subtask == 2,
        spans=(PhaseSpan("align", float(subtask), subtask + 1.0), PhaseSpan("upload", 4.0, 5.0)),
    )


@pytest.fixture
def acks() -> EpochAcks:
    return EpochAcks()


def decided(acks: EpochAcks, epoch: int, previous: int | None, *sealed: int) -> tuple[EpochContents, Any]:
    own = EpochId(Epoch(epoch), TERM)
    acks.open(own)
    for subtask in (2, 0, 1):
        assert acks.add(ack(subtask, epoch, *sealed), subtask)
    return acks.merge(DecideEpoch(own, None if previous is None else EpochId(Epoch(previous), TERM), 0.5))


def test_an_epoch_has_the_part_of_each_subtask(acks: EpochAcks) -> None:
    made, shown = decided(acks, 3, None, 3)

    assert made == EpochContents(
        positions={"n": {SplitId(f"n/{subtask}"): {"index": 3} for subtask in range(3)}},
        states=tuple(map(state, range(3))),
        committables=tuple(each for subtask in range(3) for each in (output(subtask, 3), output(9, 3))),
        in_flight=tuple(map(rows, range(3))),
        parallelism=3,
        tally=RecordCounts(read={"n": 333}),
        watermarks={"times": {f"n/{subtask}": 1000 + subtask for subtask in range(3)}},
        timers={"total": 111},
    )
    figures = ("seconds", "blocked_ms", "aligning_ms", "unanswered", "in_flight_bytes", "state_bytes")
    assert {name: shown[name] for name in figures} == dict(zip(figures, (0.5, 5.0, 1.0, True, 30, 30), strict=True))


def test_output_belongs_to_the_epochs_since_the_one_decided_before(acks: EpochAcks) -> None:
    """Those in between were aborted. Records are counted since that epoch, too."""
    decided(acks, 2, None)
    acks.open(EpochId(Epoch(3), TERM))
    acks.drop(EpochId(Epoch(3), TERM))
    assert not acks.add(ack(0, 3), 0), "it is over"
    made, _ = decided(acks, 4, 2, 1, 2, 3, 4)

    at = [committable.payload["at"] for committable in made.committables]
    assert at == [f"{by}/{epoch}" for subtask in range(3) for epoch in (3, 4) for by in (subtask, 9)]
    assert made.tally == RecordCounts(read={"n": 222})


def test_the_spans_of_an_epoch_are_those_of_all_who_have_answered(acks: EpochAcks) -> None:
    own = EpochId(Epoch(3), TERM)
    acks.open(own)
    for subtask in (2, 0):
        acks.add(ack(subtask, 3), subtask)

    assert [(span["worker"], span["phase"]) for span in acks.spans(own)] == [
        (0, "align"),
        (0, "upload"),
        (2, "align"),
        (2, "upload"),
    ]
