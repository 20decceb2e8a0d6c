"""``async_map`` in a pipeline: order, capacity, rows without an answer, what waits behind it, and what is refused."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos import (
    EnvironmentFailed,
    OutputTag,
    Pipeline,
    PlanError,
    PoisonRecord,
    Stream,
    Window,
    bounded,
    monotonic,
    retries,
    tumbling,
)
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.runtime.operators.async_io.pending_rows import PendingRows
from kafka_eos.runtime.operators.event_time import WatermarkOutput, WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, run_local
from kafka_eos.testing.list_source import ListOrigin
from tests.unit.runtime.operators.test_event_time import Bench
from tests.unused import UNUSED

FAILED, LATE = OutputTag("failed", int), OutputTag("late", int)
Asked = Callable[[Stream[int]], Stream[int]]


async def doubled(value: int) -> int:
    await asyncio.sleep(random.random() / 500)
    if value % 10 == 7:
        raise ValueError(f"not {value}")
    return value * 2


def made(asked: Asked, values: list[Any], on_error: Any = "stop", batch_size: int = 7, **source: Any) -> Any:
    pipeline = Pipeline("asked")
    read = pipeline.source(ListSource(values), name="in", on_error=on_error, **source)
    asked(read).sink(MemorySink(), name="out")
    return run_local(pipeline, {"in": values}, batch_size=batch_size)


# ---------------------------------------------------------------- answers


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_every_value_has_its_answer_and_in_order_they_come_as_the_values_did(
    count: int, capacity: int, batch_size: int, ordered: bool
) -> None:
    at_a_time = most = 0

    async def ask(value: int) -> int:
        nonlocal at_a_time, most
        at_a_time += 1
        most = max(most, at_a_time)
        await asyncio.sleep(random.random() / 1000)
        at_a_time -= 1
        return value * 2

    values = list(range(count))
    found = made(
        lambda read: read.async_map(ask, name="ask", ordered=ordered, capacity=capacity),
        values,
        batch_size=batch_size,
    )

    assert (found["out"] if ordered else sorted(found["out"])) == [value * 2 for value in values]
    assert most <= capacity


def test_several_are_asked_at_a_time() -> None:
    """Four that wait for each other: asked one after the other they would wait for ever."""
    all_here = threading.Barrier(4)

    def ask(value: int) -> int:
        all_here.wait(20)
        return value

    assert made(lambda read: read.async_map(ask, name="ask", capacity=4), [1, 2, 3, 4])["out"] == [1, 2, 3, 4]


def test_a_request_is_sent_when_its_row_arrives() -> None:
    """Not only when somebody asks for responses, which a worker does later."""
    sent = threading.Event()
    pipeline = Pipeline("p")
    read = pipeline.source(ListSource([]), name="in")
    read.async_map(lambda value: sent.set(), name="ask").sink(MemorySink(), name="out")

    with closing(OperatorChain(pipeline.plan(), {}, {"out": lambda batch: None})) as chain:
        chain.push("in", Batch([1], range(1), ListOrigin("in", "in", 0, 0, [1], [-1])))
        assert sent.wait(20)
        chain.finish()


def test_as_answered_nothing_waits_behind_a_row_that_waits() -> None:
    """The first one is answered when all others have come out."""
    others = threading.Semaphore(0)

    def ask(value: int) -> int:
        return value if value or all(others.acquire(timeout=20) for _ in range(9)) else -1

    def seen(value: int) -> int:
        others.release()
        return value

    asked = made(lambda read: read.async_map(ask, name="ask", ordered=False).map(seen), list(range(10)))

    assert (sorted(asked["out"]), asked["out"][-1]) == (list(range(10)), 0)


# ---------------------------------------------------------------- rows without an answer


def test_a_row_without_an_answer_is_refused_by_the_policy_of_its_source() -> None:
    with pytest.raises(PoisonRecord, match=r"in/0/7.*'ask'.*not 7"):
        made(lambda read: read.async_map(doubled, name="ask"), list(range(9)))

    found = made(lambda read: read.async_map(doubled, name="ask"), list(range(30)), on_error=DeadLetters(MemorySink()))

    assert found["out"] == [2 * n for n in range(30) if n % 10 != 7]
    assert [letter.raw.offset for letter in found["in-dead-letters"]] == [7, 17, 27]


@pytest.mark.parametrize("ordered", [True, False])
def test_or_it_goes_to_the_side_output_at_its_place(ordered: bool) -> None:
    def asked(read: Stream[int]) -> Stream[Any]:
        answers = read.async_map(doubled, name="ask", ordered=ordered, failed=FAILED)
        return answers.union(answers.side_output(FAILED).map(lambda value: -value), name="both")

    found = made(asked, list(range(30)))["out"]

    assert Counter(found) == Counter(-n if n % 10 == 7 else 2 * n for n in range(30))
    if ordered:
        assert [n for n in found if n >= 0] == sorted(n for n in found if n >= 0)


def test_what_the_service_did_is_not_the_records_fault() -> None:
    def ask(value: int) -> int:
        raise ConnectionError("away")

    with pytest.raises(EnvironmentFailed, match="ConnectionError: away"):
        made(lambda read: read.async_map(ask, name="ask", retries=retries(2, first=0.001)), [1])

    found = made(
        lambda read: read.async_map(ask, name="ask"),
        [1, 2],
        on_error=DeadLetters(MemorySink()),
        record_errors=(ConnectionError,),
    )

    assert [letter.error_type for letter in found["in-dead-letters"]] == ["ConnectionError"] * 2


# ---------------------------------------------------------------- what stands behind it


@pytest.mark.parametrize("ordered", [True, False])
def test_windows_behind_it_miss_nothing(ordered: bool) -> None:
    """Their watermarks stay behind the rows that wait."""

    def counted(key: int, window: Window, values: list[int]) -> list[tuple[int, int]]:
        return [(window.start, len(values))]

    def asked(read: Stream[int]) -> Stream[Any]:
        timed = read.with_timestamps(lambda value: value * 100, watermarks=monotonic())
        answers = timed.async_map(slowly, name="ask", ordered=ordered, capacity=9)
        return answers.key_by(lambda value: 0).window(tumbling(seconds=1)).process(counted, name="count")

    async def slowly(value: int) -> int:
        await asyncio.sleep(random.random() / 200)
        return value

    found = made(asked, list(range(105)), batch_size=3)["out"]

    assert found == [(start, 10) for start in range(0, 10_000, 1000)]


def test_two_of_them_and_sums_between_are_all_answered_at_the_end() -> None:
    async def plus_one(value: int) -> int:
        return value + 1

    def asked(read: Stream[int]) -> Stream[Any]:
        totals = (
            read.async_map(plus_one, name="first")
            .key_by(lambda value: "all")
            .fold(name="sum", init=lambda: 0, step=lambda so_far, value: so_far + value, merge=lambda a, b: a + b)
        )
        return totals.map(lambda pair: pair[1]).async_map(plus_one, name="second")

    assert made(asked, list(range(10)))["out"] == [56]


def test_outputs_of_one_row_keep_their_names_whichever_comes_first() -> None:
    """They come in batches of their own, where nobody could count them."""
    pipeline = Pipeline("p")
    spread = pipeline.source(ListSource([]), name="in").flat_map(lambda value: [value, value + 100, value + 200])
    spread.async_map(slow_if_small, name="ask", ordered=False).sink(MemorySink(), name="out")
    out: list[tuple[str, int]] = []

    def write(batch: Batch[int]) -> None:
        out.extend(zip(format_provenance(batch, "job", Term(1), Epoch(1)), batch.values, strict=True))

    with closing(OperatorChain(pipeline.plan(), {}, {"out": write})) as chain:
        chain.push("in", Batch([1], range(1), ListOrigin("in", "in", 0, 5, [1], [-1])))
        chain.finish()

    assert sorted(out) == [
        ("job.1.1/in/in/0/5/0.0", 1),
        ("job.1.1/in/in/0/5/0.0-1-0", 101),
        ("job.1.1/in/in/0/5/0.0-2-0", 201),
    ]


async def slow_if_small(value: int) -> int:
    await asyncio.sleep(0.05 if value < 200 else 0)
    return value


# ---------------------------------------------------------------- as an engine sees it


def test_rows_that_wait_are_held_until_they_are_handed_on() -> None:
    pipeline = Pipeline("p")
    let_go = threading.Event()

    def ask(value: int) -> int:
        if value > 1:
            let_go.wait(20)
        return value

    read = pipeline.source(ListSource([]), name="in").with_timestamps(lambda value: value, watermarks=bounded(0))
    read.async_map(ask, name="ask", capacity=3).sink(MemorySink(), name="out")
    out: list[int] = []
    with closing(_timed(pipeline, lambda batch: out.extend(batch.values))) as chain:
        chain.push("in", Batch([1, 2, 3, 4], range(4), ListOrigin("in", "in", 0, 0, [1, 2, 3, 4], [-1] * 4)))
        assert chain.is_full("ask-requests")
        until = time.monotonic() + 20
        while not out and time.monotonic() < until:
            chain.emit_answered()
        chain.flush()

        assert (out, [batch.values for batch in chain.list_pending_rows("ask-requests")]) == ([1], [[2, 3, 4]])
        assert chain.is_full("ask-requests") and chain.has_pending("ask-requests")

        let_go.set()
        chain.make_room()
        assert not chain.is_full("ask-requests")
        chain.finish()
        assert (out, chain.list_pending_rows("ask-requests")) == ([1, 2, 3, 4], [])
        assert not chain.has_pending("ask-requests")


@pytest.mark.parametrize("ordered", [True, False])
def test_a_watermark_behind_no_row_that_waits_goes_on_at_once(ordered: bool) -> None:
    """A last barrier follows the last watermark directly, and nobody collects between both."""
    pipeline = Pipeline("p")
    read = pipeline.source(ListSource([]), name="in").with_timestamps(lambda value: value, watermarks=bounded(0))
    asked = read.async_map(lambda value: value, name="ask", ordered=ordered)
    told: list[Watermark] = []
    asked.key_by(lambda value: value, name="by").reduce(max, name="most").sink(MemorySink(), name="out")
    with closing(_timed(pipeline, lambda batch: None, {"by": told.append})) as chain:
        chain.push("in", Batch([1, 2], range(2), ListOrigin("in", "in", 0, 0, [1, 2], [-1] * 2)))
        while chain.has_pending("ask-requests"):
            chain.emit_answered()
        told.clear()
        chain.advance("ask-requests", Watermark(7))

        assert told == [Watermark(7)]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_row_that_waits_is_waited_for_though_its_stream_was_idle(ordered: bool, tmp_path: Path) -> None:
    """It came in time, so it is not late when it is answered, however far other streams have come meanwhile."""
    let_go, clock = threading.Event(), count(1.0)
    with ExitStack() as closing:
        bench = Meeting(
            _meeting(let_go, ordered).plan(), tmp_path, closing, WatermarkSchedule(0.0, lambda: next(clock))
        )
        chain = bench.open(splits=("asked/0", "plain/0"))
        bench.silence()
        bench.push("plain", 90)
        bench.push("asked", 100)
        bench.push("plain", 5000)
        assert bench.values == []

        let_go.set()
        chain.finish()
        assert (bench.values, bench.late) == ([], [])

        bench.silence()
        assert (bench.values, bench.late) == ([(0, [90, 100])], [])


def test_a_stream_is_idle_again_when_the_last_row_that_waits_is_answered(tmp_path: Path) -> None:
    """Nothing but the answer tells it: the stream itself has been idle all the time."""
    let_go, clock = threading.Event(), count(1.0)
    with ExitStack() as closing:
        bench = Meeting(
            _meeting(let_go, ordered=True).plan(), tmp_path, closing, WatermarkSchedule(0.0, lambda: next(clock))
        )
        chain = bench.open(splits=("asked/0", "plain/0"))
        bench.silence()
        chain.push("ask-requests", bench.row("asked", 100))  # of an operator that waits for the clock, say
        bench.push("plain", 90)
        bench.push("plain", 5000)
        assert bench.values == []

        let_go.set()
        chain.finish()

        assert (bench.values, bench.late) == ([(0, [90, 100])], [])


def test_a_stream_that_was_idle_between_two_rows_is_not_while_the_second_one_waits(tmp_path: Path) -> None:
    first, second, clock = threading.Event(), threading.Event(), count(1.0)
    with ExitStack() as closing:
        plan = _meeting(first, ordered=True, second=second).plan()
        bench = Meeting(plan, tmp_path, closing, WatermarkSchedule(0.0, lambda: next(clock)))
        chain = bench.open(splits=("asked/0", "plain/0"))
        bench.push("plain", 90)
        bench.push("asked", 100)
        bench.silence()
        bench.push("asked", 200)
        first.set()
        until = time.monotonic() + 20
        while len(chain.list_pending_rows("ask-requests")[0]) > 1 or len(chain.list_pending_rows("ask-requests")) > 1:
            assert time.monotonic() < until, "the first row is not answered"
            chain.emit_answered()
        bench.push("plain", 5000)
        assert bench.values == []

        second.set()
        chain.finish()

        assert bench.late == []


def _meeting(let_go: threading.Event, ordered: bool, second: threading.Event | None = None) -> Pipeline:
    """Windows of two streams, of which one asks. ``second``: what 200 waits for."""

    def ask(value: int) -> int:
        (second if second is not None and value == 200 else let_go).wait(20)
        return value

    pipeline = Pipeline("meeting")
    times = {"asked": monotonic().with_idleness(1.5), "plain": monotonic()}
    asked, plain = (
        pipeline.source(ListSource([]), name=name).with_timestamps(lambda value: value, watermarks=strategy)
        for name, strategy in times.items()
    )
    both = asked.async_map(ask, name="ask", ordered=ordered, values=int).union(plain, name="both")
    windows = both.key_by(lambda value: 0, values=int).window(tumbling(seconds=1), late=LATE)
    found = windows.fold(name="window", init=list, step=lambda so_far, value: [*so_far, value], state=list)
    found.map(lambda each: (each.window.start, each.value)).sink(MemorySink(), name="sink")
    found.side_output(LATE).sink(MemorySink(), name="late")
    return pipeline


class Meeting(Bench):
    """Pushes rows whose values are their times."""

    def outputs(self) -> dict[str, Callable[[Batch[Any]], None]]:
        self.late: list[int] = []
        return {"sink": self.out.append, "late": lambda batch: self.late.extend(batch.values)}

    def silence(self) -> None:
        for _ in range(3):
            self.chain.note_empty_read("asked")

    def row(self, source: str, value: int) -> Batch[int]:
        return Batch([value], range(1), ListOrigin(source, source, 0, value, [value], [-1]), event_times=[value])

    def push(self, source: str, value: int) -> None:
        self.chain.push(source, self.row(source, value))
        self.chain.emit_answered()


def _timed(
    pipeline: Pipeline, write: Callable[[Batch[Any]], None], signals: Mapping[str, WatermarkOutput] | None = None
) -> OperatorChain:
    """With the state of its operators, and ``signals`` where watermarks leave, and rows, too."""
    backend = open_backend("memory", "in-timestamps", UNUSED, range(1), (), MemoryStorage(), by_split=True)
    states = {"in-timestamps": backend}
    for node in pipeline.plan().nodes:
        if node.stateful and node.name not in states:
            states[node.name] = open_backend("memory", node.name, UNUSED, range(1), (), MemoryStorage())
    aside: dict[str, Callable[[Batch[Any]], None]] = {name: lambda batch: None for name in signals or {}}
    return OperatorChain(pipeline.plan(), states, {"out": write}, aside, signals=signals)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"capacity": 0}, "capacity must be a whole number of at least 1"),
        ({"capacity": 2.5}, "capacity must be a whole number of at least 1"),
        ({"timeout": "5s"}, "timeout must be a positive number of seconds"),
        ({"retries": 3}, r"retries must be retries\(times, first=…, most=…\) \(got 3\)"),
        ({"breaker": 5}, r"breaker must be breaker\(failures, pause=…\) \(got 5\)"),
        ({"timeout": 0}, "timeout must be a positive number of seconds"),
        ({"timeout": float("inf")}, "timeout must be a positive number of seconds"),
        ({"retry_on": OSError}, "retry_on must be a tuple of exception classes"),
        ({"retry_on": (3,)}, "retry_on must be a tuple of exception classes"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_at_the_verb(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says) as refused:
        made(lambda read: read.async_map(doubled, name="ask", **given), [1])

    assert "test_async_map.py" in str(refused.value)


def test_a_plain_verb_says_where_a_coroutine_function_belongs() -> None:
    with pytest.raises(PlanError, match="async_map"):
        made(lambda read: read.map(doubled), [1])  # type: ignore[arg-type]


def test_a_watermark_alone_goes_on() -> None:
    held = PendingRows(ordered=True)
    held.add_watermark(Watermark(3))

    assert list(held.take_ready()) == [Watermark(3)]
