"""``deduplicate`` and ``distinct``: what passes, what is late, and that nothing is left of what is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import OutputTag, Pipeline, PlanError, Stream, Ttl, WatermarkStrategy, bounded, monotonic
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateHandle
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch
from kafka_eos.plan import TimestampsNode
from kafka_eos.runtime.operators.event_time import WITH_EACH_BATCH
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.memory_store import read_rows
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin

Event = tuple[str, int]
"""Key and time, in milliseconds."""
LATE = OutputTag("late", tuple[str, int])


def pipeline(
    within: float = 0.1, strategy: WatermarkStrategy = monotonic(), on_error: Any = "stop", late: Any = None
) -> Pipeline:
    made = Pipeline("p")
    events: Stream[Event] = made.source(ListSource([]), name="events", on_error=on_error)
    timed = events.with_timestamps(lambda event: event[1], watermarks=strategy)
    passed = timed.key_by(lambda event: event[0], values=tuple[str, int]).deduplicate(
        name="once", within=within, late=late
    )
    passed.sink(MemorySink(), name="passed")
    if late is not None:
        passed.side_output(late).sink(MemorySink(), name="late")
    return made


def passed(events: Sequence[Event], batch_size: int = 1, **given: Any) -> list[Event]:
    return run_local(pipeline(**given), {"events": events}, batch_size=batch_size)["passed"]


def test_what_comes_again_within_the_time_is_dropped() -> None:
    events = [("a", 0), ("a", 40), ("b", 50), ("a", 99), ("a", 100), ("a", 150), ("b", 150)]

    assert passed(events) == [("a", 0), ("b", 50), ("a", 100), ("b", 150)]


def test_what_was_dropped_does_not_drop_others() -> None:
    assert passed([("a", 0), ("a", 60), ("a", 120)]) == [("a", 0), ("a", 120)]


def test_an_earlier_one_that_comes_later_is_a_duplicate_too() -> None:
    events = [("a", 150), ("a", 51), ("a", 50), ("a", 249), ("a", 250)]

    assert passed(events, strategy=bounded(0.2)) == [("a", 150), ("a", 50), ("a", 250)]


def test_a_row_of_a_time_that_nobody_remembers_is_refused() -> None:
    made = run_local(
        pipeline(on_error=DeadLetters(MemorySink())), {"events": [("a", 0), ("b", 300), ("a", 0)]}, batch_size=1
    )

    assert made["passed"] == [("a", 0), ("b", 300)]
    assert [letter.message[:26] for letter in made["events-dead-letters"]] == ["late: the row's time is 0,"]


def test_or_it_goes_to_the_side_output_that_is_named() -> None:
    made = run_local(pipeline(late=LATE), {"events": [("a", 0), ("b", 300), ("a", 0), ("a", 200)]}, batch_size=1)

    assert made == {"passed": [("a", 0), ("b", 300), ("a", 200)], "late": [("a", 0)]}


EVENTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-50, 50)), max_size=30)


@given(EVENTS, st.integers(1, 10), st.integers(1, 60))
def test_what_passes_depends_on_the_times_and_not_on_where_reads_end(
    events: list[Event], batch_size: int, within: int
) -> None:
    """Rows are at most 100 ms out of order. By the definition: nothing that has passed is near."""
    due: list[Event] = []
    for key, at in events:
        if all(key != other or abs(at - time) >= within for other, time in due):
            due.append((key, at))

    assert passed(events, batch_size, within=within / 1000, strategy=bounded(0.1)) == due


@pytest.mark.parametrize(("came", "what"), [(199, "known"), (200, "known"), (201, "late")])
def test_how_late_a_row_may_be(came: int, what: str) -> None:
    """The one that passed 99 ms before it is known until event time is 100 ms further than the row."""
    events = [("a", 1), ("b", came), ("a", 100)]

    made = run_local(pipeline(late=LATE), {"events": events}, batch_size=1)

    assert made == {"passed": events[:2], "late": events[2:] if what == "late" else []}


Left = Callable[..., list[tuple[str, int]]]
"""Pushes events, and gives the rows that are stored then: their states and sizes."""


class Running:
    """A job, or what goes on with the state of another one. Closed by ``closing``."""

    def __init__(self, directory: Path, closing: ExitStack, within: float = 0.1, after: Running | None = None) -> None:
        self._directory, plan = directory, pipeline(within).plan()
        self._storage: MemoryStorage = MemoryStorage() if after is None else after._storage
        self._backends = {
            node.name: open_backend(
                "memory", node.name, directory / f"{node.name}-{within}", range(128),
                [] if after is None else [after._stored(node.name)], self._storage,
                by_split=isinstance(node, TimestampsNode),
            )
            for node in plan.nodes if node.stateful
        }  # fmt: skip
        self._chain = OperatorChain(plan, self._backends, {"passed": lambda batch: None}, pace=WITH_EACH_BATCH)
        closing.callback(self._chain.close)
        self._chain.assign("events", ["events/0"])

    def push(self, *events: Event) -> list[tuple[str, int]]:
        origin = ListOrigin("events", "events", 0, 0, events, [at for _, at in events])
        self._chain.push("events", Batch(list(events), range(len(events)), origin))
        handle = self._stored("once")
        with TemporaryDirectory(dir=self._directory) as scratch:
            stored = read_rows(handle, self._storage, Path(scratch))
            return sorted((state, len(data)) for state, rows in stored for _, data in rows)

    def _stored(self, operator: str) -> StateHandle:
        return self._backends[operator].snapshot(Epoch(1))(self._storage)


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Left]:
    with ExitStack() as closing:
        yield Running(tmp_path, closing).push


def test_nothing_is_left_either_when_the_time_was_shorter_before(tmp_path: Path) -> None:
    with ExitStack() as closing:
        before = Running(tmp_path, closing)
        before.push(("a", 0))
        now = Running(tmp_path, closing, within=0.2, after=before)

        assert [state for state, _ in now.push(("b", 250))] == ["event-timers"] * 2 + ["passed"] * 2
        assert [state for state, _ in now.push(("c", 900))] == ["event-timers", "passed"]


def test_nothing_is_left_of_a_key_when_its_time_is_over(left: Left) -> None:
    def states(*events: Event) -> list[str]:
        return [state for state, _ in left(*events)]

    assert states(("a", 0), ("a", 120), ("b", 0)) == ["event-timers"] * 3 + ["passed"] * 2
    assert states(("c", 200)) == ["event-timers"] * 2 + ["passed"] * 2
    assert states(("c", 520)) == ["event-timers", "passed"]


def test_a_key_that_comes_for_ever_keeps_its_last_times_only(left: Left) -> None:
    sizes = [left(("a", at)) for at in range(100_000, 102_000, 100)]

    assert sizes[-1] == sizes[3]


def test_distinct_lets_the_first_of_each_key_pass() -> None:
    made = Pipeline("p")
    made.source(ListSource([]), name="in").key_by(lambda value: value % 3).distinct(name="first", ttl=None).sink(
        MemorySink(), name="out"
    )

    assert run_local(made, {"in": [4, 1, 5, 3, 2, 7]})["out"] == [4, 5, 3]


def test_and_with_a_time_to_live_the_first_after_that() -> None:
    made = Pipeline("p")
    keyed = made.source(ListSource([]), name="in").key_by(lambda value: "k")
    keyed.distinct(name="first", ttl=Ttl(1, clock="event")).sink(MemorySink(), name="out")

    assert run_local(made, {"in": [TimestampedValue(n, n * 400) for n in range(1, 8)]})["out"] == [1, 4, 7]


def test_the_type_of_the_stream_stays_known() -> None:
    made = Pipeline("p")
    keyed = made.source(KafkaSource("in", value=str), name="in").key_by(lambda value: value)
    keyed.distinct(name="first", ttl=None).rebalance(name="spread").sink(MemorySink(), name="out")
    wire: Any = next(node.exchange_codec for node in made.plan().nodes if node.name == "spread")

    assert wire.type is str


@pytest.mark.parametrize("within", [0, -1, 0.0001, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused_with_the_users_line(within: float) -> None:
    with pytest.raises(PlanError, match=r"within= must be a number of seconds(?s:.)*test_duplicates.py"):
        pipeline(within)


def test_without_event_time_it_is_refused() -> None:
    made = Pipeline("p")
    made.source(ListSource([]), name="in").key_by(str).deduplicate(name="once", within=1).sink(MemorySink(), name="out")

    with pytest.raises(PlanError, match=r"with_timestamps"):
        made.plan()
