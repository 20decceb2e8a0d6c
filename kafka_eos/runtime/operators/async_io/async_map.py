"""The operator of ``async_map``: rows go in, and come out when they are answered.

It keeps no state: what it holds is under way in the exchange before it, and part of the checkpoint there (``rows``).
Rules: at most ``capacity`` requests are made at a time. A row without an answer is refused, or goes to the side output
for such rows, at its place among the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kafka_eos._util import log_context
from kafka_eos._util.failpoints import hit
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import AsyncMap as Node
from kafka_eos.runtime.operators.async_io.pending_rows import Answer, Answered, Held
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.side_outputs import Tagged


class AsyncMap:
    """See ``Stream.async_map``, and ``base.Awaiting``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._held = Held(node.ordered)
        self._unasked: deque[tuple[int, Batch[Any], int]] = deque()
        self._asked = 0

    def open(self, ctx: OperatorContext) -> None:
        # asyncio takes a twelfth of a worker's start, and most of them ask for nothing.
        from kafka_eos.runtime.operators.async_io.request_loop import Asking, Policy

        self._ctx, node = ctx, self._node
        policy = Policy(node.timeout, node.retries, node.breaker, node.retry_on)
        self._asking = Asking(node.fn, policy, node.capacity, ctx.operator)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        tickets = self._held.add(batch)
        self._unasked.extend((ticket, batch, index) for index, ticket in enumerate(tickets))
        self._ask()
        return batch.take(())

    def hold(self, watermark: Watermark) -> None:
        self._held.mark(watermark)

    @property
    def full(self) -> bool:
        return len(self._held) >= self._node.capacity

    @property
    def holding(self) -> bool:
        return len(self._held) > 0

    def rows(self) -> Iterator[Batch[Any]]:
        return self._held.rows()

    def barrier(self) -> bool:
        return self._held.barrier()

    def ready(self) -> Iterator[Batch[Any] | Watermark]:
        for answered in self._asking.answered():
            self._note(*answered)
        self._ask()
        for each in self._held.due():
            yield each if isinstance(each, Watermark) else self._made(each)

    def wait(self) -> None:
        if self._asked:
            self._note(*self._asking.wait())

    def close(self) -> None:
        self._asking.close()

    def _ask(self) -> None:
        while self._unasked and self._asked < self._node.capacity:
            self._asked += 1
            ticket, batch, index = self._unasked.popleft()
            log_context.enter(self._ctx.operator)
            log_context.at(batch, index)
            self._asking.ask(ticket, self._asked_of(batch, index))
            log_context.leave()

    def _asked_of(self, batch: Batch[Any], index: int) -> Any:
        """What the function is given for a row."""
        return batch.values[index]

    def _note(self, ticket: int, answer: Answer) -> None:
        self._asked -= 1
        self._held.answer(ticket, answer)

    def _made(self, answered: Answered) -> Batch[Any]:
        hit("async-map.answered")
        batch, kept, values = answered.batch, [], []
        for index, answer in zip(answered.indices, answered.answers, strict=True):
            if answer.error is not None and self._node.failed is not None:
                values.append(Tagged(self._node.failed, batch.values[index]))
            else:
                try:
                    values.append(self._value(batch, index, answer))
                except Exception as error:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                    self._ctx.reject(batch, index, error)
                    continue
            kept.append(index)
        return replace(batch.take(kept), values=values)

    def _value(self, batch: Batch[Any], index: int, answer: Answer) -> Any:
        """What a row is handed on as. Raises why it has no answer."""
        if answer.error is not None:
            raise answer.error
        return answer.value
