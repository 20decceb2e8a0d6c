"""How many bytes an output takes in the log, and which outputs are more than their topic takes.

Pure. The format is record batch 2, which every producer of this package writes. A topic's ``max.message.bytes`` is a
limit on batches: an output that is over it in a batch of its own can never be written.

Rule: sizes count before compression, so whether an output is refused does not depend on how well it compresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, Final

from kafka_eos.connectors.kafka.sink.encoding import Columns

_BATCH: Final = 61
"""Bytes of a batch before its first record."""
_FIXED: Final = 3
"""Attributes, and how far timestamp and offset are from those of the batch: 0, in one byte each."""
_AROUND: Final = 128
"""More than all that is neither key, value nor header."""
_WIDEST: Final = 4
"""Bytes of a character at most."""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, and what of it and of its producer decides whether and where a record goes."""

    topic: str
    limit: int | None
    """``max.message.bytes``; None if the user may not read it, then the broker alone knows."""
    largest: int
    """``message.max.bytes`` of the producer."""
    partitions: int
    """How many it had when it was asked; there may be more by now."""

    def refusal(self, size: int) -> str:
        """Why an output of ``size`` bytes is refused, and what to do."""
        limit = "an unknown number" if self.limit is None else f"at most {self.limit}"
        raised = []
        if self.limit is not None and self.limit < size:
            raised.append("max.message.bytes of the topic")
        if self.largest < size or not raised:
            raised.append(f'message.max.bytes of the producer (the sink\'s config={{"message.max.bytes": {size}}})')
        return (
            f"the output takes {size} bytes before compression, and the topic {self.topic} takes {limit} "
            f"(max.message.bytes), its producer at most {self.largest} (message.max.bytes): make the output smaller, "
            f"or raise {' and '.join(raised)}"
        )


@dataclass(frozen=True, slots=True)
class Stamps:
    """One header a row, which each output gets besides its own, and the bytes of the longest of them at most."""

    rows: Sequence[Mapping[str, str]]
    longest: int


def batch_bytes(value: object, key: object, headers: Iterable[tuple[str, object]]) -> int:
    """The size of a batch that holds this record alone, before compression.

    What is neither text nor bytes counts nothing: the client refuses it for its type.
    """
    told = list(headers)
    body = _FIXED + _field(key) + _field(value) + _varint(len(told))
    body += sum(_field(name) + _field(content) for name, content in told)
    return _BATCH + _varint(body) + body


def oversized(columns: Columns, stamps: Stamps | None, limit: int) -> dict[int, int]:
    """Outputs that are over ``limit`` bytes in a batch of one: that size, by their index, ascending."""
    if _at_most(columns, stamps) <= limit:
        return {}
    sizes = (batch_bytes(*row) for row in _rows(columns, stamps))
    return {index: size for index, size in enumerate(sizes) if size > limit}


def _at_most(columns: Columns, stamps: Stamps | None) -> float:
    """No output is larger than this. It is asked of every batch, so it takes the longest of each column together."""
    headers = columns.headers
    try:
        most = _AROUND + _WIDEST * _longest(columns.values) + (0 if stamps is None else stamps.longest)
        most += 0 if isinstance(columns.keys, repeat) else _WIDEST * _longest(columns.keys)
        return most if headers is None else most + max(map(_of_headers, headers), default=0)
    except (TypeError, ValueError):
        return float("inf")  # something is of a wrong type: look at each


def _longest(column: Iterable[Any]) -> int:
    return max(map(len, filter(None, column)), default=0)


def _of_headers(headers: Iterable[tuple[str, object]]) -> int:
    return sum(_field(name) + _field(content) for name, content in headers)


def _rows(columns: Columns, stamps: Stamps | None) -> Iterator[tuple[object, object, list[tuple[str, object]]]]:
    count = len(columns.values)
    headers: Iterable[Any] = repeat((), count) if columns.headers is None else columns.headers
    marks: Iterable[Any] = repeat({}, count) if stamps is None else stamps.rows
    for value, key, own, mark in zip(columns.values, islice(columns.keys, count), headers, marks, strict=True):
        yield value, key, [*own, *mark.items()]


def _field(content: object) -> int:
    """A length and as many bytes; nothing at all is the length -1."""
    if isinstance(content, str):
        content = content.encode()
    size = len(content) if isinstance(content, bytes | bytearray) else 0
    return _varint(size) + size


def _varint(number: int) -> int:
    """Bytes of a number from 0 on, zigzag-coded. -1 takes one, as 0 does."""
    return max(1, ((2 * number).bit_length() + 6) // 7)
