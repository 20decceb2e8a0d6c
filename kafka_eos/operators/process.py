"""The process operator: the user's function, called for each row with the state of its key.

Rule: state writes of a row wait in ``pending`` until its call has returned and its outputs are listed, so a row that
is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_origin

from kafka_eos.errors import PlanError
from kafka_eos.ids import token
from kafka_eos.interfaces import Codec, StateDescriptor, StateKind, Ttl
from kafka_eos.operators.base import NOT_THE_RECORDS_FAULT, OperatorContext, without
from kafka_eos.operators.functions import ProcessFunction
from kafka_eos.operators.keyed import NAMESPACE_CODEC, Aggregating, List, Map, Reducing, Value, Writes
from kafka_eos.operators.stateless import spread
from kafka_eos.records import Batch
from kafka_eos.schemas import KeyCodec, MsgpackCodec, state_codec
from kafka_eos.state.entries import NumberCodec

UPDATES = "updates"


class Process:
    """Runs a ``ProcessFunction``; it is also the context that the function's ``open`` gets."""

    def __init__(self, factory: Callable[[], ProcessFunction[Any, Any, Any]], key_codec: Codec[Any]) -> None:
        self._factory, self._key_codec = factory, key_codec
        self._states: dict[str, Writes] = {}
        self._clocks: list[Callable[[int], None]] = []
        """Told the time of each record, before its call: states that expire in event time."""
        self._opening = False

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._updates = ctx.value_state(StateDescriptor(UPDATES, self._key_codec, MsgpackCodec[int](int)))
        self._function = self._factory()
        self._opening = True
        self._function.open(self)
        self._opening = False

    def value_state(
        self, name: str, tp: Any, default: Any = None, *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> Value:
        return Value(self._state(name, tp, "value", ttl, namespaced), namespaced, default)

    def list_state(self, name: str, tp: Any, *, ttl: Ttl | None = None, namespaced: bool = False) -> List:
        return List(self._state(name, tp, "list", ttl, namespaced, NumberCodec()), namespaced)

    def map_state(
        self, name: str, key_tp: Any, value_tp: Any, *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> Map:
        if (get_origin(key_tp) or key_tp) not in KeyCodec.types | {tuple, Any}:
            raise PlanError(f"the keys of map state {name!r} are str, int, bytes or tuples of these, not {key_tp}")
        return Map(self._state(name, value_tp, "map", ttl, namespaced, KeyCodec()), namespaced)

    def reducing_state(
        self, name: str, tp: Any, fn: Callable[[Any, Any], Any], *, ttl: Ttl | None = None, namespaced: bool = False
    ) -> Reducing:
        return Reducing(self._state(name, tp, "reducing", ttl, namespaced), namespaced, fn)

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
    ) -> Aggregating:
        writes = self._state(name, acc_tp, "aggregating", ttl, namespaced)
        return Aggregating(writes, namespaced, create, add, result)

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        keys = batch.keys or []
        call, states, clocks = self._function.process, tuple(self._states.values()), self._clocks
        made: list[list[Any]] = []
        refused: list[int] = []
        times = batch.origin.timestamps() if clocks else ()
        for index, (key, value) in enumerate(zip(keys, batch.values, strict=True)):
            for state in states:
                state.begin(key)
            for advance in clocks:
                advance(times[batch.rows[index]])
            try:
                outputs = list(call(key, value))
            except NOT_THE_RECORDS_FAULT:
                raise
            except Exception as error:  # noqa: BLE001 (whatever user code raises belongs to its record)
                self._ctx.reject(batch, index, error)
                refused.append(index)
                continue
            for state in states:
                state.apply()
            made.append(outputs)
        kept = without(batch, refused)
        return spread(kept, made, self._count(kept.keys or [], made))

    def close(self) -> None:
        return None

    def _state(
        self, name: str, tp: Any, kind: StateKind, ttl: Ttl | None, namespaced: bool, entry: Codec[Any] | None = None
    ) -> Writes:
        if not self._opening:
            raise PlanError(f"operator {self._ctx.operator!r}: declare state {name!r} in open(ctx), not later")
        if name in self._states or name == UPDATES:
            raise PlanError(f"operator {self._ctx.operator!r}: the state name {name!r} is taken")
        namespace = NAMESPACE_CODEC if namespaced else None
        state = self._ctx.value_state(
            StateDescriptor(token(name, "state name"), self._key_codec, state_codec(tp), kind, namespace, entry, ttl)
        )
        if ttl is not None and ttl.clock == "event":
            self._clocks.append(state.advance)
        writes = self._states[name] = Writes(state)
        return writes

    def _count(self, keys: list[Any], made: list[list[Any]]) -> list[int]:
        """How many outputs each key has had, for every output."""
        counts = self._updates.view({key for key, outputs in zip(keys, made, strict=True) if outputs})
        updates: list[int] = []
        for key, outputs in zip(keys, made, strict=True):
            if outputs:
                before = counts.get(key, 0)
                counts[key] = before + len(outputs)
                updates.extend(range(before + 1, before + len(outputs) + 1))
        return updates
