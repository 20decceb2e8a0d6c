"""The operator of ``async_map``: it emits rows when their responses arrive.

It keeps no state: its rows are in-flight rows of the exchange before it, and part of the checkpoint there
(``list_pending_rows``). Rules: at most ``capacity`` requests are sent at a time. A row without a response is rejected,
or goes to the side output for such rows, in its place among the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from kafka_eos._util import log_context
from kafka_eos._util.failpoints import hit
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import AsyncMapNode as Node
from kafka_eos.runtime.operators.async_io.pending_rows import AnsweredRows, PendingRows, RequestResult
from kafka_eos.runtime.operators.operator import Operator, OperatorContext
from kafka_eos.runtime.operators.side_outputs import TaggedValue


class AsyncMapOperator(Operator):
    """Holds rows until their requests are answered; see Stream.async_map."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._held = PendingRows(node.ordered)
        self._unasked: deque[tuple[int, Batch[Any], int]] = deque()
        self._asked = 0

    def open(self, ctx: OperatorContext) -> None:
        # asyncio takes a twelfth of a worker's startup time, and most workers send no requests.
        from kafka_eos.runtime.operators.async_io.request_loop import Requester, RequestPolicy

        self._ctx, node = ctx, self._node
        policy = RequestPolicy(node.timeout, node.retries, node.breaker, node.retry_on)
        self._asking = Requester(node.fn, policy, node.capacity, ctx.operator)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        tickets = self._held.add(batch)
        self._unasked.extend((ticket, batch, index) for index, ticket in enumerate(tickets))
        self._ask()
        return batch.take(())

    def queue_watermark(self, watermark: Watermark) -> None:
        """Queue a watermark behind the pending rows."""
        self._held.add_watermark(watermark)

    @property
    def is_full(self) -> bool:
        """Return whether no more rows should arrive for now."""
        return len(self._held) >= self._node.capacity

    @property
    def has_pending(self) -> bool:
        """Return whether rows wait for responses."""
        return len(self._held) > 0

    def list_pending_rows(self) -> Iterator[Batch[Any]]:
        """Yield the waiting rows, unchanged."""
        return self._held.rows()

    def pass_barrier(self) -> bool:
        """Mark a barrier behind the pending rows; return whether one has been pending since the session's first
        barrier."""
        return self._held.pass_barrier()

    def take_ready(self) -> Iterator[Batch[Any] | Watermark]:
        """Yield the batches and watermarks that can be emitted now. Raises PoisonRecord."""
        for answered in self._asking.take_results():
            self._note(*answered)
        self._ask()
        for each in self._held.take_ready():
            yield each if isinstance(each, Watermark) else self._made(each)

    def wait(self) -> None:
        """Block until one of the pending rows has its response, if there are any."""
        if self._asked:
            self._note(*self._asking.wait())

    def close(self) -> None:
        self._asking.close()

    def _ask(self) -> None:
        while self._unasked and self._asked < self._node.capacity:
            self._asked += 1
            ticket, batch, index = self._unasked.popleft()
            log_context.enter_operator(self._ctx.operator)
            log_context.set_row(batch, index)
            self._asking.submit(ticket, self._asked_of(batch, index))
            log_context.leave_operator()

    def _asked_of(self, batch: Batch[Any], index: int) -> Any:
        """Return the argument of the function for a row."""
        return batch.values[index]

    def _note(self, ticket: int, answer: RequestResult) -> None:
        self._asked -= 1
        self._held.complete(ticket, answer)

    def _made(self, answered: AnsweredRows) -> Batch[Any]:
        hit("async-map.answered")
        batch, kept, values = answered.batch, [], []
        for index, answer in zip(answered.indices, answered.answers, strict=True):
            if answer.error is not None and self._node.failed is not None:
                values.append(TaggedValue(self._node.failed, batch.values[index]))
            else:
                try:
                    values.append(self._value(batch, index, answer))
                except Exception as error:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                    self._ctx.reject(batch, index, error)
                    continue
            kept.append(index)
        return replace(batch.take(kept), values=values)

    def _value(self, batch: Batch[Any], index: int, answer: RequestResult) -> Any:
        """Return the output value of a row. Raises the error of its request."""
        if answer.error is not None:
            raise answer.error
        return answer.value
