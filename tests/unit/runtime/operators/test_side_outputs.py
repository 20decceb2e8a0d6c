"""Side outputs: each value goes to the stream of its tag, none to another, and none is lost without a word."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import OutputTag, Pipeline, PlanError, ProcessContext, ProcessFunction, monotonic
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin

ODD = OutputTag("odd", int)
TEXT = OutputTag("text", str)


class Parts(ProcessFunction[str, int, int]):
    """Twice each even number; an odd one goes aside, and what it is called."""

    side_outputs = (ODD, TEXT)

    def open(self, ctx: ProcessContext) -> None:
        self.ctx = ctx
        self.seen = ctx.value_state("seen", int, 0)

    def process(self, key: str, value: int) -> Iterable[int]:
        self.seen.put(self.seen.get() + 1)
        if value % 2:
            self.ctx.output(ODD, value)
            self.ctx.output(TEXT, f"{key}{self.seen.get()}")
            self.ctx.output(ODD, -value)
        else:
            yield from (value, value)
        if value > 100:
            raise ValueError("large")


class Undeclared(Parts):
    side_outputs = (TEXT,)


class OtherType(Parts):
    side_outputs = (OutputTag("odd", str), TEXT)


class Fires(ProcessFunction[str, int, str]):
    side_outputs = (ODD,)

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()

    def process(self, key: str, value: int) -> Iterable[str]:
        self.timers.register(self.ctx.timestamp + 5)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[str]:
        yield "fired"
        self.ctx.output(ODD, time)
        yield "again"


def flow(function: Any = Parts, on_error: Any = "stop") -> Pipeline:
    pipeline = Pipeline("sides")
    source = pipeline.source(ListSource([]), name="source", on_error=on_error)
    parts = source.with_timestamps(watermarks=monotonic()).key_by(lambda v: "k").process(function, name="parts")
    parts.sink(MemorySink(), name="main")
    for tag in getattr(function, "side_outputs", ()):
        parts.side_output(tag).sink(MemorySink(), name=tag.name)
    return pipeline


def timed(*values: int) -> list[TimestampedValue]:
    return [TimestampedValue(value, 10 * index) for index, value in enumerate(values)]


def test_each_value_goes_to_the_stream_of_its_tag() -> None:
    assert run_local(flow(), {"source": timed(1, 2, 3)}) == {
        "main": [2, 2],
        "odd": [1, -1, 3, -3],
        "text": ["k1", "k3"],
    }


def test_an_object_may_declare_them_too() -> None:
    assert run_local(flow(Parts()), {"source": timed(1)})["odd"] == [1, -1]


def test_a_side_output_is_a_stream_like_any_other() -> None:
    pipeline = Pipeline("sides")
    numbers = pipeline.source(ListSource([]), name="source").key_by(lambda v: "k").process(Parts, name="parts")
    odd = numbers.side_output(ODD)
    odd.union(numbers, name="both").sink(MemorySink(), name="both-sink")
    odd.key_by(abs).fold(name="sum", init=int, step=lambda total, n: total + abs(n)).sink(MemorySink(), name="sums")
    numbers.side_output(TEXT).map(str.upper).sink(MemorySink(), name="texts")

    found = run_local(pipeline, {"source": [1, 2, 1]})

    assert sorted(found["both-sink"]) == [-1, -1, 1, 1, 2, 2]
    assert found["sums"] == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert found["texts"] == ["K1", "K3"]


def test_timers_emit_there_and_the_time_of_the_row_is_theirs() -> None:
    function = Fires
    assert run_local(flow(function), {"source": timed(1, 2)}) == {"main": ["fired", "again"], "odd": [5]}


def test_what_a_call_that_raises_has_emitted_does_not_count() -> None:
    found = run_local(flow(Parts, DeadLetters(MemorySink())), {"source": timed(101, 3)})

    assert (found["odd"], found["text"]) == ([3, -3], ["k1"])
    assert len(found["source-dead-letters"]) == 1


def test_ordinals_count_within_each_stream_so_no_name_depends_on_the_other(tmp_path: Path) -> None:
    plan = flow().plan()
    out: dict[str, list[str]] = {sink.name: [] for sink in plan.sinks}

    def note(name: str, batch: Batch[Any]) -> None:
        out[name] += [parse_provenance(text).identity for text in format_provenance(batch, "job", Term(1), Epoch(1))]

    states = {n.name: open_backend("memory", n.name, tmp_path / n.name, range(128), (), MemoryStorage())
              for n in plan.nodes if n.stateful}  # fmt: skip
    with closing(OperatorChain(plan, states, {name: partial(note, name) for name in out})) as chain:
        values = [1, 2, 3]
        chain.push("source", Batch(values, range(3), ListOrigin("source", "t", 0, 0, values, [0, 0, 0])))

    assert out == {
        "main": ["source/t/0/1/0.0", "source/t/0/1/0.1"],
        "odd": [f"source/t/0/{offset}/0.{ordinal}" for offset in (0, 2) for ordinal in (0, 1)],
        "text": ["source/t/0/0/0.0", "source/t/0/2/0.0"],
    }


@pytest.mark.parametrize("function", [Undeclared, OtherType])
def test_a_tag_that_is_not_declared_stops_the_job_and_says_what_to_do(function: Any) -> None:
    with pytest.raises(PlanError, match=r"'parts' emits to OutputTag\(name='odd'.*side_outputs = "):
        run_local(flow(function, DeadLetters(MemorySink())), {"source": timed(1)})


def test_a_function_without_tags_emits_to_none() -> None:
    class Plain(Parts):
        side_outputs = ()

    with pytest.raises(PlanError, match="does not declare"):
        run_local(flow(Plain), {"source": timed(1)})


def test_nothing_is_emitted_in_open() -> None:
    class Early(Parts):
        def open(self, ctx: ProcessContext) -> None:
            ctx.output(ODD, 1)

    with pytest.raises(PlanError, match=r"open\(ctx\) must not emit"):
        run_local(flow(Early), {"source": []})


def test_a_tag_that_nobody_reads_is_refused() -> None:
    pipeline = Pipeline("sides")
    parts = pipeline.source(ListSource([]), name="source").key_by(str).process(Parts, name="parts")
    parts.sink(MemorySink(), name="main")
    parts.side_output(ODD).sink(MemorySink(), name="odd")

    with pytest.raises(PlanError, match=r"nothing reads the side output 'text' of 'parts'(?s:.)*\.process\("):
        pipeline.plan()


def test_side_outputs_are_taken_right_behind_their_function_and_the_error_names_those_that_are_there() -> None:
    keyed = Pipeline("sides").source(ListSource([]), name="source").key_by(str)
    parts = keyed.process(Parts, name="parts")

    with pytest.raises(PlanError, match=r"'parts-main'; it declares OutputTag\(name='odd'(?s:.)*test_side_outputs"):
        parts.side_output(OutputTag("even", int))
    with pytest.raises(PlanError, match="no side outputs are declared there"):
        parts.map(abs).side_output(ODD)


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ((ODD, OutputTag("odd", str)), "two side outputs"),
        ((OutputTag("main", int),), "named 'main'"),
        ((OutputTag("a b", int),), "not usable as a name"),
        (("odd",), r"must be OutputTag\(name, type\)"),
    ],
)
def test_tags_that_could_not_be_told_apart_are_refused(tags: Any, why: str) -> None:
    class Wrong(Parts):
        side_outputs = tags

    with pytest.raises(PlanError, match=why):
        Pipeline("sides").source(ListSource([]), name="source").key_by(str).process(Wrong, name="parts")


def test_explain_shows_them_and_a_function_without_tags_has_no_node_more() -> None:
    text = flow().explain()

    assert "parts-main" in text and "what has no tag" in text
    assert "side output 'odd'" in text
    assert [node.name for node in flow(_Alone).plan().nodes][-2:] == ["parts", "main"]


class _Alone(ProcessFunction[str, int, int]):
    def process(self, key: str, value: int) -> Iterable[int]:
        return [value]
