"""The process operator: the user's function, called for each row with the state of its key.

Timers are state. They fire when the watermark (``advance``) or the clock (``tick``) advances, in the order of time.
While one fires, the current time is the timer's, so its outputs do not depend on how far the watermark, or the clock,
has jumped.

Rules: state writes of a row stay in ``pending`` until its call has returned and its outputs are listed, so a rejected
row has changed nothing. A key has only the state that the function stored: outputs have no update number, because its
counter would be stored forever.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, get_origin

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor, StateKind, Ttl
from kafka_eos.codecs import KeyCodec, state_codec
from kafka_eos.core.error_messages import describe_error, show_value
from kafka_eos.core.errors import Bug, EnvironmentFailed, PlanError, RestartFromCheckpoint
from kafka_eos.core.fault_attribution import ErrorRules, Fault, as_exception
from kafka_eos.core.ids import ensure_name
from kafka_eos.core.provenance import PROCESSING_TIMERS
from kafka_eos.core.provenance import TIMERS as EVENT_TIMERS
from kafka_eos.core.records import Batch
from kafka_eos.plan import input_of
from kafka_eos.plan.process_functions import OutputTag, TimedFunction, overrides
from kafka_eos.runtime.operators.function_outputs import list_outputs
from kafka_eos.runtime.operators.operator import Operator, OperatorContext, event_time_of
from kafka_eos.runtime.operators.operator_stats import UserCounter
from kafka_eos.runtime.operators.side_outputs import TaggedValue
from kafka_eos.runtime.operators.state_handles import (
    NAMESPACE_CODEC,
    KeyedAggregating,
    KeyedList,
    KeyedMap,
    KeyedReducing,
    KeyedValue,
    KeyTimers,
    PendingWrites,
)
from kafka_eos.runtime.operators.stateless import flatten_outputs
from kafka_eos.runtime.operators.timer_firing import CLOCK_STATE, EVENT_STATE, Firings
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.timers import create_timer_descriptor


class _TimerKind(Struct, frozen=True):
    """The event-time or the processing-time timers of a function, and the method they call."""

    timers: KeyTimers
    firings: Firings
    call: Callable[[Any, int], Iterable[Any]]


class ProcessOperator(Operator):
    """Runs a ProcessFunction or CoProcessFunction; is also the context its open() receives."""

    writes: ClassVar[type[PendingWrites]] = PendingWrites
    key_timers: ClassVar[type[KeyTimers]] = KeyTimers

    def __init__(
        self, factory: Callable[[], TimedFunction[Any, Any]], key_codec: Codec[Any], methods: Sequence[str]
    ) -> None:
        """``methods``: those of the function, one per input."""
        self._factory = factory
        self._key_codec = key_codec
        self._methods = methods
        self._states: dict[str, PendingWrites] = {}
        self._clocks: list[Callable[[int], None]] = []
        """Told the time of each record, before its call: states that expire in event time."""
        self._opening = False
        self._by_event: _TimerKind | None = None
        self._by_clock: _TimerKind | None = None
        self._timestamp: int | None = None
        """The event time of the current row or timer."""
        self._tags: dict[str, OutputTag[Any]] = {}
        self._emitted: list[TaggedValue] = []
        """Values that the current call has emitted to side outputs."""

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        function: Any = self._factory()
        self._function = function
        self._tags = {tag.name: tag for tag in self._function.side_outputs}
        self._calls = [self._with_side_outputs(getattr(self._function, method)) for method in self._methods]
        self._by_event = self._timing(EVENT_STATE, EVENT_TIMERS, TimedFunction.on_timer, function.on_timer)
        self._by_clock = self._timing(
            CLOCK_STATE, PROCESSING_TIMERS, TimedFunction.on_processing_timer, function.on_processing_timer
        )
        self._opening = True
        open_function(ctx.operator, function, self)
        self._opening = False

    def value_state(
        self, name: str, tp: Any, default: Any = None, *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> KeyedValue:
        return KeyedValue(self._state(name, tp, "value", ttl, namespaced), namespaced, default)

    def list_state(self, name: str, tp: Any, *, ttl: Ttl | None = None, namespaced: bool = False) -> KeyedList:
        return KeyedList(self._state(name, tp, "list", ttl, namespaced, ElementNumberCodec()), namespaced)

    def map_state(
        self, name: str, key_tp: Any, value_tp: Any, *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> KeyedMap:
        if (get_origin(key_tp) or key_tp) not in KeyCodec.types | {tuple, Any}:
            raise PlanError(f"the keys of map state {name!r} are str, int, bytes or tuples of these, not {key_tp}")
        return KeyedMap(self._state(name, value_tp, "map", ttl, namespaced, KeyCodec()), namespaced)

    def reducing_state(
        self, name: str, tp: Any, fn: Callable[[Any, Any], Any], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> KeyedReducing:
        return KeyedReducing(self._state(name, tp, "reducing", ttl, namespaced), namespaced, fn)

    def aggregating_state(
        self,
        name: str,
        acc_tp: Any,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        ttl: Ttl | None = None,
        namespaced: bool = False,
    ) -> KeyedAggregating:
        writes = self._state(name, acc_tp, "aggregating", ttl, namespaced)
        return KeyedAggregating(writes, namespaced, create, add, result)

    def counter(self, name: str) -> UserCounter:
        return counter(self._ctx, name, opening=self._opening)

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if self._opening:
            raise PlanError(f"operator {self._ctx.operator!r}: open(ctx) must not emit, as to {tag}")
        self._emitted.append(tag_output(self._ctx.operator, self._tags, tag, value))

    def timers(self) -> KeyTimers:
        return self._require_timers(self._by_event, "on_timer").timers

    def processing_timers(self) -> KeyTimers:
        return self._require_timers(self._by_clock, "on_processing_timer").timers

    @property
    def timestamp(self) -> int:
        return event_time_of(self._timestamp, self._ctx.operator)

    @property
    def watermark(self) -> int:
        return self.timers().now

    @property
    def processing_time(self) -> int:
        self._require_timers(self._by_clock, "on_processing_timer")
        return self._ctx.clock()

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        if self._by_event is not None and batch.event_times is not None:
            self._count_late(self._by_event.timers, batch.keys or (), batch.event_times)
        keys = self._in_event_time(batch)
        call = self._calls[input_of(batch.lane, len(self._calls))]
        states, clocks = self._pending, self._clocks
        made: list[list[Any]] = []
        refused: list[int] = []
        times = batch.origin.timestamps() if clocks else ()
        for index, (key, value) in enumerate(zip(keys, TrackedRows(batch, batch.values), strict=True)):
            for state in states:
                state.begin(key)
            for advance in clocks:
                advance(times[batch.origin_rows[index]])
            try:
                outputs = list_outputs(call(key, value))
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            for state in states:
                state.apply()
            made.append(outputs)
        return flatten_outputs(replace(batch.drop(refused), updates=None), made)

    def advance(self, time: int) -> Iterator[Batch[Any]]:
        return self._fired(self._by_event, time)

    @property
    def uses_clock(self) -> bool:
        return self._by_clock is not None

    def tick(self, now: int) -> Iterator[Batch[Any]]:
        return self._fired(self._by_clock, now)

    def get_next_time(self) -> int | None:
        return None if self._by_clock is None else self._by_clock.timers.soonest()

    def _fired(self, timing: _TimerKind | None, time: int) -> Iterator[Batch[Any]]:
        if timing is None:
            return iter(())
        firings, call, states = timing.firings, timing.call, self._pending

        def fire(key: Any, at: int) -> Sequence[Any]:
            self._timestamp = at
            for state in states:
                state.begin(key)
            try:
                outputs = list_outputs(call(key, at))
            except BaseException as raised:  # noqa: BLE001 (``reject`` judges whatever user code raises)
                error = as_exception(raised)
                return firings.reject(key, at, error)
            for state in states:
                state.apply()
            return outputs

        return firings.fire(timing.timers.due(time), fire)

    def _timing(
        self, state: str, topic: str, inherited: Callable[..., Any], method: Callable[[Any, Any], Iterable[Any]]
    ) -> _TimerKind | None:
        """Return the timers of a method; None if the function only inherits it."""
        if not overrides(self._function, inherited):
            return None
        return _TimerKind(
            self.key_timers(self._ctx.timers(create_timer_descriptor(state, self._key_codec))),
            Firings(self._ctx, topic, self._key_codec.encode, inherited.__name__),
            self._with_side_outputs(method),
        )

    def _require_timers(self, timing: _TimerKind | None, method: str) -> _TimerKind:
        if timing is None:
            raise PlanError(f"operator {self._ctx.operator!r}: a function that sets timers defines {method}(key, time)")
        return timing

    def _with_side_outputs(self, call: Callable[[Any, Any], Iterable[Any]]) -> Callable[[Any, Any], Iterable[Any]]:
        """Wrap a call so that its side outputs follow its outputs."""

        def both(key: Any, given: Any) -> Iterable[Any]:
            self._emitted = []
            outputs = list_outputs(call(key, given))
            return outputs + self._emitted

        return both if self._tags else call

    def _count_late(self, timers: KeyTimers, keys: Sequence[Any], times: Sequence[int]) -> None:
        """Count the late rows. Their keys are checked only if some rows may be late."""
        if times and min(times) <= timers.newest():
            late = sum(time <= timers.time_of(key) for key, time in zip(keys, times, strict=True))
            if late:
                self._ctx.count_late(late)

    def _in_event_time(self, batch: Batch[Any]) -> Iterable[Any]:
        """Return the keys of the rows.

        If rows have event times, the current time is that of each row when its key is yielded.
        """
        if batch.event_times is None:
            self._timestamp = None
            return batch.keys or ()
        return self._stamping(batch.keys or (), batch.event_times)

    def _stamping(self, keys: Iterable[Any], times: Iterable[int]) -> Iterator[Any]:
        for key, self._timestamp in zip(keys, times, strict=True):
            yield key

    @property
    def _pending(self) -> tuple[PendingWrites | KeyTimers, ...]:
        """Return all writes that are applied when the call has returned."""
        both = (self._by_event, self._by_clock)
        return (*self._states.values(), *(timing.timers for timing in both if timing is not None))

    def close(self) -> None:
        close_function(self._ctx.operator, self._function)

    def _state(
        self, name: str, tp: Any, kind: StateKind, ttl: Ttl | None, namespaced: bool, entry: Codec[Any] | None = None
    ) -> PendingWrites:
        if not self._opening:
            raise PlanError(f"operator {self._ctx.operator!r}: declare state {name!r} in open(ctx), not later")
        if name in self._states or name in (EVENT_STATE, CLOCK_STATE):
            raise PlanError(f"operator {self._ctx.operator!r}: the state name {name!r} is taken")
        namespace = NAMESPACE_CODEC if namespaced else None
        try:
            codec = state_codec(tp)
        except PlanError as error:
            raise PlanError(f"operator {self._ctx.operator!r}: state {name!r}: {error}") from error
        state = self._ctx.value_state(
            StateDescriptor(ensure_name(name, "state name"), self._key_codec, codec, kind, namespace, entry, ttl)
        )
        if ttl is not None and ttl.clock == "event":
            self._clocks.append(state.advance)
        writes = self._states[name] = self.writes(state, name, codec)
        return writes


def counter(ctx: OperatorContext, name: str, *, opening: bool) -> UserCounter:
    """Return a counter for the function's ``open``. Raises PlanError as ``ProcessContext.counter`` does."""
    if not opening:
        raise PlanError(f"operator {ctx.operator!r}: call counter({name!r}) in open(ctx), and keep the result on self")
    given: object = name
    if not isinstance(given, str) or not given:
        raise PlanError(f"operator {ctx.operator!r}: the name of a counter must be a str, not {name!r}")
    return ctx.counter(name)


