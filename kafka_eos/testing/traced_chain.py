"""An operator chain that records which rows each operator got, and what it made of them.

Rule: rows are recorded as plain values at once, because a function may change a value later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import msgspec

from kafka_eos.codecs.type_inspection import is_model, to_plain
from kafka_eos.core.records import Batch
from kafka_eos.plan import Node
from kafka_eos.runtime.operators.operator_chain import OperatorChain

_CAUSES: Final = {"advance": "event time", "tick": "clock", "flush": "end of epoch"}
"""Why an operator emits rows without an input row, by the method that it emits them from."""


@dataclass(frozen=True, slots=True)
class TracedRow:
    """A row as an operator got or emitted it."""

    record: str
    """Topic, partition and offset of the input record that it was made from; for a timer, what stands for them."""
    value: Any
    key: Any = None
    event_time: int | None = None


@dataclass(slots=True)
class TraceStep:
    """One call of an operator: the rows that it got, and those that it emitted."""

    operator: str
    cause: str
    """``row``, ``event time``, ``clock``, ``end of epoch`` or ``response``."""
    rows: list[TracedRow] = field(default_factory=list)
    out: list[TracedRow] = field(default_factory=list)
    late: int = 0
    """The number of its rows that are late."""


@dataclass(frozen=True, slots=True)
class TracedRejection:
    """A record that an operator rejected, and the reason."""

    operator: str
    record: str
    error: str


class TracedChain(OperatorChain):
    """An operator chain that records its steps while ``recording``.

    ``show`` returns what is recorded of a value or a key; default: ``as_json``.
    """

    recording = False

    def __init__(self, *args: Any, show: Callable[[Any], Any] | None = None, **options: Any) -> None:
        self._show = as_json if show is None else show
        self.steps: list[TraceStep] = []
        self.rejected: list[TracedRejection] = []
        super().__init__(*args, **options)

    def push(self, head: str, batch: Batch[Any]) -> None:
        if self.recording and head in self._sources and len(batch):
            self.steps.append(TraceStep(head, "row", out=self._list_rows(batch)))
        super().push(head, batch)

    def _process(self, node: Node, batch: Batch[Any]) -> Batch[Any]:
        if not (self.recording and len(batch)):
            return super()._process(node, batch)
        before = self.counts.late.get(node.name, 0)
        step = TraceStep(node.name, "row", self._list_rows(batch))
        self.steps.append(step)  # first, so that the row is there if the operator raises
        out = super()._process(node, batch)
        step.out, step.late = self._list_rows(out), self.counts.late.get(node.name, 0) - before
        return out

    def _running(self, node: Node, made: Callable[[], Iterable[Batch[Any]]]) -> Iterator[None]:
        cause = _CAUSES[getattr(made, "func", made).__name__]

        def record() -> Iterator[Batch[Any]]:
            for batch in made():
                self._record_output(node, cause, batch)
                yield batch

        return super()._running(node, record)

    def _emit(self, node: Node, out: Batch[Any]) -> None:
        if node.name in self._awaiting:
            self._record_output(node, "response", out)
        super()._emit(node, out)

    def _record_output(self, node: Node, cause: str, batch: Batch[Any]) -> None:
        if self.recording and len(batch):
            self.steps.append(TraceStep(node.name, cause, out=self._list_rows(batch)))

    def _write(self, node: Node, batch: Batch[Any]) -> None:
        if self.recording and self._plan.find_dead_letter_sink(batch.origin.source) is node:
            self.rejected += [
                TracedRejection(each.operator, each.raw.location, f"{each.error_type}: {each.message}")
                for each in batch.values
            ]
        elif self.recording and len(batch):
            self.steps.append(TraceStep(node.name, "row", self._list_rows(batch)))
        super()._write(node, batch)

    def _list_rows(self, batch: Batch[Any]) -> list[TracedRow]:
        origin, times = batch.origin, batch.event_times
        partitions, offsets = origin.partitions, origin.offsets
        return [
            TracedRow(f"{origin.topic}/{partitions[row]}/{offsets[row]}", self._show(value), self._show(key), time)
            for row, value, key, time in zip(
                batch.origin_rows, batch.values, batch.keys or repeat(None), times or repeat(None), strict=False
            )
        ]


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: what JSON cannot express becomes the text that Python shows."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_convert))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _convert(value: object) -> object:
    return to_plain(value) if is_model(type(value)) else repr(value)


def format_place(place: Any) -> str:
    """Return the place of a state's entry as text: a key that is text as it is, anything else as JSON."""
    return place if isinstance(place, str) else msgspec.json.encode(as_json(place)).decode()
