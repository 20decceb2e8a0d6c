"""States with several entries per key: maps, lists, and any state with namespaces; one row per entry.

Rule: access to one entry reads and writes one row. An iteration over the entries of a key merges a range of rows with
the changes since the last flush, both in the order of row keys. So its order is the same in every run. A range costs
what it contains, however many other entries of the key have changed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state.row_keys import compute_upper_bound
from kafka_eos.runtime.state.row_store import Row, StateRows
from kafka_eos.runtime.state.value_state import ABSENT, CachedValueState

T = TypeVar("T")


_NUMBER_BYTES = 8

NEXT = "next"
"""Attribute of a list: the number of the next element."""


class _ChangedPlaces:
    """The state keys of one key that have changed since the last flush, in the order of their row keys.

    They are sorted when they are read, because most of them never are.
    """

    def __init__(self, row_keys: Callable[[Sequence[Any]], list[bytes]]) -> None:
        self._row_keys = row_keys
        self._places: dict[bytes, Any] = {}
        self._order: list[bytes] = []
        self._added: set[Any] = set()

    def add(self, place: Any) -> None:
        self._added.add(place)

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        """Yield row keys from ``first`` to below ``end``, each with its state key."""
        if self._added:
            places = list(self._added)
            self._added.clear()
            named = zip(self._row_keys(places), places, strict=True)
            if new := {row_key: place for row_key, place in named if row_key not in self._places}:
                self._places.update(new)
                self._sort_in(new)
        order = self._order
        for at in range(bisect_left(order, first), bisect_left(order, end)):
            yield order[at], self._places[order[at]]

    def _sort_in(self, new: Collection[bytes]) -> None:
        if len(new) < len(self._order) // 8:  # such as one for each range that is read
            for row_key in new:
                insort(self._order, row_key)
        else:
            self._order += sorted(new)
            self._order.sort()  # two sorted runs: this merges them


class CachedEntryState(CachedValueState[T]):
    """A cached state with several entries per key: it tracks which entries of a key have changed since the last
    flush."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed: dict[Any, _ChangedPlaces] | None = None
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

    def scan_prefix(self, *parts: Any) -> Iterator[tuple[Any, T]]:
        return self._present(self._range(parts[0], *self._bounds_of(parts)))

    def scan_between(self, key: Any, first: Any, end: Any) -> Iterator[tuple[Any, T]]:
        prefix, encode = self._layout.prefix((key,)), self._layout.codecs[-1].encode
        return self._present(self._range(key, prefix + encode(first), prefix + encode(end)))

    def scan_keys(self, *parts: Any) -> Iterator[Any]:
        for row_key, found in self._range(parts[0], *self._bounds_of(parts)):
            if isinstance(found, bytes):
                yield self._layout.decode(row_key)
            elif found in self._cache:
                yield found

    def _bounds_of(self, parts: tuple[Any, ...]) -> tuple[bytes, bytes]:
        prefix = self._layout.prefix(parts)
        return prefix, compute_upper_bound(prefix)

    def _present(self, found: Iterable[tuple[bytes, Any]]) -> Iterator[tuple[Any, T]]:
        for row_key, each in found:
            if isinstance(each, bytes):
                yield self._layout.decode(row_key), self._decoded(each)
            elif (value := self._cache.get(each, ABSENT)) is not ABSENT:
                yield each, value

    def _note(self, places: Iterable[Any]) -> None:
        if (changed := self._changed) is not None:
            for place in places:
                if (of_key := changed.get(place[0])) is None:
                    of_key = changed[place[0]] = _ChangedPlaces(self._row_keys)
                of_key.add(place)

    def _range(self, key: Any, first: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        """Yield row keys of a key from ``first`` to below ``end``, each with the row's data, or with its state key if
        it has changed."""
        if self._changed is None:
            self._changed = {}
            self._note(self._dirty)
        self._expect_owned(first, first)
        of_key = self._changed.get(key)
        here = iter(()) if of_key is None else of_key.between(first, end)
        return overlay_changes(scan_pages(self._rows, first, end), here)


class CachedListState(CachedEntryState[T]):
    """List elements. A counter of the subtask numbers them and only grows, so adding an element does not read the
    list.

    The counter is stored as an attribute; when subtasks are merged, the highest counter is used.
    """

    def __init__(self, *args: Any, first: int) -> None:
        super().__init__(*args)
        self._next = first

    def put(self, key: Any, value: T) -> None:
        super().put(key, value)
        self._next = max(self._next, key[-1] + 1)

    def flush(self) -> None:
        super().flush()
        self._cache.clear()  # elements are only read in ranges

    def next_entry(self) -> int:
        self._next += 1
        return self._next - 1

    def get_attributes(self) -> dict[str, int]:
        return {NEXT: self._next}


class ElementNumberCodec(Codec[Any]):
    """Codec of list element numbers: eight bytes, big-endian."""

    name = "number"
    schema = None

    def encode(self, value: int) -> bytes:
        return value.to_bytes(_NUMBER_BYTES, "big")

    def decode(self, data: bytes) -> int:
        if len(data) != _NUMBER_BYTES:
            raise ValueError(f"an element's number has {_NUMBER_BYTES} bytes, not {len(data)}")
        return int.from_bytes(data, "big")


def overlay_changes(rows: Iterator[Row], here: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
    """Merge stored rows with unflushed changes, in row-key order."""
    change = next(here, None)
    for row_key, data in rows:
        while change is not None and change[0] < row_key:
            yield change
            change = next(here, None)
        if change is None or change[0] != row_key:
            yield row_key, data
    if change is not None:
        yield change
        yield from here


def scan_pages(rows: StateRows, first: bytes, end: bytes) -> Iterator[Row]:
    """Yield rows from ``first`` to below ``end``. Pages grow, because some callers need only the first row."""
    limit = LIMITS.map_entries_in_first_page
    while page := rows.page(first, end, limit):
        yield from page
        if len(page) < limit:
            return
        first = page[-1][0] + b"\0"
        limit = min(4 * limit, LIMITS.map_entries_per_page)
