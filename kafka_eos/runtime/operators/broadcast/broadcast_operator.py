"""The operators of broadcast state: rows of a stream are processed beside a copy of what is broadcast.

Rule: a row of the stream reads the copies, a row of the broadcast stream changes them and makes nothing. So outputs are
named by the rows of the stream alone, and there are as many with one subtask as with many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from kafka_eos._util.log_context import Rows
from kafka_eos.abc.codec import Codec
from kafka_eos.core.errors import PlanError
from kafka_eos.core.records import Batch
from kafka_eos.plan import input_of
from kafka_eos.plan.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from kafka_eos.plan.process_functions import OutputTag
from kafka_eos.runtime.operators.broadcast.broadcast_state import Copies, Copy
from kafka_eos.runtime.operators.function_outputs import listed
from kafka_eos.runtime.operators.operator import OperatorContext, event_time_of
from kafka_eos.runtime.operators.operator_stats import Counted
from kafka_eos.runtime.operators.process import Process, close_function, counter, open_function, tagged
from kafka_eos.runtime.operators.side_outputs import Tagged
from kafka_eos.runtime.operators.state_handles import KeyTimers, Writes
from kafka_eos.runtime.operators.stateless import spread

_INPUTS: Final = 2
_NOBODY: Final = object()


class _WithCopies:
    """What both operators do with what is broadcast."""

    _function: Any
    _copies: Copies
    _opening: bool
    _timestamp: int | None

    def broadcast_state(self, name: str, key_tp: Any, value_tp: Any) -> Copy:
        return self._copies.declare(name, key_tp, value_tp, opening=self._opening)

    def _take(self, batch: Batch[Any]) -> Batch[Any]:
        """Rows of the broadcast stream change the copies and make nothing."""
        return self._copies.take(batch, self._function.process_broadcast, self._at)

    def _at(self, time: int | None) -> None:
        self._timestamp = time


class BroadcastOperator(_WithCopies):
    """Runs a ``BroadcastProcessFunction``; it is also the context that the function's ``open`` gets."""

    def __init__(self, factory: Callable[[], BroadcastProcessFunction[Any, Any, Any]]) -> None:
        self._factory = factory
        self._opening = False
        self._timestamp: int | None = None
        self._tags: dict[str, OutputTag[Any]] = {}
        self._emitted: list[Tagged] = []

    def open(self, ctx: OperatorContext) -> None:
        self._ctx, self._copies = ctx, Copies(ctx)
        self._function = self._factory()
        self._tags = {tag.name: tag for tag in self._function.side_outputs}
        self._opening = True
        open_function(ctx.operator, self._function, self)
        self._opening = False

    def close(self) -> None:
        close_function(self._ctx.operator, self._function)

    def counter(self, name: str) -> Counted:
        return counter(self._ctx, name, opening=self._opening)

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if self._opening or self._copies.telling:
            raise _no_output(self._ctx.operator, tag)
        self._emitted.append(tagged(self._ctx.operator, self._tags, tag, value))

    @property
    def timestamp(self) -> int:
        return event_time_of(self._timestamp, self._ctx.operator)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        if input_of(batch.lane, _INPUTS):
            return self._take(batch)
        made: list[list[Any]] = []
        refused: list[int] = []
        process = self._function.process
        for index, value in enumerate(Rows(batch, batch.values)):
            self._timestamp = None if batch.times is None else batch.times[index]
            self._emitted = []
            try:
                made.append(listed(process(value)) + self._emitted)
            except Exception as error:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                self._ctx.reject(batch, index, error)
                refused.append(index)
        return spread(replace(batch.without(refused), updates=None), made)


class _OfKey:
    """``key`` is there only while a row of the keyed stream, or a timer, is at hand."""

    _key: Any

    @property
    def key(self) -> Any:
        return _present(self._key)

    @key.setter
    def key(self, key: Any) -> None:
        self._key = key


class _Keys(_OfKey, Writes):
    """Writes to the state of a key."""


class _Times(_OfKey, KeyTimers):
    """Timers of a key."""

    def delete(self, time: int) -> None:
        _present(self._key)
        super().delete(time)


class KeyedBroadcastOperator(_WithCopies, Process):
    """Runs a ``KeyedBroadcastProcessFunction``: a process function that has copies, too."""

    writes, key_timers = _Keys, _Times

    def __init__(
        self, factory: Callable[[], KeyedBroadcastProcessFunction[Any, Any, Any, Any]], key_codec: Codec[Any]
    ) -> None:
        super().__init__(factory, key_codec, ("process",))

    def open(self, ctx: OperatorContext) -> None:
        self._copies = Copies(ctx)
        super().open(ctx)

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if self._copies.telling:
            raise _no_output(self._ctx.operator, tag)
        super().output(tag, value)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        if not input_of(batch.lane, _INPUTS):
            return super().process(batch)
        for state in self._pending:
            state.begin(_NOBODY)
        return self._take(batch)


def _present(key: Any) -> Any:
    if key is _NOBODY:
        raise PlanError(
            "state or timers of a key were used in process_broadcast, where no key is at hand: what concerns all keys "
            "is broadcast state, what concerns one is done in process"
        )
    return key


def _no_output(operator: str, tag: OutputTag[Any]) -> PlanError:
    return PlanError(f"operator {operator!r}: only process and timers emit to side outputs, as to {tag}")
