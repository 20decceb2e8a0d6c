"""Pushes batches through the operators of a plan, depth first, in one thread.

A chain knows no source and no sink: batches enter at ``push`` and leave through ``outputs``, one callable per sink.
A plan that is cut into segments has a chain for each: rows leave it through ``exchanges``, one callable per exchange
node, and enter the next one, at the subtask that owns them, by a ``push`` at the same node. Without ``exchanges`` rows
continue in the same chain. Both engines, the audit's recompute and ``kafka_eos.testing`` run plans through it.

Rule: when ``push`` returns, all outputs of the batch have been handed on, dead letters too, with three exceptions:

- rows that an operator collects until the end of the epoch: ``flush`` emits them;
- rows that wait for responses: ``emit_answered`` emits those with a response, ``finish`` all;
- due work that ``pace`` divides into slices: while ``has_due_work``, push nothing there, and call ``continue_due``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from kafka_eos._util import log_context
from kafka_eos.abc.state import StateBackend, StateDescriptor
from kafka_eos.core.errors import PlanError
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.provenance import extend_branches
from kafka_eos.core.records import (
    MIN_EVENT_TIME,
    Batch,
    RecordCounts,
    Watermark,
)
from kafka_eos.plan import (
    AnyBroadcastNode,
    ExchangeNode,
    FeedbackNode,
    ForwardNode,
    LoopNode,
    Node,
    PartialFoldNode,
    Partitioning,
    Plan,
    RequestExchangeNode,
    SinkNode,
    UnionNode,
    union_lane,
)
from kafka_eos.runtime.operators import build_operator
from kafka_eos.runtime.operators.async_io.async_map import AsyncMapOperator
from kafka_eos.runtime.operators.branch_copies import copy_values, list_copying_readers
from kafka_eos.runtime.operators.due_work import DueWork
from kafka_eos.runtime.operators.event_time import (
    AT_BARRIERS,
    ExcludedSplits,
    WatermarkOutput,
    WatermarkPropagator,
    WatermarkSchedule,
    exclude_none,
)
from kafka_eos.runtime.operators.exchanged_rows import UnencodableRows, expect_encodable, lacks_type
from kafka_eos.runtime.operators.operator import (
    Operator,
    OperatorContext,
    no_broadcast,
    no_panes,
    no_timers,
)
from kafka_eos.runtime.operators.operator_stats import OperatorCounters
from kafka_eos.runtime.operators.rejections import RejectionHandler
from kafka_eos.runtime.operators.timer_firing import FiringOrigin
from kafka_eos.runtime.state.epoch_scratch import SpillStore, unbounded
from kafka_eos.runtime.state.ttl_clock import wall_clock

Output = Callable[[Batch[Any]], None]


class OperatorChain:
    """The operators of one subtask; pushes batches through them depth first, in one thread.

    ``backends`` has one for each stateful node, by name.
    """

    def __init__(
        self,
        plan: Plan,
        backends: Mapping[str, StateBackend],
        outputs: Mapping[str, Output],
        exchanges: Mapping[str, Output] | None = None,
        nodes: Collection[str] | None = None,
        whole: Plan | None = None,
        scratch: Callable[[str], SpillStore] = lambda operator: unbounded(),
        signals: Mapping[str, WatermarkOutput] | None = None,
        pace: WatermarkSchedule = AT_BARRIERS,
        clock: Callable[[], int] = wall_clock,
        subtask: int = 0,
        waived: ExcludedSplits = exclude_none,
        build: Callable[[Node], Operator] = build_operator,
    ) -> None:
        """``nodes``: the operators of this chain, if not all of the plan; rows may only be pushed to them.

        ``whole`` is the complete plan, whose exchanges the outputs are named by, if ``plan`` is a part of it.
        ``scratch`` opens the spill store of the operator of that name; it is closed with the chain. Watermarks leave
        through ``signals``, as rows do through ``exchanges``; those of a source are generated as often as ``pace``
        says, once its splits are assigned. ``clock`` returns processing time; the owner of a chain calls ``tick``. The
        first ``subtask`` records dead letters of rows that all subtasks receive. ``waived`` returns the splits that
        are excluded from the watermark. ``build`` returns the operator of a node.
        """
        self._sources = {source.name for source in plan.sources}
        self.counts = RecordCounts()
        """The counts of records and dead letters of this chain."""
        self._plan = plan
        self._outputs = outputs
        self._exchanges = exchanges or {}
        self._whole = whole = whole or plan
        moving = [
            node
            for node in whole.exchanges
            if isinstance(node, RequestExchangeNode) or not isinstance(node, ForwardNode)
        ]
        numbered = [node for node in whole.nodes if node in moving or isinstance(node, PartialFoldNode)]
        self._places = {node.name: place for place, node in enumerate(numbered)}
        self.stats = {node.name: OperatorCounters(node.name) for node in plan.nodes}
        """The counters of each operator in this chain, by name."""
        self._operators: dict[str, Operator] = {}
        self._clocked: dict[str, Operator] = {}
        self._awaiting: dict[str, AsyncMapOperator] = {}
        self._copying = {
            node.name: readers for node in plan.nodes if (readers := list_copying_readers(plan, node.name))
        }
        """By node name: the readers that get copies of its values."""
        self._undeclared: set[str] = set()
        """Exchanges with rows that could be sent only if their type were declared."""
        self._ticking: set[str] = set()
        """Operators of ``_clocked`` whose check of the clock is due and has not begun."""
        self._clock = clock
        self._subtask = subtask
        self._build = build
        self.rejections = RejectionHandler(whole, self.counts)
        """The handler of rejected records for readers, operators and writers of this chain."""
        with ExitStack() as opened:
            self._closing = opened
            for node in plan.nodes:
                here = nodes is None or node.name in nodes
                if (
                    here
                    and node.inputs
                    and not isinstance(node, SinkNode | UnionNode | ExchangeNode | ForwardNode | LoopNode)
                ):
                    self._open(node, backends, partial(scratch, node.name))
            self._closing = opened.pop_all()
        self._due = DueWork(pace.slice, pace.clock)
        self.event_time = WatermarkPropagator(
            plan, self._operators, signals or {}, self._running, pace, self._due, waived
        )
        """The watermarks of this chain. Change them by ``assign`` and ``advance`` of the chain only."""

    def assign(self, source: str, splits: Collection[str]) -> None:
        """Add splits of a source that are read here: called before its first row, and when more are found."""
        self.event_time.assign(source, splits)

    def advance(self, head: str, watermark: Watermark) -> None:
        """Process a watermark behind ``head``, an exchange that rows have passed. Raises PoisonRecord."""
        self.event_time.advance(head, watermark)

    def resume(self) -> None:
        """Resume the work that was due, and not done, at the restored snapshot.

        Call it before anything is pushed. Raises PoisonRecord.
        """
        # downstream operators first, so that they have finished before they receive new rows
        for node in reversed(self._plan.nodes):
            if (operator := self._operators.get(node.name)) is not None:
                self._due.begin(self._running(node, partial(operator.advance, MIN_EVENT_TIME)))

    def tick(self) -> None:
        """Emit what the clock has made due, in plan order. Raises PoisonRecord.

        While other work is due, the clock is checked after it.
        """
        for name, operator in self._clocked.items():
            if name not in self._ticking:
                self._ticking.add(name)
                self._due.begin(self._ticked(name, operator))

    def _ticked(self, name: str, operator: Operator) -> Iterator[None]:
        self._ticking.discard(name)
        yield from self._running(self._plan.node(name), partial(operator.tick, self._clock()))

    @property
    def has_due_work(self) -> bool:
        """Return whether due work is pending. If so, nothing may be pushed."""
        return self._due.is_pending

    def continue_due(self) -> None:
        """Run one slice of due work. Raises PoisonRecord."""
        self._due.run_slice()

    def get_next_time(self) -> int | None:
        """Return the time before which no tick emits anything; None if none will."""
        return min((at for each in self._clocked.values() if (at := each.get_next_time()) is not None), default=None)

    @property
    def clock_operators(self) -> Collection[str]:
        """Return the operators that act on processing time."""
        return self._clocked

    def push(self, head: str, batch: Batch[Any]) -> None:
        """Run one batch through everything below ``head``: a source, or an exchange that the rows have passed.

        Raises PoisonRecord under policy "stop", EnvironmentFailed under any.
        """
        if head in self._sources:
            self.counts.add_read(head, len(batch))
        self._forward(head, batch)
        self.flush_rejected(batch.origin.source)
        self.event_time.on_read(head)

    def note_empty_read(self, source: str) -> None:
        """Called after a read without rows: flushes dead letters, may emit a watermark."""
        self.flush_rejected(source)
        self.event_time.on_read(source)

    def flush(self, *, whole: bool = True) -> None:
        """End an epoch: emit watermarks, outputs due by the clock and collected rows, in plan order. Raises
        PoisonRecord.

        ``whole``: all due work belongs to the epoch, however long it takes; otherwise time stops where work is still
        due.

        Call it before anything of the epoch is captured (positions, state, output) and before its barrier is sent.
        Afterwards the operators hold nothing but state and ``list_pending_rows``.
        """
        self._end((), whole=whole)

    def finish(self) -> None:
        """End the epoch as ``flush`` does, and wait for every response: for callers that can keep no rows beyond an
        epoch."""
        self._end(self._awaiting, whole=True)

    def _end(self, awaited: Collection[str], *, whole: bool) -> None:
        if whole:
            self._due.run_all()
        if not self._due.is_pending:
            self.event_time.end_epoch()
            self.tick()
        if whole:
            self._due.run_all()
        for node in self._plan.nodes:
            if node.name in awaited:
                self._answer_all(node)
            elif (operator := self._operators.get(node.name)) is not None:
                for _ in self._running(node, operator.flush):
                    pass
        self._flush_all_rejected()

    # ------------------------------------------------------------ rows that wait for responses

    def emit_answered(self) -> int:
        """Emit the rows whose responses have arrived; return how many."""
        done = sum(self._answered(self._plan.node(name)) for name in self._awaiting)
        if done:
            self._flush_all_rejected()
        return done

    def make_room(self) -> None:
        """Wait until more rows may arrive."""
        for name, operator in self._awaiting.items():
            while operator.is_full:
                operator.wait()
                self._answered(self._plan.node(name))
        if self._awaiting:
            self._flush_all_rejected()

    def is_full(self, head: str) -> bool:
        """Return whether no more rows should arrive by this exchange for now."""
        return any(operator.is_full for operator in self._behind(head))

    def has_pending(self, head: str) -> bool:
        """Return whether rows that came by this exchange wait for responses."""
        return any(operator.has_pending for operator in self._behind(head))

    def list_pending_rows(self, head: str) -> list[Batch[Any]]:
        """Return the rows that came by this exchange and wait for responses."""
        return [batch for operator in self._behind(head) for batch in operator.list_pending_rows()]

    def pass_barrier(self, head: str) -> bool:
        """Mark a barrier behind the pending rows; return whether one has been pending since the session's first
        barrier."""
        pending = [operator.pass_barrier() for operator in self._behind(head)]
        return any(pending)  # no short circuit: each operator must see the barrier

    def _behind(self, head: str) -> Iterator[AsyncMapOperator]:
        if self._awaiting:
            names = (node.name for node, _ in self._plan.downstream(head))
            yield from (self._awaiting[name] for name in names if name in self._awaiting)

    def _answered(self, node: Node) -> int:
        done, operator = 0, self._awaiting[node.name]
        for made in operator.take_ready():
            if isinstance(made, Watermark):
                idle = made.idle and not operator.has_pending
                self.event_time.emit(node.name, replace(made, idle=idle))
                done += 1
            else:
                done += len(made)
                self._emit(node, made)
        if not operator.has_pending:
            self.event_time.unmark_active(node.name)
        return done

    def _answer_all(self, node: Node) -> None:
        self._answered(node)
        while self._awaiting[node.name].has_pending:
            self._awaiting[node.name].wait()
            self._answered(node)

    def _flush_all_rejected(self) -> None:
        for source in self.rejections.sources:
            self.flush_rejected(source)

    def flush_rejected(self, source: str) -> None:
        """Write the pending dead letters of a source, or of an operator's timers."""
        if (sink := self._whole.find_dead_letter_sink(source)) is not None:
            for letters in self.rejections.take_dead_letters(source):
                self._write(sink, letters)

    def close(self) -> None:
        self._closing.close()

    def _open(self, node: Node, backends: Mapping[str, StateBackend], scratch: Callable[[], SpillStore]) -> None:
        def reject(batch: Batch[Any], index: int, error: Exception) -> None:
            self.rejections.reject_row(batch, index, node.name, error)

        def reject_result(batch: Batch[Any], index: int, error: Exception) -> None:
            self.rejections.reject_result(batch, index, node.name, error)

        def reject_copy(batch: Batch[Any], index: int, error: Exception) -> None:
            self.rejections.expect_permitted(batch, index, node.name, error)
            if not self._subtask:
                reject(batch, index, error)

        operator = self._build(node)
        backend = backends.get(node.name)
        state, forget = (backend.value, backend.drop) if backend else (_stateless, _stateless)
        place, dead_letters = self._places.get(node.name, 0), self.rejections.sources.__contains__
        attribution = self._plan.attribution
        timers = backend.timers if backend else no_timers
        given = (node.name, state, reject, forget, place, dead_letters, attribution, timers, scratch, self._clock)
        late, copy = partial(self.counts.add_late, node.name), self._copy_of(node, backends)
        panes, counter = backend.panes if backend else no_panes, self.stats[node.name].counter
        operator.open(OperatorContext(*given, late, copy, reject_copy, panes, counter, reject_result))
        self._operators[node.name] = operator
        if operator.uses_clock:
            self._clocked[node.name] = operator
        if isinstance(operator, AsyncMapOperator):
            self._awaiting[node.name] = operator
        self._closing.callback(operator.close)

    def _copy_of(self, node: Node, backends: Mapping[str, StateBackend]) -> Callable[[StateDescriptor[Any]], Any]:
        """Return the function that opens the broadcast states of a node."""
        if not isinstance(node, AnyBroadcastNode):
            return no_broadcast
        (owner,) = node.inputs
        above = self._plan.node(owner)
        return lambda descriptor: backends[above.name].value(replace(descriptor, definition=above.definition))

    def _forward(self, name: str, batch: Batch[Any]) -> None:
        self.stats[name].rows_out += len(batch)
        copying, whole = self._copying.get(name, ()), batch
        for node, index in self._plan.downstream(name):
            batch = replace(whole, values=copy_values(whole.values)) if (node.name, index) in copying else whole
            if isinstance(node, SinkNode):
                if not node.is_dead_letter_sink and len(batch):
                    self._write(node, batch)
                continue
            self.stats[node.name].rows_in += len(batch)
            if isinstance(node, UnionNode):
                self._forward(node.name, replace(batch, lane=union_lane(batch.lane, len(node.inputs), index)))
            elif isinstance(node, LoopNode):
                self._forward(node.name, batch)
            elif isinstance(node, RequestExchangeNode):
                self._exchange(node.name, extend_branches(batch, self._places[node.name]))
            elif isinstance(node, ForwardNode):
                self._exchange(node.name, batch)
            elif isinstance(node, FeedbackNode):
                self._exchange(node.name, extend_branches(batch, self._places[node.name], always=True))
            elif isinstance(node, ExchangeNode):
                self._emit(node, batch)
            else:
                self._emit(node, self._process(node, batch))
                if node.name in self._awaiting and self._awaiting[node.name].has_pending:
                    self.event_time.mark_active(node.name)

    def _process(self, node: Node, batch: Batch[Any]) -> Batch[Any]:
        """Return what an operator makes of a batch."""
        began = perf_counter()
        log_context.enter_operator(node.name)
        out = self._operators[node.name].process(batch)
        log_context.leave_operator()
        self.stats[node.name].busy += perf_counter() - began
        return out

    def _write(self, node: Node, batch: Batch[Any]) -> None:
        worked, began = self.stats[node.name], perf_counter()
        worked.rows_in += len(batch)
        log_context.enter_operator(node.name)
        self._outputs[node.name](batch)
        log_context.leave_operator()
        worked.busy += perf_counter() - began

    def _running(self, node: Node, made: Callable[[], Iterable[Batch[Any]]]) -> Iterator[None]:
        """Pass on the outputs that an operator emits by itself, a batch at each step, and write its dead letters."""
        for batch in self.stats[node.name].timed(made):
            if isinstance(batch.origin, FiringOrigin):
                self.counts.add_fired(node.name, len(batch.origin.offsets))
            self._emit(node, batch)
            self.flush_rejected(node.name)
            yield
        self.flush_rejected(node.name)

    def _emit(self, node: Node, out: Batch[Any]) -> None:
        """Pass an operator's output on: into its exchange, or downstream."""
        if not len(out):
            return
        if node.partitioning is not None:
            copied = node.partitioning is Partitioning.BROADCAST
            self._exchange(node.name, extend_branches(out, self._places[node.name], always=copied))
        else:
            self._forward(node.name, out)

    def _exchange(self, name: str, batch: Batch[Any]) -> None:
        """Pass rows on to their exchange. A row that it cannot encode is rejected, even if no row is sent."""
        node, sent = self._plan.node(name), name in self._exchanges
        try:
            self._send(node, batch)
        except UnencodableRows:
            batch = self._reject_unencodable(node, batch)
            try:
                if sent and len(batch):
                    self._send(node, batch)
            except UnencodableRows as error:
                raise PlanError(f"values cannot be sent through {node.kind} {name!r}: {error.__cause__}") from error
        if not sent and len(batch):
            self._forward(name, batch)

    def _send(self, node: Node, batch: Batch[Any]) -> None:
        """Send rows to other chains; without an exchange, only check them. Raises UnencodableRows."""
        began = perf_counter()
        if node.name in self._exchanges:
            self._exchanges[node.name](batch)
        elif node.name not in self._undeclared:
            expect_encodable(node, batch)
        self.stats[node.name].busy += perf_counter() - began

    def _reject_unencodable(self, node: Node, batch: Batch[Any]) -> Batch[Any]:
        """Reject the rows whose value an exchange cannot encode; return the other rows.

        Rows that lack a declared type are not rejected: the plan is at fault, which matters only if they are sent.
        """
        assert node.exchange_codec is not None  # every exchange has one
        gone: list[int] = []
        for index, value in enumerate(batch.values):
            try:
                node.exchange_codec.encode([value])
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever a codec raises)
                error = as_exception(raised)
                if lacks_type(node, value):
                    self._undeclared.add(node.name)
                    break
                is_partial = isinstance(node, PartialFoldNode)
                reject = self.rejections.reject_result if is_partial else self.rejections.reject_row
                reject(batch, index, node.name, error)
                gone.append(index)
        return batch.drop(gone)


def _stateless(descriptor: Any) -> Any:
    raise AssertionError("a stateless operator asked for state")
