"""Records of one fetch and one topic, in columns: of confluent_kafka's messages, or of a batch of ``kafka_eos_native``.

Rule: both behave in the same way, so that the rest of the source does not know which one it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, takewhile
from typing import Any, Final, Self

from kafka_eos.connectors.kafka.client.librdkafka import Message
from kafka_eos.connectors.kafka.record_headers import LOST, expect_readable, read_all_headers, read_raw_headers
from kafka_eos.core.records import Headers, RawRecord

_HEADER: Final = 16
"""Bytes that a header counts for: it may have two in the log, and takes more than a hundred as an object."""
_PACKED: Final = _HEADER // 8
"""Bytes that a byte of packed headers counts for: each of them has eight and more."""
_value: Callable[[Message], bytes | None] = Message.value
_key: Callable[[Message], bytes | None] = Message.key
_offset: Callable[[Message], int] = Message.offset  # type: ignore[assignment]
_partition: Callable[[Message], int] = Message.partition  # type: ignore[assignment]
_timestamp = Message.timestamp


class FetchedRecords(ABC):
    """The records of one topic that one fetch has returned. Those of a partition are in the order of their offsets."""

    __slots__ = ("offsets", "partitions", "topic")

    topic: str
    partitions: Sequence[int]
    offsets: Sequence[int]

    def __len__(self) -> int:
        return len(self.offsets)

    @abstractmethod
    def values(self) -> list[bytes | None]:
        """Return the values; None for a tombstone."""

    @abstractmethod
    def keys(self) -> list[bytes | None]:
        """Return the keys."""

    @abstractmethod
    def timestamps(self) -> list[int]:
        """Return the timestamps in milliseconds since the Unix epoch; -1 for a record without one."""

    @abstractmethod
    def raw_headers(self, row: int) -> Headers:
        """Return the headers of a record for its dead letter; the reason in their place if they cannot be read."""

    @abstractmethod
    def take(self, rows: Sequence[int]) -> Self:
        """Return these records, in this order."""

    @abstractmethod
    def raw(self, row: int) -> RawRecord:
        """Return one record, undecoded."""

    def count_within(self, most: int, *, keys: bool) -> int:
        """Return how many of the first records have up to ``most`` bytes together, and at least one.

        ``keys``: whether keys count, as values and headers do.
        """
        if self._have_at_most(most, keys):
            return len(self)
        ends = accumulate(self._size(row, keys) for row in range(len(self)))
        return max(1, sum(1 for _ in takewhile(most.__ge__, ends)))

    @abstractmethod
    def _have_at_most(self, most: int, keys: bool) -> bool:
        """Return whether all records have up to ``most`` bytes: quickly, and without unpacking headers beyond it."""

    @abstractmethod
    def _size(self, row: int, keys: bool) -> int:
        """Return the bytes of one record."""

    def headers(self, row: int) -> Headers:
        """Return the headers of a record. Raises ValueError if a name is not UTF-8."""
        return expect_readable(self.raw_headers(row))


class MessageRecords(FetchedRecords):
    """Messages of confluent_kafka. Columns besides the places are created only when requested."""

    __slots__ = ("_messages",)

    def __init__(self, topic: str, messages: Sequence[Message]) -> None:
        self.topic = topic
        self.partitions: list[int] = list(map(_partition, messages))
        self.offsets: list[int] = list(map(_offset, messages))
        self._messages = messages

    def values(self) -> list[bytes | None]:
        return list(map(_value, self._messages))

    def keys(self) -> list[bytes | None]:
        return list(map(_key, self._messages))

    def timestamps(self) -> list[int]:
        # Brokers of today give a number also to a record that has no timestamp.
        return [time if kind else -1 for kind, time in map(_timestamp, self._messages)]

    def raw_headers(self, row: int) -> Headers:
        return read_raw_headers(self._messages[row])

    def _have_at_most(self, most: int, keys: bool) -> bool:
        left = most - _sum_lengths(self.values()) - (_sum_lengths(self.keys()) if keys else 0)
        for headers in read_all_headers(self._messages):
            left -= _HEADER * len(headers)
            if left < 0:
                break
        return left >= 0

    def _size(self, row: int, keys: bool) -> int:
        message = self._messages[row]
        parts = [message.value(), message.key()] if keys else [message.value()]
        return _sum_lengths(parts) + _HEADER * len(self.raw_headers(row))

    def take(self, rows: Sequence[int]) -> Self:
        return type(self)(self.topic, [self._messages[row] for row in rows])

    def raw(self, row: int) -> RawRecord:
        message = self._messages[row]
        kind, time = message.timestamp()
        return RawRecord(
            self.topic,
            self.partitions[row],
            self.offsets[row],
            time if kind else -1,
            message.key(),
            message.value(),
            tuple(read_raw_headers(message)),
        )


class NativeRecords(FetchedRecords):
    """A batch of ``kafka_eos_native``. Headers are unpacked only when requested."""

    __slots__ = ("_headers", "_keys", "_times", "_unpack", "_values")

    def __init__(
        self,
        unpack: Callable[[bytes], Headers],
        topic: str,
        partitions: Sequence[int],
        offsets: Sequence[int],
        times: Sequence[int],
        values: list[bytes | None],
        keys: list[bytes | None],
        headers: list[bytes | None] | None,
    ) -> None:
        """Create the records from columns.

        ``headers``: packed, or None if no record has any; ``unpack`` unpacks those of one record.
        """
        self.topic = topic
        self.partitions = partitions
        self.offsets = offsets
        self._times = times
        self._values = values
        self._keys = keys
        self._headers = headers
        self._unpack = unpack

    @classmethod
    def of(cls, unpack: Callable[[bytes], Headers], batch: tuple[Any, ...]) -> NativeRecords:
        """Return the records of a batch as the module returns it, with packed integers."""
        topic, partitions, offsets, times, values, keys, headers = batch
        of_partitions, of_offsets = memoryview(partitions).cast("i").tolist(), memoryview(offsets).cast("q").tolist()
        return cls(unpack, topic, of_partitions, of_offsets, memoryview(times).cast("q"), values, keys, headers)

    def values(self) -> list[bytes | None]:
        return self._values

    def keys(self) -> list[bytes | None]:
        return self._keys

    def timestamps(self) -> list[int]:
        return list(self._times)

    def raw_headers(self, row: int) -> Headers:
        packed = None if self._headers is None else self._headers[row]
        if packed is None:
            return ()
        try:
            return self._unpack(packed)
        except UnicodeDecodeError:
            return LOST

    def _have_at_most(self, most: int, keys: bool) -> bool:
        size = _sum_lengths(self._values) + _PACKED * _sum_lengths(self._headers or ())
        return size + (_sum_lengths(self._keys) if keys else 0) <= most

    def _size(self, row: int, keys: bool) -> int:
        packed = None if self._headers is None else self._headers[row]
        return _sum_lengths((self._values[row], self._keys[row] if keys else None)) + _PACKED * len(packed or b"")

    def take(self, rows: Sequence[int]) -> Self:
        def of(column: Sequence[Any]) -> list[Any]:
            return list(map(column.__getitem__, rows))

        headers = None if self._headers is None else of(self._headers)
        columns = of(self.partitions), of(self.offsets), of(self._times), of(self._values), of(self._keys), headers
        return type(self)(self._unpack, self.topic, *columns)

    def raw(self, row: int) -> RawRecord:
        return RawRecord(
            self.topic,
            self.partitions[row],
            self.offsets[row],
            self._times[row],
            self._keys[row],
            self._values[row],
            tuple(self.raw_headers(row)),
        )


def _sum_lengths(parts: Iterable[bytes | None]) -> int:
    return sum(map(len, filter(None, parts)))
