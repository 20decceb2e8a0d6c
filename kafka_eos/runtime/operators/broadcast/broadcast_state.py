"""One subtask's copy of broadcast state, in memory.

Rule: a copy changes only in ``process_broadcast``, and the writes of a record take effect when its call has returned.
So copies that have processed the same records are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, get_origin

from kafka_eos._util.log_context import TrackedRows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import BackendState, StateDescriptor
from kafka_eos.codecs import KeyCodec, state_codec
from kafka_eos.core.errors import PlanError
from kafka_eos.core.fault_attribution import as_exception
from kafka_eos.core.ids import ensure_name
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.storability import StorableValues

_KEYS: Final = KeyCodec()


class BroadcastStateCopy:
    """One broadcast state in one subtask, in memory; implements BroadcastState."""

    def __init__(self, where: str, state: BackendState[Any], codec: Codec[Any]) -> None:
        self._where, self._state = where, state
        self._storable = StorableValues(codec, f"{where}: a value", "Store a value of its declared type.")
        self._entries: dict[Any, Any] = dict(state.items())
        self._in_order = False
        self._written: dict[Any, Any] = {}
        """Values written by the current record; None stands for "no value"."""
        self._open = False
        """Whether a record of the broadcast stream is being processed."""

    def get(self, key: Any) -> Any:
        return self._written[key] if key in self._written else self._entries.get(key)

    def contains(self, key: Any) -> bool:
        return self.get(key) is not None

    __contains__ = contains

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def items(self) -> Iterator[tuple[Any, Any]]:
        if self._written:
            merged = {**self._entries, **self._written}
            return iter([(key, merged[key]) for key in sorted(merged, key=_KEYS.encode) if merged[key] is not None])
        if not self._in_order:
            self._entries = {key: self._entries[key] for key in sorted(self._entries, key=_KEYS.encode)}
            self._in_order = True
        return iter(self._entries.items())

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def put(self, key: Any, value: Any) -> None:
        self._expect_open()
        _KEYS.check_key(key)
        if value is not None:
            self._storable.check(value)
        self._written[key] = value

    def remove(self, key: Any) -> None:
        self.put(key, None)

    def clear(self) -> None:
        for key in list(self.keys()):
            self.remove(key)

    def begin(self) -> None:
        """Begin a record of the broadcast stream."""
        self._open = True

    def end(self, *, applied: bool) -> None:
        """End the record's call; apply its writes if it returned normally."""
        self._open = False
        written, self._written = self._written, {}
        for key, value in written.items() if applied else ():
            if value is None:
                self._entries.pop(key, None)
                self._state.delete(key)
            else:
                self._in_order &= key in self._entries
                self._entries[key] = value
                self._state.put(key, value)

    def _expect_open(self) -> None:
        if not self._open:
            raise PlanError(
                f"{self._where} can be changed only in process_broadcast: otherwise the other subtasks would not see "
                "the change. For values of one key use value_state, map_state … of a keyed stream"
            )


class BroadcastStates:
    """All broadcast states of one operator in one subtask, and the calls that change them."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._states: dict[str, BroadcastStateCopy] = {}
        self.is_applying = False
        """Whether a record of the broadcast stream is being processed."""

    def declare(self, name: str, key_tp: Any, value_tp: Any, *, opening: bool) -> BroadcastStateCopy:
        """Declare a state of that name. Raises PlanError if the name is taken, or a type cannot be stored."""
        operator = self._ctx.operator
        if not opening:
            raise PlanError(f"operator {operator!r}: declare broadcast state {name!r} in open(ctx), not later")
        if name in self._states:
            raise PlanError(f"operator {operator!r}: the broadcast state name {name!r} is taken")
        if (get_origin(key_tp) or key_tp) not in KeyCodec.types | {tuple, Any}:
            raise PlanError(
                f"the keys of broadcast state {name!r} are str, int, bytes or tuples of these, not {key_tp}"
            )
        descriptor: StateDescriptor[Any] = StateDescriptor(
            ensure_name(name, "state name"), _KEYS, state_codec(value_tp), "broadcast"
        )
        copy = BroadcastStateCopy(
            f"operator {operator!r}: broadcast state {name!r}", self._ctx.broadcast_state(descriptor), descriptor.value
        )
        return self._states.setdefault(name, copy)

    def apply(self, batch: Batch[Any], call: Callable[[Any], object], at: Callable[[int | None], None]) -> Batch[Any]:
        """Call the user's function with each row of the broadcast stream. Emits nothing.

        ``at`` is called with the event time of each row before its call.
        """
        for index, value in enumerate(TrackedRows(batch, batch.values)):
            at(None if batch.event_times is None else batch.event_times[index])
            if (error := self._call_error(call, value)) is not None:
                self._ctx.reject_broadcast(batch, index, error)
        return batch.take(())

    def _call_error(self, call: Callable[[Any], object], value: Any) -> Exception | None:
        """Return the exception of the call, which then has changed nothing; None if it returned normally."""
        self.is_applying, failed = True, None
        for state in self._states.values():
            state.begin()
        try:
            _expect_nothing(self._ctx.operator, call(value))
        except BaseException as raised:  # noqa: BLE001 (``reject_broadcast`` judges whatever user code raises)
            error = as_exception(raised)
            failed = error
        for state in self._states.values():
            state.end(applied=failed is None)
        self.is_applying = False
        return failed


def _expect_nothing(operator: str, made: object) -> None:
    if made is not None:
        raise PlanError(
            f"operator {operator!r}: process_broadcast must not emit, because every subtask would; it returned "
            f"{type(made).__name__}. Remove yield and return from it"
        )
