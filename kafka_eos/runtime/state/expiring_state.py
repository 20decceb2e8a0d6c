"""State with a time to live: each value is stored with the time of its last write, and expires.

Rule: an expired value is never returned, whether or not its row still exists. Rows are deleted when they are read, and
by a clean-up of a bounded number of rows per checkpoint. ``ttl_clock`` derives the time from the machine's clock or
from record timestamps; it is an attribute of the state. A value from the future (a clock was ahead) is kept, and the
clean-up gives it the current time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import Ttl
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.key_groups import group_prefix
from kafka_eos.runtime.state.row_store import Row, StateRows
from kafka_eos.runtime.state.ttl_clock import UNKNOWN, TtlClock
from kafka_eos.runtime.state.value_state import CachedValueState

T = TypeVar("T")

TIME = "time"
"""Attribute: the time, in ms since the epoch."""

_STAMP_BYTES = 8


class TimestampedCodec(Codec[Any], Generic[T]):
    """Codec of a value with the time of its last write."""

    name: str = ""

    def __init__(self, inner: Codec[T]) -> None:
        self.inner, self.name = inner, inner.name

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: tuple[int, T]) -> bytes:
        return add_timestamp(value[0], self.inner.encode(value[1]))

    def decode(self, data: bytes) -> tuple[int, T]:
        stamp, value = unstamped(data)
        return stamp, self.inner.decode(value)


def add_timestamp(stamp: int, value: bytes) -> bytes:
    """Prepend the last write time to an encoded value."""
    return stamp.to_bytes(_STAMP_BYTES, "big", signed=True) + value


def unstamped(data: bytes) -> tuple[int, bytes]:
    """Split the output of ``add_timestamp`` into stamp and value. Raises ValueError if it is too short."""
    if len(data) < _STAMP_BYTES:
        raise ValueError(f"a value with a time has at least {_STAMP_BYTES} bytes, got {len(data)}")
    return int.from_bytes(data[:_STAMP_BYTES], "big", signed=True), data[_STAMP_BYTES:]


def is_expired(stamp: int, now: int, seconds: float) -> bool:
    """Return whether a value written at a time has expired. Not if no time was known then."""
    return stamp != UNKNOWN and now - stamp >= seconds * 1000


class ExpiringState(Generic[T]):
    """A state with a ``Ttl`` over a state of pairs (time, value).

    ``cursor`` is where the clean-up was when the state was stored.
    """

    def __init__(
        self,
        inner: CachedValueState[tuple[int, T]],
        rows: StateRows,
        groups: range,
        ttl: Ttl,
        time: TtlClock,
        cursor: bytes,
    ) -> None:
        self._inner = inner
        self._rows = rows
        self._ttl = ttl
        self._now, self.advance = time.now, time.advance
        self._first, self._end = group_prefix(groups.start), group_prefix(groups.stop)
        self.cursor = cursor if self._first < cursor < self._end else self._first
        """Row key at which the cleanup resumes. Stored, so that it goes on after a restart."""
        self._reads_count = ttl.refresh == "read-write"

    @property
    def loads(self) -> int:
        return self._inner.loads

    @property
    def cached(self) -> int:
        return self._inner.cached

    def get(self, key: Any) -> T | None:
        pair = self._inner.get(key)
        if pair is None:
            return None
        now = self._now()
        if self._gone(pair[0], now):
            self._inner.delete(key)
            return None
        if self._reads_count and pair[0] != now:
            self._inner.put(key, (now, pair[1]))
        return pair[1]

    def put(self, key: Any, value: T) -> None:
        self._inner.put(key, (self._now(), value))

    def delete(self, key: Any) -> None:
        self._inner.delete(key)

    def view(self, keys: Iterable[Any]) -> MutableMapping[Any, T]:
        return _UnexpiredView(self._inner.view(keys), self._now, self._gone)

    def get_last_written(self, keys: Sequence[Any]) -> Sequence[T]:
        return [value for _, value in self._inner.get_last_written(keys)]

    def scan_prefix(self, *parts: Any) -> Iterator[tuple[Any, T]]:
        return self._select_unexpired(self._inner.scan_prefix(*parts))

    def scan_between(self, key: Any, first: Any, end: Any) -> Iterator[tuple[Any, T]]:
        return self._select_unexpired(self._inner.scan_between(key, first, end))

    def _select_unexpired(self, found: Iterable[tuple[Any, tuple[int, T]]]) -> Iterator[tuple[Any, T]]:
        now = self._now()
        alive = []
        for place, (stamp, value) in list(found):
            if self._gone(stamp, now):
                self._inner.delete(place)
                continue
            if self._reads_count and stamp != now:
                self._inner.put(place, (now, value))
            alive.append((place, value))
        return iter(alive)

    def scan_keys(self, *parts: Any) -> Iterator[Any]:
        now = self._now()
        return (place for place, (stamp, _) in self._inner.scan_prefix(*parts) if not self._gone(stamp, now))

    def items(self) -> Iterator[tuple[Any, T]]:
        now = self._now()
        return ((place, value) for place, (stamp, value) in self._inner.items() if not self._gone(stamp, now))

    def next_entry(self) -> int:
        return self._inner.next_entry()

    def get_attributes(self) -> dict[str, int]:
        return {**self._inner.get_attributes(), TIME: self._now()}

    def flush(self) -> None:
        self._inner.flush()

    def clean(self, limit: int) -> None:
        """Check the next ``limit`` rows and delete expired ones; after the last row it starts over."""
        page = self._rows.page(self.cursor, self._end, limit)
        self.cursor = page[-1][0] + b"\0" if len(page) == limit else self._first
        now = self._now()
        # Choose all rows before the first write: a write may flush, and then no state key counts as changed any more.
        for place, stamp, value in list(self._due(page, now)):
            if self._timeless(stamp, now):
                self._inner.put(place, self._inner.descriptor.value.decode(add_timestamp(now, value)))
            else:
                self._inner.delete(place)

    def _due(self, page: Iterable[Row], now: int) -> Iterator[tuple[Any, int, bytes]]:
        """Yield state key, stamp and value of rows that have expired, or that lack a valid time and can be given
        one."""
        for row_key, data in page:
            stamp, value = unstamped(data)
            if self._timeless(stamp, now) or self._gone(stamp, now):
                place = self._inner.decode_row_key(row_key)
                if not self._inner.changed(place):
                    yield place, stamp, value

    @staticmethod
    def _timeless(stamp: int, now: int) -> bool:
        return now != UNKNOWN and (stamp == UNKNOWN or stamp > now)

    def _gone(self, stamp: int, now: int) -> bool:
        return is_expired(stamp, now, self._ttl.seconds)


class _UnexpiredView(MutableMapping[Any, T]):
    """Live mapping of the values that have not expired. The clock advances while it is used."""

    def __init__(
        self, view: MutableMapping[Any, tuple[int, T]], now: Callable[[], int], gone: Callable[[int, int], bool]
    ) -> None:
        self._view = view
        self._now = now
        self._gone = gone

    def __getitem__(self, key: Any) -> T:
        stamp, value = self._view[key]
        if self._gone(stamp, self._now()):
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: T) -> None:
        self._view[key] = (self._now(), value)

    def __delitem__(self, key: Any) -> None:
        del self._view[key]

    def __iter__(self) -> Iterator[Any]:
        now = self._now()
        return (key for key, (stamp, _) in self._view.items() if not self._gone(stamp, now))

    def __len__(self) -> int:
        return sum(1 for _ in self)
