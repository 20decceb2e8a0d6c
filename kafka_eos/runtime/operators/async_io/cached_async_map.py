"""The operator of ``async_map`` on a stream with keys: one request for each key, whose answer is kept for a while.

The state ``answers`` has what the service has said of each key. A row whose key has an answer is handed on with it;
others wait, and all that wait for one key wait for one request.

Rules: an answer is kept when it comes, an error never is. What is handed on depends on ``answers`` alone, so a row that
was held when a snapshot was taken finds there what the snapshot has, or asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka_eos._util import log_context
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import Maybe
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.plan import CachedAsyncMap as Node
from kafka_eos.runtime.operators.async_io.async_map import AsyncMap
from kafka_eos.runtime.operators.async_io.pending_rows import Answer, Answered
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.storability import FirstValue, Kept

STATE: Final = "answers"
_ANSWERS: Final = Kept(
    "its answers", "Annotate what the function returns, or say with state=... of what type they are."
)


@dataclass(frozen=True, slots=True)
class Answers:
    """An answer as it is kept. There is no error in it, and a value of None is an answer like any other."""

    inner: Maybe[Any]

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: Answer) -> bytes:
        return self.inner.encode(value.value)

    def decode(self, data: bytes) -> Answer:
        return Answer(self.inner.decode(data))

    def reader_of(self, schema: Json) -> Answers:
        return Answers(self.inner.reader_of(schema))


class CachedAsyncMap(AsyncMap):
    """See ``KeyedStream.async_map``."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._join = node.join
        codec: Codec[Answer] = Answers(Maybe(node.answers))
        self._descriptor = StateDescriptor(STATE, node.key_codec, codec, ttl=node.cache)
        self._first = FirstValue(codec, _ANSWERS)
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
        self._wait(batch.without(going), [answer for index, answer in enumerate(found) if index not in going])
        self._ask()
        if not now:
            return batch.take(())
        return self._made(Answered(batch, now, [answer for index in now if (answer := found[index]) is not None]))

    def _kept(self, batch: Batch[Any]) -> list[Answer | None]:
        """For each row the answer that is kept for its key, if there is one."""
        if batch.keys is None:
            raise PlanError(
                f"operator {self._ctx.operator!r} asks for keys, and the checkpoint holds rows without a key that wait "
                "in it: they are of a pipeline whose async_map had none. Run that one until it has stopped: its last "
                "checkpoint holds no such rows."
            )
        get = self._state.get
        if not self._event_time:
            return list(map(get, batch.keys))
        times, advance = batch.origin.timestamps(), self._state.advance
        found = []
        for key, row in zip(batch.keys, batch.rows, strict=True):
            advance(times[row])
            found.append(get(key))
        return found

    def _may_go(self, found: Sequence[Answer | None]) -> Sequence[int]:
        """Rows that need not wait: those with an answer; in order only those of them that stand behind no other row."""
        if not self._node.ordered:
            return [index for index, answer in enumerate(found) if answer is not None]
        first = next((index for index, answer in enumerate(found) if answer is None), len(found))
        return range(0 if self.holding else first)

    def _wait(self, batch: Batch[Any], found: Sequence[Answer | None]) -> None:
        for index, (ticket, key) in enumerate(zip(self._held.add(batch), batch.keys or (), strict=True)):
            if (answer := found[index]) is not None:
                self._held.answer(ticket, answer)
            elif key in self._waiting:
                self._waiting[key].append(ticket)
            else:
                self._waiting[key] = [ticket]
                self._keys[ticket] = key
                self._unasked.append((ticket, batch, index))

    def _asked_of(self, batch: Batch[Any], index: int) -> Any:
        assert batch.keys is not None  # ``_kept`` has seen them
        return batch.keys[index]

    def _note(self, ticket: int, answer: Answer) -> None:
        self._asked -= 1
        key = self._keys.pop(ticket)
        if answer.error is None:
            if not (self._first.is_tried or answer.value is None):
                self._first.encode(self._ctx.operator, answer)
            self._state.put(key, answer)
        for each in self._waiting.pop(key):
            self._held.answer(each, answer)

    def _made(self, answered: Answered) -> Batch[Any]:
        log_context.enter(self._ctx.operator)
        made = super()._made(answered)
        log_context.leave()
        return made

    def _value(self, batch: Batch[Any], index: int, answer: Answer) -> Any:
        log_context.at(batch, index)
        return self._join(batch.values[index], super()._value(batch, index, answer))
