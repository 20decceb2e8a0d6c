"""A chain whose operators cannot all be opened leaves none open."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kafka_eos import Pipeline, ProcessContext, ProcessFunction
from kafka_eos.core.errors import EnvironmentFailed
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.epoch_scratch import MemorySpillStore
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink


class CannotOpen(ProcessFunction[int, int, int]):
    def open(self, ctx: ProcessContext) -> None:
        raise OSError("the model is not there")

    def process(self, key: int, value: int) -> Iterable[int]:
        yield value


class Lent(MemorySpillStore):
    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_what_is_open_is_closed_if_a_later_operator_cannot_be_opened(tmp_path: Path, closing: ExitStack) -> None:
    pipeline = Pipeline("opening")
    sums = (
        pipeline.source(ListSource([1]), name="numbers")
        .key_by(lambda n: n % 2, values=int, name="parity")
        .fold(name="sum", init=int, step=operator.add, merge=operator.add, emit=lambda key, n: n, state=int)
    )
    sums.key_by(int, values=int, name="second").process(CannotOpen, name="fails").sink(MemorySink(), name="out")
    plan = pipeline.plan()
    backends = {
        name: open_backend("memory", name, tmp_path / name, range(MAX_KEY_GROUPS), [], MemoryStorage())
        for name in ("sum", "fails")
    }
    for backend in backends.values():
        closing.callback(backend.close)
    lent: list[Lent] = []

    def scratch(_: str) -> Lent:
        lent.append(Lent(100))
        return lent[-1]

    with pytest.raises(EnvironmentFailed, match="open of operator 'fails' raised OSError: the model is not there"):
        OperatorChain(plan, backends, {"out": lambda batch: None}, scratch=scratch)

    assert lent and all(each.closed for each in lent)