def tag_output(operator: str, declared: Mapping[str, OutputTag[Any]], tag: OutputTag[Any], value: Any) -> TaggedValue:
    """Tag a value for a side output. Raises PlanError if the function does not declare the tag."""
    given: object = tag
    if not isinstance(given, OutputTag):
        raise PlanError(f"operator {operator!r} emits to {given!r}, which is not an OutputTag(name, type)")
    if declared.get(tag.name) != tag:
        raise PlanError(
            f"operator {operator!r} emits to {tag}, which its function does not declare: add it to side_outputs = (…,)"
        )
    return TaggedValue(tag.name, value)


def open_function(operator: str, function: Any, ctx: Any) -> None:
    """Call ``open`` of the user's function. An exception ends the attempt, with the operator and the user's lines."""
    try:
        function.open(ctx)
    except Exception as error:
        text = f"open of operator {operator!r} raised {describe_error(error)}"
        match ErrorRules().classify(error):
            case Fault.ENVIRONMENT:
                raise EnvironmentFailed(text) from error
            case Fault.RECORD:
                raise RestartFromCheckpoint(text) from error
            case Fault.JOB:
                raise


def close_function(operator: str, function: Any) -> None:
    """Call ``close`` of the user's function. An exception is a warning: all records of the session are processed."""
    try:
        function.close()
    except Exception as error:  # noqa: BLE001 (user code may raise anything)
        warnings.warn(f"close of operator {operator!r} raised {describe_error(error)}", RuntimeWarning, stacklevel=2)


class _DeclaredState:
    """Replaces a state while a function is opened only to list its states."""

    def get(self, key: Any) -> Any:
        raise Bug(f"a state was read for key {show_value(key)} where no record is processed")

    def items(self) -> Iterable[Any]:
        return ()


def list_declared_states(operator: ProcessOperator) -> tuple[StateDescriptor[Any], ...]:
    """Return the states that a function declares in open(). Raises its errors; no record is processed."""
    found: list[StateDescriptor[Any]] = []

    def note(descriptor: StateDescriptor[Any]) -> Any:
        found.append(descriptor)
        return _DeclaredState()

    def reject(batch: Batch[Any], index: int, error: Exception) -> None:
        raise Bug("a record was rejected while none is processed") from error

    def nothing(descriptor: StateDescriptor[Any]) -> Any:
        return _DeclaredState()

    operator.open(OperatorContext("declared", note, reject, timers=note, broadcast_state=nothing))
    operator.close()
    return tuple(found)
