"""The operators of broadcast state: each subtask processes its rows with its own copy of the broadcast state.

Rule: a row of the stream reads the copies; a row of the broadcast stream changes them and emits nothing. So the
provenance of outputs names only rows of the stream, and the number of outputs does not depend on the parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, Final

from msgspec.structs import replace

from kafka_eos.abc.codec import Codec
from kafka_eos.core.errors import PlanError
from kafka_eos.core.records import Batch
from kafka_eos.plan import input_of
from kafka_eos.plan.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from kafka_eos.plan.process_functions import OutputTag
from kafka_eos.runtime.operators.broadcast.broadcast_state import BroadcastStateCopy, BroadcastStates
from kafka_eos.runtime.operators.function_outputs import list_outputs
from kafka_eos.runtime.operators.operator import Operator, OperatorContext, call_each, event_time_of
from kafka_eos.runtime.operators.operator_stats import UserCounter
from kafka_eos.runtime.operators.process import ProcessOperator, close_function, counter, open_function, tag_output
from kafka_eos.runtime.operators.side_outputs import TaggedValue
from kafka_eos.runtime.operators.state_handles import KeyTimers, PendingWrites
from kafka_eos.runtime.operators.stateless import flatten_outputs

_INPUTS: Final = 2
_NOBODY: Final = object()


class _BroadcastInput:
    """The handling of broadcast rows that both operators share."""

    _function: Any
    _copies: BroadcastStates
    _opening: bool
    _timestamp: int | None

    def broadcast_state(self, name: str, key_tp: Any, value_tp: Any) -> BroadcastStateCopy:
        return self._copies.declare(name, key_tp, value_tp, opening=self._opening)

    def _take(self, batch: Batch[Any]) -> Batch[Any]:
        """Update the copies with rows of the broadcast stream; emit nothing."""
        return self._copies.apply(batch, self._function.process_broadcast, self._at)

    def _at(self, time: int | None) -> None:
        self._timestamp = time


class BroadcastOperator(_BroadcastInput, Operator):
    """Runs a ``BroadcastProcessFunction``; it is also the context that the function's ``open`` gets."""

    def __init__(self, factory: Callable[[], BroadcastProcessFunction[Any, Any, Any]]) -> None:
        self._factory = factory
        self._opening = False
        self._timestamp: int | None = None
        self._tags: dict[str, OutputTag[Any]] = {}
        self._emitted: list[TaggedValue] = []

    def open(self, ctx: OperatorContext) -> None:
        self._ctx, self._copies = ctx, BroadcastStates(ctx)
        self._function = self._factory()
        self._tags = {tag.name: tag for tag in self._function.side_outputs}
        self._opening = True
        open_function(ctx.operator, self._function, self)
        self._opening = False

    def close(self) -> None:
        close_function(self._ctx.operator, self._function)

    def counter(self, name: str) -> UserCounter:
        return counter(self._ctx, name, opening=self._opening)

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if self._opening or self._copies.is_applying:
            raise _no_output(self._ctx.operator, tag)
        self._emitted.append(tag_output(self._ctx.operator, self._tags, tag, value))

    @property
    def timestamp(self) -> int:
        return event_time_of(self._timestamp, self._ctx.operator)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        if input_of(batch.lane, _INPUTS):
            return self._take(batch)
        process = self._function.process
        times: Iterator[int | None] = repeat(None) if batch.event_times is None else iter(batch.event_times)

        def call(value: Any) -> list[Any]:
            self._timestamp, self._emitted = next(times), []
            return list_outputs(process(value)) + self._emitted

        made, refused = call_each(call, batch, batch.values, self._ctx)
        return flatten_outputs(replace(batch.drop(refused), updates=None), made)


class _KeyGuard:
    """Raises PlanError if the key is used while no keyed row or timer is processed."""

    _key: Any

    @property
    def key(self) -> Any:
        return _present(self._key)

    @key.setter
    def key(self, key: Any) -> None:
        self._key = key


class _GuardedWrites(_KeyGuard, PendingWrites):
    """Pending writes that raise if there is no current key."""


class _GuardedTimers(_KeyGuard, KeyTimers):
    """Key timers that raise if there is no current key."""

    def delete(self, time: int) -> None:
        _present(self._key)
        super().delete(time)


class KeyedBroadcastOperator(_BroadcastInput, ProcessOperator):
    """Runs a ``KeyedBroadcastProcessFunction``: a process function with copies of broadcast state."""

    writes, key_timers = _GuardedWrites, _GuardedTimers

    def __init__(
        self, factory: Callable[[], KeyedBroadcastProcessFunction[Any, Any, Any, Any]], key_codec: Codec[Any]
    ) -> None:
        super().__init__(factory, key_codec, ("process",))

    def open(self, ctx: OperatorContext) -> None:
        self._copies = BroadcastStates(ctx)
        super().open(ctx)

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if self._copies.is_applying:
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
            "process_broadcast used keyed state or timers, but it has no current key: use broadcast state for what "
            "concerns all keys, and process for what concerns one key"
        )
    return key


def _no_output(operator: str, tag: OutputTag[Any]) -> PlanError:
    return PlanError(f"operator {operator!r}: only process and timers emit to side outputs, as to {tag}")
