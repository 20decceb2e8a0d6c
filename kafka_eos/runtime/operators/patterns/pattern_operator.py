"""The operator of patterns: it feeds the rows of a key to the state machine in the order of event time.

The state ``rows`` has one entry per key and time, with the rows that wait for the watermark to reach it; ``partials``
has the partial matches of a key. Timers trigger the work: for rows, or for the end of a partial match. Outputs are
firings of the key and that time: a match at the time of its last row.

Rules: a rejected row has changed nothing. Rows of one time are processed in the order of partition and offset. No trace
of a row remains when the watermark is ``within`` after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import PartialMatchesCodec, PatternRowsCodec
from kafka_eos.core.provenance import TIMERS as EVENT_TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.plan import PatternNode
from kafka_eos.runtime.operators.operator import Operator, OperatorContext, call_each
from kafka_eos.runtime.operators.patterns.state_machine import PartialMatch, Place, TransitionTable
from kafka_eos.runtime.operators.side_outputs import TaggedValue
from kafka_eos.runtime.operators.storability import StorableValues
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE, Firings
from kafka_eos.runtime.operators.windows.window_operator import LATE_HINT, LateRow, times_of
from kafka_eos.runtime.state.timers import TimeCodec, create_timer_descriptor

ROWS: Final = "rows"
PARTIALS: Final = "partials"


class PatternOperator(Operator):
    """The operator of ``KeyedStream.match``."""

    def __init__(self, node: PatternNode) -> None:
        self._node = node
        self._table = TransitionTable.of(node.pattern)
        self._within = node.pattern.limit or 0
        self._conditions = [(1 << number, stage.where) for number, stage in enumerate(node.pattern.stages)]
        self._rows_codec = PatternRowsCodec(node.value_codec)
        self._storable = StorableValues(
            self._rows_codec, "its rows", "Declare their type with .key_by(..., values=...)."
        )

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        """Return all states except timers."""
        key, of = self._node.key_codec, self._node.definition
        return (
            StateDescriptor(ROWS, key, self._rows_codec, "map", entry=TimeCodec(), definition=of),
            StateDescriptor(PARTIALS, key, PartialMatchesCodec(self._node.value_codec), definition=of),
        )

    def list_timer_states(self) -> tuple[StateDescriptor[bool], ...]:
        """Return the descriptors of the timers."""
        return (create_timer_descriptor(EVENT_STATE, self._node.key_codec),)

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._rows, self._partials = map(ctx.value_state, self.states())
        self._timers = ctx.timers(*self.list_timer_states())
        self._firings = Firings(ctx, EVENT_TIMERS, self._node.key_codec.encode, "the function")

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        times, keys = times_of(batch, self._ctx.operator), batch.keys or []
        cells = self._rows.view(zip(keys, times, strict=True))
        rows = zip(keys, batch.with_sort_keys(), strict=True)
        made, refused = call_each(lambda row: self._take(cells, row[0], *row[1]), batch, [*rows], self._ctx)
        out = batch.drop(refused).repeat(list(map(len, made)))
        return replace(out, values=list(chain.from_iterable(made)), updates=None)

    def advance(self, time: int) -> Iterator[Batch[Any]]:
        return self._firings.fire(self._timers.pop_due(time), self._fire)

    # ------------------------------------------------------------ rows

    def _take(self, cells: Any, key: Any, value: Any, place: Place) -> Sequence[Any]:
        """Store a row until the watermark reaches it; return the outputs that are due at once."""
        if place[0] <= self._timers.get_time(key):
            return self._too_late(value, place)
        bits = sum(bit for bit, where in self._conditions if where(value))
        if not bits and self._table.skips:
            return ()
        row = value, place, bits
        self._storable.check([row])
        rows = cells.get((key, place[0]))
        if rows is None:
            rows = []
            self._timers.add(key, place[0])
        rows.append(row)
        cells[key, place[0]] = rows
        return ()

    def _too_late(self, value: Any, place: Place) -> Sequence[Any]:
        self._ctx.count_late(1)
        if self._node.late is not None:
            return (TaggedValue(self._node.late, value),)
        raise LateRow(f"late: the row's event time is {place[0]}, and the watermark has passed it. {LATE_HINT}")

    # ------------------------------------------------------------ firings

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        """Process the rows of ``time``, then the partial matches that time out."""
        before: list[PartialMatch] = self._partials.get(key) or []
        partials, outputs = before, list[Any]()
        for value, place, bits in self._in_order(self._rows.get((key, time)) or ()):
            partials, whole = self._table.advance(partials, (value, place), bits)
            outputs += self._called(key, time, self._node.fn, whole)
        self._rows.delete((key, time))
        over = [partial for partial in partials if self._end(partial) <= time]
        partials = [partial for partial in partials if self._end(partial) > time]
        for partial in partials:
            if partial[0][1][0] == time:
                self._timers.add(key, self._end(partial))
        outputs += self._timed_out(key, time, over)
        if partials:
            self._partials.put(key, partials)
        elif before:
            self._partials.delete(key)
        return outputs

    def _end(self, partial: PartialMatch) -> int:
        """Return the last moment at which a partial match can be completed."""
        return partial[0][1][0] + self._within - 1

    def _called(self, key: Any, time: int, fn: Callable[..., Any], matches: Sequence[PartialMatch]) -> list[Any]:
        """Return what the user's function makes of matches; nothing of those that are rejected."""

        def make(match: PartialMatch) -> Sequence[Any]:
            return (fn(key, self._table.by_stage(match)),)

        return [output for match in matches for output in self._firings.call(key, time, make, match)]

    def _timed_out(self, key: Any, time: int, over: Sequence[PartialMatch]) -> list[Any]:
        tag, on_timeout = self._node.timed_out, self._node.on_timeout
        if tag is None or on_timeout is None:
            return []
        return [TaggedValue(tag, output) for output in self._called(key, time, on_timeout, over)]

    def _in_order(self, rows: Sequence[tuple[Any, Place, int]]) -> Sequence[tuple[Any, Place, int]]:
        """Return rows sorted by their sort keys, and by their bytes where several are equal."""
        if len({place for _, place, _ in rows}) == len(rows):
            return sorted(rows, key=lambda row: row[1])
        encode = self._node.value_codec.encode
        return sorted(rows, key=lambda row: (row[1], encode(row[0])))
