"""What a task works with, whichever engine runs it: state, operators, writers, readers, rows that were under way.

A task of the embedded engine lasts a session, one of Spark an epoch's part. What flows between the open parts is the
engine's business; what is opened, and with which settings, is said here.

Rule: opening is all or nothing for the caller, and ``close`` lets go of everything without undoing anything.
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
from kafka_eos.abc.source import Reader, Sequenced
from kafka_eos.abc.state import InFlight, StateBackend, StateHandle
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import EpochId, JobIdentity, SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch, Tally
from kafka_eos.plan import BroadcastConnect, Node, Plan, Sink, Source, Timestamps, kafka_share
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange.routing import restorer
from kafka_eos.runtime.operators.event_time import Pace, Signal, Waived
from kafka_eos.runtime.operators.operator_chain import Chain, Output
from kafka_eos.runtime.state.epoch_scratch import Scratch
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend, open_scratch
from kafka_eos.runtime.state.restore_progress import Restoration, Told, nobody
from kafka_eos.runtime.state.rocksdb_options import StateOptions
from kafka_eos.runtime.worker.source_readers import AwaitedReader, WaitingReader

_UNDER_WAY = "rows under way"
"""In the place of an operator, where it is told what is restored."""


@dataclass(frozen=True, slots=True)
class Share:
    """One task's share of a job. ``place``: the local directory for the operator of that name, private to the task."""

    plan: Plan
    settings: Settings
    storage: CheckpointStorage
    identity: JobIdentity
    first: EpochId
    """The epoch of the first rows, and the term."""
    subtask: int
    parallelism: int
    place: Callable[[str], Path]


@dataclass(frozen=True, slots=True)
class Base:
    """What all tasks of the job go on from together."""

    positions: Mapping[str, Positions]
    states: Sequence[StateHandle]
    in_flight: Sequence[InFlight]


class OpenTask:
    """The open parts of one task, each closed with it. First ``restore``, then ``connect``, then connectors."""

    def __init__(self, share: Share, base: Base, told: Told = nobody) -> None:
        """``told`` hears how far a restore is."""
        self._share, self._base, self._told = share, base, told
        plan, settings = share.plan, share.settings
        for_them = settings.for_connectors(kafka_share=kafka_share(plan, settings.kafka_memory))
        self._job = JobContext(plan.name, share.first.term, for_them, share.identity)
        self._options = StateOptions.of(**settings.state_options())
        self.backends: dict[str, StateBackend] = {}
        """The state of each stateful operator, by name."""
        self.closing = ExitStack()
        """What else is to be closed with the task, before what was opened earlier."""

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Within, all is opened; if something cannot be, what is open already is closed."""
        with ExitStack() as undo:
            undo.callback(self.close)
            yield
            undo.pop_all()

    def restore(self, nodes: Iterable[Node]) -> None:
        """Open the state of these operators, as far as they have some."""
        for node in nodes:
            if node.stateful:
                self.backends[node.name] = self._backend(node.name)
                self.closing.callback(self.backends[node.name].close)
        hit("recovery.restored")

    def _backend(self, operator: str) -> StateBackend:
        share, settings = self._share, self._share.settings
        node = share.plan.node(operator)
        of_splits = isinstance(node, Timestamps)
        return open_backend(
            "memory" if of_splits else settings.state_backend,
            operator,
            share.place(operator) / operator,
            key_group_range(share.subtask, share.parallelism),
            [handle for handle in self._base.states if handle.operator == operator],
            share.storage,
            settings.state_cache_entries,
            options=self._options,
            local=share.plan.keeps_local(operator),
            by_split=of_splits,
            copied=isinstance(node, BroadcastConnect),
            compared=settings.checkpoint_mode != "at-least-once",
            told=self._told,
        )

    def connect(
        self,
        outputs: Mapping[str, Output],
        exchanges: Mapping[str, Output],
        tally: Callable[[], Tally],
        nodes: Collection[str] | None = None,
        *,
        signals: Mapping[str, Signal],
        pace: Pace,
        clock: Callable[[], int],
        waived: Waived,
    ) -> Chain:
        """Open the operators; see ``Chain``."""
        chain = Chain(
            self._share.plan,
            self.backends,
            outputs,
            exchanges,
            nodes,
            scratch=self._scratch,
            tally=tally,
            signals=signals,
            pace=pace,
            clock=clock,
            subtask=self._share.subtask,
            waived=waived,
        )
        self.closing.callback(chain.close)
        return chain

    def _scratch(self, operator: str) -> Scratch:
        settings, directory = self._share.settings, self._share.place(operator) / f"{operator}.scratch"
        return open_scratch(settings.state_backend, directory, settings.state_cache_entries, self._options)

    def context(self, operator: str, number: int, services: Services, attempt: int | None = None) -> TaskContext:
        """What a connector is told; ``number``: its subtask, which no other connector of the operator has."""
        share = self._share
        return TaskContext(self._job, number, share.parallelism, operator, services, share.first.epoch, attempt)

    def writer(self, sink: Sink, context: TaskContext) -> Writer[Any]:
        writer = sink.sink.writer(context)
        self.closing.callback(writer.discard)
        return writer

    def reader(self, source: Source, context: TaskContext, positions: Positions, *, waits: bool = False) -> Reader[Any]:
        """``waits``: the source is not read yet, and its connector opens nothing until it is."""
        make = partial(source.source.reader, context)
        plain = bootstrap.plain(positions)
        reader = WaitingReader(make, plain) if waits else make(plain)
        self.closing.callback(reader.close)
        return AwaitedReader(reader, positions) if source.name in self._share.plan.awaited else reader

    def under_way(
        self, exchanges: Iterable[Node], scratch: Path, mine: Callable[[int], bool] = lambda number: True
    ) -> Iterator[tuple[int, str, int, Batch[Any]]]:
        """The rows that the base holds on their way through ``exchanges``: frame, exchange, target, and rows.

        In the order in which they are to be processed; ``mine`` says by number which frames are wanted. Raises as
        ``in_flight.restored``.
        """
        share, base = self._share, self._base
        given = (share.parallelism, base.positions)
        split = {node.name: restorer(share.plan, node, *given) for node in exchanges}
        files = [file for part in base.in_flight for file in part.files]
        stored = Restoration(_UNDER_WAY, share.storage, files, self._told)
        for number, name, batch in in_flight.restored(share.plan, stored, scratch, base.in_flight, mine):
            for target, rows in split[name](number, batch):
                yield number, name, target, rows
            stored.converted(len(batch))

    def close(self) -> None:
        self.closing.close()


def not_waited_for(plan: Plan, source: str, positions: Positions) -> Collection[SplitId]:
    """Of the splits of a source that this task has read up to ``positions``; see ``abc.Sequenced``."""
    connector = next(node.source for node in plan.sources if node.name == source)
    return connector.not_waited_for(bootstrap.plain(positions)) if isinstance(connector, Sequenced) else ()


def pending_timers(backends: Mapping[str, StateBackend]) -> dict[str, int]:
    """How many there were at the last snapshot, by operators that set some."""
    counted = {name: backend.pending_timers() for name, backend in backends.items()}
    return {name: count for name, count in counted.items() if count is not None}
