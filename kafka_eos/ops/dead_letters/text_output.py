"""Output of dead letters and their counts, as text and as JSON.

Pure. Rule: bytes of records never reach a terminal unchanged: everything but printable text is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from kafka_eos._util.printable_text import printable
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.core.record_preview import Excerpt
from kafka_eos.ops.dead_letters.selection import Selection

_MOST_REASONS: Final = 1000
"""Maximum number of errors counted separately: error names are arbitrary, so their number is unbounded."""
OTHERS: Final = ("(others)", "")


class DeadLetterSummary:
    """Dead letters by operator and error, with the first and last location."""

    def __init__(self) -> None:
        self.total = 0
        self.other_records = 0
        """Records that are not dead letters."""
        self.shortened, self.first_shortened = 0, ""
        """The number of selected dead letters without the contents of their records, and the first location."""
        self.results, self.first_result = 0, ""
        """The number of selected dead letters of results, and the location of the first one."""
        self.operators: set[str] = set()
        """Operators that rejected records, selected or not; of very many only some, and always the selected one."""
        self._found: dict[tuple[str, str], list[Any]] = {}

    def add(self, letter: DeadLetter | None, meant: Selection) -> None:
        """Count a dead letter if it is selected. None stands for a record that is not a dead letter."""
        if letter is not None and (len(self.operators) < _MOST_REASONS or letter.operator == meant.operator):
            self.operators.add(letter.operator)
        if letter is None or not meant.includes(letter):
            self.other_records += letter is None
            return
        self.total += 1
        if letter.is_result:
            self.results += 1
            self.first_result = self.first_result or letter.where
        elif letter.left_out:
            self.shortened += 1
            self.first_shortened = self.first_shortened or letter.where
        reason = (letter.operator, letter.error)
        if reason not in self._found and len(self._found) >= _MOST_REASONS:
            reason = OTHERS
        entry = self._found.setdefault(reason, [0, letter.where, letter.where])
        entry[0], entry[2] = entry[0] + 1, letter.where

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per operator and error, the most frequent first."""
        frequent = sorted(self._found.items(), key=lambda each: (-each[1][0], each[0]))
        for (operator, error), (count, first, last) in frequent:
            yield {"operator": operator, "error": error, "count": count, "first": first, "last": last}


def format_dead_letter(place: str, letter: DeadLetter, most: int) -> Iterator[str]:
    """Format a dead letter as lines of text."""
    yield f"{readable(letter.where, most)}  {_time(letter.timestamp)}  rejected by {readable(letter.operator, most)}"
    yield f"  {readable(letter.error, most)}: {readable(letter.message, most)}"
    key = "no key" if letter.key is None else f"key {readable(letter.key, most)}"
    yield f"  dead letter {place}, {key}, {_size(letter.value)}"
    for name, value in letter.headers:
        yield f"  header {readable(name, most)}: {'(null)' if value is None else readable(value, most)}"
    if letter.is_result:
        yield "  a result of several records, as JSON"
    if letter.left_out:
        yield f"  its {letter.left_out:,} bytes are too many for a dead letter: read them at their place"
    if letter.value is not None:
        yield f"  {readable(letter.value, most)}"


def as_json(place: str, letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as JSON. Bytes that are not text are in a field ``…_base64`` instead."""
    return {
        "letter": place,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "operator": letter.operator,
        "error": letter.error,
        "message": letter.message,
        **_bytes("key", letter.key),
        **_bytes("value", letter.value),
        "left_out": letter.left_out,
        "is_result": letter.is_result,
        "headers": [{"name": name, **_bytes("value", value)} for name, value in letter.headers],
    }


def readable(data: bytes | str, most: int) -> str:
    """Return text unchanged, and other bytes with escapes such as ``\\x00``; cut after ``most`` characters."""
    cut, left = data[:most], len(data) - most
    text = cut if isinstance(cut, str) else Excerpt(cut, len(data)).text
    shown = str(cut)[2:-1] if text is None else printable(text)
    return f"{shown} … ({left:,} more)" if left > 0 else shown


def _bytes(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _size(value: bytes | None) -> str:
    return "no value (a tombstone)" if value is None else f"{len(value):,} bytes"


def _time(timestamp: int) -> str:
    if timestamp == -1:
        return "no time"
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"time {timestamp}"
