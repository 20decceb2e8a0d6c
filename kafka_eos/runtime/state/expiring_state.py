"""Values that expire: each is stored with the time of its last write, and is gone a time to live later.

Rule: an expired value is never returned, whether or not its row still exists; the rows go when they are read and, a
bounded number a checkpoint, in passing. Time is what ``clocks`` makes of the machine's clock or the timestamps of
records; it is a mark of the state. A value from the future (a clock was ahead) lives, and is stamped anew in passing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import Ttl
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.key_groups import group_prefix
from kafka_eos.runtime.state.row_store import Row, Rows
from kafka_eos.runtime.state.ttl_clock import UNKNOWN, StateTime
from kafka_eos.runtime.state.value_state import CachedValueState

T = TypeVar("T")

TIME = "time"
"""Mark: the time, in ms since the epoch."""

_STAMP_BYTES = 8


class Timed(Generic[T]):
    """(time of the last write, value): eight bytes, big endian and signed, then the value in its own codec."""

    def __init__(self, inner: Codec[T]) -> None:
        self.inner, self.name = inner, inner.name

    @property
    def schema(self) -> Json:
        return self.inner.schema

    def encode(self, value: tuple[int, T]) -> bytes:
        return stamped(value[0], self.inner.encode(value[1]))

    def decode(self, data: bytes) -> tuple[int, T]:
        stamp, value = unstamped(data)
        return stamp, self.inner.decode(value)


def stamped(stamp: int, value: bytes) -> bytes:
    """A value as it is stored."""
    return stamp.to_bytes(_STAMP_BYTES, "big", signed=True) + value


def unstamped(data: bytes) -> tuple[int, bytes]:
    """Stamp and value of what ``stamped`` made. ValueError if it is too short."""
    if len(data) < _STAMP_BYTES:
        raise ValueError(f"a value with a time has at least {_STAMP_BYTES} bytes, got {len(data)}")
    return int.from_bytes(data[:_STAMP_BYTES], "big", signed=True), data[_STAMP_BYTES:]


def expired(stamp: int, now: int, seconds: float) -> bool:
    """Is a value that was written at ``stamp`` gone at ``now``? Not if no time was known then."""
    return stamp != UNKNOWN and now - stamp >= seconds * 1000


class ExpiringState(Generic[T]):
    """A state with a ``Ttl`` over one of (time, value).

    ``cursor`` is where the clean-up had come to when it was stored.
    """

    def __init__(
        self,
        inner: CachedValueState[tuple[int, T]],
        rows: Rows,
        groups: range,
        ttl: Ttl,
        time: StateTime,
        cursor: bytes = b"",
    ) -> None:
        self._inner, self._rows, self._ttl = inner, rows, ttl
        self._now, self.advance = time.now, time.advance
        self._first, self._end = group_prefix(groups.start), group_prefix(groups.stop)
        self.cursor = cursor if self._first < cursor < self._end else self._first
        """Row key at which the clean-up goes on. Stored, since a session may be as short as one epoch (on Spark)."""
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
        return _View(self._inner.view(keys), self._now, self._gone)

    def written(self, keys: Sequence[Any]) -> Sequence[T]:
        return [value for _, value in self._inner.written(keys)]

    def within(self, *parts: Any) -> Iterator[tuple[Any, T]]:
        now = self._now()
        alive = []
        for place, (stamp, value) in list(self._inner.within(*parts)):
            if self._gone(stamp, now):
                self._inner.delete(place)
                continue
            if self._reads_count and stamp != now:
                self._inner.put(place, (now, value))
            alive.append((place, value))
        return iter(alive)

    def places(self, *parts: Any) -> Iterator[Any]:
        now = self._now()
        return (place for place, (stamp, _) in self._inner.within(*parts) if not self._gone(stamp, now))

    def items(self) -> Iterator[tuple[Any, T]]:
        now = self._now()
        return ((place, value) for place, (stamp, value) in self._inner.items() if not self._gone(stamp, now))

    def next_entry(self) -> int:
        return self._inner.next_entry()

    def marks(self) -> dict[str, int]:
        return {**self._inner.marks(), TIME: self._now()}

    def flush(self) -> None:
        self._inner.flush()

    def clean(self, limit: int) -> None:
        """Look at the next ``limit`` rows and drop what has expired; after the last row it starts again."""
        page = self._rows.page(self.cursor, self._end, limit)
        self.cursor = page[-1][0] + b"\0" if len(page) == limit else self._first
        now = self._now()
        # All is chosen before anything is written: a write may flush, and from then on no place looks changed.
        for place, stamp, value in list(self._due(page, now)):
            if self._timeless(stamp, now):
                self._inner.put(place, self._inner.descriptor.value.decode(stamped(now, value)))
            else:
                self._inner.delete(place)

    def _due(self, page: Iterable[Row], now: int) -> Iterator[tuple[Any, int, bytes]]:
        """Place, stamp and value of rows that have expired, or have no time that counts and can be given one."""
        for row_key, data in page:
            stamp, value = unstamped(data)
            if self._timeless(stamp, now) or self._gone(stamp, now):
                place = self._inner.place(row_key)
                if not self._inner.changed(place):
                    yield place, stamp, value

    @staticmethod
    def _timeless(stamp: int, now: int) -> bool:
        return now != UNKNOWN and (stamp == UNKNOWN or stamp > now)

    def _gone(self, stamp: int, now: int) -> bool:
        return expired(stamp, now, self._ttl.seconds)


class _View(MutableMapping[Any, T]):
    """A live mapping of values over one of (time, value). The clock goes on while it is used."""

    def __init__(
        self, view: MutableMapping[Any, tuple[int, T]], now: Callable[[], int], gone: Callable[[int, int], bool]
    ) -> None:
        self._view, self._now, self._gone = view, now, gone

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
