"""Dead letters: how a refused record is written aside, and how it is read and put back again.

Rule: of a record nothing is changed but its headers, and these only at their end: what ``written`` has added is what
``Letter.opened`` takes away. One exception: the original's header ``kafka_eos`` stays under another name, because two
provenances in one record would mislead the audit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.sink.encoding import Columns
from kafka_eos.core.records import Batch, Headers, Record, Rejected

_PROVENANCE: Final = "kafka_eos"
_NAMES: Final = tuple(
    f"dead_letter.{each}" for each in ("topic", "partition", "offset", "timestamp", "operator", "error", "message")
)
"""In the order of the fields of a ``Letter``."""


def written(rejected: Rejected) -> tuple[bytes | None, bytes | None, int, Headers]:
    """Value, key, timestamp and headers of a dead letter: the original bytes, and why they are here."""
    raw = rejected.raw
    why = (
        raw.topic,
        str(raw.partition),
        str(raw.offset),
        str(raw.timestamp),
        rejected.operator,
        rejected.error_type,
        rejected.message,
    )
    kept = [(name if name != _PROVENANCE else f"dead_letter.{name}", value) for name, value in raw.headers]
    added = [(name, text.encode()) for name, text in zip(_NAMES, why, strict=True)]
    return raw.value, raw.key, max(0, raw.timestamp), [*kept, *added]


class RejectedEncoder:
    """Streams of ``Rejected``, for dead letter topics."""

    def __call__(self, batch: Batch[Rejected]) -> Columns:
        rows = [written(rejected) for rejected in batch.values]
        return Columns([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows])


class Letter(Struct, frozen=True):
    """A record that was refused, as it was in its topic, and why it was refused."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the Unix epoch; -1 if the record has none."""
    operator: str
    error: str
    """Name of the exception's class."""
    message: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    """Those of the record; its ``kafka_eos``, if it had one, is ``dead_letter.kafka_eos``."""

    @property
    def identity(self) -> tuple[str, int, int, int]:
        """What tells the refused record from all others; several letters may be of one record."""
        return self.topic, self.partition, self.offset, self.timestamp

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def opened(cls, record: Record[bytes, bytes]) -> Letter | None:
        """The letter that a record of a dead letter topic is; None if it is none."""
        why: dict[str, bytes] = {}
        kept: list[tuple[str, bytes | None]] = []
        # From the end: a letter may have been refused itself, and then its own reason comes first.
        for name, value in reversed(record.headers):
            if name in _NAMES and name not in why:
                why[name] = value or b""
            elif name != _PROVENANCE:
                kept.append((name, value))
        try:
            topic, partition, offset, timestamp, operator, error, message = (why[name].decode() for name in _NAMES)
            place = topic, int(partition), int(offset), int(timestamp)
        except (KeyError, ValueError):
            return None
        return cls(*place, operator, error, message, record.key, record.value, tuple(reversed(kept)))


@dataclass(frozen=True, slots=True)
class LetterEncoder:
    """Streams of ``Letter``: the records that were refused, as they were."""

    in_place: bool
    """To the partition that the record was in; else the partitioner chooses."""

    def __call__(self, batch: Batch[Letter]) -> Columns:
        letters = batch.values
        return Columns(
            [letter.value for letter in letters],
            [letter.key for letter in letters],
            [max(0, letter.timestamp) for letter in letters],
            [letter.headers for letter in letters],
            [letter.partition for letter in letters] if self.in_place else None,
        )
