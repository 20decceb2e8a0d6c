"""Windows of rows: what a key's last so many rows hold, each time that so many more have come.

They know no time: a window is full with a row, and its result comes from that. Rows are numbered from 0 as they come,
and kept in panes as windows of time are. Where windows do not overlap nothing is left of one that is full, its number
neither, so the next one begins with 0. With a time to live the same is so of a key that has expired.

A key has one entry, of its number of rows and all of its panes, so all of it expires at one moment, and never a part.
Rule: a row that is refused has no number and has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from kafka_eos import plan
from kafka_eos._util.log_context import Rows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor, ValueState
from kafka_eos.codecs import Counted, RowPanes
from kafka_eos.core.records import Batch
from kafka_eos.core.windows import Window
from kafka_eos.runtime.operators.operator import OperatorContext, keys_in_time
from kafka_eos.runtime.operators.stateless import spread
from kafka_eos.runtime.operators.storability import ACCUMULATOR, FirstValue
from kafka_eos.runtime.operators.windows.window_operator import WINDOWS, nothing


class CountedWindows:
    """See ``assigners.rows`` and ``assigners.global_``."""

    def __init__(self, node: plan.CountedWindows) -> None:
        assigner = node.assigner
        self._size, self._every = assigner.size, assigner.every
        self._pane = None if assigner.size is None else math.gcd(assigner.size, assigner.every)
        self._contents = node.contents
        held: Codec[Any] = Counted(RowPanes(self._contents.codec))
        self._windows: StateDescriptor[Any] = StateDescriptor(
            WINDOWS, node.key_codec, held, ttl=node.ttl, definition=node.definition
        )
        self._by_event_time = node.ttl is not None and node.ttl.clock == "event"
        self._first = FirstValue(self._contents.codec, ACCUMULATOR)

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        return (self._windows,)

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._keys: ValueState[tuple[int, dict[int, Any]]] = ctx.value_state(self._windows)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        items: Sequence[Any] = batch.in_time() if self._contents.by_time else batch.values
        made: list[list[Any]] = []
        refused: list[int] = []
        for index, (key, item) in enumerate(zip(self._in_time(batch), Rows(batch, items), strict=True)):
            # Not ``get``, which may renew the key: its row may still be refused, and then has changed nothing.
            number, panes = self._keys.view((key,)).get(key) or (0, {})
            pane = 0 if self._pane is None else number // self._pane * self._pane
            full = (number + 1) % self._every == 0
            try:
                acc = self._with(panes.get(pane), item, number, kept=not full)
                outputs = self._result(key, number + 1, panes, pane, acc) if full else []
            except Exception as error:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            if not self._first.is_tried:
                self._first.encode(self._ctx.operator, acc)
            made.append(outputs)
            panes[pane] = acc
            if full:
                self._forget(panes, number + 1)
            if full and self._every == self._size:
                self._keys.delete(key)
            else:
                self._keys.put(key, (number + 1, panes))
        out = spread(batch.without(refused), made)
        out.updates = None
        return out

    def close(self) -> None:
        return None

    def _in_time(self, batch: Batch[Any]) -> Iterable[Any]:
        """The keys of the rows; when one comes out, its row is the next."""
        return keys_in_time(batch, self._keys) if self._by_event_time else batch.keys or ()

    def _with(self, acc: Any, item: Any, number: int, *, kept: bool) -> Any:
        """What a pane holds with one row more. ``kept``: that is sure; else it must be a new object."""
        contents = self._contents
        given = (item, (number, 0, 0)) if contents.numbered else item
        if acc is None:
            changed = contents.first(given)
        elif kept or contents.merge is None:
            changed = contents.add(acc, given)
        else:
            changed = contents.merge(acc, contents.first(given))
        if changed is None:
            raise nothing()
        return changed

    def _result(self, key: Any, end: int, panes: dict[int, Any], last: int, changed: Any) -> list[Any]:
        """Of the window that is full; ``changed``: what its last pane will hold."""
        start = 0 if self._size is None else max(0, end - self._size)
        parts = [panes.get(pane) for pane in range(start, last, self._pane or 1)]
        merge = self._contents.merge
        whole = changed if merge is None else reduce(merge, [*parts, changed])
        return list(self._contents.emit(key, Window(start, end), whole))

    def _forget(self, panes: dict[int, Any], end: int) -> None:
        """What no later window needs."""
        if self._size is None or self._pane is None:
            return
        for pane in range(max(0, end - self._size), min(end, end - self._size + self._every), self._pane):
            panes.pop(pane, None)
