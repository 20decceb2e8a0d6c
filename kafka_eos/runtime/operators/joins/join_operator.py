"""The base of all joins: waiting rows of both streams, late rows, results, and the state.

The states ``left`` and ``right`` have one entry per key and time, with all rows of that time. Timers trigger the work;
their outputs are firings: of their operator, their key, and their time. So the provenance of a pair depends only on its
rows, and it is emitted once.

Rules: a rejected row has changed nothing. The outputs of a firing are in the order of the rows of the first stream,
then of the second, by their event-time sort keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import ElementsCodec
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.provenance import TIMERS as EVENT_TIMERS
from kafka_eos.core.records import MIN_EVENT_TIME, Batch
from kafka_eos.plan import JoinNode, input_of
from kafka_eos.runtime.operators.operator import Operator, OperatorContext
from kafka_eos.runtime.operators.side_outputs import TaggedValue
from kafka_eos.runtime.operators.storability import StorableValues
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE, Firings
from kafka_eos.runtime.operators.windows.window_operator import LATE_HINT, LateRow, times_of
from kafka_eos.runtime.state.timers import TimeCodec, create_timer_descriptor

SIDES: Final = ("left", "right")


@dataclass(slots=True, eq=False)
class JoinRow:
    """A waiting row: value, event order (time, partition, offset), and whether it was matched."""

    value: Any
    place: tuple[int, int, int]
    is_matched: bool = False

    @property
    def time(self) -> int:
        return self.place[0]


class JoinOperator(Operator):
    """Stores the rows of two streams, and joins them when the watermark advances. See its subclasses."""

    declared_with: ClassVar[tuple[str, str]] = (".key_by(..., values=...)", ".key_by(..., values=...)")
    """The operations with which the user declares the types of both streams, for messages."""

    def __init__(self, node: JoinNode) -> None:
        self._node, self._codecs = node, tuple(map(ElementsCodec, node.value_codec))
        self._storable = [
            StorableValues(codec, f"rows of its {side} stream", f"Declare their type with {declared}.")
            for side, codec, declared in zip(SIDES, self._codecs, self.declared_with, strict=True)
        ]

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        """Return all states except timers; the first two are ``SIDES``."""
        return tuple(self._described(name, codec) for name, codec in zip(SIDES, self._codecs, strict=True))

    def list_timer_states(self) -> tuple[StateDescriptor[bool], ...]:
        """Return the descriptors of the timers."""
        return (create_timer_descriptor(EVENT_STATE, self._node.key_codec),)

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._states = {descriptor.name: ctx.value_state(descriptor) for descriptor in self.states()}
        self._timers = ctx.timers(*self.list_timer_states())
        self._firings = Firings(ctx, EVENT_TIMERS, self._node.key_codec.encode, "the function")

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        times, keys = times_of(batch, self._ctx.operator), batch.keys or []
        side = input_of(batch.lane, len(SIDES))
        cells = self._states[SIDES[side]].view(zip(keys, times, strict=True))
        check = self._storable[side].check
        made: list[Sequence[Any]] = []
        refused: list[int] = []
        for index, (key, element) in enumerate(zip(keys, TrackedRows(batch, batch.with_sort_keys()), strict=True)):
            place = key, times[index]
            try:
                at = self._find_first_timer(*place)
                outputs = () if at is not None else self._too_late(side, *element)
                if at is not None:
                    check((element,))
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever is raised for a row)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            made.append(outputs)
            if at is not None:
                self._keep(side, cells, place, element, at)
        out = batch.drop(refused).repeat(list(map(len, made)))
        return replace(out, values=list(chain.from_iterable(made)), updates=None)

    def advance(self, time: int) -> Iterator[Batch[Any]]:
        return self._firings.fire(self._timers.pop_due(time), self._fire)

    # ------------------------------------------------------------ for those that know what belongs together

    def _find_first_timer(self, key: Any, time: int) -> int | None:
        """Return the time of a row's first timer; None if the row is late. Raises ValueError if it can have none."""
        raise NotImplementedError

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        """Process a time of a key; return the outputs."""
        raise NotImplementedError

    def _rows(self, state: str, key: Any, start: int, end: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield times from ``start`` to before ``end`` and the elements that a state has there, in the order of time.

        Rule: a firing scans only times whose rows it needs. Otherwise a key with many waiting rows takes a time that
        grows with the square of their number.
        """
        first = max(start, MIN_EVENT_TIME)
        return ((place[1], elements) for place, elements in self._states[state].scan_between(key, first, end))

    def _joined(self, key: Any, time: int, pairs: Sequence[tuple[JoinRow, JoinRow]]) -> list[Any]:
        """Return the user's results for a timer, in the order of their rows; none of a pair that is rejected."""
        if len(pairs) > 1:
            first, second = (self._places(side, [pair[side] for pair in pairs]) for side in (0, 1))
            pairs = sorted(pairs, key=lambda pair: (first[id(pair[0])], second[id(pair[1])]))
        call, join_rows = self._firings.call, self._node.join_rows
        return [out for one, other in pairs for out in call(key, time, join_rows, one.value, other.value)]

    def _tag_unmatched(self, side: int, rows: Sequence[JoinRow]) -> list[Any]:
        """Return rows without a partner, tagged for their side output."""
        tag = self._node.unmatched[side]
        if tag is None:
            return []
        found = [row for row in rows if not row.is_matched]
        places = self._places(side, found)
        return [TaggedValue(tag, row.value) for row in sorted(found, key=lambda row: places[id(row)])]

    def _places(self, side: int, given: Sequence[JoinRow]) -> Mapping[int, tuple[Any, ...]]:
        """Return the sort keys of rows, extended by their bytes where several are equal."""
        rows = {id(row): row for row in given}
        if len({row.place for row in rows.values()}) == len(rows):
            return {number: row.place for number, row in rows.items()}
        encode = self._node.value_codec[side].encode
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
        cells[place] = elements

    def _too_late(self, side: int, value: Any, place: tuple[int, int, int]) -> Sequence[Any]:
        self._ctx.count_late(1)
        tag = self._node.late[side]
        if tag is not None:
            return (TaggedValue(tag, value),)
        raise LateRow(
            f"late: the row's event time is {place[0]}, and the watermark has passed all rows that it could be "
            f"joined with. {LATE_HINT}"
        )
