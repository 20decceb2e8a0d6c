"""Which sinks behind broadcast state are compared with a recompute, and where the input is cut for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import (
    BroadcastContext,
    BroadcastProcessFunction,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    Pipeline,
    connect,
)
from kafka_eos.audit.broadcasts.judged import Ruled, ruled, turns
from kafka_eos.audit.ledger import Ledger, read_ledger
from kafka_eos.audit.subject import cut, subject
from kafka_eos.checkpoints.savepoints import Origin
from kafka_eos.checkpoints.storage import MemoryStorage
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.ids import Term
from kafka_eos.interfaces import JobContext

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
            "rules is both the stream of",
        ),
        (
            lambda rows, rules: connect(rows.key_by(str), rules.broadcast()).process(Counted, name="ruled"),
            "also has state of keys",
        ),
        (
            lambda rows, rules: connect(rows, counted(rules).broadcast()).process(Plain, name="ruled"),
            "beside broadcast state it lies behind fold",
        ),
        (
            lambda rows, rules: connect(rows, rules.rebalance().broadcast()).process(Plain, name="ruled"),
            "has passed exchange",
        ),
        (
            lambda rows, rules: connect(counted(rows), rules.broadcast()).process(Plain, name="ruled"),
            "lies behind fold",
        ),
        (
            lambda rows, rules: counted(connect(rows, rules.broadcast()).process(Plain, name="ruled")),
            "lies behind fold",
        ),
        (
            lambda rows, rules: connect(rows, rules.broadcast()).process(Plain, name="ruled").broadcast().map(str),
            "how often an output is there depends on the number of workers",
        ),
    ],
)
def test_a_sink_is_compared_or_named_with_the_reason(build: Build, why: str) -> None:
    found = judged(build)

    if why:
        assert why in found.why["sink"] and not found.sinks
    else:
        assert (found.sinks, found.rules, dict(found.why)) == ({"sink"}, {RULES}, {})


def test_outputs_without_provenance_are_not_compared() -> None:
    assert "do not tell in which epoch" in judged(simple, provenance=None).why["sink"]


def test_jobs_of_which_no_broadcast_state_is_known() -> None:
    assert "nothing tells which rules each epoch had read" in judged(simple, start=None).why["sink"]
    assert (
        "of a savepoint"
        in judged(simple, origin=Origin(job="judged", savepoint="an id", path="/a/path", at=0)).why["sink"]
    )
    assert "at-least-once" in judged(simple, strict=False).why["sink"]


def test_a_job_without_broadcast_state_has_nothing_of_it() -> None:
    assert judged(lambda rows, rules: rows.union(rules), start=None) == Ruled()


def simple(rows: Any, rules: Any) -> Any:
    return connect(rows, rules.broadcast()).process(Plain, name="ruled")


def judged(build: Build, *, provenance: Any = "header", strict: bool = True, **of_ledger: Any) -> Ruled:
    pipeline = Pipeline("judged")
    rows: Any = pipeline.source(KafkaSource("rows", value=str), name=ROWS)
    rules: Any = pipeline.source(KafkaSource("rules", value=str), name=RULES)
    made = build(rows, rules)
    made.sink(KafkaSink("out", value=str, provenance=provenance), name="sink")
    plan = pipeline.plan()
    context = JobContext("judged", Term(0), {"bootstrap_servers": "localhost:1"})
    ledger: Ledger = replace(read_ledger(MemoryStorage(), "judged", Path("nowhere")), **{"start": {}, **of_ledger})
    return ruled(subject(plan, context, {}), cut(plan, 2), ledger, {}, strict=strict)
