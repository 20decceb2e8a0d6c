"""What each operator of a chain has done: its own rows and its own time, not those of who comes behind it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos import Pipeline
from kafka_eos.core.records import Batch
from kafka_eos.plan import PartialFoldNode
from kafka_eos.runtime.operators import operator_chain as chain
from kafka_eos.runtime.operators import operator_stats as worked
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin


class Time:
    """A clock that goes on when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def takes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    for module in (chain, worked):
        monkeypatch.setattr(module, "perf_counter", lambda: time.now)
    return time


def batch(*values: int) -> Batch[Any]:
    return Batch(list(values), range(len(values)), ListOrigin("numbers", "numbers", 0, 0, list(values)))


@pytest.fixture
def counted(time: Time, tmp_path: Path) -> Iterator[OperatorChain]:
    """Twice each number, odd ones aside, and sums by key: the map takes 1 s a row, the sum 10 s, the sink 100 s."""

    def doubled(n: int) -> int:
        time.takes(1)
        return 2 * n

    def added(total: int, n: int) -> int:
        time.takes(10)
        return total + n

    pipeline = Pipeline("counting")
    pipeline.source(ListSource([1]), name="numbers").map(doubled, name="doubled").filter(
        lambda n: n > 2, name="large"
    ).key_by(lambda n: 0, values=int, name="all").fold(
        name="sum", init=int, step=added, emit=lambda key, n: n, state=int
    ).sink(MemorySink(), name="out")
    state = open_backend("memory", "sum", tmp_path / "sum", range(MAX_KEY_GROUPS), [], MemoryStorage())
    opened = OperatorChain(pipeline.plan(), {"sum": state}, {"out": lambda rows: time.takes(100)})
    yield opened
    opened.close()
    state.close()


def test_an_operator_is_as_busy_as_its_own_code(counted: OperatorChain) -> None:
    counted.push("numbers", batch(1, 2, 3))

    busy = {name: did.busy for name, did in counted.stats.items() if did.busy}
    assert busy == {"doubled": 3, "sum": 20, "out": 100}


def test_rows_are_counted_where_they_come_in_and_where_they_go_on(counted: OperatorChain) -> None:
    counted.push("numbers", batch(1, 2, 3))

    rows = {name: (did.rows_in, did.rows_out) for name, did in counted.stats.items()}
    assert rows == {
        "numbers": (0, 3),
        "doubled": (3, 3),
        "large": (3, 2),
        "all": (2, 2),
        "sum": (2, 2),
        "out": (2, 0),
    }


def test_what_an_operator_hands_on_at_the_barrier_is_counted_there(time: Time, tmp_path: Path) -> None:
    def added(one: int, other: int) -> int:
        time.takes(10)
        return one + other

    pipeline = Pipeline("gathering")
    pipeline.source(ListSource([1]), name="numbers").key_by(lambda n: 0, values=int, name="all").fold(
        name="sum", init=int, step=operator.add, merge=added, emit=lambda key, n: n, state=int
    ).sink(MemorySink(), name="out")
    plan = pipeline.plan()
    (partial,) = [node.name for node in plan.nodes if isinstance(node, PartialFoldNode)]
    state = open_backend("memory", "sum", tmp_path / "sum", range(MAX_KEY_GROUPS), [], MemoryStorage())
    opened = OperatorChain(plan, {"sum": state}, {"out": lambda rows: None})
    opened.push("numbers", batch(1, 2, 3))
    before = opened.stats[partial].rows_in, opened.stats[partial].rows_out
    opened.flush()
    opened.push("numbers", batch(4))
    opened.flush()
    opened.close()
    state.close()

    assert before == (3, 0)
    assert opened.stats[partial].rows_out == 2
    assert opened.stats["sum"].busy == 10, "the first partial sum of a key has nothing to be merged with"


def test_a_counter_that_is_told_any_number_of_a_record_can_still_be_reported() -> None:
    """A record may have a number of any size, and the figures of a worker travel as MessagePack."""
    counter = worked.UserCounter()
    counter.inc(2**70)
    counter.inc()

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(counter.count)) == 2**63 - 1
