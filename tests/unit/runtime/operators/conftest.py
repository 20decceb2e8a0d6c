"""A bench for one operator: real state in memory, and a record of what was refused."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.state import StateBackend, StateHandle
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch
from kafka_eos.plan import Node
from kafka_eos.runtime.operators import Operator, OperatorContext, build_operator
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin

Verbs = Callable[[Any], Any]


class Dated(ListOrigin):
    """Rows with a timestamp each."""

    def __init__(self, origin: ListOrigin, times: Sequence[int]) -> None:
        self.__dict__.update(origin.__dict__)
        self._times = times

    def timestamps(self) -> Sequence[int]:
        return self._times


@dataclass
class Bench:
    """Operators of one pipeline, opened; ``run`` pushes values through them in a line."""

    directory: Path
    closing: ExitStack
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    refused: list[tuple[Any, str]] = field(default_factory=list)
    backends: dict[str, StateBackend] = field(default_factory=dict)
    now: int = 1_700_000_000_000
    """Milliseconds that the machine's clock shows to state that expires."""
    build: Callable[[Node], Operator] = build_operator

    def line(self, verbs: Verbs, handles: Sequence[StateHandle] = ()) -> list[Operator]:
        """Build and open the operators that ``verbs`` adds to a stream."""
        pipeline = Pipeline("bench")
        verbs(pipeline.source(ListSource([]), name="source")).sink(MemorySink(), name="sink")
        return [self._open(node, handles) for node in pipeline.plan().nodes[1:-1]]

    def _open(self, node: Any, handles: Sequence[StateHandle]) -> Operator:
        operator = self.build(node)
        path = self.directory / f"{node.name}-{len(self.backends)}"
        own = [handle for handle in handles if handle.operator == node.name]
        backend = open_backend(
            "memory", node.name, path, range(MAX_KEY_GROUPS), own, self.storage, clock=lambda: self.now
        )
        self.closing.callback(backend.close)
        self.backends[node.name] = backend
        operator.open(OperatorContext(node.name, backend.value, self._reject, backend.drop))
        self.closing.callback(operator.close)
        return operator

    def _reject(self, batch: Batch[Any], index: int, error: Exception) -> None:
        where = batch.origin.raw(batch.origin_rows[index]).location
        ErrorRules().expect_record(error, "bench", where)  # as every engine's policy does
        self.refused.append((batch.origin.raw(batch.origin_rows[index]).offset, f"{type(error).__name__}: {error}"))

    def push(self, line: list[Operator], values: Sequence[Any], times: Sequence[int] | None = None) -> Batch[Any]:
        origin = ListOrigin("source", "topic", 0, 0, list(values))
        if times is not None:
            origin = Dated(origin, times)
        batch = Batch(list(values), range(len(values)), origin)
        for operator in line:
            batch = operator.process(batch)
        return batch

    def run(self, verbs: Verbs, values: Sequence[Any]) -> Batch[Any]:
        return self.push(self.line(verbs), values)

    def snapshot(self, operator: str) -> StateHandle:
        return self.backends[operator].snapshot(Epoch(1))(self.storage)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as closing:
        yield Bench(tmp_path, closing)
