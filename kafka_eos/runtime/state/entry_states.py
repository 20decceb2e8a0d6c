"""States with several entries per key: maps, lists, and any state with namespaces; one row per entry.

Rule: access to one entry reads and writes one row. An iteration over the entries of a key merges a range of rows with
the changes since the last flush, both in the order of row keys. So its order is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
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


class CachedEntryState(CachedValueState[T]):
    """A cached state with several entries per key: it tracks which entries of a key have changed since the last
    flush."""

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

    def scan_prefix(self, *parts: Any) -> Iterator[tuple[Any, T]]:
        for row_key, found in self._range(parts):
            if isinstance(found, bytes):
                yield self._layout.decode(row_key), self._decoded(found)
            elif (value := self._cache.get(found, ABSENT)) is not ABSENT:
                yield found, value

    def scan_keys(self, *parts: Any) -> Iterator[Any]:
        for row_key, found in self._range(parts):
            if isinstance(found, bytes):
                yield self._layout.decode(row_key)
            elif found in self._cache:
                yield found

    def _note(self, places: Iterable[Any]) -> None:
        if (changed := self._changed) is not None:
            for place in places:
                changed.setdefault(place[0], set()).add(place)

    def _range(self, parts: tuple[Any, ...]) -> Iterator[tuple[bytes, Any]]:
        """Yield row keys that begin with ``parts``, with the row's data, or with its state key if it has changed."""
        if self._changed is None:
            self._changed = {}
            self._note(self._dirty)
        changed = [place for place in self._changed.get(parts[0], ()) if place[: len(parts)] == parts]
        here = sorted(zip(self._row_keys(changed), changed, strict=True))
        prefix = self._layout.prefix(parts)
        self._expect_owned(prefix, prefix)
        return overlay_changes(scan_pages(self._rows, prefix, compute_upper_bound(prefix)), here)


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


def overlay_changes(rows: Iterator[Row], here: list[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
    """Merge stored rows with unflushed changes, in row-key order."""
    at = 0
    for row_key, data in rows:
        while at < len(here) and here[at][0] < row_key:
            yield here[at]
            at += 1
        if at == len(here) or here[at][0] != row_key:
            yield row_key, data
    yield from here[at:]


def scan_pages(rows: StateRows, first: bytes, end: bytes) -> Iterator[Row]:
    size = most = LIMITS.map_entries_per_page
    while size == most:
        page = rows.page(first, end, most)
        yield from page
        size = len(page)
        first = page[-1][0] + b"\0" if page else end
