"""Decodes records that were read by another client, as the reader would have: for the audit.

Rule: the decoding is the source's own; only what stands in for the client's message is new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafka_eos.operators.chain import RawOrigin
from kafka_eos.records import Batch, Headers, RawRecord


class Replayed:
    """A raw record with the methods of a client's message that decoders call."""

    __slots__ = ("_raw",)

    def __init__(self, raw: RawRecord) -> None:
        self._raw = raw

    def key(self) -> bytes | None:
        return self._raw.key

    def value(self) -> bytes | None:
        return self._raw.value

    def headers(self) -> Headers:
        return self._raw.headers

    def timestamp(self) -> tuple[int, int]:
        """Kind (0: none) and milliseconds since the Unix epoch."""
        return (0 if self._raw.timestamp < 0 else 1), self._raw.timestamp


def replay(
    source: str,
    raws: Sequence[RawRecord],
    columns: Callable[[Sequence[Any]], tuple[Sequence[Any], Callable[[Any], Any]]],
    reject: Callable[[RawRecord, Exception], None],
) -> Batch[Any]:
    """The batch that a reader with these ``columns`` makes of ``raws``; rows that ``reject`` took are left out."""
    encoded, decode = columns([Replayed(raw) for raw in raws])
    values: list[Any] = []
    rows: list[int] = []
    for row, item in enumerate(encoded):
        try:
            values.append(decode(item))
        except Exception as error:  # noqa: BLE001 - a codec may raise anything; the row is reported, not skipped
            reject(raws[row], error)
        else:
            rows.append(row)
    return Batch(values, rows, RawOrigin(source, raws))
