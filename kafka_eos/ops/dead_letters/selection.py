"""Selects dead letters by topic, operator, reason, time and offset.

Pure. Rule: a dead letter must match all given criteria. Topic, offset and time are those of the rejected record, as in
the job's messages, and not those of the dead letter.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.core.errors import ConfigError

_MOST_NAMES: Final = 20
"""Operators named in a message: the names come from a topic, so their number is unbounded."""
_LONGEST_NAME: Final = 100


class Selection(Struct, frozen=True, kw_only=True):
    """The dead letters that a command works on. Times are in milliseconds since the Unix epoch.

    Raises ConfigError if the criteria contradict each other.
    """

    topic: str
    """The topic of the rejected records: a dead letter topic may contain those of several sources. Results of timers
    are of all topics."""
    reason: str | None = None
    """A text in the name or the message of the error, in upper or lower case."""
    operator: str | None = None
    since: int | None = None
    until: int | None = None
    """Before this time."""
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    """The first and the last offset."""

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ConfigError("--until must be later than --since")
        if self.partition is None and not (self.first is None and self.last is None):
            raise ConfigError("--offsets applies to one partition: add --partition")

    def includes(self, letter: DeadLetter) -> bool:
        return (
            (letter.topic == self.topic or (letter.is_result and self.partition is None))
            and (self.operator is None or letter.operator == self.operator)
            and (self.partition is None or letter.partition == self.partition)
            and (self.first is None or letter.offset >= self.first)
            and (self.last is None or letter.offset <= self.last)
            and (self.since is None or letter.timestamp >= self.since)
            and (self.until is None or 0 <= letter.timestamp < self.until)
            and (self.reason is None or self._says_so(letter, self.reason))
        )

    def expect_operator(self, present: Collection[str], refused: Collection[str]) -> None:
        """Raise ConfigError if the operator is unknown: a mistyped name must not look like one that rejected nothing.

        ``present``: operators of the pipeline. ``refused``: operators named in dead letters, maybe of an older version.
        """
        if self.operator is None or self.operator in present or self.operator in refused:
            return
        raise ConfigError(
            f"--operator {self.operator!r}: neither the pipeline nor a dead letter in the topic has an operator of "
            f"that name. Dead letters name {_names(refused)}; the pipeline has {_names(present)}"
        )

    def _says_so(self, letter: DeadLetter, reason: str) -> bool:
        return reason.casefold() in f"{letter.error}: {letter.message}".casefold()


def _names(found: Collection[str]) -> str:
    shown = [repr(name[:_LONGEST_NAME]) for name in sorted(found)[:_MOST_NAMES]]
    more = [f"{len(found) - len(shown)} more"] if len(found) > len(shown) else []
    return ", ".join([*shown, *more]) or "none"


def time_of(text: str | None, option: str) -> int | None:
    """Parse a time in ISO 8601, local unless it has an offset, as milliseconds. Raise ConfigError if it is invalid."""
    if text is None:
        return None
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise ConfigError(
            f"{option}: {text!r} is not a valid time. Use 2026-01-31T12:00 (local) or 2026-01-31T12:00:00Z"
        ) from None


def offsets_of(text: str | None) -> tuple[int | None, int | None]:
    """Parse ``17``, ``17-29``, ``17-`` or ``-29`` as first and last offset. Raise ConfigError for any other text."""
    if text is None:
        return None, None
    first, dash, last = text.partition("-")
    if not text.strip("-") or not all(part.isdecimal() and part.isascii() for part in (first, last) if part):
        raise ConfigError(f"--offsets: {text!r} is not valid. Use one offset, 17, or a range, 17-29, 17- or -29")
    begin, end = (int(part) if part else None for part in (first, last if dash else first))
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"--offsets: the end of {text!r} is before its start")
    return begin, end
