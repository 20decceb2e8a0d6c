"""The bytes that an output takes in the log, and detection of outputs that exceed their topic's limit.

Pure. The format is record batch 2, which every producer of this package writes. A topic's ``max.message.bytes`` is a
limit on batches: an output that exceeds it in a batch of its own can never be written.
Rule: sizes are before compression, so whether an output is rejected does not depend on how well it compresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns
from kafka_eos.connectors.kafka.sink.topic_rules import ANY_RECORD, TopicRules
from kafka_eos.core.provenance import HEADER

_BATCH: Final = 61
"""Bytes of a batch before its first record."""
_FIXED: Final = 3
"""Bytes of attributes and of the deltas of timestamp and offset, which are 0: one byte each."""
_AROUND: Final = 128
"""An upper bound of the bytes of everything but key, value and headers."""
_WIDEST: Final = 4
"""Most bytes of a character."""


class TopicLimits(Struct, frozen=True):
    """A topic's limits and partition count, as known to its writers."""

    topic: str
    limit: int | None
    """``max.message.bytes``; None if the user may not read it."""
    largest: int
    """``message.max.bytes`` of the producer."""
    partitions: int
    """The partition count when it was last queried; there may be more by now."""
    rules: TopicRules = ANY_RECORD

    @property
    def most(self) -> int:
        """Return the bytes of an output that both accept, as far as is known."""
        return self.largest if self.limit is None else min(self.limit, self.largest)

    def refusal(self, size: int) -> str:
        """Return why an output of ``size`` bytes is rejected, and the remedy."""
        limit = "an unknown number" if self.limit is None else f"at most {self.limit}"
        raised = []
        if self.limit is not None and self.limit < size:
            raised.append("max.message.bytes of the topic")
        if self.largest < size or not raised:
            raised.append(f'message.max.bytes of the producer (the sink\'s config={{"message.max.bytes": {size}}})')
        return (
            f"the output has {size} bytes before compression, but the topic {self.topic} "
            f"accepts {limit} (max.message.bytes) and its producer at most {self.largest} "
            f"(message.max.bytes): make the output smaller, or raise {' and '.join(raised)}"
        )


class ProvenanceHeaders(Struct, frozen=True):
    """One provenance header per row, in parts, and an upper bound of their size.

    The value is prefix, number, the suffix of all rows and the ending of the row. ``endings``: None if all are empty.
    """

    prefixes: tuple[str, ...]
    numbers: tuple[int, ...]
    suffix: str
    endings: Sequence[str | int] | None
    longest: int

    def rows(self) -> Iterator[dict[str, str]]:
        """Yield the headers as dicts of strings: cheap to create, and not tracked by the garbage collector."""
        suffix = self.suffix
        if self.endings is None:
            return ({HEADER: f"{start}{n}{suffix}"} for start, n in zip(self.prefixes, self.numbers, strict=True))
        parts = zip(self.prefixes, self.numbers, self.endings, strict=True)
        return ({HEADER: f"{start}{n}{suffix}{end}"} for start, n, end in parts)

    def row(self, at: int) -> dict[str, str]:
        """Return the header of one row."""
        ending = "" if self.endings is None else self.endings[at]
        return {HEADER: f"{self.prefixes[at]}{self.numbers[at]}{self.suffix}{ending}"}

    def suffixes(self) -> str | tuple[str, ...]:
        """Return the text after the number: one for all rows, or one per row."""
        suffix = self.suffix
        return suffix if self.endings is None else tuple([f"{suffix}{ending}" for ending in self.endings])


def batch_bytes(value: object, key: object, headers: Iterable[tuple[str, object]]) -> int:
    """Return the size of a batch with only this record, before compression.

    Values that are neither text nor bytes count as 0: the client rejects their type.
    """
    all_headers = list(headers)
    body = _FIXED + _field(key) + _field(value) + _varint(len(all_headers))
    body += sum(_field(name) + _field(content) for name, content in all_headers)
    return _BATCH + _varint(body) + body


def oversized(columns: ProducerColumns, stamps: ProvenanceHeaders | None, limit: int) -> dict[int, int]:
    """Return the size, by ascending index, of outputs that exceed ``limit`` bytes in a batch of their own."""
    if _at_most(columns, stamps) <= limit:
        return {}
    sizes = (batch_bytes(*row) for row in _rows(columns, stamps))
    return {index: size for index, size in enumerate(sizes) if size > limit}


def shorten_oversized(columns: ProducerColumns, stamps: ProvenanceHeaders | None, limit: int) -> ProducerColumns:
    """Return the columns with shorter outputs in place of those that exceed ``limit`` bytes, if they have any."""
    if columns.shorten is None or not (large := oversized(columns, stamps, limit)):
        return columns
    values, headers = list(columns.values), list(columns.headers or [()] * len(columns.values))
    keys = list(islice(columns.keys, len(values)))
    for index in large:
        values[index], keys[index], headers[index] = columns.shorten(index)
    return replace(columns, values=values, keys=keys, headers=headers)


def _at_most(columns: ProducerColumns, stamps: ProvenanceHeaders | None) -> float:
    """Return an upper bound of all outputs' sizes, the sum of the longest cells. It is cheap, for use on
    every batch."""
    headers = columns.headers
    try:
        most = _AROUND + _WIDEST * _longest(columns.values) + (0 if stamps is None else stamps.longest)
        most += 0 if isinstance(columns.keys, repeat) else _WIDEST * _longest(columns.keys)
        return most if headers is None else most + max(map(_of_headers, headers), default=0)
    except (TypeError, ValueError):
        return float("inf")  # a cell has a wrong type: check each row


def _longest(column: Iterable[Any]) -> int:
    return max(map(len, filter(None, column)), default=0)


def _of_headers(headers: Iterable[tuple[str, object]]) -> int:
    return sum(_field(name) + _field(content) for name, content in headers)


def _rows(
    columns: ProducerColumns, stamps: ProvenanceHeaders | None
) -> Iterator[tuple[object, object, list[tuple[str, object]]]]:
    count = len(columns.values)
    headers: Iterable[Any] = repeat((), count) if columns.headers is None else columns.headers
    stamped: Iterable[Any] = repeat({}, count) if stamps is None else stamps.rows()
    for value, key, own, stamp in zip(columns.values, islice(columns.keys, count), headers, stamped, strict=True):
        yield value, key, [*own, *stamp.items()]


def _field(content: object) -> int:
    """Return the bytes of a length and its content; None is encoded as the length -1."""
    if isinstance(content, str):
        content = content.encode()
    size = len(content) if isinstance(content, bytes | bytearray) else 0
    return _varint(size) + size


def _varint(number: int) -> int:
    """Return the bytes of a zigzag-encoded number from 0 on. -1 takes one byte, as 0 does."""
    return max(1, ((2 * number).bit_length() + 6) // 7)
