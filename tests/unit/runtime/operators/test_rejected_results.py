"""Results that combine several records and cannot be made or written: they become dead letters, and the job goes on.

Whatever a topic holds, no window, join, pattern or timer of one key stops the results of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from kafka_eos import (
    KeyedStream,
    Pattern,
    Pipeline,
    ProcessContext,
    ProcessFunction,
    Stream,
    agg,
    connect,
    monotonic,
    on_clock,
    session,
    sliding,
    tumbling,
)
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.core.errors import EnvironmentFailed, PoisonRecord
from kafka_eos.core.records import RejectedRecord
from kafka_eos.runtime.state.key_groups import group_of
from kafka_eos.testing import AdvanceClock, ListSource, MemorySink, run_local
from kafka_eos.testing.local_parts import LocalRun


class Row(NamedTuple):
    key: str
    time: int
    number: Any


LARGE = 2**62
Verbs = Callable[[KeyedStream[str, Any]], Stream[Any]]


def rows(*given: Any) -> list[Any]:
    return [Row(*each) if isinstance(each, tuple) else each for each in given]


def run(verbs: Verbs, given: Sequence[Any]) -> LocalRun:
    pipeline = Pipeline("results")
    source: Stream[Row] = pipeline.source(ListSource([]), name="rows", on_error=DeadLetters(MemorySink()))
    timed = source.with_timestamps(lambda row: row[1], watermarks=monotonic())
    verbs(timed.key_by(lambda row: row[0], name="by-key", values=Row)).sink(MemorySink(), name="sink")
    return run_local(pipeline, {"rows": rows(*given)}, now=0)


def refused(found: LocalRun) -> list[tuple[str, Any]]:
    """The places of dead letters, and what they hold."""
    letters: list[RejectedRecord] = found["rows-dead-letters"]
    assert all(letter.is_result and letter.raw.key is None for letter in letters)
    return [(letter.raw.location, msgspec.json.decode(letter.raw.value or b"")) for letter in letters]


def place(operator: str, time: int, key: str = "a", kind: str = "timers") -> str:
    encoded = msgspec.msgpack.encode(key)
    return f"{kind} of {operator}/{group_of(encoded)}/{time}"


def failing(*given: Any) -> Any:
    """A user's function that rejects the key ``a``."""
    if given[0] == "a" or "a" in given[0]:
        raise ValueError("no such customer")
    return given[0]


class AtTheEnd(ProcessFunction[str, Any, str]):
    """Counts rows; at each timer it changes the count and emits the key, which may fail."""

    def open(self, ctx: ProcessContext) -> None:
        self.timers, self.count = ctx.timers(), ctx.value_state("count", int, 0)

    def process(self, key: str, row: Row) -> Iterable[str]:
        self.timers.register(row[1] + 5)
        yield f"{key} {self.count.get()}"

    def on_timer(self, key: str, time: int) -> Iterable[str]:
        self.count.put(self.count.get() + 1)
        yield failing(key)


def test_a_sum_that_exceeds_its_range_when_panes_are_merged_is_a_dead_letter_of_its_window() -> None:
    def verbs(keyed: KeyedStream[str, Any]) -> Stream[Any]:
        sums = keyed.window(sliding(seconds=0.010, every=0.005)).aggregate(agg.sum(lambda row: row[2]), name="sums")
        return sums.map(lambda row: (row.key, row.start, row.sum))

    found = run(verbs, [("a", 1, LARGE), ("b", 1, 1), ("a", 6, LARGE), ("end", 30, 0)])

    assert found["sink"] == [("a", -5, LARGE), ("b", -5, 1), ("b", 0, 1), ("a", 5, LARGE)]
    assert refused(found) == [(place("sums", 9), {"key": "a"})]
    (letter,) = found["rows-dead-letters"]
    assert (letter.operator, letter.error_type) == ("sums", "OverflowError")


