"""Propagation of watermarks through the operators of a chain in one subtask.

A watermark takes the same path as the rows. At an operator that waits for event time, the outputs that it triggers
precede it; where streams meet, the lowest watermark counts; at an exchange it leaves the chain, and enters the next
one. The work that it makes due may take several slices, see ``due_work``.

Rules: a watermark is emitted only if it advances, and after all work that it made due. While rows wait for responses, a
node is not idle: otherwise others would advance without them. Without ``with_timestamps`` nothing is done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import LoopNode, Node, PartialFoldNode, Plan, SinkNode, TimestampsNode, UnionNode
from kafka_eos.protocol.watermark_alignment import SplitProgress
from kafka_eos.protocol.watermarks import InputWatermarks
from kafka_eos.runtime.operators.async_io.async_map import AsyncMapOperator
from kafka_eos.runtime.operators.due_work import DueWork
from kafka_eos.runtime.operators.operator import Operator
from kafka_eos.runtime.operators.watermark_generation import TimestampsOperator

WatermarkOutput = Callable[[Watermark], None]
"""Receives a watermark that leaves the chain."""
ExcludedSplits = Callable[[str], Collection[str]]
"""Returns the splits of a source that are excluded from its watermark."""


def exclude_none(source: str) -> Collection[str]:
    """Exclude no split of any source."""
    return ()


class WatermarkSchedule(Struct, frozen=True):
    """The interval between watermarks, and the duration of a slice of due work.

    ``every``: seconds of ``clock``; watermarks are also generated at the end of an epoch. ``slice``: in seconds.
    """

    every: float
    clock: Callable[[], float] = time.monotonic
    slice: float = math.inf


AT_BARRIERS = WatermarkSchedule(math.inf)
PERIODIC = WatermarkSchedule(0.2, slice=0.02)
"""Watermarks every 200 ms, due work in slices of 20 ms."""
WITH_EACH_BATCH = WatermarkSchedule(0.0)


class WatermarkPropagator:
    """Propagates watermarks through one chain.

    ``signals``: the outputs, by exchange; without one, watermarks simply continue downstream.
    """

    def __init__(
        self,
        plan: Plan,
        operators: Mapping[str, Operator],
        signals: Mapping[str, WatermarkOutput],
        running: Callable[[Node, Callable[[], Iterable[Batch[Any]]]], Iterator[None]],
        pace: WatermarkSchedule,
        due: DueWork,
        waived: ExcludedSplits,
    ) -> None:
        """``running(node, made)`` passes on the outputs that a watermark triggers, a batch at each step.

        ``due`` runs work that may take long.
        """
        self._due, self._waived = due, waived
        self._plan = plan
        self._operators = operators
        self._signals = signals
        self._running = running
        self._pace = pace
        self._making: dict[str, list[tuple[str, TimestampsOperator]]] = {}
        """By source: the operators of this chain that generate its watermarks."""
        for node in plan.nodes:
            operator = operators.get(node.name)
            if isinstance(node, TimestampsNode) and isinstance(operator, TimestampsOperator):
                self._making.setdefault(node.source, []).append((node.name, operator))
        self._met = {
            node.name: InputWatermarks.of(range(1 if node.timed_by_first else len(node.inputs)))
            for node in plan.nodes
            if isinstance(node, UnionNode) and node.name in plan.event_time_nodes
        }
        self._emitted: dict[str, Watermark] = {}
        self._received: dict[str, Watermark] = {}
        """The watermark that has reached each node whose rows wait for responses."""
        self._made: dict[str, float] = {}
        """The time at which the watermarks of each source were last generated."""

    def assign(self, source: str, splits: Collection[str]) -> None:
        """Add splits that are read here from now on."""
        for _, operator in self._making.get(source, ()):
            operator.assign(splits)

    @property
    def by_split(self) -> dict[str, dict[str, int]]:
        """Return the event time of each split, by the operator that generates its watermarks."""
        return {name: operator.by_split() for making in self._making.values() for name, operator in making}

    @property
    def emitted(self) -> dict[str, tuple[Watermark, Mapping[str, SplitProgress]]]:
        """Return by operator the watermark that it has emitted, and the progress of its splits."""
        return {
            name: (self._emitted.get(name, Watermark()), operator.get_split_progress())
            for making in self._making.values()
            for name, operator in making
        }

    def get_operator(self, name: str) -> TimestampsOperator:
        """Return the operator of that name, which generates watermarks here."""
        return next(operator for making in self._making.values() for other, operator in making if other == name)

    def on_read(self, source: str) -> None:
        """Generate a watermark after a read if one is due."""
        if source in self._making:
            now = self._pace.clock()
            if now >= self._made.get(source, -self._pace.every) + self._pace.every:
                self._make(source, now)

    def end_epoch(self) -> None:
        """Emit the last watermarks of an epoch."""
        for source in self._making:
            self._make(source, None)

    def advance(self, head: str, watermark: Watermark) -> None:
        """Process the watermark behind ``head``, and begin the work that it makes due."""
        self._due.begin(self._behind(head, watermark))

    def emit(self, name: str, watermark: Watermark) -> None:
        """Emit a watermark after a node whose rows wait for responses, and do the work that is due then."""
        self._due.run_now(self._handed_on(name, watermark))

    def mark_active(self, name: str) -> None:
        """Mark a node as not idle: rows wait for responses there."""
        emitted = self._emitted.get(name)
        if emitted is not None and emitted.idle:
            self.emit(name, replace(emitted, idle=False))

    def unmark_active(self, name: str) -> None:
        """Let a node be idle again: no row waits for a response."""
        received = self._received.get(name)
        if received is not None and received != self._emitted.get(name):
            self.emit(name, received)

    def _make(self, source: str, now: float | None) -> None:
        if now is not None:
            self._made[source] = now
        waived = self._waived(source)
        for name, operator in self._making[source]:
            operator.exclude(waived)
            # While work is due nothing is read, so no split is idle then.
            watermark = operator.watermark(None if now is None else now - self._due.seconds_pending)
            self._due.begin(self._handed_on(name, watermark))

    # ------------------------------------------------------------ step by step, see ``due``

    def _handed_on(self, name: str, watermark: Watermark) -> Iterator[None]:
        if self._emitted.get(name) != watermark:
            self._emitted[name] = watermark
            yield from self._behind(name, watermark)

    def _behind(self, head: str, watermark: Watermark) -> Iterator[None]:
        for node, index in self._plan.downstream(head):
            if isinstance(node, UnionNode):
                yield from self._meet(node, index, watermark)
            elif not isinstance(node, SinkNode | LoopNode | PartialFoldNode | TimestampsNode):
                yield from self._pass(node, watermark)

    def _pass(self, node: Node, watermark: Watermark) -> Iterator[None]:
        operator = self._operators.get(node.name)
        if isinstance(operator, AsyncMapOperator):
            self._received[node.name] = watermark
            if operator.has_pending:
                operator.queue_watermark(watermark)
                return
        if operator is not None:
            yield from self._running(node, partial(operator.advance, watermark.time))
        if node.partitioning is not None and node.name in self._signals:
            self._signals[node.name](watermark)
        else:
            yield from self._handed_on(node.name, watermark)

    def _meet(self, node: UnionNode, index: int, watermark: Watermark) -> Iterator[None]:
        if node.name in self._met and not (node.timed_by_first and index):
            self._met[node.name] = self._met[node.name].update(index, watermark)
            yield from self._handed_on(node.name, self._met[node.name].watermark)
