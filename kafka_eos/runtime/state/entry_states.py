"""Several places a key: maps and lists, one row an entry, and any state with namespaces.

Rule: touching one entry reads and writes one row. Going through the entries of a key is a range of rows, with what has
changed since the last flush laid over it; both in the order of row keys, so a run and its repetition agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state.row_keys import after
from kafka_eos.runtime.state.row_store import Row, Rows
from kafka_eos.runtime.state.value_state import ABSENT, CachedValueState

T = TypeVar("T")


_NUMBER_BYTES = 8

NEXT = "next"
"""Mark of a list: the number of the next element."""


class CachedEntryState(CachedValueState[T]):
    """The same for places of several parts: knows which places of a key have changed since the last flush."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed: dict[Any, set[Any]] | None = None
        """Places in ``_dirty``, by key; None if no range was asked for since the last flush."""

    def put(self, key: Any, value: T) -> None:
        super().put(key, value)
        self._note((key,))

    def delete(self, key: Any) -> None:
        super().delete(key)
        self._note((key,))

    def view(self, keys: Iterable[Any]) -> MutableMapping[Any, T]:
        touched = set(keys)
        view = super().view(touched)
        self._note(touched)
        return view

    def flush(self) -> None:
        super().flush()
        self._changed = None

    def within(self, *parts: Any) -> Iterator[tuple[Any, T]]:
        for row_key, found in self._range(parts):
            if isinstance(found, bytes):
                yield self._layout.place(row_key), self._decoded(found)
            elif (value := self._cache.get(found, ABSENT)) is not ABSENT:
                yield found, value

    def places(self, *parts: Any) -> Iterator[Any]:
        for row_key, found in self._range(parts):
            if isinstance(found, bytes):
                yield self._layout.place(row_key)
            elif found in self._cache:
                yield found

    def _note(self, places: Iterable[Any]) -> None:
        if (changed := self._changed) is not None:
            for place in places:
                changed.setdefault(place[0], set()).add(place)

    def _range(self, parts: tuple[Any, ...]) -> Iterator[tuple[bytes, Any]]:
        """Row keys that begin with ``parts``, with the row's data, or with its place if that has changed."""
        if self._changed is None:
            self._changed = {}
            self._note(self._dirty)
        changed = [place for place in self._changed.get(parts[0], ()) if place[: len(parts)] == parts]
        here = sorted(zip(self._row_keys(changed), changed, strict=True))
        prefix = self._layout.prefix(parts)
        self._own(prefix, prefix)
        return overlaid(pages(self._rows, prefix, after(prefix)), here)


class CachedListState(CachedEntryState[T]):
    """Elements of lists. Each has a number from one counter of the subtask, which only grows: no list is read to add.

    The counter is stored as a mark; subtasks that become one take the highest.
    """

    def __init__(self, *args: Any, first: int) -> None:
        super().__init__(*args)
        self._next = first

    def put(self, key: Any, value: T) -> None:
        super().put(key, value)
        self._next = max(self._next, key[-1] + 1)

    def flush(self) -> None:
        super().flush()
        self._cache.clear()  # elements are read in ranges of rows only

    def next_entry(self) -> int:
        self._next += 1
        return self._next - 1

    def marks(self) -> dict[str, int]:
        return {NEXT: self._next}


class NumberCodec:
    """Codec of element numbers: eight bytes, big endian, so that rows are in the order of the list."""

    name = "number"
    schema = None

    def encode(self, value: int) -> bytes:
        return value.to_bytes(_NUMBER_BYTES, "big")

    def decode(self, data: bytes) -> int:
        if len(data) != _NUMBER_BYTES:
            raise ValueError(f"an element's number has {_NUMBER_BYTES} bytes, not {len(data)}")
        return int.from_bytes(data, "big")


def overlaid(rows: Iterator[Row], here: list[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
    """Row keys in order, each with the row's data, or with its place if it is listed in ``here``."""
    at = 0
    for row_key, data in rows:
        while at < len(here) and here[at][0] < row_key:
            yield here[at]
            at += 1
        if at == len(here) or here[at][0] != row_key:
            yield row_key, data
    yield from here[at:]


def pages(rows: Rows, first: bytes, end: bytes) -> Iterator[Row]:
    size = most = LIMITS.map_entries_per_page
    while size == most:
        page = rows.page(first, end, most)
        yield from page
        size = len(page)
        first = page[-1][0] + b"\0" if page else end
