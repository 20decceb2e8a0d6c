"""Dead letters: how a rejected record is written, read, and replayed.

Rule: only the headers of a record are changed, and only at their end: ``DeadLetter.from_record`` removes what
``encode_dead_letter`` has added. There are two exceptions:

- The original's header ``kafka_eos`` is kept under another name, because two provenance headers in one record would
  mislead the audit.
- A dead letter that would be too large for its topic lacks the contents of its record, and one whose timestamp its
  topic refuses has the time of writing. Otherwise everyone who may write such records could stop the job.

The dead letter of a result, which combines several records, has the result as JSON, and the header ``RESULT``.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.sink.record_encoders import NOW, ProducerColumns, original_time
from kafka_eos.core.records import Batch, Headers, Record, RejectedRecord

_PROVENANCE: Final = "kafka_eos"
_NAMES: Final = tuple(
    f"dead_letter.{each}" for each in ("topic", "partition", "offset", "timestamp", "operator", "error", "message")
)
"""Header names, in the order of the fields of a ``DeadLetter``."""
LEFT_OUT: Final = "dead_letter.left_out"
"""The header of a dead letter without the contents of its record: their bytes."""
RESULT: Final = "dead_letter.result"
"""The header of a dead letter of a result; its value is empty."""
_LONGEST_KEY: Final = 1024
"""Bytes of a key that is kept nevertheless, for the partitioner and for people."""


def encode_dead_letter(rejected: RejectedRecord) -> tuple[bytes | None, bytes | None, int, Headers]:
    """Return a rejected record as a dead letter: its original bytes, and headers with the reason."""
    raw = rejected.raw
    kept = [(name if name != _PROVENANCE else f"dead_letter.{name}", value) for name, value in raw.headers]
    time = NOW if rejected.is_result else original_time(raw.timestamp)
    return raw.value, raw.key, time, [*kept, *_describe(rejected)]


def shorten_dead_letter(rejected: RejectedRecord) -> tuple[None, bytes | None, Headers]:
    """Return the value, key and headers of a dead letter that has not the contents of its record."""
    raw = rejected.raw
    key = raw.key if raw.key is not None and len(raw.key) <= _LONGEST_KEY else None
    parts = [raw.value, raw.key, *(part for name, value in raw.headers for part in (name, value))]
    size = sum(len(part) for part in parts if part is not None)
    return None, key, [*_describe(rejected), (LEFT_OUT, str(size).encode())]


def _describe(rejected: RejectedRecord) -> list[tuple[str, bytes | None]]:
    """Return the headers with the origin of a rejected record and the reason."""
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
    headers: list[tuple[str, bytes | None]] = [(name, text.encode()) for name, text in zip(_NAMES, why, strict=True)]
    return [*headers, (RESULT, b"")] if rejected.is_result else headers


class DeadLetterEncoder:
    """The encoder of rejected records as dead letters."""

    def __call__(self, batch: Batch[RejectedRecord]) -> ProducerColumns:
        rows = [encode_dead_letter(rejected) for rejected in batch.values]
        return ProducerColumns(
            [r[0] for r in rows],
            [r[1] for r in rows],
            [r[2] for r in rows],
            [r[3] for r in rows],
            shorten=lambda index: shorten_dead_letter(batch.values[index]),
        )


class DeadLetter(Struct, frozen=True):
    """A dead letter: the rejected record, and the reason for its rejection."""

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
    """The headers of the record; its ``kafka_eos``, if it had one, is renamed ``dead_letter.kafka_eos``."""
    left_out: int = 0
    """Bytes of the contents of the record, if the dead letter lacks them."""
    is_result: bool = False
    """Whether it is a result of several records, as JSON."""

    @property
    def has_record(self) -> bool:
        """Return whether it has the contents of a record, which can be replayed."""
        return not (self.left_out or self.is_result)

    @property
    def identity(self) -> tuple[str, int, int, int]:
        """Return the identity of the rejected record; several dead letters may have the same."""
        return self.topic, self.partition, self.offset, self.timestamp

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def from_record(cls, record: Record[bytes, bytes]) -> DeadLetter | None:
        """Parse a record of a dead letter topic; None if it is not a dead letter."""
        why: dict[str, bytes] = {}
        left_out, is_result = b"0", False
        kept: list[tuple[str, bytes | None]] = []
        # Read from the end: a dead letter may have been rejected itself, and then its newest reason is last.
        for name, value in reversed(record.headers):
            if name in _NAMES and name not in why:
                why[name] = value or b""
            elif name == LEFT_OUT and len(why) < len(_NAMES):  # behind these names a header is the record's own
                left_out = value or b""
            elif name == RESULT and not why:
                is_result = True
            elif name != _PROVENANCE:
                kept.append((name, value))
        try:
            topic, partition, offset, timestamp, operator, error, message = (why[name].decode() for name in _NAMES)
            place = topic, int(partition), int(offset), int(timestamp)
            missing = int(left_out)
        except (KeyError, ValueError):
            return None
        contents = record.key, record.value, tuple(reversed(kept))
        return cls(*place, operator, error, message, *contents, missing, is_result)


class RestoredRecordEncoder(Struct, frozen=True):
    """The encoder of dead letters as the original records."""

    in_place: bool
    """Whether to write to the record's original partition; otherwise the partitioner chooses."""

    def __call__(self, batch: Batch[DeadLetter]) -> ProducerColumns:
        letters = batch.values
        return ProducerColumns(
            [letter.value for letter in letters],
            [letter.key for letter in letters],
            [original_time(letter.timestamp) for letter in letters],
            [letter.headers for letter in letters],
            [letter.partition for letter in letters] if self.in_place else None,
        )
