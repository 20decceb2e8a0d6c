"""The resources of a subtask: state, operators, writers, readers, restored in-flight rows.

A session connects the opened parts; this module decides which parts are opened, with which settings.

Rule: opening is all or nothing for the caller, and ``close`` releases everything without undoing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Writer
from kafka_eos.abc.source import Reader
from kafka_eos.abc.state import InFlightRows, StateBackend, StateHandle
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import EpochId, JobIdentity, SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch
from kafka_eos.plan import BroadcastConnectNode, Node, Plan, SinkNode, SourceNode, TimestampsNode, kafka_share
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange.routing import make_restore_router
from kafka_eos.runtime.operators.event_time import ExcludedSplits, WatermarkOutput, WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain, Output
from kafka_eos.runtime.state.epoch_scratch import SpillStore
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend, open_scratch
from kafka_eos.runtime.state.restore_progress import ProgressListener, RestoreFetcher, nobody
from kafka_eos.runtime.state.rocksdb_options import StateOptions
from kafka_eos.runtime.worker.source_readers import BootstrapReader, DeferredReader

_UNDER_WAY = "rows under way"
"""Takes the place of an operator's name in the restore progress."""


@dataclass(frozen=True, slots=True)
class SubtaskSpec:
    """One subtask's part of a job: plan, settings, storage, identity, first epoch, local directory.

    ``local_dir``: the local directory for the operator of that name, private to the task.
    """

    plan: Plan
    settings: Settings
    storage: CheckpointStorage
    identity: JobIdentity
    first: EpochId
    """Term and epoch of the first rows."""
    subtask: int
    parallelism: int
    local_dir: Callable[[str], Path]


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """The state from which all subtasks start: positions, state handles, in-flight rows."""

    positions: Mapping[str, Positions]
    states: Sequence[StateHandle]
    in_flight: Sequence[InFlightRows]


class SubtaskRuntime:
    """Opens the parts of one subtask in order: ``open_state``, ``open_chain``, connectors. Closes them all."""

    def __init__(self, share: SubtaskSpec, base: RestoredCheckpoint, on_progress: ProgressListener = nobody) -> None:
        """``on_progress`` hears how far a restore is."""
        self._share = share
        self._base = base
        self._on_progress = on_progress
        plan, settings = share.plan, share.settings
        for_them = settings.connector_defaults(kafka_share=kafka_share(plan, settings.kafka_memory))
        self._job = JobContext(plan.name, share.first.term, for_them, share.identity)
        self._options = StateOptions.of(**settings.state_options())
        self.backends: dict[str, StateBackend] = {}
        """The state of each stateful operator, by name."""
        self.closing = ExitStack()
        """What else is to be closed with the task, before what was opened earlier."""

    @contextmanager
    def close_on_error(self) -> Iterator[None]:
        """Context in which parts are opened; closes what is open if one fails."""
        with ExitStack() as undo:
            undo.callback(self.close)
            yield
            undo.pop_all()

    def open_state(self, nodes: Iterable[Node]) -> None:
        """Open and restore the state of these operators."""
        for node in nodes:
            if node.stateful:
                self.backends[node.name] = self._backend(node.name)
                self.closing.callback(self.backends[node.name].close)
        hit("recovery.restored")

    def _backend(self, operator: str) -> StateBackend:
        share, settings = self._share, self._share.settings
        node = share.plan.node(operator)
        of_splits = isinstance(node, TimestampsNode)
        return open_backend(
            "memory" if of_splits else settings.state_backend,
            operator,
            share.local_dir(operator) / operator,
            key_group_range(share.subtask, share.parallelism),
            [handle for handle in self._base.states if handle.operator == operator],
            share.storage,
            settings.state_cache_entries,
            options=self._options,
            local=share.plan.has_local_state(operator),
            by_split=of_splits,
            copied=isinstance(node, BroadcastConnectNode),
            compared=settings.checkpoint_mode != "at-least-once",
            on_progress=self._on_progress,
        )

    def open_chain(
        self,
        outputs: Mapping[str, Output],
        exchanges: Mapping[str, Output],
        nodes: Collection[str],
        *,
        signals: Mapping[str, WatermarkOutput],
        pace: WatermarkSchedule,
        clock: Callable[[], int],
        waived: ExcludedSplits,
    ) -> OperatorChain:
        """Open the operators of these nodes."""
        chain = OperatorChain(
            self._share.plan,
            self.backends,
            outputs,
            exchanges,
            nodes,
            scratch=self._scratch,
            signals=signals,
            pace=pace,
            clock=clock,
            subtask=self._share.subtask,
            waived=waived,
        )
        self.closing.callback(chain.close)
        return chain

    def _scratch(self, operator: str) -> SpillStore:
        settings, directory = self._share.settings, self._share.local_dir(operator) / f"{operator}.scratch"
        return open_scratch(settings.state_backend, directory, settings.state_cache_entries, self._options)

    def context(self, operator: str, number: int, services: Services) -> TaskContext:
        """Return a connector's task context; ``number``: its subtask, unique among the operator's connectors."""
        share = self._share
        return TaskContext(self._job, number, share.parallelism, operator, services, share.first.epoch)

    def writer(self, sink: SinkNode, context: TaskContext) -> Writer[Any]:
        writer = sink.sink.writer(context)
        self.closing.callback(writer.discard)
        return writer

    def reader(
        self, source: SourceNode, context: TaskContext, positions: Positions, *, waits: bool = False
    ) -> Reader[Any]:
        """Open a reader. ``waits``: the source is not read yet, and its connector opens nothing until it is."""
        make = partial(source.source.reader, context)
        plain = bootstrap.connector_positions(positions)
        reader = DeferredReader(make, plain) if waits else make(plain)
        self.closing.callback(reader.close)
        return BootstrapReader(reader, positions) if source.name in self._share.plan.awaited_sources else reader

    def read_in_flight_rows(
        self, exchanges: Iterable[Node], scratch: Path, mine: Callable[[int], bool] = lambda number: True
    ) -> Iterator[tuple[int, str, int, Batch[Any]]]:
        """Yield the stored in-flight rows of these exchanges, in processing order.

        ``mine`` selects frames by number. Raises as ``in_flight_rows.read_rows``.
        """
        share, base = self._share, self._base
        given = (share.parallelism, base.positions)
        split = {node.name: make_restore_router(share.plan, node, *given) for node in exchanges}
        files = [file for part in base.in_flight for file in part.files]
        stored = RestoreFetcher(_UNDER_WAY, share.storage, files, self._on_progress)
        for number, name, batch in in_flight.read_rows(share.plan, stored, scratch, base.in_flight, mine):
            for target, rows in split[name](number, batch):
                yield number, name, target, rows
            stored.count_rows(len(batch))

    def close(self) -> None:
        self.closing.close()


def list_excluded_splits(plan: Plan, source: str, positions: Positions) -> Collection[SplitId]:
    """Return the splits of a source that are excluded from its watermark."""
    connector = next(node.source for node in plan.sources if node.name == source)
    return connector.list_excluded_splits(bootstrap.connector_positions(positions))


def pending_timers(backends: Mapping[str, StateBackend]) -> dict[str, int]:
    """Return the number of timers at the last snapshot, by operators that set some."""
    counted = {name: backend.pending_timers() for name, backend in backends.items()}
    return {name: count for name, count in counted.items() if count is not None}
