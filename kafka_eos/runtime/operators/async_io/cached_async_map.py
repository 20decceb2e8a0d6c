"""The operator of ``async_map`` on a keyed stream: one request per key, whose response is cached.

The state ``answers`` holds the response for each key. A row whose key has a response is emitted with it; other rows
wait, and all that wait for one key share one request.

Rules: a response is stored when it arrives, an error never is. Outputs depend on ``answers`` alone. So a row that was
pending at a snapshot finds the response in the snapshot's state, or requests it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka_eos._util import log_context
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import OptionalCodec
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.plan import CachedAsyncMapNode as Node
from kafka_eos.runtime.operators.async_io.async_map import AsyncMapOperator
from kafka_eos.runtime.operators.async_io.pending_rows import AnsweredRows, RequestResult
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.storability import StorableValues

STATE: Final = "answers"
_HINT: Final = "Annotate what the function returns, or declare their type with state=...."


@dataclass(frozen=True, slots=True)
class CachedAnswerCodec(Codec[Any]):
    """Codec of a cached response; None is a valid response, errors are never cached."""

    inner: OptionalCodec[Any]

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: RequestResult) -> bytes:
        return self.inner.encode(value.value)

    def decode(self, data: bytes) -> RequestResult:
        return RequestResult(self.inner.decode(data))

    def reader_of(self, schema: Json) -> CachedAnswerCodec:
        return CachedAnswerCodec(self.inner.reader_of(schema))


class CachedAsyncMapOperator(AsyncMapOperator):
    """async_map with one request per key and cached responses; see KeyedStream.async_map."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._join = node.join
        codec: Codec[RequestResult] = CachedAnswerCodec(OptionalCodec(node.answers))
        self._descriptor = StateDescriptor(STATE, node.key_codec, codec, ttl=node.cache)
        self._storable = StorableValues(codec, "its answers", _HINT)
        self._event_time = node.cache.clock == "event"
        self._waiting: dict[Any, list[int]] = {}
        """Tickets of the rows that wait for the answer for a key."""
        self._keys: dict[int, Any] = {}
        """The key that was asked for, by ticket of the first row that waits for it."""

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._state = ctx.value_state(self._descriptor)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        found = self._kept(batch)
        now = self._may_go(found)
        going = frozenset(now)
        self._wait(batch.drop(going), [answer for index, answer in enumerate(found) if index not in going])
        self._ask()
        if not now:
            return batch.take(())
        return self._made(AnsweredRows(batch, now, [answer for index in now if (answer := found[index]) is not None]))

    def _kept(self, batch: Batch[Any]) -> list[RequestResult | None]:
        """Return, for each row, the cached response for its key, if any."""
        if batch.keys is None:
            raise PlanError(
                f"operator {self._ctx.operator!r} sends requests by key, but the checkpoint contains pending rows "
                "without a key, from an async_map without keys. Run the earlier pipeline until it has "
                "stopped: its last checkpoint contains no such rows."
            )
        get = self._state.get
        if not self._event_time:
            return list(map(get, batch.keys))
        times, advance = batch.origin.timestamps(), self._state.advance
        found = []
        for key, row in zip(batch.keys, batch.origin_rows, strict=True):
            advance(times[row])
            found.append(get(key))
        return found

    def _may_go(self, found: Sequence[RequestResult | None]) -> Sequence[int]:
        """Return rows that can be emitted: those with a response; if ordered, only those without a waiting row
        before them."""
        if not self._node.ordered:
            return [index for index, answer in enumerate(found) if answer is not None]
        first = next((index for index, answer in enumerate(found) if answer is None), len(found))
        return range(0 if self.has_pending else first)

    def _wait(self, batch: Batch[Any], found: Sequence[RequestResult | None]) -> None:
        for index, (ticket, key) in enumerate(zip(self._held.add(batch), batch.keys or (), strict=True)):
            if (answer := found[index]) is not None:
                self._held.complete(ticket, answer)
            elif key in self._waiting:
                self._waiting[key].append(ticket)
            else:
                self._waiting[key] = [ticket]
                self._keys[ticket] = key
                self._unasked.append((ticket, batch, index))

    def _asked_of(self, batch: Batch[Any], index: int) -> Any:
        assert batch.keys is not None  # ``_kept`` has checked them
        return batch.keys[index]

    def _note(self, ticket: int, answer: RequestResult) -> None:
        self._asked -= 1
        key = self._keys.pop(ticket)
        if answer.error is None:
            try:
                self._storable.check(answer)
            except Exception as error:  # noqa: BLE001 (``reject`` judges whatever a codec raises)
                answer = RequestResult(error=error)
            else:
                self._state.put(key, answer)
        for each in self._waiting.pop(key):
            self._held.complete(each, answer)

    def _made(self, answered: AnsweredRows) -> Batch[Any]:
        log_context.enter_operator(self._ctx.operator)
        made = super()._made(answered)
        log_context.leave_operator()
        return made

    def _value(self, batch: Batch[Any], index: int, answer: RequestResult) -> Any:
        log_context.set_row(batch, index)
        return self._join(batch.values[index], super()._value(batch, index, answer))
