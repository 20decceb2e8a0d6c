"""The resources of a subtask: state, operators, writers, readers, restored in-flight rows.

A session connects the opened parts; this module decides which parts are opened, with which settings.

Rule: opening is all or nothing for the caller, and ``close`` releases everything without undoing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Writer
from kafka_eos.abc.source import Reader
from kafka_eos.abc.state import StateBackend
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import Epoch, JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch
from kafka_eos.plan import (
    BroadcastConnectNode,
    Node,
    PartialFoldNode,
    Plan,
    SinkNode,
    SourceNode,
    TimestampsNode,
    kafka_share,
)
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange.routing import make_restore_router
from kafka_eos.runtime.operators.event_time import ExcludedSplits, WatermarkOutput, WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain, Output
from kafka_eos.runtime.state.epoch_scratch import SpillStore
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend, open_scratch
from kafka_eos.runtime.state.restore_progress import ProgressListener, RestoreFetcher
from kafka_eos.runtime.state.rocksdb_options import StateOptions, spread
from kafka_eos.runtime.worker.control_messages import StartSession
from kafka_eos.runtime.worker.source_readers import BootstrapReader, DeferredReader

_IN_FLIGHT = "in-flight rows"
"""Takes the place of an operator's name in the restore progress."""


class SubtaskRuntime:
    """Opens the parts of one subtask in order: ``open_state``, ``open_chain``, connectors. Closes them all."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        storage: CheckpointStorage,
        start: StartSession,
        local: Sequence[Path],
        on_progress: ProgressListener,
    ) -> None:
        """``local``: directories of this subtask alone. ``on_progress`` is called with the restore progress."""
        self._plan = plan
        self._settings = settings
        self._storage = storage
        self._start = start
        self._on_progress = on_progress
        # Operators that store data on the local disk.
        on_disk = [node.name for node in plan.nodes if node.stateful or isinstance(node, PartialFoldNode)]
        self._local = spread(on_disk, local, start.subtask)
        defaults = settings.connector_defaults(kafka_share=kafka_share(plan, settings.kafka_memory))
        self._job = JobContext(plan.name, Term(start.term), defaults, JobIdentity(start.identity))
        self._options = StateOptions.of(**settings.state_options())
        self.backends: dict[str, StateBackend] = {}
        """The state of each stateful operator, by name."""
        self.closing = ExitStack()
        """Other resources of the task, closed in the reverse order of their opening."""

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
        settings, node = self._settings, self._plan.node(operator)
        of_splits = isinstance(node, TimestampsNode)
        return open_backend(
            "memory" if of_splits else settings.state_backend,
            operator,
            self._local[operator] / operator,
            key_group_range(self._start.subtask, self._start.parallelism),
            [handle for handle in self._start.states if handle.operator == operator],
            self._storage,
            settings.state_cache_entries,
            options=self._options,
            local=self._plan.has_local_state(operator),
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
            self._plan,
            self.backends,
            outputs,
            exchanges,
            nodes,
            scratch=self._scratch,
            signals=signals,
            pace=pace,
            clock=clock,
            subtask=self._start.subtask,
            waived=waived,
        )
        self.closing.callback(chain.close)
        return chain

    def _scratch(self, operator: str) -> SpillStore:
        settings, directory = self._settings, self._local[operator] / f"{operator}.scratch"
        return open_scratch(settings.state_backend, directory, settings.state_cache_entries, self._options)

    def context(self, operator: str, number: int, services: Services) -> TaskContext:
        """Return a connector's task context; ``number``: its subtask, unique among the operator's connectors."""
        start = self._start
        return TaskContext(self._job, number, start.parallelism, operator, services, Epoch(start.first_epoch))

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
        return BootstrapReader(reader, positions) if source.name in self._plan.awaited_sources else reader

    def read_in_flight_rows(self, exchanges: Iterable[Node], scratch: Path) -> Iterator[tuple[str, Batch[Any]]]:
        """Yield the stored in-flight rows of this subtask, in processing order, with the name of their exchange.

        Raises as ``in_flight_rows.read_rows``.
        """
        start = self._start
        given = (start.parallelism, start.positions)
        split = {node.name: make_restore_router(self._plan, node, *given) for node in exchanges}
        files = [file for part in start.in_flight for file in part.files]
        stored = RestoreFetcher(_IN_FLIGHT, self._storage, files, self._on_progress)
        for number, name, batch in in_flight.read_rows(self._plan, stored, scratch, start.in_flight):
            yield from ((name, rows) for target, rows in split[name](number, batch) if target == start.subtask)
            stored.count_rows(len(batch))

    def close(self) -> None:
        self.closing.close()
