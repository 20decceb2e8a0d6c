"""How event time goes through the operators of a chain, as far as they work in one subtask.

A watermark goes the way of the rows. Where it passes an operator that waits for event time, what that makes goes before
it; where streams meet, the least of them counts; at an exchange it leaves, and comes in again behind it. What it makes
due may take several slices, see ``due``.

Rules: a watermark is handed on only when it says something new, and all that it has made due is done. Where rows wait
for answers nothing is idle: others would go on without them. Where nothing gives rows event times, nothing is done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import Loop, Node, PartialFold, Plan, Sink, Timestamps, Union
from kafka_eos.protocol.watermarks import Inputs
from kafka_eos.runtime.operators.due_work import Due
from kafka_eos.runtime.operators.operator import Awaiting, Generating, Operator, Timed

Signal = Callable[[Watermark], None]
"""Takes a watermark out of the chain."""
Waived = Callable[[str], Collection[str]]
"""The splits of a source that event time does not wait for now."""


def waits_for_all(source: str) -> Collection[str]:
    """Event time waits for each split of every source."""
    return ()


@dataclass(frozen=True, slots=True)
class Pace:
    """How often watermarks are made, and how long what they make due keeps all else waiting.

    ``every``: seconds, of ``clock``; at the end of an epoch they are, in any case. ``slice``: seconds at a time.
    """

    every: float
    clock: Callable[[], float] = time.monotonic
    slice: float = math.inf


AT_BARRIERS = Pace(math.inf)
STEADILY = Pace(0.2, slice=0.02)
"""As often as it is worth telling other subtasks, and as long as a barrier may well wait."""
WITH_EACH_BATCH = Pace(0.0)


class EventTime:
    """Of one chain. ``signals``: the ways out, by exchange; without one, watermarks simply go on."""

    def __init__(
        self,
        plan: Plan,
        operators: Mapping[str, Operator],
        signals: Mapping[str, Signal],
        running: Callable[[Node, Callable[[], Iterable[Batch[Any]]]], Iterator[None]],
        pace: Pace,
        due: Due,
        waived: Waived,
    ) -> None:
        """``running(node, made)`` hands on what an operator makes when it is told, a batch at each step.

        ``due`` is where work is that may take long.
        """
        self._due, self._waived = due, waived
        self._plan, self._operators, self._signals, self._running, self._pace = plan, operators, signals, running, pace
        self._making: dict[str, list[tuple[str, Generating]]] = {}
        """By source, the operators that make its watermarks here."""
        for node in plan.nodes:
            operator = operators.get(node.name)
            if isinstance(node, Timestamps) and isinstance(operator, Generating):
                self._making.setdefault(node.source, []).append((node.name, operator))
        self._met = {
            node.name: Inputs.of(range(1 if node.timed_by_first else len(node.inputs)))
            for node in plan.nodes
            if isinstance(node, Union) and node.name in plan.timed
        }
        self._told: dict[str, Watermark] = {}
        self._said: dict[str, Watermark] = {}
        """What has come to each node where rows wait for answers."""
        self._made: dict[str, float] = {}
        """When the watermarks of each source were made last."""

    def assign(self, source: str, splits: Collection[str]) -> None:
        """These are read here from now on."""
        for _, operator in self._making.get(source, ()):
            operator.assign(splits)

    @property
    def by_split(self) -> dict[str, dict[str, int]]:
        """How far each split has come, by the operator that makes its watermarks."""
        return {name: operator.by_split() for making in self._making.values() for name, operator in making}

    def making(self, name: str) -> Generating:
        """The operator of that name, which makes watermarks here."""
        return next(operator for making in self._making.values() for other, operator in making if other == name)

    def read(self, source: str) -> None:
        """What the source had to be read has been pushed: it may be time for a watermark."""
        if source in self._making:
            now = self._pace.clock()
            if now >= self._made.get(source, -self._pace.every) + self._pace.every:
                self._make(source, now)

    def end_epoch(self, nodes: Collection[str] | None) -> None:
        """The last watermarks of an epoch. ``nodes``: of these operators only."""
        for source, operators in self._making.items():
            if nodes is None or any(name in nodes for name, _ in operators):
                self._make(source, None)

    def advance(self, head: str, watermark: Watermark) -> None:
        """Event time has come to ``watermark`` behind ``head``. What that makes due is begun."""
        first = next((node.name for node, _ in self._plan.downstream(head)), None)
        if first is not None:
            self._due.begin(first, self._behind(head, watermark))

    def hand_on(self, name: str, watermark: Watermark) -> None:
        """Behind the node of that name event time has come so far. What that makes due is begun."""
        self._due.begin(name, self._handed_on(name, watermark))

    def waits(self, name: str) -> None:
        """Rows wait for answers at the node of that name, so that it is not idle, whatever its stream is."""
        told = self._told.get(name)
        if told is not None and told.idle:
            self.hand_on(name, replace(told, idle=False))

    def waits_no_more(self, name: str) -> None:
        """All rows have their answers there: it is idle if its stream is."""
        said = self._said.get(name)
        if said is not None and said != self._told.get(name):
            self.hand_on(name, said)

    def _make(self, source: str, now: float | None) -> None:
        if now is not None:
            self._made[source] = now
        waived = self._waived(source)
        for name, operator in self._making[source]:
            operator.waive(waived)
            # While something is due nobody reads, so no split is silent then.
            self.hand_on(name, operator.watermark(None if now is None else now - self._due.taken))

    # ------------------------------------------------------------ step by step, see ``due``

    def _handed_on(self, name: str, watermark: Watermark) -> Iterator[None]:
        if self._told.get(name) != watermark:
            self._told[name] = watermark
            yield from self._behind(name, watermark)

    def _behind(self, head: str, watermark: Watermark) -> Iterator[None]:
        for node, index in self._plan.downstream(head):
            if isinstance(node, Union):
                yield from self._meet(node, index, watermark)
            elif not isinstance(node, Sink | Loop | PartialFold | Timestamps):
                yield from self._pass(node, watermark)

    def _pass(self, node: Node, watermark: Watermark) -> Iterator[None]:
        operator = self._operators.get(node.name)
        if isinstance(operator, Awaiting):
            self._said[node.name] = watermark
            if operator.holding:
                operator.hold(watermark)
                return
        if isinstance(operator, Timed):
            yield from self._running(node, partial(operator.advance, watermark.time))
        if node.partitioning is not None and node.name in self._signals:
            self._signals[node.name](watermark)
        else:
            yield from self._handed_on(node.name, watermark)

    def _meet(self, node: Union, index: int, watermark: Watermark) -> Iterator[None]:
        if node.name in self._met and not (node.timed_by_first and index):
            self._met[node.name] = self._met[node.name].on(index, watermark)
            yield from self._handed_on(node.name, self._met[node.name].watermark)
