"""A job that was killed while the windows of many keys closed: what they still have to say is not called missing.

Its newest checkpoint is of a real chain, taken between two slices. Its outputs are written into topics of a sink for
each corruption, and one audit judges them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.state import StateHandle
from kafka_eos.audit import Check
from kafka_eos.audit.tables.python_tasks import ignore
from kafka_eos.core.ids import AppRef, Epoch, SplitId, Term
from kafka_eos.core.provenance import format_provenance
from kafka_eos.core.records import Batch, RawOrigin, RawRecord
from kafka_eos.plan import Plan, TimestampsNode
from kafka_eos.runtime.operators.event_time import WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.program import load_program
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import LocalStorage
from tests.audit.corrupted_job import Outs, found, shown
from tests.audit.job import FED_AT, Job, Out, epoch

pytestmark = pytest.mark.timeout(300)

PIPELINE = """
from kafka_eos import Pipeline, Windowed, monotonic, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
windows = (
    pipeline.source(KafkaSource("{input}", value=int), name="numbers")
    .with_timestamps(lambda n: {begin} + (2 if n < {keys} else 10), watermarks=monotonic())
    .key_by(lambda n: n)
    .window(tumbling(seconds=0.010))
    .fold(name="windows", init=int, step=lambda total, n: total + n)
)
for sink, topic in {topics}.items():
    windows.sink(KafkaSink(topic, value=Windowed[int, int], key=lambda w: str(w.key)), name=sink)
"""
KEYS = 1200
"""A step has the results of five hundred."""


CORRUPTIONS: dict[str, tuple[Callable[[Outs, Outs], Outs], dict[Check, int]]] = {
    "right": (lambda outs, rest: outs, {}),
    "missing": (lambda outs, rest: outs[1:], {Check.LOST: 1}),
    "early": (lambda outs, rest: [*outs, rest[0]], {Check.UNEXPECTED: 1}),
}
"""What is there, of the results before the snapshot and those after it; and what is found."""


def test_what_a_snapshot_between_two_slices_still_holds_is_not_called_missing(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    source, topics = topic(), {name: topic() for name in CORRUPTIONS}
    given: dict[str, Any] = {"input": source, "topics": topics, "begin": FED_AT, "keys": KEYS}
    job = new_job(PIPELINE, **given)
    job.feed(source, [(0, None, json.dumps(n).encode()) for n in range(KEYS + 1)])
    plan = load_program(AppRef(job.app, job.name)).plan()
    outs, rest, states = sliced(plan, source, job.storage, job.directory)
    assert outs and rest
    ends = {"numbers": {SplitId(f"{source}/0"): KEYS + 1}}
    written = {name: spoil(outs, rest) for name, (spoil, _) in CORRUPTIONS.items()}
    job.write_all({topics[name]: each for name, each in written.items()})
    counts = {epoch(1, 1): {name: len(each) for name, each in written.items()}}
    job.commits(epoch(1, 0), epoch(1, 1), positions=ends, counts=counts, states=states)

    verdict = job.audit(spark)

    assert found(verdict) == {name: told for name, (_, told) in CORRUPTIONS.items() if told}, shown(verdict)


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_a_job_that_dies_again_and_again_while_its_windows_close_has_each_result_once(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_EOS_CHECKPOINT_INTERVAL", "50ms")
    monkeypatch.setenv("KAFKA_EOS_CHECKPOINT_MODE", mode)
    keys, source, output = 20_000, topic(partitions=2), topic()
    job = new_job(PIPELINE, input=source, topics={"right": output}, begin=FED_AT, keys=keys)
    job.feed(source, [(n % 2, None, json.dumps(n).encode()) for n in range(keys)])
    job.feed(source, [(n % 2, None, json.dumps(n).encode()) for n in (keys, keys + 1)])
    job.run(workers=2, failpoints="timers.fired=kill@12;commit.before=kill@2;timers.fired=kill@7")

    verdict = job.audit(spark)

    assert verdict.conclusion.is_clean, shown(verdict)
    assert verdict.facts.outputs == keys


def sliced(
    plan: Plan, topic: str, storage: LocalStorage, directory: Path
) -> tuple[Outs, Outs, tuple[StateHandle, ...]]:
    """What the windows say in one slice and behind it, and the state in between."""
    made: list[Batch[Any]] = []
    backends = {
        node.name: open_backend(
            "memory",
            node.name,
            directory / node.name,
            range(128),
            [],
            storage,
            by_split=isinstance(node, TimestampsNode),
        )
        for node in plan.nodes
        if node.stateful
    }
    sinks = {sink.name: made.append if sink.name == "right" else ignore for sink in plan.sinks}
    one_step = WatermarkSchedule(0.0, lambda: 0.0, slice=0.0)
    with closing(OperatorChain(plan, backends, sinks, pace=one_step)) as chain:
        chain.assign("numbers", [SplitId(f"{topic}/0")])
        chain.push("numbers", numbers(topic))
        while not made:
            chain.continue_due()
        assert chain.has_due_work
        chain.flush(whole=False)
        states = tuple(backend.snapshot(Epoch(1))(storage) for backend in backends.values())
        before = len(made)
        chain.flush()
    first, rest = ([out for batch in batches for out in said(batch)] for batches in (made[:before], made[before:]))
    return first, rest, states


def numbers(topic: str) -> Batch[Any]:
    raws = [RawRecord(topic, 0, n, FED_AT, None, json.dumps(n).encode(), ()) for n in range(KEYS + 1)]
    return Batch(list(range(KEYS + 1)), list(range(KEYS + 1)), RawOrigin("numbers", raws))


def said(batch: Batch[Any]) -> list[Out]:
    texts, times = format_provenance(batch, "job", Term(1), Epoch(1)), batch.event_times or ()
    return [
        Out(str(result.key), value(result.key, result.value), text, timestamp=time)
        for result, text, time in zip(batch.values, texts, times, strict=True)
    ]


def value(key: int, total: int) -> bytes:
    window = {"start": FED_AT, "end": FED_AT + 10}
    return json.dumps({"key": key, "window": window, "value": total}, separators=(",", ":")).encode()
