"""The open parts of one session: readers, operators, state backends and writers, wired by the plan.

Rule: opening is all or nothing for the caller, and ``close`` lets go of everything without undoing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kafka_eos.embedded.control import Start
from kafka_eos.failpoints import hit
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import (
    CheckpointStorage,
    JobContext,
    Positions,
    Reader,
    StateBackend,
    TaskContext,
    Writer,
)
from kafka_eos.operators.chain import Chain
from kafka_eos.plan import Plan
from kafka_eos.records import Batch
from kafka_eos.settings import Settings
from kafka_eos.state.backends import open_backend
from kafka_eos.state.keygroups import MAX_KEY_GROUPS


class Stage:
    """What a session works with. ``backends`` and ``writers`` are by operator name."""

    _chain: Chain

    def __init__(self, plan: Plan, settings: Settings, storage: CheckpointStorage, start: Start, local: Path) -> None:
        self.readers: dict[str, Reader[Any]] = {}
        self.writers: dict[str, Writer[Any]] = {}
        self.backends: dict[str, StateBackend] = {}
        self.records_in = self.records_out = 0
        self._plan, self._settings, self._start = plan, settings, start
        self._job = JobContext(plan.name, Term(start.term), settings.for_connectors())
        self._shared: dict[str, Any] = {}
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.callback(self.close)
            self._open(storage, local)
            undo.pop_all()

    def _open(self, storage: CheckpointStorage, local: Path) -> None:
        for node in self._plan.nodes:
            if not node.stateful:
                continue
            self.backends[node.name] = self._restore(node.name, storage, local)
            self._closing.callback(self.backends[node.name].close)
        hit("recovery.restored")
        self._shared["reject-row"] = lambda *refused: self._chain.refuse_row(*refused)
        for sink in self._plan.sinks:
            self.writers[sink.name] = sink.sink.writer(self._context(sink.name))
            self._closing.callback(self.writers[sink.name].discard)
        self._chain = Chain(self._plan, self.backends, {name: self._output(w) for name, w in self.writers.items()})
        self._closing.callback(self._chain.close)
        for source in self._plan.sources:
            self._shared[f"reject:{source.name}"] = self._chain.rejector(source.name)
            reader = source.source.reader(self._context(source.name), self._start.positions[source.name])
            self.readers[source.name] = reader
            self._closing.callback(reader.close)

    def _restore(self, operator: str, storage: CheckpointStorage, local: Path) -> StateBackend:
        handles = [handle for handle in self._start.states if handle.operator == operator]
        return open_backend(
            self._settings.state_backend,
            operator,
            local / operator,
            range(MAX_KEY_GROUPS),
            handles,
            storage,
            self._settings.state_cache_entries,
        )

    def _context(self, operator: str) -> TaskContext:
        return TaskContext(self._job, 0, 1, operator, self._shared, Epoch(self._start.first_epoch))

    def _output(self, writer: Writer[Any]) -> Callable[[Batch[Any]], None]:
        def write(batch: Batch[Any]) -> None:
            self.records_out += len(batch)
            writer.write(batch)

        return write

    # ------------------------------------------------------------ work

    def advance(self, batch_size: int, idle: float) -> None:
        """Read what there is from every source and push it through; wait at most ``idle`` seconds in all."""
        wait = idle / len(self.readers)
        for name, reader in self.readers.items():
            batch = reader.poll(batch_size, wait)
            if batch is None:
                self._chain.flush_rejected(name)
            else:
                self.records_in += len(batch)
                self._chain.push(name, batch)

    def completed(self, epoch: EpochId) -> None:
        """The epoch is committed: writers may reuse what they kept for it."""
        for writer in self.writers.values():
            writer.committed(epoch)

    def reached(self, ends: Mapping[str, Positions]) -> bool:
        return all(reader.reached(ends[name]) for name, reader in self.readers.items())

    def lag(self) -> int:
        return sum(reader.lag() for reader in self.readers.values())

    def close(self) -> None:
        self._closing.close()
