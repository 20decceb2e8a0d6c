"""The parts of a run in this process: its clock, its state in memory, and what receives the rows of a sink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_eos.abc.auditable import SupportsLocalRun
from kafka_eos.abc.services import RejectRow
from kafka_eos.abc.state import StateBackend, StateHandle
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.plan import BroadcastConnectNode, Plan, SinkNode, TimestampsNode
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend


@dataclass(slots=True)
class LocalClock:
    """The processing-time clock of a run in this process, in milliseconds since the Unix epoch."""

    now: int

    def read(self) -> int:
        return self.now

    def seconds(self) -> float:
        return self.now / 1000


class LocalRun(dict[str, list[Any]]):
    """The values that each sink got, by the name of the sink, in order. It is a dict, and equal to one.

    ``written`` has, for sinks that encode, the records that they make of these values, without provenance: key, value,
    headers, and timestamp (milliseconds since the Unix epoch, -1 for the time of sending).

    ``late`` has the number of late rows, by the operator that met them. What became of them is the operator's choice: a
    side output, a dead letter, or an error.
    """

    def __init__(self, sinks: Sequence[str]) -> None:
        super().__init__({name: [] for name in sinks})
        self.written: dict[str, list[RawRecord]] = {name: [] for name in sinks}
        self.late: dict[str, int] = {}


class SinkOutput:
    """Collects what one sink gets."""

    def __init__(self, node: SinkNode, results: LocalRun) -> None:
        self._node, self._results = node, results
        self.refuse: RejectRow

    def __call__(self, batch: Batch[Any]) -> None:
        if isinstance(self._node.sink, SupportsLocalRun):
            batch, written = self._node.sink.written(batch, self._node.name, self.refuse)
            self._results.written[self._node.name].extend(written)
        self._results[self._node.name].extend(batch.values)


def open_states(
    plan: Plan,
    directory: Path,
    closing: ExitStack,
    clock: Callable[[], int],
    handles: Sequence[StateHandle],
    storage: CheckpointStorage,
) -> dict[str, StateBackend]:
    """Open the state of each stateful operator in memory, restored from ``handles``; time passes by ``clock`` alone."""
    backends: dict[str, StateBackend] = {}
    for node in plan.nodes:
        if node.stateful:
            backends[node.name] = open_backend(
                "memory",
                node.name,
                directory / node.name,
                range(MAX_KEY_GROUPS),
                [handle for handle in handles if handle.operator == node.name],
                storage,
                clock=clock,
                passing=clock,
                local=plan.has_local_state(node.name),
                by_split=isinstance(node, TimestampsNode),
                copied=isinstance(node, BroadcastConnectNode),
            )
            closing.callback(backends[node.name].close)
    return backends
