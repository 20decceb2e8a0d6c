"""The operator of patterns: rows of a key go through the machine in the order of event time.

The state ``rows`` has a place for each key and time, with the rows that wait for event time to come there; ``partials``
has the partial matches of a key. Timers say when there is something to do: rows, or the end of a partial match. What
comes out is a firing of the key and that time: a match at the time of its last row.

Rules: a row that is refused has changed nothing. Rows of one time are taken in the order of partition and offset.
Nothing of a row is left when event time is ``within`` behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from kafka_eos._util.log_context import Rows
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import Marked, Partials
from kafka_eos.core.errors import PlanError
from kafka_eos.core.provenance import TIMERS as EVENT_TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.plan import Patterns
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.patterns.state_machine import Partial, Place, Table
from kafka_eos.runtime.operators.side_outputs import Tagged
from kafka_eos.runtime.operators.storability import FirstValue, Kept
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE, Firings
from kafka_eos.runtime.operators.windows.window_operator import IN_TIME, LateRow, times_of
from kafka_eos.runtime.state.timers import TimeCodec, timers

ROWS: Final = "rows"
PARTIALS: Final = "partials"
_ROWS: Final = Kept("its rows", "Say with .key_by(..., values=...) of what type they are.")


class PatternOperator:
    """See ``KeyedStream.match``."""

    def __init__(self, node: Patterns) -> None:
        self._node, self._table, self._within = node, Table.of(node.pattern), node.pattern.limit or 0
        self._conditions = [(1 << number, stage.where) for number, stage in enumerate(node.pattern.stages)]
        self._marked = Marked(node.values)
        self._first = FirstValue(self._marked, _ROWS)

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        """All but the timers."""
        key, of = self._node.key_codec, self._node.definition
        return (
            StateDescriptor(ROWS, key, self._marked, "map", entry=TimeCodec(), definition=of),
            StateDescriptor(PARTIALS, key, Partials(self._node.values), definition=of),
        )

    def pending(self) -> tuple[StateDescriptor[bool], ...]:
        """The timers."""
        return (timers(EVENT_STATE, self._node.key_codec),)

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._rows, self._partials = map(ctx.value_state, self.states())
        self._timers = ctx.timers(*self.pending())
        self._firings = Firings(ctx, EVENT_TIMERS, self._node.key_codec.encode, "the function")

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        times, keys = times_of(batch, self._ctx.operator), batch.keys or []
        cells = self._rows.view(zip(keys, times, strict=True))
        made: list[Sequence[Any]] = []
        refused: list[int] = []
        for index, (key, (value, place)) in enumerate(zip(keys, Rows(batch, batch.in_time()), strict=True)):
            try:
                outputs = self._take(cells, key, value, place)
            except PlanError:
                raise
            except Exception as error:  # noqa: BLE001 (``reject`` judges whatever is raised for a row)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            made.append(outputs)
        out = batch.without(refused).repeated(list(map(len, made)))
        return replace(out, values=list(chain.from_iterable(made)), updates=None)

    def advance(self, time: int) -> Iterator[Batch[Any]]:
        return self._firings.fire(self._timers.due(time), self._fired)

    def close(self) -> None:
        return None

    # ------------------------------------------------------------ rows

    def _take(self, cells: Any, key: Any, value: Any, place: Place) -> Sequence[Any]:
        """Keep a row until event time comes to it; what comes out at once."""
        if place[0] <= self._timers.now(key):
            return self._too_late(value, place)
        bits = sum(bit for bit, where in self._conditions if where(value))
        if not bits and self._table.skips:
            return ()
        rows = cells.get((key, place[0])) or []
        row = value, place, bits
        if not self._first.is_tried:
            self._first.encode(self._ctx.operator, [row])
        if not rows:
            self._timers.add(key, place[0])
        cells[key, place[0]] = [*rows, row]
        return ()

    def _too_late(self, value: Any, place: Place) -> Sequence[Any]:
        self._ctx.late(1)
        if self._node.late is not None:
            return (Tagged(self._node.late, value),)
        raise LateRow(f"late: its event time is {place[0]}, and event time has passed that. {IN_TIME}")

    # ------------------------------------------------------------ firings

    def _fired(self, key: Any, time: int) -> Sequence[Any]:
        try:
            return self._fire(key, time)
        except Exception as error:
            raise self._firings.stopped_by(key, time, error) from error

    def _fire(self, key: Any, time: int) -> Sequence[Any]:
        """Event time has come to ``time``: the rows of then, and then the partial matches whose time is over."""
        before: list[Partial] = self._partials.get(key) or []
        partials, outputs = before, list[Any]()
        for value, place, bits in self._in_order(self._rows.get((key, time)) or ()):
            partials, whole = self._table.on(partials, (value, place), bits)
            outputs += [self._node.fn(key, self._table.by_stage(match)) for match in whole]
        self._rows.delete((key, time))
        over = [partial for partial in partials if self._end(partial) <= time]
        partials = [partial for partial in partials if self._end(partial) > time]
        for partial in partials:
            if partial[0][1][0] == time:
                self._timers.add(key, self._end(partial))
        outputs += self._timed_out(key, over)
        if partials:
            self._partials.put(key, partials)
        elif before:
            self._partials.delete(key)
        return outputs

    def _end(self, partial: Partial) -> int:
        """The last moment at which a partial match can become whole."""
        return partial[0][1][0] + self._within - 1

    def _timed_out(self, key: Any, over: Sequence[Partial]) -> list[Any]:
        tag, on_timeout = self._node.timed_out, self._node.on_timeout
        if tag is None or on_timeout is None:
            return []
        return [Tagged(tag, on_timeout(key, self._table.by_stage(partial))) for partial in over]

    def _in_order(self, rows: Sequence[tuple[Any, Place, int]]) -> Sequence[tuple[Any, Place, int]]:
        """By their places, and their bytes where several have one place."""
        if len({place for _, place, _ in rows}) == len(rows):
            return sorted(rows, key=lambda row: row[1])
        encode = self._node.values.encode
        return sorted(rows, key=lambda row: (row[1], encode(row[0])))
