"""What is sent, and under which key. Pure.

Rule: a key is the same in each attempt, and that of no other output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from kafka_eos.connectors.files.file_names import Part


@dataclass(frozen=True, slots=True)
class Row:
    """A row that is to be sent.

    ``key``         32 hex digits, the same each time that the row is sent
    ``provenance``  where it comes from, with the attempt
    ``value``       as JSON
    """

    key: str
    provenance: str
    value: bytes


def row(part: Part, provenance: str, value: bytes) -> Row:
    """``key`` is made of the life, the sink and the provenance."""
    origin = provenance.partition("/")[2]  # without the attempt
    said = f"{part.life}/{part.operator}/{origin}"
    return Row(hashlib.sha256(said.encode()).hexdigest()[:32], provenance, value)


def batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """In their order, so many at a time."""
    left = iter(rows)
    while found := list(islice(left, size)):
        yield found
