"""Pushes batches through the operators of a plan, depth first, in one thread.

A chain knows no source and no sink: batches come in at ``push`` and leave through ``outputs``, one callable a
sink. With several subtasks they also leave through ``exchanges``, one callable an exchange node, and come in again,
at the subtask that owns them, by a ``push`` at the same node. Without ``exchanges`` rows simply go on.
Both engines, the audit's recompute and ``kafka_eos.testing`` run plans through it.

Rule: when ``push`` returns, all that follows from the batch has been handed to the outputs, dead letters too; but for
what an operator gathers until the end of the epoch, which whoever ends one asks for with ``flush``; for rows that
wait for answers, which come with ``collect``, or all with ``finish``; and for what time has made due, if the pace gives
it slices: then it is ``busy``, nothing may be pushed there, and it has to be told to ``go_on``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any

from kafka_eos._util import log_context
from kafka_eos.abc.state import StateBackend, StateDescriptor
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.fault_attribution import said, told
from kafka_eos.core.provenance import branched
from kafka_eos.core.record_preview import Inside
from kafka_eos.core.records import BEGINNING, Batch, RawOrigin, RawRecord, Refusal, Rejected, Tally, Watermark
from kafka_eos.plan import (
    Broadcasting,
    Exchange,
    Feedback,
    Forward,
    Loop,
    Node,
    PartialFold,
    Partitioning,
    Plan,
    Requests,
    Sink,
    Union,
    union_lane,
)
from kafka_eos.runtime.operators import build
from kafka_eos.runtime.operators.due_work import Due
from kafka_eos.runtime.operators.event_time import AT_BARRIERS, EventTime, Pace, Signal, Waived, waits_for_all
from kafka_eos.runtime.operators.operator import (
    Awaiting,
    Clocked,
    Gathering,
    Generating,
    Operator,
    OperatorContext,
    Timed,
    no_broadcast,
    no_panes,
    no_timers,
)
from kafka_eos.runtime.operators.operator_stats import Worked
from kafka_eos.runtime.operators.timer_firing import output_refused
from kafka_eos.runtime.state.epoch_scratch import Scratch, unbounded
from kafka_eos.runtime.state.ttl_clock import wall_clock

_LONGEST = 200
"""Characters of a reason that are shown of a dead letter; the letter itself has more of it."""
Output = Callable[[Batch[Any]], None]


class Chain:
    """The operators of one subtask at work. ``backends`` has one for each stateful node, by name."""

    def __init__(
        self,
        plan: Plan,
        backends: Mapping[str, StateBackend],
        outputs: Mapping[str, Output],
        exchanges: Mapping[str, Output] | None = None,
        nodes: Collection[str] | None = None,
        whole: Plan | None = None,
        scratch: Callable[[str], Scratch] = lambda operator: unbounded(),
        tally: Callable[[], Tally] = Tally,
        signals: Mapping[str, Signal] | None = None,
        pace: Pace = AT_BARRIERS,
        clock: Callable[[], int] = wall_clock,
        subtask: int = 0,
        waived: Waived = waits_for_all,
    ) -> None:
        """``nodes``: those that work here, if not all of the plan do; rows may only be pushed to them.

        ``whole`` is the plan whose exchanges the outputs are named by, if ``plan`` is cut out of it.
        ``scratch`` makes room for what the operator of that name gathers; it is closed with the chain.
        ``tally`` is where records and dead letters are counted now. ``signals`` are where watermarks leave, as rows do
        through ``exchanges``; of a source they are made, as often as ``pace`` says, once its splits are assigned.
        ``clock`` shows processing time; who has a chain looks at it, with ``tick``. The first ``subtask`` records dead
        letters of rows that all have got. ``waived`` says which splits are not waited for.
        """
        self._tally, self._sources = tally, {source.name for source in plan.sources}
        self._plan, self._outputs, self._exchanges = plan, outputs, exchanges or {}
        whole = whole or plan
        moving = [node for node in whole.exchanges if isinstance(node, Requests) or not isinstance(node, Forward)]
        numbered = [node for node in whole.nodes if node in moving or isinstance(node, PartialFold)]
        self._places = {node.name: place for place, node in enumerate(numbered)}
        self.worked = {node.name: Worked(node.name) for node in plan.nodes}
        """What each operator has done here, by name."""
        self._operators: dict[str, Operator] = {}
        self._gathering: dict[str, Gathering] = {}
        self._clocked: dict[str, Clocked] = {}
        self._awaiting: dict[str, Awaiting] = {}
        self._ticking: set[str] = set()
        """Of those that wait for the clock, whose look at it is due and has not begun."""
        self._clock, self._subtask = clock, subtask
        self._rejected: dict[str, list[_Letter]] = {
            source.name: [] for source in plan.sources if plan.dead_letters(source.name)
        }
        with ExitStack() as opened:
            self._closing = opened
            for node in plan.nodes:
                here = nodes is None or node.name in nodes
                if here and node.inputs and not isinstance(node, Sink | Union | Exchange | Forward | Loop):
                    self._open(node, backends, partial(scratch, node.name))
            self._closing = opened.pop_all()
        self._due = Due(pace.slice, pace.clock)
        self._event_time = EventTime(plan, self._operators, signals or {}, self._running, pace, self._due, waived)

    def assign(self, source: str, splits: Collection[str]) -> None:
        """These splits of a source are read here from now on: called before its first row, and as more are found."""
        self._event_time.assign(source, splits)

    def advance(self, head: str, watermark: Watermark) -> None:
        """Event time has come so far behind ``head``, an exchange that rows have passed. Raises PoisonRecord."""
        self._event_time.advance(head, watermark)

    def resume(self, nodes: Collection[str] | None = None) -> None:
        """Begin with what was due, and not done, when the snapshot was taken that state comes from.

        To be called before anything is pushed. ``nodes``: of these operators only. Raises PoisonRecord.
        """
        for node in reversed(self._plan.nodes):  # what one makes comes to others that are done with theirs
            operator = self._operators.get(node.name)
            if isinstance(operator, Timed) and (nodes is None or node.name in nodes):
                self._due.begin(node.name, self._running(node, partial(operator.advance, BEGINNING)))

    def tick(self, nodes: Collection[str] | None = None) -> None:
        """Look at the clock: what has waited for it is handed on, in plan order. Raises PoisonRecord.

        ``nodes``: of these operators only. While something is not done yet, the clock is looked at when its turn comes.
        """
        for name, operator in self._clocked.items():
            if (nodes is None or name in nodes) and name not in self._ticking:
                self._ticking.add(name)
                self._due.begin(name, self._ticked(name, operator))

    def _ticked(self, name: str, operator: Clocked) -> Iterator[None]:
        self._ticking.discard(name)
        yield from self._running(self._plan.node(name), partial(operator.tick, self._clock()))

    def busy(self, nodes: Collection[str] | None = None) -> bool:
        """Is what time has made due not done yet? Then nothing may be pushed. ``nodes``: of these operators only."""
        return self._due.busy(nodes)

    def go_on(self, nodes: Collection[str]) -> None:
        """Do a slice more of it, at these operators. Raises PoisonRecord."""
        self._due.go_on(nodes)

    def soonest(self) -> int | None:
        """Before that no ``tick`` hands anything on, unless more is pushed; None if none ever does."""
        return min((at for each in self._clocked.values() if (at := each.soonest()) is not None), default=None)

    @property
    def clocked(self) -> Collection[str]:
        """Operators that wait for the clock."""
        return self._clocked

    def push(self, head: str, batch: Batch[Any]) -> None:
        """Run one batch through everything below ``head``: a source, or an exchange that the rows have passed.

        Raises PoisonRecord under policy "stop", EnvironmentFailed under any.
        """
        if head in self._sources:
            self._tally().reads(head, len(batch))
        self._forward(head, batch)
        self.flush_rejected(batch.origin.source)
        self._event_time.read(head)

    def nothing_read(self, source: str) -> None:
        """A read has brought nothing but, perhaps, bad records."""
        self.flush_rejected(source)
        self._event_time.read(source)

    def flush(self, nodes: Collection[str] | None = None, *, whole: bool = True) -> None:
        """The end of an epoch: watermarks, what the clock has come to and what operators have gathered go on, in plan
        order.

        ``nodes``: of these operators only. ``whole``: all that is due belongs to the epoch, however long it takes; else
        where some of it is not done yet, time stands.

        To be called before anything of the epoch is captured (positions, state, output) and before its barrier goes
        on. Nothing is left in any operator then but state, and what is ``held``. Raises PoisonRecord.
        """
        self._end(nodes, self._gathering, whole=whole)

    def finish(self) -> None:
        """The same, for who can hold no rows beyond the end of an epoch: every answer is waited for."""
        self._end(None, {**self._gathering, **self._awaiting}, whole=True)

    def _end(self, nodes: Collection[str] | None, operators: Collection[str], *, whole: bool) -> None:
        if whole:
            self._due.finish(nodes)
        if not self._due.busy(nodes):
            self._event_time.end_epoch(nodes)
            self.tick(nodes)
        if whole:
            self._due.finish(nodes)
        for node in self._plan.nodes:
            if node.name in operators and (nodes is None or node.name in nodes):
                if node.name in self._awaiting:
                    self._answer_all(node)
                else:
                    for _ in self._running(node, self._gathering[node.name].flush):
                        pass
        self._flush_all_rejected()

    # ------------------------------------------------------------ rows that wait for answers

    def collect(self, nodes: Collection[str] | None = None) -> int:
        """Hand on what is answered by now; returns how many rows and watermarks. ``nodes``: of these operators only."""
        awaiting = [name for name in self._awaiting if nodes is None or name in nodes]
        done = sum(self._answered(self._plan.node(name)) for name in awaiting)
        if done:
            self._flush_all_rejected()
        return done

    def make_room(self) -> None:
        """Wait until more rows may come."""
        for name, operator in self._awaiting.items():
            while operator.full:
                operator.wait()
                self._answered(self._plan.node(name))
        if self._awaiting:
            self._flush_all_rejected()

    def full(self, head: str) -> bool:
        """Should no more rows come by the exchange ``head`` for now?"""
        return any(operator.full for operator in self._behind(head))

    def holding(self, head: str) -> bool:
        """Do rows wait that have come by the exchange ``head``?"""
        return any(operator.holding for operator in self._behind(head))

    def held(self, head: str) -> list[Batch[Any]]:
        """Those rows, as they came."""
        return [batch for operator in self._behind(head) for batch in operator.rows()]

    def unanswered(self, head: str) -> bool:
        """A barrier passes these rows. Has one of them waited since the first that did?"""
        told = [operator.barrier() for operator in self._behind(head)]
        return any(told)  # each has been told: it may be the first

    def _behind(self, head: str) -> Iterator[Awaiting]:
        if self._awaiting:
            names = (node.name for node, _ in self._plan.downstream(head))
            yield from (self._awaiting[name] for name in names if name in self._awaiting)

    def _answered(self, node: Node) -> int:
        done, operator = 0, self._awaiting[node.name]
        for made in operator.ready():
            if isinstance(made, Watermark):
                idle = made.idle and not operator.holding
                self._event_time.hand_on(node.name, replace(made, idle=idle))
                self._due.finish((node.name,))  # rows that come behind it are handed on next
                done += 1
            else:
                done += len(made)
                self._leave(node, made)
        if not operator.holding:
            self._event_time.waits_no_more(node.name)
            self._due.finish((node.name,))
        return done

    def _answer_all(self, node: Node) -> None:
        self._answered(node)
        while self._awaiting[node.name].holding:
            self._awaiting[node.name].wait()
            self._answered(node)

    def _flush_all_rejected(self) -> None:
        for source in self._rejected:
            self.flush_rejected(source)

    def refuse_record(self, source: str, raw: RawRecord, error: Exception) -> None:
        """What a reader calls for a record that it cannot decode; same policy as for the operators."""
        self._refuse(source, source, raw, self._mark(source, "", 0), error)
        self._tally().reads(source, 1)

    def left_out(self, source: str, records: int) -> None:
        """What a reader calls for records that the filter of its source leaves out."""
        self._tally().leaves_out(source, records)

    def refuse_row(self, batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
        """What a sink's writer calls for row ``index`` that it cannot write; same policy as for the operators.

        Raises PoisonRecord under policy "stop", and always for a dead letter: it cannot be sent aside once more.
        """
        source, raw = batch.origin.source, batch.origin.raw(batch.rows[index])
        letters = self._plan.dead_letters(source)
        if letters is not None and letters.name == operator:
            self._plan.attribution(source).expect_record(error, operator, raw.where)
            raise PoisonRecord(
                raw.where,
                operator,
                f"its dead letter cannot be written: {told(error)}",
                "Let the dead letter sink take it (a larger max.message.bytes, another codec), or fix the record",
            ) from error
        self._refuse(source, operator, raw, self._mark_of(operator, batch, index), error)

    def flush_rejected(self, source: str) -> None:
        """Hand on dead letters that are waiting; for a read that brought nothing but bad records."""
        rejected = self._rejected.get(source)
        sink = self._plan.dead_letters(source)
        if rejected and sink is not None:
            self._write(sink, _letters(source, rejected))
            self._rejected[source] = []

    def close(self) -> None:
        self._closing.close()

    def _open(self, node: Node, backends: Mapping[str, StateBackend], scratch: Callable[[], Scratch]) -> None:
        def reject(batch: Batch[Any], index: int, error: Exception) -> None:
            raw, mark = batch.origin.raw(batch.rows[index]), self._mark_of(node.name, batch, index)
            self._refuse(batch.origin.source, node.name, raw, mark, error)

        def reject_copy(batch: Batch[Any], index: int, error: Exception) -> None:
            self._expect_letters(batch.origin.source, node.name, batch.origin.raw(batch.rows[index]), error)
            if not self._subtask:
                reject(batch, index, error)

        operator = build(node)
        backend = backends.get(node.name)
        state, forget = (backend.value, backend.forget) if backend else (_stateless, _stateless)
        place, keeps_raw = self._places.get(node.name, 0), self._rejected.__contains__
        attribution = self._plan.attribution
        timers = backend.timers if backend else no_timers
        given = (node.name, state, reject, forget, place, keeps_raw, attribution, timers, scratch, self._clock)
        late, copy = partial(self._late, node.name), self._copy_of(node, backends)
        panes, counter = backend.panes if backend else no_panes, self.worked[node.name].counter
        operator.open(OperatorContext(*given, late, copy, reject_copy, panes, counter))
        self._operators[node.name] = operator
        if isinstance(operator, Gathering):
            self._gathering[node.name] = operator
        if isinstance(operator, Clocked) and operator.clocked:
            self._clocked[node.name] = operator
        if isinstance(operator, Awaiting):
            self._awaiting[node.name] = operator
        self._closing.callback(operator.close)

    def _copy_of(self, node: Node, backends: Mapping[str, StateBackend]) -> Callable[[StateDescriptor[Any]], Any]:
        """What opens the broadcast states of a node."""
        if not isinstance(node, Broadcasting):
            return no_broadcast
        above = self._plan.node(node.inputs[0])
        return lambda descriptor: backends[above.name].value(replace(descriptor, definition=above.definition))

    def _late(self, operator: str, rows: int) -> None:
        self._tally().finds_late(operator, rows)

    def watermarks(self) -> dict[str, dict[str, int]]:
        """How far event time has come in each split that is read here, by the operator that makes watermarks of it."""
        return self._event_time.by_split

    def making_time(self, name: str) -> Generating:
        """The operator of that name, which makes the watermarks of a source here."""
        return self._event_time.making(name)

    def _forward(self, name: str, batch: Batch[Any]) -> None:
        self.worked[name].left += len(batch)
        for node, index in self._plan.downstream(name):
            if isinstance(node, Sink):
                if not node.dead_letters and len(batch):
                    self._write(node, batch)
                continue
            worked = self.worked[node.name]
            worked.came += len(batch)
            if isinstance(node, Union):
                self._forward(node.name, replace(batch, lane=union_lane(batch.lane, len(node.inputs), index)))
            elif isinstance(node, Loop):
                self._forward(node.name, batch)
            elif isinstance(node, Requests):
                self._exchange(node.name, branched(batch, self._places[node.name]))
            elif isinstance(node, Forward):
                self._exchange(node.name, batch)
            elif isinstance(node, Feedback):
                self._exchange(node.name, branched(batch, self._places[node.name], always=True))
            elif isinstance(node, Exchange):
                self._leave(node, batch)
            else:
                began = perf_counter()
                log_context.enter(node.name)
                out = self._operators[node.name].process(batch)
                log_context.leave()
                worked.busy += perf_counter() - began
                self._leave(node, out)
                if node.name in self._awaiting and self._awaiting[node.name].holding:
                    self._event_time.waits(node.name)
                    self._due.finish((node.name,))  # event time stays where it was: nothing takes long

    def _write(self, node: Node, batch: Batch[Any]) -> None:
        worked, began = self.worked[node.name], perf_counter()
        worked.came += len(batch)
        log_context.enter(node.name)
        self._outputs[node.name](batch)
        log_context.leave()
        worked.busy += perf_counter() - began

    def _running(self, node: Node, made: Callable[[], Iterable[Batch[Any]]]) -> Iterator[None]:
        """Hand on what an operator makes by itself, a batch at each step."""
        for batch in self.worked[node.name].running(made):
            self._leave(node, batch)
            yield

    def _leave(self, node: Node, out: Batch[Any]) -> None:
        """Hand on what an operator has made."""
        if not len(out):
            return
        if node.partitioning is not None:
            copied = node.partitioning is Partitioning.BROADCAST
            self._exchange(node.name, branched(out, self._places[node.name], always=copied))
        else:
            self._forward(node.name, out)

    def _exchange(self, name: str, batch: Batch[Any]) -> None:
        if name in self._exchanges:
            began = perf_counter()
            self._exchanges[name](batch)
            self.worked[name].busy += perf_counter() - began
        else:
            self._forward(name, batch)

    def _mark_of(self, operator: str, batch: Batch[Any], index: int) -> str:
        return self._mark(operator, "" if batch.branch is None else batch.branch[index], batch.lane)

    @staticmethod
    def _mark(operator: str, branch: str, lane: int) -> str:
        """The branch of a dead letter: the way of what was refused, and by whom. The same in whichever worker."""
        return f"{branch}{lane}-{refuser(operator)}-"

    def _refuse(self, source: str, operator: str, raw: RawRecord, mark: str, error: Exception) -> None:
        self._expect_letters(source, operator, raw, error)
        reason = f"{type(error).__name__}: {said(error)}"
        inside = Inside.of(raw.timestamp, raw.key, raw.value, raw.headers, reason)
        self._tally().refuses(source, Refusal(raw.where, operator, reason[:_LONGEST], inside))
        self._rejected[source].append(_Letter(mark, Rejected(raw, operator, type(error).__name__, said(error))))

    def _expect_letters(self, source: str, operator: str, raw: RawRecord, error: Exception) -> None:
        """Return if a record at fault may be sent aside. Raises PoisonRecord, or what ``expect_record`` does."""
        self._plan.attribution(source).expect_record(error, operator, raw.where)
        if source in self._rejected:
            return
        if source not in self._sources:
            raise output_refused(source, raw, operator, error) from error
        raise PoisonRecord(raw.where, operator, told(error)) from error


def refuser(operator: str) -> int:
    """The number that stands for an operator in the branches of its dead letters."""
    return zlib.crc32(operator.encode())


@dataclass(frozen=True, slots=True)
class _Letter:
    """A dead letter on its way, and its branch; see ``provenance``."""

    branch: str
    rejected: Rejected

    @property
    def place(self) -> tuple[str, int, int]:
        return _place(self.rejected.raw)


def _letters(source: str, letters: Sequence[_Letter]) -> Batch[Any]:
    """Dead letters as a batch of their own, each with the origin of the record that was refused."""
    letters = sorted(letters, key=attrgetter("place", "branch"))
    # One row a record, so that several letters of it are told apart by their branches and ordinals.
    raws, rows = [letters[0].rejected.raw], [0]
    for letter in letters[1:]:
        if letter.place != _place(raws[-1]):
            raws.append(letter.rejected.raw)
        rows.append(len(raws) - 1)
    values = [letter.rejected for letter in letters]
    return Batch(values, rows, RawOrigin(source, raws), branch=[letter.branch for letter in letters])


def _place(raw: RawRecord) -> tuple[str, int, int]:
    return raw.topic, raw.partition, raw.offset


def _stateless(descriptor: Any) -> Any:
    raise AssertionError("a stateless operator asked for state")
