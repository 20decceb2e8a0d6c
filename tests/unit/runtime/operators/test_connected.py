"""Two streams over one keyed state: a function of both, its timers and side outputs, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kafka_eos import (
    CoProcessFunction,
    KeyedStream,
    OutputTag,
    Pipeline,
    PlanError,
    PoisonRecord,
    ProcessContext,
    connect,
    monotonic,
)
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local

OPEN = OutputTag("open", str)


class Watch(CoProcessFunction[str, int, str, str]):
    """Numbers are summed up; a word says the sum so far; what has no word within ten milliseconds is open."""

    side_outputs = (OPEN,)

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.sum = ctx.value_state("sum", int, 0)

    def process_left(self, key: str, value: int) -> Iterable[str]:
        self.sum.put(self.sum.get() + value)
        self.timers.register(self.ctx.timestamp + 10)
        if value == 13:
            raise ValueError("unlucky")
        return []

    def process_right(self, key: str, value: str) -> Iterable[str]:
        said = f"{value} {self.sum.get()}"
        if value != "so far":
            self.sum.clear()
        return [said]

    def on_timer(self, key: str, time: int) -> Iterable[str]:
        if self.sum.get():
            self.ctx.output(OPEN, f"{key} {self.sum.get()} at {time}")
        return []


def keyed(pipeline: Pipeline, name: str, *, on_error: Any = "stop", **given: Any) -> KeyedStream[str, Any]:
    source = pipeline.source(ListSource([]), name=name, on_error=on_error).with_timestamps(watermarks=monotonic())
    return source.key_by(lambda value: "k", name=f"by-{name}", **given)


def watched(on_error: Any = "stop") -> Pipeline:
    pipeline = Pipeline("connected")
    numbers, words = (keyed(pipeline, name, on_error=on_error) for name in ("numbers", "words"))
    out = connect(numbers, words).process(Watch, name="watch")
    out.sink(MemorySink(), name="out")
    out.side_output(OPEN).sink(MemorySink(), name="open")
    return pipeline


def test_each_stream_has_its_method_and_both_have_one_state() -> None:
    out = run_local(
        watched(),
        {"numbers": [TimestampedValue(1, 1), TimestampedValue(2, 2)], "words": [TimestampedValue("so far", 3)]},
    )

    assert out == {"out": ["so far 3"], "open": []}


def test_a_timer_waits_for_the_event_time_of_both_streams() -> None:
    given: dict[str, list[Any]] = {
        "numbers": [TimestampedValue(1, 1), TimestampedValue(0, 500)],
        "words": [TimestampedValue("so far", 11)],
    }
    assert run_local(watched(), given)["open"] == []

    given["words"] += [TimestampedValue("so far", 12)]
    assert run_local(watched(), given)["open"] == ["k 1 at 11"]


def test_a_record_that_is_refused_has_changed_nothing_in_whichever_stream() -> None:
    out = run_local(
        watched(DeadLetters(MemorySink())),
        {"numbers": [TimestampedValue(1, 1), TimestampedValue(13, 2)], "words": [TimestampedValue("is", 3)]},
    )

    assert (out["out"], len(out["numbers-dead-letters"]), out["words-dead-letters"]) == (["is 1"], 1, [])
    with pytest.raises(PoisonRecord, match="unlucky"):
        run_local(watched(), {"numbers": [TimestampedValue(13, 2)]})


def test_one_connection_may_have_several_readers() -> None:
    pipeline = Pipeline("connected")
    both = connect(keyed(pipeline, "numbers"), keyed(pipeline, "words"))
    for name in ("one", "other"):
        out = both.process(Watch, name=name)
        out.sink(MemorySink(), name=f"{name}-out")
        out.side_output(OPEN).sink(MemorySink(), name=f"{name}-open-rows")

    found = run_local(pipeline, {"numbers": [TimestampedValue(4, 1)], "words": [TimestampedValue("is", 3)]})

    assert (found["one-out"], found["other-out"]) == (["is 4"], ["is 4"])


def test_streams_of_a_stream_meet_again() -> None:
    """One of the two has gone through a state before: a queue lies between, and rows keep key and way."""
    pipeline = Pipeline("connected")
    first = keyed(pipeline, "numbers", values=int)
    sums = first.fold(name="sums", init=int, step=lambda total, value: total + value, emit=lambda key, total: total)
    again = sums.key_by(lambda total: "k", name="by-sums", values=int)

    class Both(CoProcessFunction[str, int, int, str]):
        def process_left(self, key: str, value: int) -> Iterable[str]:
            return [f"{key} got {value}"]

        def process_right(self, key: str, value: int) -> Iterable[str]:
            return [f"{key} has {value}"]

    connect(first, again).process(Both, name="both").sink(MemorySink(), name="out")

    assert [node.kind for node in pipeline.plan().nodes].count("forward") == 1
    found = run_local(pipeline, {"numbers": [TimestampedValue(1, 1), TimestampedValue(2, 2)]})["out"]
    assert sorted(found) == ["k got 1", "k got 2", "k has 1", "k has 3"]


# ---------------------------------------------------------------- what is refused


def test_a_stream_is_not_connected_with_itself() -> None:
    stream = keyed(Pipeline("connected"), "numbers")

    with pytest.raises(PlanError, match=r"both inputs are the same stream(.|\n)*test_connected.py"):
        connect(stream, stream)


def test_nor_with_one_of_another_pipeline() -> None:
    one, other = (keyed(Pipeline(name), "numbers") for name in ("first", "second"))

    with pytest.raises(PlanError, match=r"two pipelines, 'first' and 'second'(.|\n)*test_connected.py"):
        connect(one, other)


@pytest.mark.parametrize("local", [0, 1])
def test_keys_of_both_are_in_one_place(local: int) -> None:
    pipeline = Pipeline("connected")
    numbers, words = (keyed(pipeline, name, local=n == local) for n, name in enumerate(("numbers", "words")))
    out = connect(numbers, words).process(Watch, name="watch")
    out.sink(MemorySink(), name="out")
    out.side_output(OPEN).sink(MemorySink(), name="open")

    with pytest.raises(PlanError, match=r"is local=True but the other stream is not(.|\n)*test_connected.py"):
        pipeline.plan()


def test_both_may_be_local() -> None:
    pipeline = Pipeline("connected")
    numbers, words = (keyed(pipeline, name, local=True) for name in ("numbers", "words"))
    out = connect(numbers, words).process(Watch, name="watch")
    out.sink(MemorySink(), name="out")
    out.side_output(OPEN).sink(MemorySink(), name="open")

    assert pipeline.plan().has_local_state("watch")


def test_a_connection_that_nobody_reads_is_refused() -> None:
    pipeline = Pipeline("connected")
    connect(keyed(pipeline, "numbers"), keyed(pipeline, "words"), name="both")

    with pytest.raises(PlanError, match="nothing reads the output of connect 'both'"):
        pipeline.plan()


def test_coroutines_are_no_functions_of_two_streams() -> None:
    class Later(CoProcessFunction[str, Any, Any, Any]):
        async def process_left(self, key: str, value: Any) -> Iterable[Any]:  # type: ignore[override]
            return []

        def process_right(self, key: str, value: Any) -> Iterable[Any]:
            return []

    pipeline = Pipeline("connected")
    with pytest.raises(PlanError, match=r"co-process(.|\n)*test_connected.py"):
        connect(keyed(pipeline, "numbers"), keyed(pipeline, "words")).process(Later, name="later")  # type: ignore[arg-type]
