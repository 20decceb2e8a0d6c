"""The rows to send, and their keys. Pure.

Rule: a row's key is the same in each attempt, and no other output has that key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec import Struct

from kafka_eos.connectors.files.file_names import PartId


class Row(Struct, frozen=True):
    """A row to be sent.

    ``key``: 32 hex digits, the same each time the row is sent.
    ``provenance``: its origin, with the attempt.
    ``value``: its content as JSON.
    """

    key: str
    provenance: str
    value: bytes


def row(part: PartId, provenance: str, value: bytes) -> Row:
    """Return the row with its key, a digest of the incarnation, the sink and the origin."""
    origin = provenance.partition("/")[2]  # without the attempt
    key_text = f"{part.incarnation}/{part.operator}/{origin}"
    return Row(hashlib.sha256(key_text.encode()).hexdigest()[:32], provenance, value)


def batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yield the rows in order, in lists of at most ``size``."""
    left = iter(rows)
    while found := list(islice(left, size)):
        yield found
