"""Which dead letters are meant.

Pure. Rule: every part that is given must hold; of places and times those of the refused record count, which are in the
messages of a job too, not those of its letter.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from kafka_eos.connectors.kafka.letters import Letter
from kafka_eos.errors import ConfigError


class Selection(Struct, frozen=True, kw_only=True):
    """Times are in milliseconds since the Unix epoch. Raises ConfigError if nothing can be meant by it."""

    topic: str
    """Of the refused records: a dead letter topic may hold those of several sources."""
    reason: str | None = None
    """Is in the name of the error or in its message, in whatever case."""
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
            raise ConfigError("--until is not after --since: no record has such a time")
        if self.partition is None and not (self.first is None and self.last is None):
            raise ConfigError("--offsets are those of a partition: give --partition too")

    def includes(self, letter: Letter) -> bool:
        return (
            letter.topic == self.topic
            and (self.operator is None or letter.operator == self.operator)
            and (self.partition is None or letter.partition == self.partition)
            and (self.first is None or letter.offset >= self.first)
            and (self.last is None or letter.offset <= self.last)
            and (self.since is None or letter.timestamp >= self.since)
            and (self.until is None or 0 <= letter.timestamp < self.until)
            and (self.reason is None or self._says_so(letter, self.reason))
        )

    def _says_so(self, letter: Letter, reason: str) -> bool:
        return reason.casefold() in f"{letter.error}: {letter.message}".casefold()


def time_of(text: str | None, option: str) -> int | None:
    """Milliseconds of a time in ISO 8601, which is local unless it says where. ConfigError if it is none."""
    if text is None:
        return None
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no time: write 2026-01-31T12:00, or 2026-01-31T12:00:00Z") from None


def offsets_of(text: str | None) -> tuple[int | None, int | None]:
    """The first and the last offset of ``17``, ``17-29``, ``17-`` or ``-29``. ConfigError if it is none of these."""
    if text is None:
        return None, None
    first, dash, last = text.partition("-")
    if not text.strip("-") or not all(part.isdecimal() and part.isascii() for part in (first, last) if part):
        raise ConfigError(f"--offsets {text!r}: write one offset, 17, or the first and the last, 17-29, 17- or -29")
    begin, end = (int(part) if part else None for part in (first, last if dash else first))
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"--offsets {text!r}: the last offset is before the first")
    return begin, end
