"""Keys with many waiting rows: the work for a row and for a timer does not grow with their number.

Work is counted in executed lines of Python, so that the speed of the machine does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos import KeyedStream, Pipeline, agg, connect, monotonic, session, sliding, tumbling
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.run_local import run_plan

ROWS = 60
Row = tuple[str, int]


def keyed(pipeline: Pipeline, source: str) -> KeyedStream[str, Row]:
    timed = pipeline.source(ListSource([]), name=source).with_timestamps(lambda row: row[1], watermarks=monotonic())
    return timed.key_by(lambda row: row[0], values=Row, name=f"by-{source}")


def pair(one: Row, other: Row) -> tuple[Row, Row]:
    return one, other


def join_windows(assigner: Any) -> Callable[[Pipeline], Any]:
    return lambda p: connect(keyed(p, "left"), keyed(p, "right")).window_join(assigner, pair, name="join")


def join_intervals(pipeline: Pipeline) -> Any:
    both = connect(keyed(pipeline, "left"), keyed(pipeline, "right"))
    return both.interval_join(pair, lower=0, upper=0.5, name="join")


def find_sessions(pipeline: Pipeline) -> Any:
    return keyed(pipeline, "left").window(session(gap=1)).aggregate(n=agg.count(), name="sessions")


def count_lines(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call executes, each turn of a loop included."""
    lines = 0

    def trace(frame: object, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.limits("usual")
@pytest.mark.parametrize("apart", [1, 1500], ids=["in-one-session", "in-many-sessions"])
@pytest.mark.parametrize(
    "build",
    [
        join_windows(tumbling(seconds=1)),
        join_windows(sliding(seconds=2, every=1)),
        join_windows(session(gap=1)),
        join_intervals,
        find_sessions,
    ],
    ids=["tumbling-join", "sliding-join", "session-join", "interval-join", "session-windows"],
)
def test_many_rows_of_one_key_take_a_time_that_grows_with_their_number_and_not_with_its_square(
    build: Callable[[Pipeline], Any], apart: int
) -> None:
    pipeline = Pipeline("hot")
    build(pipeline).sink(MemorySink(), name="sink")
    plan = pipeline.plan()

    def run(rows: int) -> int:
        inputs = {"left": [("k", number * apart) for number in range(rows)]}
        inputs |= {source.name: [("k", 10**12)] for source in plan.sources if source.name != "left"}
        return count_lines(lambda: run_plan(plan, inputs, batch_size=rows))

    run(1)  # what is imported or cached once

    assert run(16 * ROWS) < 40 * run(ROWS)
