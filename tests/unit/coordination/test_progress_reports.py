"""What is shown of an epoch: late rows of the run, the state of each operator, how far each split has come."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import state_files as progress
from kafka_eos.coordination.dead_letter_counts import DeadLetterFile, DeadLetterMonitor, read_dead_letter_file
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.failure_causes import RemoteUserError, failing_record
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.record_preview import RecordExcerpt
from kafka_eos.core.records import RecordCounts, Rejection
from kafka_eos.runtime.epoch_reports import (
    EpochContents,
    TimedPreCommit,
    count_records_by_sink,
    merge_watermarks,
    sum_by_name,
)
from kafka_eos.storage import object_names as paths

INSIDE = RecordExcerpt.of(-1, None, None, (), "ValueError: bad")


def handle(operator: str, *sizes: int) -> StateHandle:
    files = tuple(FileRef(f"file-{n}", f"{n}", size) for n, size in enumerate(sizes))
    return StateHandle(operator, "memory", (0, 127), files, ())


def test_the_state_of_each_operator_is_that_of_all_its_subtasks() -> None:
    states = (handle("total", 3, 4), handle("other", 5), handle("total", 1), handle("none"))
    acked = EpochContents({}, states, (), tally=RecordCounts(read={"orders": 9}))

    assert acked.metrics == {
        "state_bytes": 13,
        "state_bytes_by_operator": {"none": 0, "other": 5, "total": 8},
        "committables": 0,
        "read": {"orders": 9},
        "records_by_sink": {},
    }


def test_records_of_a_sink_are_those_of_all_its_committables() -> None:
    parts = tuple(Committable("kafka", {}, 5, {"b": 2, "a": 3}) for _ in range(2))

    figures = EpochContents({}, (), parts).metrics

    assert (figures["committables"], figures["records_by_sink"]) == (2, {"a": 6, "b": 4})


def test_each_subtask_tells_of_its_own_splits() -> None:
    told = merge_watermarks([{"times": {"t/0": 1}}, {"times": {"t/1": 2}, "others": {"u/0": 3}}, {}])

    assert told == {"times": {"t/0": 1, "t/1": 2}, "others": {"u/0": 3}}
    assert EpochContents({}, (), (), watermarks=told).metrics["watermarks"] == told


def test_pending_timers_are_those_of_all_subtasks_and_segments() -> None:
    told = sum_by_name([{"windows": 3}, {"windows": 4, "alerts": 0}, {}])

    assert EpochContents({}, (), (), timers=told).metrics["pending_timers"] == {"alerts": 0, "windows": 7}
    assert "pending_timers" not in EpochContents({}, (), ()).metrics


def test_late_rows_are_told_of_the_epoch_and_of_the_run_and_not_of_one_that_is_undone() -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    refusals = DeadLetterMonitor("none", 1000, lambda event, **facts: said.append((event, facts)), [].append)
    for number, late in ((1, {"windows": 2}), (2, {}), (3, {"windows": 1, "alerts": 4})):
        refusals.check_epoch(EpochId(Epoch(number), Term(1)), RecordCounts(late=dict(late)))
        refusals.confirm()
    refusals.rewind_to(EpochId(Epoch(2), Term(1)))

    assert said == [
        ("late-rows", {"epoch": 1, "counts": {"windows": 2}, "total": {"windows": 2}}),
        ("late-rows", {"epoch": 3, "counts": {"windows": 1, "alerts": 4}, "total": {"alerts": 4, "windows": 3}}),
        ("late-rows", {"epoch": 3, "counts": {}, "total": {"windows": 2}}),
    ]


def test_what_is_left_out_and_refused_is_told_and_kept_until_it_is_undone() -> None:
    said, kept = list[tuple[str, Any]](), list[Any]()
    refusals = DeadLetterMonitor("none", 1000, lambda event, **facts: said.append((event, facts)), kept.append)
    refusals.confirm()
    for number in (1, 2):
        tally = RecordCounts({"orders": 10}, filtered={"orders": 2})
        for at in range(2):
            tally.add_rejection("orders", Rejection(f"orders/0/{number}{at}", "parse", f"bad {number}{at}", INSIDE))
        refusals.check_epoch(EpochId(Epoch(number), Term(1)), tally)
        refusals.confirm()
        refusals.confirm()

    told = [facts["first"]["orders"] for event, facts in said if event == "dead-letters"]
    assert told[0] == [{"where": f"orders/0/1{at}", "operator": "parse", "reason": f"bad 1{at}"} for at in range(2)]
    assert [[each.where for each in some["orders"]][:2] for some in kept] == [["orders/0/10", "orders/0/11"]] * 2
    assert [facts["total"] for event, facts in said if event == "filtered"] == [{"orders": 2}, {"orders": 4}]
    refusals.rewind_to(EpochId(Epoch(1), Term(1)))
    assert [(event, facts["counts"]) for event, facts in said[4:]] == [("dead-letters", {}), ("filtered", {})]
    refusals.rewind_to(None)
    assert len(said) == 6


def test_figures_are_in_the_order_of_names() -> None:
    """As they are shown."""
    acked = EpochContents({}, (handle("total", 1), handle("other", 2)), (), timers={"windows": 1, "alerts": 2})

    assert [*acked.metrics["state_bytes_by_operator"]] == ["other", "total"]  # type: ignore[misc]
    assert [*acked.metrics["pending_timers"]] == ["alerts", "windows"]  # type: ignore[misc]
    assert [*count_records_by_sink([Committable("kafka", {}, 5, {"b": 2, "a": 3})])] == ["a", "b"]


def test_a_sink_that_prepares_its_output_says_how_long_that_took() -> None:
    committable = Committable("kafka", {}, 5)
    prepare = TimedPreCommit("out", lambda: [committable])

    assert prepare() == [committable]
    (span,) = prepare.spans
    assert (span.phase, span.operator, span.started <= span.ended) == ("prepare", "out", True)


def test_which_record_was_at_fault_is_told_wherever_it_was_refused() -> None:
    here, there = PoisonRecord("orders/0/1", "parse", "bad"), RemoteUserError("E", "bad", "f", "o/0/2")

    assert failing_record(here) == {"operator": "parse", "where": "orders/0/1"}
    assert failing_record(there) == {"operator": "f", "where": "o/0/2"}
    assert failing_record(RemoteUserError("E", "bad")) == failing_record(ValueError("bad")) == {}
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
    refusals = DeadLetterMonitor("none", 1000, lambda event, **facts: said.append(event), [].append)
    tally = RecordCounts({"orders": 10}, late={"windows": 1}, filtered={"orders": 2})
    tally.add_rejection("orders", Rejection("orders/0/1", "parse", "bad", INSIDE))
    refusals.check_epoch(EpochId(Epoch(1), Term(1)), tally)

    refusals.rewind_to(None)
    refusals.confirm()

    assert said == []


def test_the_first_dead_letters_of_a_run_are_kept_in_one_file(tmp_path: Path) -> None:
    notices: list[str] = []
    file = DeadLetterFile(tmp_path, notices.append)
    samples = {name: [Rejection(f"{name}/0/{n}", "parse", "bad", INSIDE) for n in range(2)] for name in ("a", "b")}
    file.begin()
    assert read_dead_letter_file(tmp_path) == {}
    for content in (samples, {"a": samples["a"][:1]}):
        file.write(content)
        assert read_dead_letter_file(tmp_path) == content
    (written,) = tmp_path.iterdir()
    assert (written.name, written.stat().st_mode & 0o777, notices) == (paths.DEAD_LETTER_SAMPLES, 0o600, [])

    written.write_bytes(b"{")
    with pytest.raises(ValueError, match="is damaged"):
        read_dead_letter_file(tmp_path)
    file.begin()
    assert read_dead_letter_file(tmp_path) == {}


def test_a_file_of_dead_letters_that_cannot_be_written_is_told_once_an_outage(tmp_path: Path) -> None:
    notices: list[str] = []
    directory = tmp_path / "orders"
    file = DeadLetterFile(directory, notices.append)
    for outage in (1, 2):
        for _ in range(2):
            file.write({})
        assert len(notices) == outage and "cannot be written" in notices[-1]
        directory.mkdir()
        file.write({})
        shutil.rmtree(directory)
