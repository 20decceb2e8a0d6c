"""Late rows are counted where event time is waited for, and how far it has come is told by split."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, bounded, generated
from kafka_eos.abc.state import StateHandle
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch, RecordCounts, Watermark
from kafka_eos.plan import Plan, TimestampsNode
from kafka_eos.runtime.operators.event_time import WITH_EACH_BATCH
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin


class Waits(ProcessFunction[str, int, int]):
    def open(self, ctx: ProcessContext) -> None:
        ctx.timers()

    def process(self, key: str, value: int) -> Iterable[int]:
        return []

    def on_timer(self, key: str, time: int) -> Iterable[int]:
        return []


class WaitsNot(ProcessFunction[str, int, int]):
    def process(self, key: str, value: int) -> Iterable[int]:
        return []


def plan(strategy: Any = None) -> Plan:
    pipeline = Pipeline("late")
    source = pipeline.source(ListSource([]), name="source")
    timed = source.with_timestamps(watermarks=strategy or bounded(0.01), name="times").key_by(str)
    timed.process(Waits, name="waits").sink(MemorySink(), name="sink")
    timed.process(WaitsNot, name="waits-not").sink(MemorySink(), name="other")
    return pipeline.plan()


def opened(
    built: Plan, directory: Path, handles: list[StateHandle], groups: range = range(128)
) -> tuple[OperatorChain, dict[str, Any]]:
    backends = {
        node.name: open_backend(
            "memory",
            node.name,
            directory / f"{node.name}-{groups}-{len(handles)}",
            groups,
            [handle for handle in handles if handle.operator == node.name],
            STORAGE,
            by_split=isinstance(node, TimestampsNode),
        )
        for node in built.nodes
        if node.stateful
    }
    ignore = dict.fromkeys(("sink", "other"), lambda batch: None)
    return OperatorChain(built, backends, ignore, pace=WITH_EACH_BATCH), backends


STORAGE = MemoryStorage()


def read(chain: OperatorChain, *times: int, partition: int = 0) -> None:
    values = list(times)
    chain.push("source", Batch(values, range(len(values)), ListOrigin("source", "t", partition, 0, values, times)))


def test_rows_at_the_watermark_and_before_it_are_late_and_those_behind_it_are_not(tmp_path: Path) -> None:
    chain, _ = opened(plan(), tmp_path, [])
    with closing(chain):
        chain.assign("source", ["t/0"])
        read(chain, 100, 50)  # nobody knows yet that the second one is late
        assert chain.counts.late == {}
        read(chain, 89, 90, 10)
        assert chain.counts.late == {"waits": 2}
        read(chain, 89)
        assert chain.counts.late == {"waits": 3}


def test_where_keys_have_come_to_different_times_each_is_late_by_its_own(tmp_path: Path) -> None:
    """As after a rescale, until the others have come as far."""
    built = plan()
    handles: list[StateHandle] = []
    for subtask, time in ((0, 1000), (1, 100)):
        chain, backends = opened(built, tmp_path, [], key_group_range(subtask, 2))
        with closing(chain):
            chain.assign("source", [f"t/{subtask}"])
            chain.advance(next(node.name for node in built.nodes if node.kind == "key-by"), Watermark(time))
            handles += [backends["waits"].snapshot(Epoch(1))(STORAGE)]
    chain, _ = opened(built, tmp_path, handles)
    with closing(chain):
        chain.assign("source", ["t/0"])
        read(chain, *range(200, 260))

    assert 0 < chain.counts.late["waits"] < 60


@pytest.mark.parametrize(
    "strategy", [None, generated(int, on_event=lambda n, v, t: max(n or 0, t), watermark=lambda n: n - 11)]
)
def test_how_far_each_split_has_come_is_told(tmp_path: Path, strategy: Any) -> None:
    chain, _ = opened(plan(strategy), tmp_path, [])
    with closing(chain):
        chain.assign("source", ["t/0", "t/1", "t/2"])
        assert chain.event_time.by_split == {"times": {}}
        read(chain, 100)
        read(chain, 300, 200, partition=1)
        assert chain.event_time.by_split == {"times": {"t/0": 89, "t/1": 289}}


def test_late_rows_add_up_and_can_be_told_since_a_count_before() -> None:
    one, other = RecordCounts(late={"a": 2, "b": 1}), RecordCounts(late={"b": 4})

    assert one.plus(other).late == {"a": 2, "b": 5}
    assert one.plus(other).since(one).late == {"b": 4}
    assert one.late == {"a": 2, "b": 1}
