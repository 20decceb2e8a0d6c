"""Which sinks behind broadcast state are compared with a recompute, and where the input is cut for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_eos import (
    BroadcastContext,
    BroadcastProcessFunction,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    Pipeline,
    connect,
)
from kafka_eos.abc.context import JobContext
from kafka_eos.audit.facts.audit_subject import subject
from kafka_eos.audit.facts.job_ledger import Ledger, read_ledger
from kafka_eos.audit.tables.broadcast import python_tasks as tasks
from kafka_eos.audit.tables.broadcast.judgeable_sinks import BroadcastSinks, ruled, turns
from kafka_eos.audit.tables.plan_cut import cut
from kafka_eos.audit.tables.python_tasks import HEADERS_TYPE, INPUT_COLUMNS
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.runtime.program import load_program
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.storage.savepoint_files import SavepointOrigin

RULES, ROWS = "rules", "rows"


@pytest.mark.parametrize(
    ("rules", "rows", "found", "last"),
    [
        ([], [], {}, -1),
        # Nothing of the rules is read: one even turn, and what is behind the last cut.
        ([0, 0], [3, 9], {RULES: [0], ROWS: [9]}, -1),
        # Rules, rows, both, rows.
        ([5, 5, 7, 7], [0, 10, 12, 20], {RULES: [0, 5, 5, 7, 7], ROWS: [0, 0, 10, 12, 20]}, 3),
        # Epochs that read rules, one behind the other, are one turn.
        ([0, 2, 5, 5], [4, 6, 8, 9], {RULES: [0, 5, 5], ROWS: [4, 8, 9]}, 1),
        # The last epoch read some: that turn has no end.
        ([5, 5, 7], [0, 10, 12], {RULES: [0, 5, 5], ROWS: [0, 0, 10]}, 3),
    ],
)
def test_turns_are_epochs_with_and_without_rules(rules: Any, rows: Any, found: dict[str, list[int]], last: int) -> None:
    cuts = {RULES: {0: rules}, ROWS: {0: rows}} if rules else {}

    assert turns(cuts, {RULES}, {}) == ({source: {0: ends} for source, ends in found.items()}, last)


def test_what_was_there_before_the_job_is_not_read() -> None:
    cuts = {RULES: {0: [7, 7], 1: [0, 3]}, ROWS: {0: [0, 4]}}

    assert turns(cuts, {RULES}, {RULES: {0: 7, 1: 3}}) == ({RULES: {0: [7], 1: [3]}, ROWS: {0: [4]}}, -1)
    assert turns(cuts, {RULES}, {RULES: {0: 7, 1: 2}}) == ({RULES: {0: [7], 1: [0]}, ROWS: {0: [0]}}, 1)


class Plain(BroadcastProcessFunction[str, str, str]):
    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rules", str, str)

    def process(self, value: str) -> Iterable[str]:
        return [value]

    def process_broadcast(self, value: str) -> None:
        self.rules.put(value, value)


class Keyed(KeyedBroadcastProcessFunction[str, str, str, str]):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rules", str, str)

    def process(self, key: str, value: str) -> Iterable[str]:
        return [value]

    def process_broadcast(self, value: str) -> None:
        self.rules.put(value, value)


class Counted(Keyed):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        super().open(ctx)
        self.count = ctx.value_state("count", int, 0)


Build = Callable[[Any, Any], Any]


def counted(stream: Any) -> Any:
    return (
        stream.key_by(str, name="by-value").fold(name="counted", init=int, step=lambda total, value: total + 1).map(str)
    )


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda rows, rules: connect(rows.map(str), rules.filter(bool).broadcast()).process(Plain, name="ruled"), ""),
        (lambda rows, rules: connect(rows.rebalance(), rules.broadcast()).process(Plain, name="ruled").map(str), ""),
        (lambda rows, rules: connect(rows.key_by(str), rules.broadcast()).process(Keyed, name="ruled"), ""),
        (
            lambda rows, rules: connect(
                connect(rows, rules.broadcast()).process(Plain, name="first").union(rules), rules.broadcast()
            ).process(Plain, name="ruled"),
            "rules is both the stream and",
        ),
        (
            lambda rows, rules: connect(rows.key_by(str), rules.broadcast()).process(Counted, name="ruled"),
            "also has keyed state",
        ),
        (
            lambda rows, rules: connect(rows, counted(rules).broadcast()).process(Plain, name="ruled"),
            "besides broadcast state, it is behind fold",
        ),
        (
            lambda rows, rules: connect(rows, rules.rebalance().broadcast()).process(Plain, name="ruled"),
            "come through exchange",
        ),
        (
            lambda rows, rules: connect(counted(rows), rules.broadcast()).process(Plain, name="ruled"),
            "it is behind fold",
        ),
        (
            lambda rows, rules: counted(connect(rows, rules.broadcast()).process(Plain, name="ruled")),
            "it is behind fold",
        ),
        (
            lambda rows, rules: connect(rows, rules.broadcast()).process(Plain, name="ruled").broadcast().map(str),
            "the number of copies of an output depends on the number of workers",
        ),
    ],
)
def test_a_sink_is_compared_or_named_with_the_reason(build: Build, why: str) -> None:
    found = judged(build)

    if why:
        assert why in found.why["sink"] and not found.sinks
    else:
        (met,) = found.met
        assert (met.sinks, met.rules, met.sources, dict(found.why)) == ({"sink"}, {RULES}, {ROWS, RULES}, {})


def test_outputs_without_provenance_are_not_compared() -> None:
    assert "do not show in which epoch" in judged(simple, provenance=None).why["sink"]


def test_jobs_of_which_no_broadcast_state_is_known() -> None:
    assert "no record shows which rules each epoch had read" in judged(simple, start=None).why["sink"]
    assert (
        "of a savepoint"
        in judged(simple, origin=SavepointOrigin(job="judged", savepoint="an id", path="/a/path", at=0)).why["sink"]
    )
    assert "at-least-once" in judged(simple, strict=False).why["sink"]


def test_a_job_without_broadcast_state_has_nothing_of_it() -> None:
    assert judged(lambda rows, rules: rows.union(rules), start=None) == BroadcastSinks()


def simple(rows: Any, rules: Any) -> Any:
    return connect(rows, rules.broadcast()).process(Plain, name="ruled")


def judged(build: Build, *, provenance: Any = "header", strict: bool = True, **of_ledger: Any) -> BroadcastSinks:
    pipeline = Pipeline("judged")
    rows: Any = pipeline.source(KafkaSource("rows", value=str), name=ROWS)
    rules: Any = pipeline.source(KafkaSource("rules", value=str), name=RULES)
    made = build(rows, rules)
    made.sink(KafkaSink("out", value=str, provenance=provenance), name="sink")
    plan = pipeline.plan()
    context = JobContext("judged", Term(0), {"bootstrap_servers": "localhost:1"})
    ledger: Ledger = replace(read_ledger(MemoryStorage(), "judged", Path("nowhere")), **{"start": {}, **of_ledger})
    return ruled(subject(plan, context, {}), cut(plan, 2), ledger, {}, strict=strict)


APART = """
from kafka_eos import BroadcastProcessFunction, Pipeline, connect
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

