"""Joins through a chain of operators: which rows are in a pair, when it comes out, what it is called, what is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import (
    ConnectedStreams,
    KeyedStream,
    OutputTag,
    Pipeline,
    Stream,
    bounded,
    connect,
    days,
    monotonic,
    rows,
    session,
    sliding,
    tumbling,
)
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.testing import ListSource, MemorySink, run_local
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples
from tests.unit.runtime.operators.test_event_time import Bench
from tests.unit.runtime.operators.test_windows import Row, _keys

SIDES = ("left", "right")
ALONE = tuple(OutputTag(f"{side}-alone", tuple) for side in SIDES)
LATE = tuple(OutputTag(f"{side}-late", tuple) for side in SIDES)
Told = tuple[str, Any]
"""The name of an output, and a value of it."""

INTERVALS = {"behind": (1, 7), "around": (-4, 3), "before": (-9, -2), "at-once": (0, 0), "from-now": (0, 8)}
WINDOWS: dict[str, Any] = {
    "tumbling": tumbling(seconds=0.010),
    "sliding": sliding(seconds=0.010, every=0.004),
    "session": session(gap=0.004),
}


def pair(left: Row, right: Row) -> tuple[Row, Row]:
    return tuple(left), tuple(right)  # type: ignore[return-value]


def joined(
    both: ConnectedStreams[str, Row, Row], kind: str, *, late: bool = False, alone: bool = True, name: str = "join"
) -> Stream[Any]:
    tags: dict[str, Any] = {f"unmatched_{side}": tag for side, tag in zip(SIDES, ALONE, strict=True) if alone}
    tags |= {f"late_{side}": tag for side, tag in zip(SIDES, LATE, strict=True) if late}
    if kind in INTERVALS:
        lower, upper = INTERVALS[kind]
        return both.interval_join(pair, lower=lower / 1000, upper=upper / 1000, name=name, **tags)
    return both.window_join(WINDOWS[kind], pair, name=name, **tags)


def flow(kind: str, *, delay: float = 0, late: bool = False, alone: bool = True, on_error: Any = "stop") -> Pipeline:
    pipeline = Pipeline("joins")
    strategy = bounded(delay) if delay else monotonic()

    def keyed(side: str) -> KeyedStream[str, Row]:
        source: Stream[Row] = pipeline.source(ListSource([]), name=side, on_error=on_error)
        timed = source.with_timestamps(lambda row: row[1], watermarks=strategy)
        return timed.key_by(lambda row: row[0], name=f"by-{side}", values=Row)

    out = joined(connect(keyed("left"), keyed("right")), kind, late=late, alone=alone)
    tags = [*(ALONE if alone else ()), *(LATE if late else ())]
    out.sink(MemorySink(), name="pairs")
    for tag in tags:
        out.side_output(tag).sink(MemorySink(), name=tag.name)
    return pipeline


# ---------------------------------------------------------------- the same as a batch computation


def batch_computed(kind: str, left: Sequence[Row], right: Sequence[Row]) -> Counter[Told]:
    """All pairs, and the rows that are in none, from the definition."""
    found: Counter[Told] = Counter()
    for mine, others in spans(kind, left, right):
        found.update(("pairs", (one, other)) for one, other in product(mine, others))
        if not others:
            found.update(("left-alone", one) for one in mine)
        if not mine:
            found.update(("right-alone", other) for other in others)
    return found


def spans(kind: str, left: Sequence[Row], right: Sequence[Row]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Rows of both streams that belong together: of an interval, each row of the one with what is near it."""
    if kind in INTERVALS:
        lower, upper = INTERVALS[kind]

        def near(one: Row, other: Row) -> bool:
            return one[0] == other[0] and lower <= other[1] - one[1] <= upper

        for one in left:
            yield [one], [other for other in right if near(one, other)]
        for other in right:
            if not any(near(one, other) for one in left):
                yield [], [other]
        return
    for key in {row[0] for row in (*left, *right)}:
        times = sorted({row[1] for row in (*left, *right) if row[0] == key})
        for start, end in windows(kind, times):
            yield tuple([row for row in side if row[0] == key and start <= row[1] < end] for side in (left, right))  # type: ignore[misc]


