"""What is shown of an epoch: late rows of the run, the state of each operator, how far each split has come."""

from __future__ import annotations

from typing import Any

from kafka_eos.coordinator.handover import Acked, by_operator, summed
from kafka_eos.coordinator.refusals import Refusals
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import Committable, FileRef, StateHandle
from kafka_eos.records import Tally


def handle(operator: str, *sizes: int) -> StateHandle:
    files = tuple(FileRef(f"file-{n}", f"{n}", size) for n, size in enumerate(sizes))
    return StateHandle(operator, "memory", (0, 127), files, ())


def test_the_state_of_each_operator_is_that_of_all_its_subtasks() -> None:
    states = (handle("total", 3, 4), handle("other", 5), handle("total", 1), handle("none"))
    acked = Acked({}, states, (), tally=Tally(read={"orders": 9}))

    assert acked.figures == {
        "state_bytes": 13,
        "state_bytes_by_operator": {"none": 0, "other": 5, "total": 8},
        "committables": 0,
        "read": {"orders": 9},
        "records_by_sink": {},
    }


def test_records_of_a_sink_are_those_of_all_its_committables() -> None:
    parts = tuple(Committable("kafka", {}, 5, {"b": 2, "a": 3}) for _ in range(2))

    figures = Acked({}, (), parts).figures

    assert (figures["committables"], figures["records_by_sink"]) == (2, {"a": 6, "b": 4})


def test_each_subtask_tells_of_its_own_splits() -> None:
    told = by_operator([{"times": {"t/0": 1}}, {"times": {"t/1": 2}, "others": {"u/0": 3}}, {}])

    assert told == {"times": {"t/0": 1, "t/1": 2}, "others": {"u/0": 3}}
    assert Acked({}, (), (), watermarks=told).figures["watermarks"] == told


def test_pending_timers_are_those_of_all_subtasks_and_segments() -> None:
    told = summed([{"windows": 3}, {"windows": 4, "alerts": 0}, {}])

    assert Acked({}, (), (), timers=told).figures["pending_timers"] == {"alerts": 0, "windows": 7}
    assert "pending_timers" not in Acked({}, (), ()).figures


def test_late_rows_are_told_of_the_epoch_and_of_the_run_and_not_of_one_that_is_undone() -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    refusals = Refusals("none", 1000, lambda event, **facts: said.append((event, facts)), [].append)
    for number, late in ((1, {"windows": 2}), (2, {}), (3, {"windows": 1, "alerts": 4})):
        refusals.deciding(EpochId(Epoch(number), Term(1)), Tally(late=dict(late)))
        refusals.decided()
    refusals.goes_on_from(EpochId(Epoch(2), Term(1)))

    assert said == [
        ("late-rows", {"epoch": 1, "counts": {"windows": 2}, "total": {"windows": 2}}),
        ("late-rows", {"epoch": 3, "counts": {"windows": 1, "alerts": 4}, "total": {"alerts": 4, "windows": 3}}),
        ("late-rows", {"epoch": 3, "counts": {}, "total": {"windows": 2}}),
    ]
