"""Timers: state keys (key, time) whose rows are in the order of time within a key group, and the next of them in
memory.

Row keys are ``group | time | key``. In memory are, for each group, all timers whose row keys precede a cursor, sorted
over all groups, and a heap of those that were set since. The rest are only rows, read one page at a time when time
approaches them. So millions of distant timers use no memory.

Rule: event time never decreases for a key. So each time of a key fires once, and key and time identify a firing. Merged
subtasks may have reached different times: each range of groups keeps its own until the others reach it. A snapshot may
be taken while some timers of a time have fired: after a restore the others of that time fire first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.error_messages import show_message, show_value
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.core.ids import KeyGroup
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.runtime.state.key_groups import GROUP_BYTES, group_of, group_prefix
from kafka_eos.runtime.state.row_keys import TIME_BYTES, RowKeyCodec
from kafka_eos.runtime.state.row_store import StateRows

GroupWatermark: TypeAlias = tuple[int, int, int]
"""First and last key group of a range, and the event time it has reached."""

_LOOKED_UP = 256
"""Rows of a sample that estimates the number of timers where it is unknown."""
_END = b"\xff" * (TIME_BYTES + 2)
"""Greater than every time and key: no key's bytes begin with two of these."""


class TimeCodec(Codec[int]):
    """Codec of event times: eight bytes, big endian, negative times first, so that rows are in the order of time."""

    name = "time"
    schema: Json = None

    def encode(self, value: int) -> bytes:
        try:
            return (value - MIN_EVENT_TIME).to_bytes(TIME_BYTES, "big")
        except OverflowError:
            raise ValueError(f"an event time must fit into 64 bits (got {value})") from None

    def decode(self, data: bytes) -> int:
        if len(data) != TIME_BYTES:
            raise ValueError(f"an event time has {TIME_BYTES} bytes, not {len(data)}")
        return int.from_bytes(data, "big") + MIN_EVENT_TIME


class TimerValueCodec(Codec[Any]):
    """Codec of a timer's value, which is empty: the timer exists."""

    name = "present"
    schema: Json = None

    def encode(self, value: bool) -> bytes:
        if value is not True:
            raise ValueError(f"the value of a timer must be True, not {value!r}")
        return b""

    def decode(self, data: bytes) -> bool:
        if data:
            raise ValueError(f"a timer has no value, but {len(data)} bytes are stored")
        return True


def create_timer_descriptor(name: str, key: Codec[Any]) -> StateDescriptor[bool]:
    """Create the state descriptor of timers."""
    return StateDescriptor(name, key, TimerValueCodec(), "timer", entry=TimeCodec())


def _turned(row: bytes) -> bytes:
    """Return a row key with its group moved to the end, to sort by time."""
    return row[GROUP_BYTES:] + row[:GROUP_BYTES]


