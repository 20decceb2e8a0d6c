"""What all joins have in common: rows of both streams that wait, those that come too late, results, and the state.

The states ``left`` and ``right`` have a place for each key and time, with all rows of then. Timers say when there is
something to do; what they make is a firing: of their operator, their key, and their time. So a pair has a name that
depends on nothing but its rows, and comes once.

Rules: a row that is refused has changed nothing. What a firing makes is in the order of the rows of the first stream,
and of the second one for each, by their places in event time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Final

from kafka_eos._util.log_context import Rows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import Elements
from kafka_eos.core.provenance import TIMERS as EVENT_TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.plan import Join, input_of
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.side_outputs import Tagged
from kafka_eos.runtime.operators.storability import FirstValue, Kept
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE, Firings
from kafka_eos.runtime.operators.windows.window_operator import IN_TIME, LateRow, times_of
from kafka_eos.runtime.state.timers import TimeCodec, timers

SIDES: Final = ("left", "right")


@dataclass(slots=True, eq=False)
class Row:
    """One that waits: its value, its place in event time, and whether it has been in a pair."""

    value: Any
    place: tuple[int, int, int]
    met: bool = False

    @property
    def time(self) -> int:
        return self.place[0]


class JoinOperator:
    """Takes rows of two streams in, and joins them when event time goes on. See its siblings."""

    declared_with: ClassVar[tuple[str, str]] = (".key_by(..., values=...)", ".key_by(..., values=...)")
    """Where the user says of what type the rows of each are."""

    def __init__(self, node: Join) -> None:
        self._node, self._codecs = node, tuple(map(Elements, node.values))
        self._firsts = [
            FirstValue(codec, Kept(f"rows of its {side} stream", f"Say with {declared} of what type they are."))
            for side, codec, declared in zip(SIDES, self._codecs, self.declared_with, strict=True)
        ]

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        """All but the timers; the first two are ``SIDES``."""
        return tuple(self._described(name, codec) for name, codec in zip(SIDES, self._codecs, strict=True))

    def pending(self) -> tuple[StateDescriptor[bool], ...]:
        """The timers."""
        return (timers(EVENT_STATE, self._node.key_codec),)

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._states = {descriptor.name: ctx.value_state(descriptor) for descriptor in self.states()}
        self._timers = ctx.timers(*self.pending())
        self._firings = Firings(ctx, EVENT_TIMERS, self._node.key_codec.encode, "the function")

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        times, keys = times_of(batch, self._ctx.operator), batch.keys or []
        side = input_of(batch.lane, len(SIDES))
        cells = self._states[SIDES[side]].view(zip(keys, times, strict=True))
        made: list[Sequence[Any]] = []
        refused: list[int] = []
        for index, (key, element) in enumerate(zip(keys, Rows(batch, batch.in_time()), strict=True)):
            place = key, times[index]
            try:
                at = self._first(*place)
                outputs = () if at is not None else self._too_late(side, *element)
            except Exception as error:  # noqa: BLE001 (``reject`` judges whatever is raised for a row)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            made.append(outputs)
            if at is not None:
                self._keep(side, cells, place, element, at)
        out = batch.without(refused).repeated(list(map(len, made)))
        return replace(out, values=list(chain.from_iterable(made)), updates=None)

    def advance(self, time: int) -> Iterator[Batch[Any]]:
        return self._firings.fire(self._timers.due(time), self._fired)

    def close(self) -> None:
        return None

    # ------------------------------------------------------------ for those that know what belongs together

    def _first(self, key: Any, time: int) -> int | None:
        """When a row of that time has its first timer; None if it is too late. ValueError if it can have none."""
        raise NotImplementedError

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        """Do what is to be done for a key at a time; what comes out then."""
        raise NotImplementedError

    def _rows(self, key: Any, side: int) -> Iterator[tuple[int, list[Any]]]:
        """The times and the elements of all rows of a stream that wait, in the order of time."""
        return ((place[1], elements) for place, elements in self._states[SIDES[side]].within(key))

    def _joined(self, pairs: Sequence[tuple[Row, Row]]) -> list[Any]:
        """The user's results, in the order of their rows."""
        made = self._node.made
        if len(pairs) < 2:
            return [out for one, other in pairs for out in made(one.value, other.value)]
        first, second = (self._places(side, [pair[side] for pair in pairs]) for side in (0, 1))
        ordered = sorted(pairs, key=lambda pair: (first[id(pair[0])], second[id(pair[1])]))
        return [out for one, other in ordered for out in made(one.value, other.value)]

    def _alone(self, side: int, rows: Sequence[Row]) -> list[Any]:
        """Those of them that have met none, for the side output that is for them; in order."""
        tag = self._node.unmatched[side]
        if tag is None:
            return []
        found = [row for row in rows if not row.met]
        places = self._places(side, found)
        return [Tagged(tag, row.value) for row in sorted(found, key=lambda row: places[id(row)])]

    def _places(self, side: int, given: Sequence[Row]) -> Mapping[int, tuple[Any, ...]]:
        """What the order of rows is by: their places, and their bytes where several have one place."""
        rows = {id(row): row for row in given}
        if len({row.place for row in rows.values()}) == len(rows):
            return {number: row.place for number, row in rows.items()}
        encode = self._node.values[side].encode
        return {number: (*row.place, encode(row.value)) for number, row in rows.items()}

    # ------------------------------------------------------------ rows and firings

    def _described(self, name: str, codec: Codec[Any]) -> StateDescriptor[Any]:
        key, of = self._node.key_codec, self._node.definition
        return StateDescriptor(name, key, codec, "map", entry=TimeCodec(), definition=of)

    def _keep(self, side: int, cells: Any, place: tuple[Any, int], element: Any, at: int) -> None:
        elements = cells.get(place)
        if elements is None:
            elements = []
            self._timers.add(place[0], at)
        elements.append(element)
        if not self._firsts[side].is_tried:
            self._firsts[side].encode(self._ctx.operator, elements)
        cells[place] = elements

    def _too_late(self, side: int, value: Any, place: tuple[int, int, int]) -> Sequence[Any]:
        self._ctx.late(1)
        tag = self._node.late[side]
        if tag is not None:
            return (Tagged(tag, value),)
        raise LateRow(
            f"late: its event time is {place[0]}, and event time has passed all that it could be joined with. {IN_TIME}"
        )

    def _fired(self, key: Any, time: int) -> Sequence[Any]:
        try:
            return self._fire(key, time)
        except Exception as error:
            raise self._firings.stopped_by(key, time, error) from error