class Plain(BroadcastProcessFunction):
    def open(self, ctx):
        self.rules = ctx.broadcast_state("rules", str, str)

    def process(self, value):
        return [value + rule for rule, _ in self.rules.items()]

    def process_broadcast(self, value):
        self.rules.put(value, value)

pipeline = Pipeline("apart")
rows = pipeline.source(KafkaSource("rows", value=str), name="rows")
for name in ("rules", "others"):
    told = pipeline.source(KafkaSource(name, value=str), name=name).broadcast()
    connect(rows, told).process(Plain, name=f"{name}-met").sink(KafkaSink(f"{name}-out", value=str), name=f"{name}-out")
beside = pipeline.source(KafkaSource("beside", value=str), name="beside", on_error=dead_letter("letters"))
beside.sink(KafkaSink("copies", value=str), name="copies")
"""


@pytest.fixture
def apart(tmp_path: Path) -> AppRef:
    """Rows that meet rules, and others, and a source beside them that has dead letters and meets none."""
    app = tmp_path / "apart.py"
    app.write_text(APART)
    return AppRef.parse(f"{app}:pipeline")


def test_a_change_of_rules_is_a_turn_for_the_sinks_alone_whose_rows_meet_them(apart: AppRef) -> None:
    plan = load_program(apart).plan()
    context = JobContext("apart", Term(0), {"bootstrap_servers": "localhost:1"})
    ledger = replace(read_ledger(MemoryStorage(), "apart", Path("nowhere")), start={})

    found = ruled(subject(plan, context, {}), cut(plan, 1), ledger, {}, strict=True)

    assert {tuple(met.sinks): (set(met.rules), set(met.sources)) for met in found.met} == {
        (f"{name}-out",): ({name}, {"rows", name}) for name in ("rules", "others")
    }
    assert found.sinks == {"rules-out", "others-out"}


def test_what_lies_beside_is_no_part_of_the_recompute(apart: AppRef) -> None:
    def column(values: list[Any], tp: pa.DataType) -> pa.Array:
        return pa.array(values, tp)

    read = pa.RecordBatch.from_arrays(
        [
            column(["rules", "rows"], pa.string()),
            column(["rules", "rows"], pa.string()),
            column([0, 0], pa.int32()),
            column([0, 7], pa.int64()),
            column([5, 5], pa.int64()),
            column([None, None], pa.binary()),
            column([b"!", b"a"], pa.binary()),
            column([[], []], HEADERS_TYPE),
        ],
        names=list(INPUT_COLUMNS),
    )

    (made,) = tasks.outputs(str(apart), 1, ("rules-out",), iter([read]))

    assert [(row["sink"], row["s_offset"], row["value"]) for row in made.to_pylist()] == [("rules-out", 7, b"a!")]
