"""Figures of workers: put together, and where time goes."""

from __future__ import annotations

import msgspec
import pytest

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.core.ids import Term
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.runtime.worker import task_stats as figures
from kafka_eos.runtime.worker.task_stats import (
    NOTHING,
    AlignmentStatus,
    ChainTimes,
    EventTimeMetrics,
    OperatorMetrics,
    SourceMetrics,
    SplitMetrics,
    WorkerMetrics,
    merge,
)
from kafka_eos.runtime.worker.worker_runtime import select_shown_positions
from kafka_eos.testing import ListSource


def worker(split: str, records: int, lag: int | None, held: AlignmentStatus | None = None) -> WorkerMetrics:
    read = {"in": SourceMetrics(records, {split: SplitMetrics({"offset": records}, lag)})}
    groups, segments = {"default": held} if held else {}, {"in": {"busy": 1.5, "blocked": 0.5}}
    operators = {
        "map": OperatorMetrics(records, 2 * records, busy=1.0, blocked=0.5, idle=2.5, cache_misses=1, entries=2)
    }
    return WorkerMetrics(read, {"out": records}, lag, groups, segments, operators, {"out": 1})


def test_workers_are_told_as_one() -> None:
    assert merge([worker("a-0", 3, 10), worker("a-1", 4, 5)]) == {
        "records_in": 7,
        "records_out": 7,
        "lag": 15,
        "read": {
            "in": {
                "records": 7,
                "splits": {
                    "a-0": {"position": {"offset": 3}, "lag": 10},
                    "a-1": {"position": {"offset": 4}, "lag": 5},
                },
            }
        },
        "written": {"out": 7},
        "segments": {"in": {"busy": 3.0, "blocked": 1.0}},
        "operators": {
            "map": {
                "rows_in": 7,
                "rows_out": 14,
                "busy": 2.0,
                "blocked": 1.0,
                "idle": 5.0,
                "cache_misses": 2,
                "entries": 4,
            }
        },
        "open": {"out": 2},
    }


def test_one_worker_that_has_told_nothing_makes_the_lag_unknown() -> None:
    assert merge([worker("a-0", 3, 10), NOTHING])["lag"] is None


@pytest.mark.parametrize("turn", [1, -1])
def test_the_slowest_of_all_workers_is_who_is_waited_for(turn: int) -> None:
    here = AlignmentStatus(("in", "a-0"), 500, {"in": ["a-2"]})
    there = AlignmentStatus(("in", "a-1"), 100, {"in": ["a-3"]})
    nobody = AlignmentStatus(None, 2**63 - 1, {})

    told = merge([worker(f"a-{n}", 1, 0, held) for n, held in enumerate((here, there, nobody)[::turn])])

    waiting = told["waiting"]
    assert isinstance(waiting, dict)
    assert waiting["default"]["slowest"] == {"source": "in", "split": "a-1", "time": 100}
    assert sorted(waiting["default"]["waiting"]["in"]) == ["a-2", "a-3"]


def test_one_that_has_told_no_time_is_the_slowest_of_all() -> None:
    told = merge([worker("a-0", 1, 0, AlignmentStatus(("in", "a-0"), MIN_EVENT_TIME, {}))])
    assert told["waiting"] == {"default": {"slowest": {"source": "in", "split": "a-0", "time": None}, "waiting": {}}}


def test_blocked_is_from_the_first_look_without_room_to_the_next_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(figures.time, "perf_counter", lambda: clock[0])
    spent = ChainTimes()
    for room in (True, False, False, True, True, False):
        assert spent.note_room(room) is room
        clock[0] += 1
    clock[0] += 1

    assert spent.seconds() == {"busy": 0.0, "reading": 0.0, "blocked": 2.0 + 2.0}


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        ([(100, False, (100, "a-0")), (MIN_EVENT_TIME, False, (MIN_EVENT_TIME, "a-1"))], (None, "a-1")),
        ([(100, False, (100, "a-0")), (70, False, (70, "a-1"))], (70, "a-1")),
        ([(100, False, (100, "a-0")), (70, True, None)], (100, "a-0")),
        ([(100, True, None), (70, True, None)], (100, None)),
    ],
)
def test_the_watermark_of_all_workers_and_the_split_that_holds_it_back(
    workers: list[tuple[int, bool, tuple[int, str] | None]], told: tuple[int | None, str | None]
) -> None:
    at = [msgspec.structs.replace(NOTHING, event_time={"op": EventTimeMetrics(*each)}) for each in workers]

    assert merge(at)["event_time"] == {"op": {"watermark": told[0], "waits_for": told[1]}}


@pytest.mark.limits(splits_shown=2)
def test_of_very_many_splits_those_with_more_to_read_are_reported() -> None:
    source = ListSource([1, 2, 3, 4], splits=4)
    context = JobContext("job", Term(1), {})
    reader = source.reader(TaskContext(context, 0, 1, "numbers", Services()), source.discover(context, None))
    reader.poll(1, 0)
    reader.poll(1, 0)
    at_end = {*reader.list_splits_at_end()}

    shown = select_shown_positions(reader)

    assert len(shown) == 2
    assert len(at_end) == 2
    assert at_end.isdisjoint(shown)