class PendingTimers:
    """The pending timers of an operator; see ``abc.TimerService``.

    ``limit``: timers in memory, and changes that are not written yet.
    """

    def __init__(
        self,
        operator: str,
        descriptor: StateDescriptor[bool],
        rows: StateRows,
        groups: range,
        limit: int,
        floors: Sequence[GroupWatermark],
        bounds: tuple[int, int],
        pending: int | None = None,
    ) -> None:
        """``bounds``: first and last group of the subtask's handle; ``groups``: the possible groups of its keys.

        ``pending``: the number of stored timers; None if they must be counted.
        """
        if descriptor.kind != "timer" or descriptor.ttl is not None or descriptor.namespace is not None:
            raise Bug(f"{descriptor} describes no timers")
        self._where = f"timers {descriptor.name!r} of operator {operator!r}"
        self._key, self._rows = descriptor.key, rows
        self._limit = min(limit, LIMITS.cached_timers)
        self._layout = RowKeyCodec(descriptor)
        self._bounds = bounds
        self._time = min((time for _, _, time in floors), default=MIN_EVENT_TIME)
        self._floors = [floor for floor in floors if floor[2] > self._time]
        self._unfired = self._of_before()
        """Timers that were due when a snapshot was taken, and may not have fired before it."""
        self.all_fired = all(time == MIN_EVENT_TIME for _, _, time in floors)
        """Whether all due timers had fired at the last check."""
        self._known: set[bytes] = set()
        """Pending timers in memory, as ``time | key | group``: so they are in the order in which they fire."""
        self._near: list[bytes] = []
        """Timers loaded from rows, the first one last. Some may be pending no more."""
        self._heap: list[bytes] = []
        """Timers set since the load. Some may be pending no more."""
        self._bound = b""
        """While due timers are yielded: all timers before this key are in memory."""
        self._changed: dict[bytes, bool] = {}
        """Row keys that are not written yet, and whether each timer exists."""
        self._flushes = 0
        self._pending = sum(1 for _ in rows.scan()) if pending is None else pending
        """The number of pending timers, without those of ``_unsure``."""
        self._unsure: set[bytes] = set()
        """Row keys that were set or deleted without checking whether they existed."""
        self._cursors: list[tuple[bytes, bytes]] = [(b"", group_prefix(group)) for group in groups]
        """A heap of times and row keys from which on a group's rows are not in memory, for groups with such rows."""
        self._begun: dict[int, bytes] = {group: group_prefix(group) for group in groups}
        """The same by group: ``group | ff…`` if all of its rows are in memory."""

    # ------------------------------------------------------------ pending timers

    def get_time(self, key: Any) -> int:
        if not self._floors:
            return self._time
        return self.get_group_time(group_of(self._key.encode(key)))

    def get_max_time(self) -> int:
        return max([self._time, *(time for _, _, time in self._floors)])

    def get_group_time(self, group: int) -> int:
        return max([self._time, *(time for first, last, time in self._floors if first <= group <= last)])

    def begin_time(self, time: int) -> None:
        self.all_fired = False
        self._come(time)

    def add(self, key: Any, time: int) -> None:
        if time <= self.get_time(key):
            raise Bug(f"{self._where}: cannot set a timer at {time} for key {show_value(key)}: that time has passed")
        row = self._row(key, time)
        group = self._group(row)
        timer = _turned(row)
        if timer not in self._known:
            self._known.add(timer)
            heapq.heappush(self._heap, timer)
            self._pending += 1
            if row >= self._begun[group]:
                self._unsure.add(row)
            self._change(row, there=True)

    def remove(self, key: Any, time: int) -> None:
        row = self._row(key, time)
        if (timer := _turned(row)) in self._known:
            self._known.discard(timer)
            self._pending -= 1
        elif row < self._begun[self._group(row)]:
            return  # all timers before the cursor are in memory, so it does not exist
        else:
            self._unsure.add(row)
        self._change(row, there=False)

    def pop_due(self, until: int) -> Iterator[tuple[int, Any, int]]:
        self.all_fired = False
        yield from self._unfired
        if until > self._time:
            yield from self._coming(until)
        self.all_fired = True

    def _of_before(self) -> Iterator[tuple[int, Any, int]]:
        """Yield timers of times already reached, from the rows alone; call it before anything else."""
        groups = [
            self._at(group, time) for group in self._begun if (time := self.get_group_time(group)) != MIN_EVENT_TIME
        ]
        for timer, flushes in heapq.merge(*groups):
            row = timer[-GROUP_BYTES:] + timer[:-GROUP_BYTES]
            if self._is_there(row, flushes):
                self._pending -= 1
                self._change(row, there=False)
                yield self._decode_timer(timer)

    def _is_there(self, row: bytes, flushes: int) -> bool:
        """Return whether a row that was read after so many flushes still exists: a later flush may have deleted it."""
        if row in self._changed:
            return self._changed[row]
        return flushes == self._flushes or self._rows.get([row])[0] is not None

    def _at(self, group: int, time: int) -> Iterator[tuple[bytes, int]]:
        """Yield the timers of a group at a time, page by page, each with the number of flushes when it was read."""
        cursor = group_prefix(group) + TimeCodec().encode(time)
        end = cursor + _END
        while page := self._rows.page(cursor, end, LIMITS.timers_per_page):
            flushes = self._flushes
            yield from ((_turned(row), flushes) for row, _ in page)
            cursor = page[-1][0] + b"\0"

    def _decode_timer(self, timer: bytes) -> tuple[int, Any, int]:
        time, group = (
            int.from_bytes(timer[:TIME_BYTES], "big") + MIN_EVENT_TIME,
            int.from_bytes(timer[-GROUP_BYTES:], "big"),
        )
        return time, self._key.decode(timer[TIME_BYTES:-GROUP_BYTES]), group

    def _coming(self, until: int) -> Iterator[tuple[int, Any, int]]:
        last = TimeCodec().encode(until) + _END
        # Per timer: make no calls of our own here.
        known, near, heap, changed = self._known, self._near, self._heap, self._changed
        decode, number = self._key.decode, int.from_bytes
        while self._reach(last):
            while near or heap:
                mine = heap if not near or (heap and heap[0] < near[-1]) else near
                if mine[0 if mine is heap else -1] >= self._bound:
                    break
                timer = heapq.heappop(heap) if mine is heap else near.pop()
                if timer not in known:
                    continue
                known.remove(timer)
                self._pending -= 1
                group, time = timer[-GROUP_BYTES:], number(timer[:TIME_BYTES], "big") + MIN_EVENT_TIME
                changed[group + timer[:-GROUP_BYTES]] = False
                if len(changed) > self._limit:
                    self.flush()
                if time > self._time:
                    self._time = time
                yield time, decode(timer[TIME_BYTES:-GROUP_BYTES]), number(group, "big")
        self._come(until)

    def _come(self, time: int) -> None:
        self._time = max(self._time, time)
        self._floors = [floor for floor in self._floors if floor[2] > self._time]

    def _reach(self, last: bytes) -> bool:
        """Load timers until the next one is in memory; return whether there is one before ``last``."""
        while True:
            near = min([last, *self._near[-1:], *self._heap[:1]])
            self._bound = self._cursors[0][0] if self._cursors and self._cursors[0][0] < last else last
            if near < self._bound:
                return True
            if self._bound == last:
                return False
            self._load(near)

    def get_next_time(self) -> int | None:
        near = [*self._near[-1:], *self._heap[:1], *(time for time, _ in self._cursors[:1])]
        return int.from_bytes(min(near)[:TIME_BYTES], "big") + MIN_EVENT_TIME if near else None

    # ------------------------------------------------------------ rows

    def flush(self) -> None:
        """Write changes to the rows. Called at the barrier, and earlier if there are too many."""
        if self._unsure:
            self._pending -= self._were_there()
            self._unsure.clear()
        if self._changed:
            there = [row for row, present in self._changed.items() if present]
            gone = [row for row, present in self._changed.items() if not present]
            self._rows.write(there, [b""] * len(there), gone)
            self._changed.clear()
            self._flushes += 1
        if len(self._near) + len(self._heap) > self._limit:
            self._forget()

    def _were_there(self) -> int:
        """Return how many of ``_unsure`` are rows. For many, a sample decides: usually all are, or none is."""
        asked = list(itertools.islice(self._unsure, _LOOKED_UP))
        found = sum(value is not None for value in self._rows.get(asked))
        return round(found * len(self._unsure) / len(asked))

    @property
    def pending(self) -> int:
        """Return the number of timers at the last ``flush``; an estimate if many existing timers were set again."""
        return max(self._pending, 0)

    def get_attributes(self) -> dict[str, int]:
        """Return no attributes: event times are stored by key group, see ``watermarks``."""
        return {}

    def watermarks(self) -> list[Json]:
        """Return the event times for the description; see ``schema_evolution.WATERMARKS``."""
        first, last = self._bounds
        floors = sorted(self._floors)
        cuts = sorted({first, last + 1, *(f for f, _, _ in floors), *(end + 1 for _, end, _ in floors)})
        ranges = [(f, end - 1) for f, end in pairwise(cut for cut in cuts if first <= cut <= last + 1)]
        return [[f, end, self.get_group_time(f)] for f, end in ranges]

    def _row(self, key: Any, time: int) -> bytes:
        try:
            return self._layout.encode((key, time))
        except ValueError as error:
            raise ConfigError(
                f"{self._where}: {show_value(key)} at {time!r} cannot be a timer: {show_message(error)}"
            ) from error

    def _group(self, row: bytes) -> KeyGroup:
        group = KeyGroup(int.from_bytes(row[:GROUP_BYTES], "big"))
        if group not in self._begun:
            raise Bug(f"{self._where}: a key reached a subtask that does not own its key group")
        return group

    def _change(self, row: bytes, *, there: bool) -> None:
        self._changed[row] = there
        if len(self._changed) > self._limit:
            self.flush()

    def _load(self, until: bytes) -> None:
        """Load the rows of every group with times up to ``until``, and one more page."""
        known, changed, most = self._known, self._changed, LIMITS.timers_per_page
        while self._cursors and self._cursors[0][0] <= until:
            _, cursor = heapq.heappop(self._cursors)
            group = self._group(cursor)
            page = self._rows.page(cursor, group_prefix(group + 1), most)
            found = [_turned(row) for row, _ in page if changed.get(row, True)]
            found = [timer for timer in found if timer not in known]
            self._near += found
            known.update(found)
            self._begun[group] = page[-1][0] + b"\0" if len(page) == most else group_prefix(group) + _END
            if len(page) == most:
                heapq.heappush(self._cursors, (self._begun[group][GROUP_BYTES:], self._begun[group]))
        # Pages are sorted, and so are the timers in memory: only a merge remains.
        self._near.sort(reverse=True)

    def _forget(self) -> None:
        """Keep the next timers of each group in memory, and drop the others, which are all in the rows now."""
        kept, most = list[bytes](), LIMITS.timers_per_page
        by_group: dict[bytes, list[bytes]] = {}
        for timer in self._known:
            by_group.setdefault(timer[-GROUP_BYTES:], []).append(timer)
        for group, cursor in self._begun.items():
            prefix = group_prefix(group)
            near = sorted(timer for timer in by_group.get(prefix, ()) if prefix + timer[:-GROUP_BYTES] < cursor)
            kept += near[:most]
            if len(near) > most:
                self._begun[group] = prefix + near[most][:-GROUP_BYTES]
        # In place: loops over timers continue with these lists, and check again how far they reach.
        self._known.intersection_update(kept)
        self._near[:] = sorted(kept, reverse=True)
        self._heap.clear()
        self._bound = b""
        full = {group: group_prefix(group) + _END for group in self._begun}
        self._cursors = [(at[GROUP_BYTES:], at) for group, at in self._begun.items() if at != full[group]]
        heapq.heapify(self._cursors)
