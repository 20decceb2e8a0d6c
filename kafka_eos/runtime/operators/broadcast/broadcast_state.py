"""What all subtasks hold, as one of them has it: its copy of broadcast state, in memory.

Rule: a copy changes in ``process_broadcast`` and nowhere else, and what a record writes counts when its call has
returned: so the copies of all subtasks have seen the same wherever they have had the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, get_origin

from kafka_eos._util.log_context import Rows
from kafka_eos.abc.state import StateDescriptor, ValueState
from kafka_eos.codecs import KeyCodec, state_codec
from kafka_eos.core.errors import PlanError
from kafka_eos.core.ids import token
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator import OperatorContext

_KEYS: Final = KeyCodec()


class Copy:
    """See ``functions.BroadcastState``: one state of one subtask."""

    def __init__(self, where: str, state: ValueState[Any]) -> None:
        self._where, self._state = where, state
        self._entries: dict[Any, Any] = dict(state.items())
        self._in_order = False
        self._written: dict[Any, Any] = {}
        """By the record at hand; None stands for "no value"."""
        self._open = False
        """Is a record of the broadcast stream at hand?"""

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
        _KEYS.check(key)
        self._written[key] = value

    def remove(self, key: Any) -> None:
        self.put(key, None)

    def clear(self) -> None:
        for key in list(self.keys()):
            self.remove(key)

    def begin(self) -> None:
        """A record of the broadcast stream comes."""
        self._open = True

    def end(self, *, applied: bool) -> None:
        """Its call is over; what it wrote counts if that returned normally."""
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
                f"{self._where} is changed where no record of the broadcast stream is processed: another subtask would "
                "not see it. Only process_broadcast changes it; what a key has is value_state, map_state … of a "
                "stream with keys"
            )


class Copies:
    """The broadcast states of one operator in one subtask, and the calls that change them."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx
        self._states: dict[str, Copy] = {}
        self.telling = False
        """Is a record of the broadcast stream at hand?"""

    def declare(self, name: str, key_tp: Any, value_tp: Any, *, opening: bool) -> Copy:
        """A state of that name. PlanError if it is taken, or of no use."""
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
            token(name, "state name"), _KEYS, state_codec(value_tp), "broadcast"
        )
        copy = Copy(f"operator {operator!r}: broadcast state {name!r}", self._ctx.broadcast_state(descriptor))
        return self._states.setdefault(name, copy)

    def take(self, batch: Batch[Any], call: Callable[[Any], object], at: Callable[[int | None], None]) -> Batch[Any]:
        """Call the user's function with each row of the broadcast stream. Nothing comes out.

        ``at`` is told the event time of each before its call.
        """
        for index, value in enumerate(Rows(batch, batch.values)):
            at(None if batch.times is None else batch.times[index])
            if (error := self._told(call, value)) is not None:
                self._ctx.reject_copy(batch, index, error)
        return batch.take(())

    def _told(self, call: Callable[[Any], object], value: Any) -> Exception | None:
        """What the call has raised; then it has changed nothing."""
        self.telling, failed = True, None
        for state in self._states.values():
            state.begin()
        try:
            _expect_nothing(self._ctx.operator, call(value))
        except Exception as error:  # noqa: BLE001 (``reject_copy`` judges whatever user code raises)
            failed = error
        for state in self._states.values():
            state.end(applied=failed is None)
        self.telling = False
        return failed


def _expect_nothing(operator: str, made: object) -> None:
    if made is not None:
        raise PlanError(
            f"operator {operator!r}: process_broadcast makes no outputs, since every subtask would make them; it "
            f"returned {type(made).__name__}. Leave yield and return out of it"
        )