def test_values_that_cannot_be_compared_when_panes_are_merged_are_a_dead_letter() -> None:
    def verbs(keyed: KeyedStream[str, Any]) -> Stream[Any]:
        most = keyed.window(sliding(seconds=0.010, every=0.005)).aggregate(most=agg.max(lambda row: row[2]), name="max")
        return most.map(lambda row: (row.key, row.start, row.most))

    found = run(verbs, [("a", 1, 1), ("a", 6, "x"), ("b", 6, 2), ("end", 30, 0)])

    assert found["sink"] == [("a", -5, 1), ("b", 0, 2), ("a", 5, "x"), ("b", 5, 2)]
    assert refused(found) == [(place("max", 9), {"key": "a"})]


WINDOWS: dict[str, tuple[Any, Sequence[int]]] = {
    "tumbling": (tumbling(seconds=0.010), [9]),
    "with late rows": (tumbling(seconds=0.010), [9]),
    "sliding": (sliding(seconds=0.010, every=0.005), [4, 9]),
    "session": (session(gap=0.003), [3]),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_window_whose_function_raises_is_a_dead_letter_and_leaves_no_state(kind: str) -> None:
    windows, ends = WINDOWS[kind]
    lateness = {"lateness": 0.001} if kind == "with late rows" else {}

    def verbs(keyed: KeyedStream[str, Any]) -> Stream[Any]:
        return keyed.window(windows, **lateness).process(lambda key, window, rows: [failing(key)], name="totals")

    found = run(verbs, [("a", 1, 1), ("b", 1, 1), ("end", 50, 1)])

    assert found["sink"] == ["b"] * len(ends)
    assert refused(found) == [(place("totals", end), {"key": "a"}) for end in ends]


@pytest.mark.parametrize("windows", [tumbling(seconds=0.010), sliding(seconds=0.010, every=0.005), session(gap=0.01)])
def test_early_results_by_the_clock_whose_function_raises_are_dead_letters_and_the_others_are_emitted(
    windows: Any,
) -> None:
    def verbs(keyed: KeyedStream[str, Any]) -> Stream[Any]:
        return keyed.window(windows, trigger=on_clock(every=1)).process(
            lambda key, window, rows: [failing(key)], name="totals"
        )

    found = run(verbs, [("a", 1, 1), ("b", 1, 1), AdvanceClock(1)])

    assert set(found["sink"]) == {"b"}
    assert len(refused(found)) == len(found["sink"])
    assert set(map(str, refused(found))) == {str((place("totals", 1000, kind="processing-timers"), {"key": "a"}))}


def test_a_timer_whose_function_raises_is_a_dead_letter_and_has_changed_nothing() -> None:
    found = run(
        lambda keyed: keyed.process(AtTheEnd, name="fn"),
        [("a", 1, 1), ("b", 1, 1), ("b", 9, 1), ("a", 10, 1), ("b", 11, 1)],
    )

    assert found["sink"] == ["a 0", "b 0", "b 0", "b", "a 0", "b 1"]
    assert refused(found) == [(place("fn", 6), {"key": "a"})]


@pytest.mark.parametrize("kind", ["interval", "window"])
def test_a_pair_whose_function_raises_is_a_dead_letter_and_the_other_pairs_are_emitted(kind: str) -> None:
    def pair(left: Row, right: Row) -> tuple[Any, Any]:
        if left[2] == "bad":
            raise ValueError("bad")
        return left[2], right[2]

    found = Pipeline("results")
    sides = []
    for side in ("left", "right"):
        source: Stream[Row] = found.source(ListSource([]), name=side, on_error=DeadLetters(MemorySink()))
        timed = source.with_timestamps(lambda row: row[1], watermarks=monotonic())
        sides.append(timed.key_by(lambda row: row[0], name=f"by-{side}", values=Row))
    both: Any = connect(*sides)
    joined = (
        both.interval_join(pair, lower=0, upper=0.005, name="join")
        if kind == "interval"
        else both.window_join(tumbling(seconds=0.010), pair, name="join")
    )
    joined.sink(MemorySink(), name="sink")
    left = [("a", 1, "bad"), ("a", 1, 2), ("z", 50, 0)]
    made = run_local(found, {"left": rows(*left), "right": rows(("a", 2, 3), ("z", 50, 0))})

    assert made["sink"][0] == (2, 3)
    letters = made["left-dead-letters"]
    assert [letter.raw.location for letter in letters] == [place("join", 2 if kind == "interval" else 9)]
    assert made["right-dead-letters"] == []


def test_a_match_whose_function_raises_is_a_dead_letter_and_the_pattern_goes_on() -> None:
    twice = Pattern[Any].begin("first", lambda row: True).next("second", lambda row: True).within(seconds=0.010)
    found = run(
        lambda keyed: keyed.match(twice, lambda key, rows: failing(key), name="match"),
        [("a", 1, 1), ("b", 1, 1), ("a", 2, 1), ("b", 2, 1), ("b", 5, 1), ("b", 6, 1), ("end", 50, 1)],
    )

    assert found["sink"] == ["b", "b"]
    assert refused(found) == [(place("match", 2), {"key": "a"})]


def test_an_output_of_a_timer_that_a_later_operator_rejects_is_a_dead_letter_with_the_output() -> None:
    def verbs(keyed: KeyedStream[str, Any]) -> Stream[Any]:
        sums = keyed.window(tumbling(seconds=0.010)).aggregate(agg.sum(lambda row: row[2]), name="sums")
        return sums.map(lambda row: 6 // row.sum, name="share")

    found = run(verbs, [("a", 1, 0), ("b", 1, 2), ("end", 30, 0)])

    assert found["sink"] == [3]
    assert refused(found) == [(place("sums", 9), {"key": "a", "start": 0, "end": 10, "sum": 0})]
    assert [letter.operator for letter in found["rows-dead-letters"]] == ["share"]


def test_an_output_of_a_timer_that_its_sink_rejects_is_a_dead_letter_with_the_output() -> None:
    pipeline = Pipeline("results")
    source: Stream[Row] = pipeline.source(ListSource([]), name="rows", on_error=DeadLetters(MemorySink()))
    keyed = source.with_timestamps(lambda row: row[1], watermarks=monotonic()).key_by(lambda row: row[0], values=Row)
    sums = keyed.window(tumbling(seconds=0.010)).aggregate(agg.sum(lambda row: row[2]), name="sums")
    sums.sink(KafkaSink("totals", key=lambda row: failing(row.key)), name="sink")

    found = run_local(pipeline, {"rows": rows(("a", 1, 1), ("b", 1, 2), ("end", 30, 0))})

    assert [row.sum for row in found["sink"]] == [2]
    assert [letter.raw.location for letter in found["rows-dead-letters"]] == [place("sums", 9)]


def test_a_timer_is_not_rejected_where_the_environment_is_at_fault() -> None:
    def unreachable(key: str, window: Any, rows: Any) -> list[str]:
        raise ConnectionError("the database is gone")

    with pytest.raises(EnvironmentFailed):
        run(
            lambda keyed: keyed.window(tumbling(seconds=0.01)).process(unreachable, name="w"),
            [("a", 1, 1), ("end", 50, 1)],
        )


def test_a_timer_stops_the_job_if_one_of_the_sources_above_it_writes_no_dead_letters() -> None:
    pipeline = Pipeline("results")
    one: Stream[Row] = pipeline.source(ListSource([]), name="rows", on_error=DeadLetters(MemorySink()))
    other: Stream[Row] = pipeline.source(ListSource([]), name="others")
    timed = [each.with_timestamps(lambda row: row[1], watermarks=monotonic()) for each in (one, other)]
    keyed = timed[0].union(timed[1]).key_by(lambda row: row[0], values=Row)
    keyed.window(tumbling(seconds=0.01)).process(lambda key, window, rows: [failing(key)], name="totals").sink(
        MemorySink(), name="sink"
    )

    with pytest.raises(PoisonRecord, match=r"timers of totals, key .*, time 9.*on_error=") as stopped:
        run_local(pipeline, {"rows": rows(("a", 1, 1), ("end", 50, 1)), "others": rows(("end", 50, 1))})
    assert "all sources above it" in str(stopped.value)
