"""Windows of the last n rows of a key, each time that a number of rows has arrived.

They have no event time: the row that fills a window emits its result. Rows are numbered from 0 in order of arrival, and
stored in panes like windows of time. If windows do not overlap, a full window is dropped with its number, so the next
one starts at 0. With a time to live, the same happens to a key that has expired.

A key has one entry, with its number of rows and all of its panes, so it expires as a whole. Rule: a rejected row has no
number and has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from kafka_eos import plan
from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import BackendState, StateDescriptor
from kafka_eos.codecs import CountedCodec, RowPanesCodec
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.records import Batch
from kafka_eos.core.windows import Window
from kafka_eos.runtime.operators.operator import Operator, OperatorContext, iterate_with_clock
from kafka_eos.runtime.operators.stateless import flatten_outputs
from kafka_eos.runtime.operators.storability import expect_storable, merge_storable
from kafka_eos.runtime.operators.windows.window_operator import WINDOWS, make_none_error


class RowCountWindowOperator(Operator):
    """Windows of the last n rows of a key; see rows() and global_()."""

    def __init__(self, node: plan.CountWindowNode) -> None:
        assigner = node.assigner
        self._size, self._every = assigner.size, assigner.every
        self._pane = None if assigner.size is None else math.gcd(assigner.size, assigner.every)
        self._contents, self._merge_stored = expect_storable(node.contents), merge_storable(node.contents)
        held: Codec[Any] = CountedCodec(RowPanesCodec(self._contents.codec))
        self._windows: StateDescriptor[Any] = StateDescriptor(
            WINDOWS, node.key_codec, held, ttl=node.ttl, definition=node.definition
        )
        self._by_event_time = node.ttl is not None and node.ttl.clock == "event"

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        return (self._windows,)

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._keys: BackendState[tuple[int, dict[int, Any]]] = ctx.value_state(self._windows)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        items: Sequence[Any] = batch.with_sort_keys() if self._contents.by_time else batch.values
        made: list[list[Any]] = []
        refused: list[int] = []
        for index, (key, item) in enumerate(zip(self._in_time(batch), TrackedRows(batch, items), strict=True)):
            # Not ``get``, which may refresh the key: its row may still be rejected, and must then change nothing.
            number, panes = self._keys.view((key,)).get(key) or (0, {})
            pane = 0 if self._pane is None else number // self._pane * self._pane
            full = (number + 1) % self._every == 0
            try:
                acc = self._with(panes.get(pane), item, number, kept=not full)
                outputs = self._result(key, number + 1, panes, pane, acc) if full else []
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            made.append(outputs)
            panes[pane] = acc
            if full:
                self._forget(panes, number + 1)
            if full and self._every == self._size:
                self._keys.delete(key)
            else:
                self._keys.put(key, (number + 1, panes))
        out = flatten_outputs(batch.drop(refused), made)
        out.updates = None
        return out

    def _in_time(self, batch: Batch[Any]) -> Iterable[Any]:
        """Return the keys of the rows; when a key is yielded, its row is the next."""
        return iterate_with_clock(batch, self._keys) if self._by_event_time else batch.keys or ()

    def _with(self, acc: Any, item: Any, number: int, *, kept: bool) -> Any:
        """Return a pane's contents with one row more.

        ``kept``: the row is accepted for certain; else return a new object.
        """
        contents, merge = self._contents, self._merge_stored
        given = (item, (number, 0, 0)) if contents.numbered else item
        if acc is None:
            changed = contents.first(given)
        elif kept or merge is None:
            changed = contents.add(acc, given)
        else:
            changed = merge(acc, contents.first(given))
        if changed is None:
            raise make_none_error()
        return changed

    def _result(self, key: Any, end: int, panes: dict[int, Any], last: int, changed: Any) -> list[Any]:
        """Return the outputs of the full window; ``changed``: the new contents of its last pane."""
        start = 0 if self._size is None else max(0, end - self._size)
        parts = [panes.get(pane) for pane in range(start, last, self._pane or 1)]
        merge = self._contents.merge
        whole = changed if merge is None else reduce(merge, [*parts, changed])
        return list(self._contents.emit(key, Window(start, end), whole))

    def _forget(self, panes: dict[int, Any], end: int) -> None:
        """Drop the panes that no later window needs."""
        if self._size is None or self._pane is None:
            return
        for pane in range(max(0, end - self._size), min(end, end - self._size + self._every), self._pane):
            panes.pop(pane, None)
