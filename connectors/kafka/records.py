"""A whole Kafka record, for streams that need more than the value.

Rule: a record is a value; two with equal fields are equal.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

K = TypeVar("K")
V = TypeVar("V")


class Record(Struct, Generic[K, V], frozen=True):
    """Key, value, headers and timestamp of one Kafka record.

    ``value`` None is a tombstone. ``timestamp`` is in milliseconds since the Unix epoch; None lets the sink
    choose (the sink's ``timestamp`` rule), and a source gives None for a record without one.
    """

    key: K | None
    value: V | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