def windows(kind: str, times: list[int]) -> Iterator[tuple[int, int]]:
    if kind == "session":
        start = last = times[0]
        for at in times:
            if at - last >= 4:
                yield start, last + 4
                start = at
            last = at
        yield start, last + 4
        return
    every = {"tumbling": 10, "sliding": 4}[kind]
    yield from ((start, start + 10) for start in range(times[0] - 40, times[-1] + 1) if start % every == 0)


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[dict[tuple[str, int], list[Row]], int]:
    """Rows of two partitions of each stream, each out of order by so many milliseconds at most."""
    disorder = draw(st.integers(0, 12))
    row = st.tuples(st.sampled_from("ab"), st.integers(-20, 30), st.integers(1, 3))
    partitions = {}
    for place in product(SIDES, (0, 1)):
        found = draw(st.lists(row, max_size=12))
        delays = draw(st.lists(st.integers(0, disorder), min_size=len(found), max_size=len(found)))
        arriving = sorted(zip(found, delays, strict=True), key=lambda each: each[0][1] + each[1])
        partitions[place] = [row for row, _ in arriving]
    return partitions, disorder


SPLITS = [f"{side}/{partition}" for side, partition in product(SIDES, (0, 1))]


class TwoInputs(Bench):
    """A bench whose outputs are told apart."""

    def open(self, handles: Sequence[StateHandle] = (), splits: Sequence[str] = SPLITS) -> OperatorChain:
        return super().open(handles, splits)

    def outputs(self) -> dict[str, Callable[[Batch[Any]], None]]:
        self.told: list[tuple[str, Batch[Any]]] = getattr(self, "told", [])
        return {sink.name: partial(self._told, sink.name) for sink in self.plan.sinks}

    def _told(self, sink: str, batch: Batch[Any]) -> None:
        self.told.append((sink, batch))

    def push(self, side: str, partition: int, given: Sequence[Row], first: int = 0) -> None:
        origin = ListOrigin(side, side, partition, first, given, [at for _, at, _ in given])
        self.chain.push(side, Batch(list(given), range(len(given)), origin))

    def names(self) -> dict[str, list[str]]:
        """What outputs call themselves, by their sinks; in the order of the values in ``values_of``."""
        found: dict[str, list[str]] = defaultdict(list)
        for sink, batch in self.told:
            found[sink] += [
                parse_provenance(text).identity for text in format_provenance(batch, "job", Term(1), Epoch(1))
            ]
        return found

    def values_of(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = defaultdict(list)
        for sink, batch in self.told:
            found[sink] += batch.values
        return found

    def left(self) -> set[Any]:
        """Keys of which the operator's checkpoint holds anything."""
        self.chain.flush()
        (handle,) = [handle for handle in self.checkpoint() if handle.operator == "join"]
        states = ("left", "right", "left-met", "right-met", "event-timers")
        return {key for state in states for key in _keys(self, handle, state)}


END: Row = ("z", 10_000, 0)


@pytest.mark.parametrize("kind", [*INTERVALS, *WINDOWS])
@given(
    given=shuffled(),
    batch=st.integers(1, 6),
    restart=st.integers(0, 8),
    order=st.permutations(list(product(SIDES, (0, 1)))),
)
@examples(10)
def test_any_order_within_the_bound_and_any_restart_gives_what_a_batch_computation_gives(
    kind: str, given: tuple[dict[tuple[str, int], list[Row]], int], batch: int, restart: int, order: Any
) -> None:
    partitions, disorder = given
    plan = flow(kind, delay=disorder / 1000).plan()
    named: list[dict[str, dict[str, Any]]] = []
    for turn in (order, order[::-1]):
        with TemporaryDirectory() as directory, ExitStack() as closing:
            bench = TwoInputs(plan, Path(directory), closing)
            bench.open()
            reads = [(at, place) for place in turn for at in range(0, len(partitions[place]), batch)]
            for number, (at, (side, partition)) in enumerate(sorted(reads, key=lambda read: read[0])):
                bench.push(side, partition, partitions[side, partition][at : at + batch], at)
                if number == restart:
                    bench.open(bench.checkpoint())
            for side, partition in turn:
                bench.push(side, partition, [END], len(partitions[side, partition]))
            bench.open(bench.checkpoint())

            left, right = ([*partitions[side, 0], *partitions[side, 1]] for side in SIDES)
            values, names = bench.values_of(), bench.names()
            told = Counter((sink, value) for sink, found in values.items() for value in found)
            assert told == batch_computed(kind, left, right)
            assert all(len(set(found)) == len(found) for found in names.values())
            assert {name.split("/")[1] for found in names.values() for name in found} <= {"timers"}
            assert bench.left() <= {"z"}
            named.append({sink: dict(zip(names[sink], values[sink], strict=True)) for sink in values})
    assert named[0] == named[1], "the order of the inputs changes what outputs are called"


def test_a_pair_comes_when_event_time_has_come_to_its_later_row_and_has_that_time(
    tmp_path: Path, closing: ExitStack
) -> None:
    bench = TwoInputs(flow("behind").plan(), tmp_path, closing)
    bench.open()
    for side in SIDES:
        bench.push(side, 1, [END])
    bench.push("right", 0, [("a", 6, 2)])
    bench.push("left", 0, [("a", 3, 1), ("a", 6, 3)])
    assert bench.told == []

    bench.push("right", 0, [("a", 7, 4)], 1)
    bench.push("left", 0, [("b", 7, 4)], 2)

    ((sink, batch),) = bench.told
    assert (sink, batch.values, batch.event_times) == ("pairs", [(("a", 3, 1), ("a", 6, 2))], [6])


def test_an_unmatched_row_comes_as_soon_as_none_can_come_for_it(tmp_path: Path, closing: ExitStack) -> None:
    bench = TwoInputs(flow("behind").plan(), tmp_path, closing)
    bench.open()
    for side in SIDES:
        bench.push(side, 1, [END])
    bench.push("left", 0, [("a", 3, 1)])
    for at in (10, 11):
        assert "left-alone" not in bench.values_of()
        for side in SIDES:
            bench.push(side, 0, [("b", at, 1)], at)

    assert [(batch.values, batch.event_times) for sink, batch in bench.told if sink == "left-alone"] == [
        ([("a", 3, 1)], [10])
    ]


def test_nothing_is_asked_nothing_is_kept_of_who_has_met_whom(tmp_path: Path, closing: ExitStack) -> None:
    """An inner join has no rows in other states, and drops what is in no pair."""
    bench = TwoInputs(flow("around", alone=False).plan(), tmp_path, closing)
    bench.open()
    for side in SIDES:
        bench.push(side, 1, [END])
        bench.push(side, 0, [("a", 3, 1), ("b", 4 if side == "left" else 14, 1), ("c", 15, 1)])

    (handle,) = [handle for handle in bench.checkpoint() if handle.operator == "join"]
    assert {str(each["name"]) for each in handle.states} == {"left", "right", "event-timers"}
    assert bench.values_of() == {"pairs": [(("a", 3, 1), ("a", 3, 1))]}


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


# ---------------------------------------------------------------- rows that come late


LATE_INPUT = {
    "left": [("a", 1, 1), ("a", 50, 1), ("a", 2, 5), ("z", 99, 0)],
    "right": [("a", 1, 2), ("a", 50, 2), ("a", 3, 6), ("z", 99, 0)],
}
"""Sources are read one after the other: only the rows of the second one find that event time has passed them."""


@pytest.mark.parametrize("kind", ["around", "tumbling", "session"])
def test_a_late_row_stops_the_job_if_nobody_says_what_is_to_become_of_it(kind: str) -> None:
    with pytest.raises(PoisonRecord, match="late: the row's event time is 3, and the watermark has passed"):
        run_local(flow(kind), LATE_INPUT, batch_size=1)


@pytest.mark.parametrize("kind", ["around", "tumbling", "session"])
def test_or_goes_to_the_dead_letters(kind: str) -> None:
    out = run_local(flow(kind, on_error=DeadLetters(MemorySink())), LATE_INPUT, batch_size=1)

    assert [letter.error_type for letter in out["right-dead-letters"]] == ["LateRow"]


@pytest.mark.parametrize("kind", ["around", "tumbling", "session"])
def test_or_to_the_side_output_of_its_stream_as_it_is(kind: str) -> None:
    out = run_local(flow(kind, late=True), LATE_INPUT, batch_size=1)

    assert (out["left-late"], out["right-late"]) == ([], [("a", 3, 6)])
    assert [(one[2], other[2]) for one, other in out["pairs"]][-1] == (1, 2)


# ---------------------------------------------------------------- what the user's function does, and what is refused


def test_a_function_that_fails_on_a_pair_stops_the_job_and_the_error_says_where() -> None:
    def fails(left: Row, right: Row) -> int:
        raise ValueError("no")

    pipeline = Pipeline("joins")
    sides = [
        pipeline.source(ListSource([]), name=side)
        .with_timestamps(lambda row: row[1], watermarks=monotonic())
        .key_by(lambda row: row[0], name=f"by-{side}", values=Row)
        for side in SIDES
    ]
    connect(*sides).interval_join(fails, lower=0, upper=1, name="join").sink(MemorySink(), name="pairs")

    with pytest.raises(PoisonRecord, match=r"timers of join, key 'a', time 2.*no"):
        run_local(pipeline, {"left": [("a", 1, 1), ("z", 50, 1)], "right": [("a", 2, 1), ("z", 50, 1)]})


class Opaque:
    pass


def test_rows_that_cannot_be_stored_show_at_the_first_one() -> None:
    pipeline = Pipeline("joins")
    sides = [
        pipeline.source(ListSource([]), name=side)
        .with_timestamps(lambda row: row[1], watermarks=monotonic())
        .key_by(lambda row: row[0], name=f"by-{side}", local=True)
        for side in SIDES
    ]
    connect(*sides).interval_join(pair, lower=0, upper=1, name="join").sink(MemorySink(), name="pairs")

    with pytest.raises(PoisonRecord, match=r"rows of its left stream cannot be stored(.|\n)*key_by\(\.\.\., values="):
        run_local(pipeline, {"left": [("a", 1, Opaque())]})


def both(on: Callable[[Stream[Row]], Stream[Row]] = lambda stream: stream) -> ConnectedStreams[str, Row, Row]:
    pipeline = Pipeline("joins")
    one, other = (on(pipeline.source(ListSource([]), name=side)) for side in SIDES)
    return connect(one.key_by(lambda row: row[0], name="one"), other.key_by(lambda row: row[0], name="other"))


def test_a_join_that_could_never_emit_is_refused_with_the_reason() -> None:
    streams = both()
    streams.interval_join(pair, lower=0, upper=1, name="join").sink(MemorySink(), name="pairs")

    with pytest.raises(PlanError, match=r"'join' waits for event time and would never emit(.|\n)*test_joins.py"):
        streams._draft.plan()


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda c: c.interval_join(pair, lower=2, upper=1), "must not be greater than upper"),
        (lambda c: c.interval_join(pair, lower=0, upper=float("inf")), "number of seconds"),
        (lambda c: c.interval_join(pair, lower=0.0001, upper=1), "whole milliseconds"),
        (lambda c: c.window_join(rows(3), pair), r"tumbling \(without early=\), sliding, sessions or days"),
        (
            lambda c: c.window_join(tumbling(seconds=10, early=5), pair),
            r"tumbling \(without early=\), sliding, sessions or days",
        ),
        (
            lambda c: c.interval_join(pair, lower=0, upper=1, unmatched_left="alone"),
            r"must be OutputTag\(name, type\), not 'alone'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_line(use: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(PlanError, match=rf"{why}(.|\n)*test_joins.py"):
        use(both(lambda stream: stream.with_timestamps(watermarks=monotonic())))


def test_a_tag_that_nobody_reads_is_refused() -> None:
    streams = both(lambda stream: stream.with_timestamps(watermarks=monotonic()))
    out = streams.interval_join(pair, lower=0, upper=1, name="join", unmatched_left=ALONE[0])
    out.sink(MemorySink(), name="pairs")

    with pytest.raises(PlanError, match="left-alone"):
        streams._draft.plan()


def test_days_are_windows_to_join_in() -> None:
    streams = both(lambda stream: stream.with_timestamps(lambda row: row[1], watermarks=monotonic()))
    streams.window_join(days("Europe/Berlin"), lambda one, other: one[2] + other[2], name="join").sink(
        MemorySink(), name="sums"
    )
    day = 86_400_000
    plan = streams._draft.plan()
    given_ = {side: [["a", 5, 1], ["a", day, 10], ["z", 9 * day, 0]] for side in SIDES}

    assert run_local(plan, given_)["sums"] == [2, 20]


def test_explain_says_what_is_joined() -> None:
    assert "interval-join  <- connect-1  keeps state; from -0.004 s to 0.003 s later" in flow("around").explain()
    assert "window-join  <- connect-1  keeps state; sessions" in flow("session").explain()


class Order(msgspec.Struct):
    id: str
    amount: int


def test_streams_of_two_types_keep_theirs() -> None:
    """Nothing is tagged: each stream's rows are stored by their own type, and come back so."""
    pipeline = Pipeline("joins")
    orders: Stream[Order] = pipeline.source(ListSource([]), name="left").with_timestamps(
        lambda order: order.amount, watermarks=monotonic()
    )
    words: Stream[str] = pipeline.source(ListSource([]), name="right").with_timestamps(len, watermarks=monotonic())
    out = connect(
        orders.key_by(lambda order: order.id, name="by-id", values=Order),
        words.key_by(lambda word: word[0], name="by-letter", values=str),
    ).window_join(tumbling(seconds=0.010), lambda order, word: f"{order.amount} {word}", name="join")
    out.sink(MemorySink(), name="pairs")
    given_: dict[str, Iterable[Any]] = {"left": [Order("a", 3), Order("z", 99)], "right": ["abc", "z" * 99]}

    assert run_local(pipeline, {side: list(values) for side, values in given_.items()})["pairs"] == ["3 abc"]
