"""The process operator: the user's function, called for each row with the state of its key.

Rule: state writes of a row wait in ``pending`` until its call has returned and its outputs are listed, so a row that
is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_eos.errors import PlanError
from kafka_eos.ids import token
from kafka_eos.interfaces import Codec, StateDescriptor, ValueState
from kafka_eos.operators.base import NOT_THE_RECORDS_FAULT, OperatorContext, without
from kafka_eos.operators.functions import ProcessFunction
from kafka_eos.operators.stateless import spread
from kafka_eos.records import Batch
from kafka_eos.schemas import MsgpackCodec, state_codec

UPDATES = "updates"
_CLEARED: Any = object()
_ABSENT: Any = object()


class Process:
    """Runs a ``ProcessFunction``; it is also the context that the function's ``open`` gets."""

    def __init__(self, factory: Callable[[], ProcessFunction[Any, Any, Any]], key_codec: Codec[Any]) -> None:
        self._factory, self._key_codec = factory, key_codec
        self._states: dict[str, _Handle] = {}
        self._opening = False

    def open(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._updates = ctx.value_state(StateDescriptor(UPDATES, self._key_codec, MsgpackCodec[int](int)))
        self._function = self._factory()
        self._opening = True
        self._function.open(self)
        self._opening = False

    def value_state(self, name: str, tp: Any, default: Any = None) -> _Handle:
        if not self._opening:
            raise PlanError(f"operator {self._ctx.operator!r}: declare state {name!r} in open(ctx), not later")
        if name in self._states or name == UPDATES:
            raise PlanError(f"operator {self._ctx.operator!r}: the state name {name!r} is taken")
        descriptor = StateDescriptor(token(name, "state name"), self._key_codec, state_codec(tp))
        handle = self._states[name] = _Handle(self._ctx.value_state(descriptor), default)
        return handle

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        keys = batch.keys or []
        call, states = self._function.process, tuple(self._states.values())
        made: list[list[Any]] = []
        refused: list[int] = []
        for index, (key, value) in enumerate(zip(keys, batch.values, strict=True)):
            for state in states:
                state.begin(key)
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


class _Handle:
    """See ``functions.KeyState``: one state, bound to the key at hand."""

    def __init__(self, state: ValueState[Any], default: Any) -> None:
        self._state, self._default = state, default
        self._key: Any = None
        self._pending: Any = _ABSENT

    def begin(self, key: Any) -> None:
        self._key, self._pending = key, _ABSENT

    def apply(self) -> None:
        if self._pending is _CLEARED:
            self._state.delete(self._key)
        elif self._pending is not _ABSENT:
            self._state.put(self._key, self._pending)

    def get(self) -> Any:
        value = self._state.get(self._key) if self._pending is _ABSENT else self._pending
        return self._default if value is None or value is _CLEARED else value

    def put(self, value: Any) -> None:
        self._pending = value

    def clear(self) -> None:
        self._pending = _CLEARED
