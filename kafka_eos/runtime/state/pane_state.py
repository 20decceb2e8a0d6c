"""Values by key and pane, for panes that close for all keys at once: a write-behind cache of ordered rows.

Row keys are ``group | pane | key``, so a closed pane is a range of rows in each group: it is returned in bulk, and
deleted as one range. Objects are stored by pane, so a row of the hot path costs one look-up by its key.

Rule: a state key in ``_dirty`` is decided in memory (its object, or deleted if it has none), and so is every key of a
pane that is not in ``_partial``; any other state key is decided by the rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from itertools import compress, repeat
from operator import is_not
from typing import Any, Final, TypeVar

from kafka_eos.abc.state import PaneContents, StateDescriptor
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state.entry_states import overlay_changes, scan_pages
from kafka_eos.runtime.state.key_groups import GROUP_BYTES, group_prefix, groups_of, row_keys
from kafka_eos.runtime.state.row_codec import EncodedState
from kafka_eos.runtime.state.row_keys import TIME_BYTES, compute_upper_bound
from kafka_eos.runtime.state.row_store import StateRows
from kafka_eos.runtime.state.timers import TimeCodec
from kafka_eos.runtime.state.value_state import ABSENT

T = TypeVar("T")

NEWEST: Final = "newest"
"""Attribute: the newest pane of any row written."""
_TIMED: Final = GROUP_BYTES + TIME_BYTES
_encode_time = TimeCodec().encode
_decode_time = TimeCodec().decode


class PaneState(EncodedState[T]):
    """Cached pane state; see ``abc.Panes``. Holds about ``limit`` objects, and all that one batch touches."""

    def __init__(
        self,
        operator: str,
        descriptor: StateDescriptor[T],
        rows: StateRows,
        groups: range,
        limit: int,
        newest: int | None,
    ) -> None:
        """``newest``: no existing row belongs to a later pane; None if there are no rows."""
        super().__init__(operator, descriptor, rows, groups)
        self._limit = limit
        self._newest = newest
        self._newest_restored = newest
        """``_newest_restored``: what was the newest when this was opened."""
        self._held: dict[int, dict[Any, T]] = {}
        """Objects, by pane and key; each pane that was touched, until all of it is taken."""
        self._dirty: dict[int, set[Any]] = {}
        self._missing: dict[int, set[Any]] = {}
        """Looked up since the last flush and not found in the rows."""
        self._partial: set[int] = set()
        """Panes that may have stored rows without objects in memory."""
        self._stored: set[int] = set()
        """Panes that rows were written of."""
        self._order: list[int] = []
        """A heap of panes that were touched, and of some that are gone."""
        self._ahead: list[tuple[int, int]] | None = None if newest is not None else []
        """A heap: the first pane, of those that were restored, of each group that has one. None: not looked up yet."""
        self._gone: dict[bytes, bytes] = {}
        """Rows that have been taken and are not deleted yet: where a range begins and ends."""
        self._grown = 0
        """Objects at most that have been added since they were counted."""
        self.loads = 0
        """Places that were not in memory, so that the rows were asked."""

    @property
    def cached(self) -> int:
        """Return the number of objects in memory."""
        return sum(map(len, self._held.values()))

    # ------------------------------------------------------------ values

    def get(self, place: tuple[Any, int]) -> T | None:
        key, pane = place
        held = self._pane(pane)
        if key not in held and pane in self._partial:
            if self.cached > self._limit:
                self._keep_dirty()
            self._load(pane, [key])
        return held.get(key)

    def delete(self, place: tuple[Any, int]) -> None:
        key, pane = place
        self._pane(pane).pop(key, None)
        self._dirty[pane].add(key)

    def views(self, keys: Mapping[int, Sequence[Any]]) -> Mapping[int, MutableMapping[Any, T]]:
        touched = {pane: set(mine) for pane, mine in keys.items()}
        self._reserve(sum(map(len, touched.values())))
        found: dict[int, MutableMapping[Any, T]] = {}
        for pane, mine in touched.items():
            found[pane] = self._pane(pane)
            if pane in self._partial:
                self._load(pane, mine)
            self._dirty[pane] |= mine
        return found

    def _pane(self, pane: int) -> dict[Any, T]:
        if (held := self._held.get(pane)) is None:
            held = self._held[pane] = {}
            self._dirty[pane], self._missing[pane] = set(), set()
            heapq.heappush(self._order, pane)
            if self._newest_restored is not None and pane <= self._newest_restored:
                self._partial.add(pane)
        return held

    def _load(self, pane: int, keys: Collection[Any]) -> None:
        """Load the values of keys that are not in memory."""
        held, missing = self._held[pane], self._missing[pane]
        unknown = list(set(keys).difference(held).difference(self._dirty[pane]).difference(missing))
        if not unknown:
            return
        self.loads += len(unknown)
        decode = self.descriptor.value.decode
        rows = self._of_pane(pane, self._encoded_keys(unknown))
        found = self._rows.get(rows)
        # The row of a taken value exists until the next flush; a late row of its key must not restore it.
        gone = [row < self._gone.get(row[:_TIMED], b"") for row in rows]
        try:
            for key, data, taken in zip(unknown, found, gone, strict=True):
                if data is None or taken:
                    missing.add(key)
                else:
                    held[key] = decode(data)
        except ValueError as error:
            raise self._unreadable(error) from error

    # ------------------------------------------------------------ closed panes

    def get_first_pane(self) -> int | None:
        while self._order and self._order[0] not in self._held:
            heapq.heappop(self._order)
        return min([*self._order[:1], *(pane for pane, _ in self.get_restored_panes()[:1])], default=None)

    def get_restored_panes(self) -> list[tuple[int, int]]:
        if self._ahead is None:
            self._ahead = []
            for group in self._groups:
                self._look_ahead(group, group_prefix(group))
            heapq.heapify(self._ahead)
        return self._ahead

    def take_pane(self, pane: int, groups: Collection[int] | None = None) -> Iterator[PaneContents[T]]:
        by_group: dict[int, list[tuple[bytes, Any]]] = {}
        for keys in self._known(pane):
            self._divide(keys, by_group)
            yield PaneContents([], [], [], [])
        chosen = self._groups if groups is None else sorted(groups)
        if not self._has_rows_beside(pane):  # otherwise a pane of one key would cost as much as one of all groups
            chosen = sorted(by_group.keys() & chosen)
        found: PaneContents[T] = PaneContents([], [], [], [])
        for group in chosen:
            for encoded, key, value in self._of_group(pane, group, sorted(by_group.pop(group, ()))):
                found.groups.append(group)
                found.encoded.append(encoded)
                found.keys.append(key)
                found.values.append(value)
                if len(found.keys) == LIMITS.pane_keys_per_batch:
                    yield self._given_out(pane, found)
                    found = PaneContents([], [], [], [])
        yield self._given_out(pane, found)
        self._pass(pane, chosen, whole=groups is None)

    def _has_rows_beside(self, pane: int) -> bool:
        """Return whether the pane may have rows whose objects are not in memory."""
        return pane in self._partial or (self._newest_restored is not None and pane <= self._newest_restored)

    def _known(self, pane: int) -> Iterator[list[Any]]:
        """Yield the keys of a pane that memory decides, in chunks."""
        keys = list(self._held.get(pane, {}).keys() | self._dirty.get(pane, set()))
        return (keys[at : at + LIMITS.pane_keys_per_share] for at in range(0, len(keys), LIMITS.pane_keys_per_share))

    def _divide(self, keys: list[Any], by_group: dict[int, list[tuple[bytes, Any]]]) -> None:
        encoded = self._encoded_keys(keys)
        for group, row, key in zip(groups_of(encoded), encoded, keys, strict=True):
            by_group.setdefault(group, []).append((row, key))

    def _of_group(self, pane: int, group: int, here: list[tuple[bytes, Any]]) -> list[tuple[bytes, Any, T]]:
        """Return all values of a group.

        Unchanged objects of ``here``, which were in memory, may have been dropped since; changed ones may not.
        """
        held, dirty = self._held.get(pane, {}), self._dirty.get(pane, set())
        if not self._has_rows_beside(pane):
            return [(encoded, key, held[key]) for encoded, key in here if key in held]
        prefix = group_prefix(group) + _encode_time(pane)
        placed = [(prefix + encoded, (key,)) for encoded, key in here if key in held or key in dirty]
        found: list[tuple[bytes, Any, T]] = []
        first = self._gone.get(prefix, prefix)  # rows before it were taken already, and exist until the next flush
        stored = scan_pages(self._rows, first, compute_upper_bound(prefix))
        for row_key, place in overlay_changes(stored, iter(placed)):
            encoded = row_key[_TIMED:]
            if isinstance(place, bytes):
                found.append((encoded, self.descriptor.key.decode(encoded), self._decoded(place)))
            elif (value := held.get(place[0], ABSENT)) is not ABSENT:
                found.append((encoded, place[0], value))
        return found

    def _given_out(self, pane: int, taken: PaneContents[T]) -> PaneContents[T]:
        """Return the taken contents: they are removed from memory now, and from the rows at the next flush."""
        if pane in self._held:
            held = self._held[pane]
            for key in taken.keys:
                held.pop(key, None)
            self._dirty[pane].difference_update(taken.keys)
        if self._is_stored(pane):
            time = _encode_time(pane)
            for group, last in dict(zip(taken.groups, taken.encoded, strict=True)).items():
                prefix = group_prefix(group) + time
                self._gone[prefix] = prefix + last + b"\0"
        return taken

    def _pass(self, pane: int, groups: Collection[int], *, whole: bool) -> None:
        """Drop a pane in these groups; ``whole``: these are all groups."""
        ahead = self.get_restored_panes()
        if self._is_stored(pane):
            for prefix in (group_prefix(group) + _encode_time(pane) for group in groups):
                self._gone[prefix] = compute_upper_bound(prefix)
        for group in groups if any(each == pane for each, _ in ahead) else ():
            if (pane, group) in ahead:
                ahead.remove((pane, group))
                self._look_ahead(group, compute_upper_bound(group_prefix(group) + _encode_time(pane)))
        heapq.heapify(ahead)
        if whole:
            for part in (self._held, self._dirty, self._missing):
                part.pop(pane, None)
            self._partial.discard(pane)
            self._stored.discard(pane)

    def _is_stored(self, pane: int) -> bool:
        """Return whether the pane may have rows."""
        return pane in self._stored or self._has_rows_beside(pane)

    def _look_ahead(self, group: int, first: bytes) -> None:
        """Return the next restored pane of a group, from a row key on."""
        assert self._ahead is not None and self._newest_restored is not None
        for row_key, _ in self._rows.page(first, group_prefix(group + 1), 1):
            if (pane := _decode_time(row_key[GROUP_BYTES:_TIMED])) <= self._newest_restored:
                self._ahead.append((pane, group))

    # ------------------------------------------------------------ rows

    def items(self) -> Iterator[tuple[Any, T]]:
        """Yield all state keys and values, in no order."""
        self.flush()
        return self._scanned()

    def flush(self) -> None:
        """Write changes to the rows. Called at the barrier, and earlier if there are too many."""
        if self._gone:
            self._rows.delete_ranges(self._gone.items())
        present: list[bytes] = []
        values: list[bytes] = []
        gone: list[bytes] = []
        for pane, dirty in self._dirty.items():
            if dirty:
                keys, mine, deleted = self._changes(pane, list(dirty))
                present += keys
                values += mine
                gone += deleted
        if present or gone:
            self._rows.write(present, values, gone)
        # Cleared only now: if the write fails, the cache still knows the changes.
        self._gone.clear()
        if self.cached > self._limit:
            self._keep_dirty()
        for changed in (*self._dirty.values(), *self._missing.values()):
            changed.clear()

    def get_attributes(self) -> dict[str, int]:
        return {} if self._newest is None else {NEWEST: self._newest}

    def _changes(self, pane: int, keys: list[Any]) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Return row keys and values to write, and row keys to delete."""
        found = list(map(self._held[pane].get, keys, repeat(ABSENT)))
        there = list(map(is_not, found, repeat(ABSENT)))
        rows = self._of_pane(pane, self._encoded_keys(keys))
        if all(there):
            gone: list[bytes] = []
        else:
            gone = [row for row, present in zip(rows, there, strict=True) if not present]
            rows, found, keys = (list(compress(each, there)) for each in (rows, found, keys))
        if rows:
            self._stored.add(pane)
            self._newest = pane if self._newest is None else max(pane, self._newest)
        return rows, self._encoded_values(found, keys), gone

    def _encoded_keys(self, keys: Sequence[Any]) -> list[bytes]:
        return self._encoded("key", self.descriptor.key, keys, keys)

    def _of_pane(self, pane: int, encoded: list[bytes]) -> list[bytes]:
        rows = row_keys(encoded, _encode_time(pane))
        if not self._whole:
            self._expect_owned(min(rows), max(rows))
        return rows

    def _reserve(self, count: int) -> None:
        """Free memory before ``count`` values are written."""
        self._grown += count
        if self._grown <= self._limit:
            return
        if sum(map(len, self._dirty.values())) + count > self._limit:
            self.flush()
        if self.cached > self._limit:
            self._keep_dirty()
        self._grown = self.cached + count

    def _keep_dirty(self) -> None:
        """Drop objects that were not changed since the last flush. In place: callers hold the mappings of ``views``."""
        for pane, held in self._held.items():
            kept = {key: held[key] for key in self._dirty[pane] if key in held}
            if len(kept) < len(held):
                self._partial.add(pane)
                held.clear()
                held.update(kept)
