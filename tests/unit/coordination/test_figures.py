"""What is shown of an epoch: late rows of the run, the state of each operator, how far each split has come."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import recovery as progress
from kafka_eos.coordination.dead_letter_counts import Refusals
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.failure_causes import RefusedElsewhere, record_of
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.record_preview import Inside
from kafka_eos.core.records import Refusal, Tally
from kafka_eos.runtime.epoch_reports import Acked, Prepare, by_operator, by_sink, summed

INSIDE = Inside.of(-1, None, None, (), "ValueError: bad")


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


def test_what_is_left_out_and_refused_is_told_and_kept_until_it_is_undone() -> None:
    said, kept = list[tuple[str, Any]](), list[Any]()
    refusals = Refusals("none", 1000, lambda event, **facts: said.append((event, facts)), kept.append)
    refusals.decided()
    for number in (1, 2):
        tally = Tally({"orders": 10}, left_out={"orders": 2})
        for at in range(2):
            tally.refuses("orders", Refusal(f"orders/0/{number}{at}", "parse", f"bad {number}{at}", INSIDE))
        refusals.deciding(EpochId(Epoch(number), Term(1)), tally)
        refusals.decided()
        refusals.decided()

    told = [facts["first"]["orders"] for event, facts in said if event == "dead-letters"]
    assert told[0] == [{"where": f"orders/0/1{at}", "operator": "parse", "reason": f"bad 1{at}"} for at in range(2)]
    assert [[each.where for each in some["orders"]][:2] for some in kept] == [["orders/0/10", "orders/0/11"]] * 2
    assert [facts["total"] for event, facts in said if event == "left-out"] == [{"orders": 2}, {"orders": 4}]
    refusals.goes_on_from(EpochId(Epoch(1), Term(1)))
    assert [(event, facts["counts"]) for event, facts in said[4:]] == [("dead-letters", {}), ("left-out", {})]
    refusals.goes_on_from(None)
    assert len(said) == 6


def test_figures_are_in_the_order_of_names() -> None:
    """As they are shown."""
    acked = Acked({}, (handle("total", 1), handle("other", 2)), (), timers={"windows": 1, "alerts": 2})

    assert [*acked.figures["state_bytes_by_operator"]] == ["other", "total"]  # type: ignore[misc]
    assert [*acked.figures["pending_timers"]] == ["alerts", "windows"]  # type: ignore[misc]
    assert [*by_sink([Committable("kafka", {}, 5, {"b": 2, "a": 3})])] == ["a", "b"]


def test_a_sink_that_prepares_its_output_says_how_long_that_took() -> None:
    committable = Committable("kafka", {}, 5)
    prepare = Prepare("out", lambda: [committable])

    assert prepare() == [committable]
    (span,) = prepare.spans
    assert (span.phase, span.operator, span.began <= span.ended) == ("prepare", "out", True)


def test_which_record_was_at_fault_is_told_wherever_it_was_refused() -> None:
    here, there = PoisonRecord("orders/0/1", "parse", "bad"), RefusedElsewhere("E", "bad", "f", "o/0/2")

    assert record_of(here) == {"operator": "parse", "where": "orders/0/1"}
    assert record_of(there) == {"operator": "f", "where": "o/0/2"}
    assert record_of(RefusedElsewhere("E", "bad")) == record_of(ValueError("bad")) == {}
    assert str(there) == "bad"


def test_work_that_takes_long_tells_how_far_it_is_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said, checks = [100.0], list[str](), list[None]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    report = progress.Reporter("verified", said.append, lambda: checks.append(None))
    for seconds in (0, 4, 5, 6, 9, 10, 14):
        now[0] = 100.0 + seconds
        report(seconds * 1_000_000, 20_000_000)

    assert said == [f"verified {seconds} of 20 MB of state" for seconds in (5, 10)]
    assert len(checks) == 7


def test_what_was_late_or_left_out_in_an_epoch_that_is_never_decided_is_not_told() -> None:
    said: list[str] = []
    refusals = Refusals("none", 1000, lambda event, **facts: said.append(event), [].append)
    tally = Tally({"orders": 10}, late={"windows": 1}, left_out={"orders": 2})
    tally.refuses("orders", Refusal("orders/0/1", "parse", "bad", INSIDE))
    refusals.deciding(EpochId(Epoch(1), Term(1)), tally)

    refusals.goes_on_from(None)
    refusals.decided()

    assert said == []
