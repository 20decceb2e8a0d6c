"""Where windows of rows keep what a key has: how many rows have come, and what its panes hold.

    apart       an entry for each pane, and the number in a state of its own: a row writes its own pane and the number
    together    one entry, for windows with a time to live: so all of a key expires at one moment, and never a part

Rule: what is read of a key at a row is what is changed with that row; nothing expires in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from kafka_eos.interfaces import Codec, StateDescriptor, ValueState
from kafka_eos.operators.base import OperatorContext, keys_in_time
from kafka_eos.operators.windows.base import WINDOWS
from kafka_eos.plan import CountedWindows
from kafka_eos.records import Batch
from kafka_eos.schemas import Counted, MsgpackCodec, RowPanes
from kafka_eos.state.entries import NumberCodec

COUNTS = "counts"


class KeyPanes(Protocol):
    """What the panes of one key hold, by the number of the row that each begins with. A dict is one."""

    def get(self, pane: int, /) -> Any: ...

    def __setitem__(self, pane: int, held: Any, /) -> None: ...

    def pop(self, pane: int, absent: None, /) -> Any:
        """Absent is fine."""


class Shelf(Protocol):
    """Keeps them for all keys."""

    def states(self) -> tuple[StateDescriptor[Any], ...]: ...

    def open(self, ctx: OperatorContext) -> None: ...

    def in_time(self, batch: Batch[Any]) -> Iterable[Any]:
        """The keys of the rows; when one comes out, its row is the next."""

    def of(self, key: Any) -> tuple[int, KeyPanes]:
        """How many rows a key has had, and its panes."""

    def keep(self, key: Any, number: int, panes: KeyPanes) -> None:
        """The panes are those that ``of`` gave, and have been changed."""

    def drop(self, key: Any) -> None:
        """The number, of a key whose panes are gone."""


def shelf(node: CountedWindows) -> Shelf:
    return Apart(node) if node.ttl is None else Together(node)


class Apart:
    """The layout of the first release."""

    def __init__(self, node: CountedWindows) -> None:
        key, held = node.key_codec, node.contents.codec
        self._windows: StateDescriptor[Any] = StateDescriptor(
            WINDOWS, key, held, "map", entry=NumberCodec(), definition=node.definition
        )
        self._number: StateDescriptor[Any] = StateDescriptor(COUNTS, key, MsgpackCodec(int))

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        return (self._windows, self._number)

    def open(self, ctx: OperatorContext) -> None:
        self._cells, self._counts = map(ctx.value_state, self.states())

    def in_time(self, batch: Batch[Any]) -> Iterable[Any]:
        return batch.keys or ()

    def of(self, key: Any) -> tuple[int, KeyPanes]:
        return self._counts.get(key) or 0, _Cells(key, self._cells)

    def keep(self, key: Any, number: int, panes: KeyPanes) -> None:
        self._counts.put(key, number)

    def drop(self, key: Any) -> None:
        self._counts.delete(key)


class _Cells:
    """The panes of a key that has an entry for each."""

    __slots__ = ("_cells", "_key")

    def __init__(self, key: Any, cells: ValueState[Any]) -> None:
        self._key, self._cells = key, cells

    def get(self, pane: int, /) -> Any:
        return self._cells.get((self._key, pane))

    def __setitem__(self, pane: int, held: Any, /) -> None:
        self._cells.put((self._key, pane), held)

    def pop(self, pane: int, absent: None, /) -> None:
        self._cells.delete((self._key, pane))


class Together:
    """One entry for each key."""

    def __init__(self, node: CountedWindows) -> None:
        held: Codec[Any] = Counted(RowPanes(node.contents.codec))
        self._windows: StateDescriptor[Any] = StateDescriptor(
            WINDOWS, node.key_codec, held, ttl=node.ttl, definition=node.definition
        )
        self._by_event_time = node.ttl is not None and node.ttl.clock == "event"

    def states(self) -> tuple[StateDescriptor[Any], ...]:
        return (self._windows,)

    def open(self, ctx: OperatorContext) -> None:
        self._keys: ValueState[tuple[int, dict[int, Any]]] = ctx.value_state(self._windows)

    def in_time(self, batch: Batch[Any]) -> Iterable[Any]:
        return keys_in_time(batch, self._keys) if self._by_event_time else batch.keys or ()

    def of(self, key: Any) -> tuple[int, KeyPanes]:
        # Not ``get``, which may renew the key: its row may still be refused, and then has changed nothing.
        return self._keys.view((key,)).get(key) or (0, {})

    def keep(self, key: Any, number: int, panes: Any) -> None:
        self._keys.put(key, (number, panes))

    def drop(self, key: Any) -> None:
        self._keys.delete(key)
