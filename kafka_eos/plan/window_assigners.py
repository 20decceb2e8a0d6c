"""Window assigners: the windows of a row, by its event time.

Time is divided into *panes*, and a window consists of consecutive panes. So overlapping windows share their contents,
and each row is added once. ``session`` has no panes: its windows follow from its rows.

Pure; times are in milliseconds since the Unix epoch. Rules: no two windows end at the same time, so the end identifies
the window; a pane is in at least one window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Protocol, TypeGuard
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct
from msgspec.structs import asdict

from kafka_eos._util.call_site import quotes_user_line
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class PanedAssigner(Protocol):
    """Assigner of windows that consist of panes; a pane is named by its start, a window by its end."""

    def pane(self, time: int) -> int:
        """Return the pane of a row. Raises ValueError if there is none."""

    def ends(self, pane: int) -> Sequence[int]:
        """Return the ends of the windows that contain the pane, in order."""

    def panes(self, end: int) -> Sequence[int]:
        """Return the panes of the window that ends there, in order; empty if no window does."""

    def start(self, end: int) -> int:
        """Return the start of the window that ends there."""

    @property
    def is_shared(self) -> bool:
        """Return whether a window can have several panes."""


class TumblingWindows(Struct, frozen=True):
    """Adjacent windows of one size."""

    size: int
    offset: int
    is_shared = False

    def pane(self, time: int) -> int:
        return time - (time - self.offset) % self.size

    def ends(self, pane: int) -> Sequence[int]:
        return (pane + self.size,)

    def panes(self, end: int) -> Sequence[int]:
        return () if (end - self.offset) % self.size else (end - self.size,)

    def start(self, end: int) -> int:
        return end - self.size

    def __str__(self) -> str:
        return f"tumbling windows of {_seconds(self.size)}{_offset(self.offset)}"


class EarlyTumblingWindows(Struct, frozen=True):
    """Tumbling windows that also emit an early result every so often in event time."""

    size: int
    every: int
    offset: int
    is_shared = True

    def pane(self, time: int) -> int:
        return time - (time - self.offset) % self.every

    def ends(self, pane: int) -> Sequence[int]:
        return range(pane + self.every, self.start(pane + self.every) + self.size + 1, self.every)

    def panes(self, end: int) -> Sequence[int]:
        return () if (end - self.offset) % self.every else range(self.start(end), end, self.every)

    def start(self, end: int) -> int:
        return end - 1 - (end - 1 - self.offset) % self.size

    def __str__(self) -> str:
        whole = f"tumbling windows of {_seconds(self.size)}{_offset(self.offset)}"
        return f"{whole}, with a result every {_seconds(self.every)}"


class SlidingWindows(Struct, frozen=True):
    """Windows of one size, one starting every slide interval."""

    size: int
    every: int
    offset: int
    is_shared = True

    @property
    def _width(self) -> int:
        return math.gcd(self.size, self.every)

    def pane(self, time: int) -> int:
        return time - (time - self.offset) % self._width

    def ends(self, pane: int) -> Sequence[int]:
        last = pane - (pane - self.offset) % self.every + self.size
        first = last - (last - pane - self._width) // self.every * self.every
        return range(first, last + 1, self.every)

    def panes(self, end: int) -> Sequence[int]:
        start = end - self.size
        return () if (start - self.offset) % self.every else range(start, end, self._width)

    def start(self, end: int) -> int:
        return end - self.size

    def __str__(self) -> str:
        return f"windows of {_seconds(self.size)} every {_seconds(self.every)}{_offset(self.offset)}"


class DayWindows(Struct, frozen=True):
    """Calendar days of a time zone, from midnight to midnight (23, 24 or 25 hours)."""

    timezone: str
    is_shared = False

    def pane(self, time: int) -> int:
        return self._day(time)[0]

    def ends(self, pane: int) -> Sequence[int]:
        return (self._day(pane)[1],)

    def panes(self, end: int) -> Sequence[int]:
        return (self.start(end),) if self._day(end)[0] == end else ()

    def start(self, end: int) -> int:
        return self._day(end - 1)[0]

    def _day(self, time: int) -> tuple[int, int]:
        """Return the start and the end of the day of a time."""
        zone = _zone(self.timezone)
        try:
            day = (_EPOCH + time * _MS).astimezone(zone).date()
            start, end = _midnight(zone, day), _midnight(zone, day + timedelta(days=1))
            while end <= time:  # if clocks are set back across midnight, the last minutes of a day have its date twice
                day += timedelta(days=1)
                start, end = end, _midnight(zone, day + timedelta(days=1))
        except OverflowError:
            raise ValueError(
                f"the event time {time} is outside the years 1 to 9999, so it has no calendar day"
            ) from None
        return start, end

    def __str__(self) -> str:
        return f"calendar days of {self.timezone}"


class SessionWindows(Struct, frozen=True):
    """Windows of rows that are less than a gap apart."""

    gap: int

    def __str__(self) -> str:
        return f"sessions with a gap of {_seconds(self.gap)}"


class RowCountWindows(Struct, frozen=True):
    """Windows of the last size rows of a key (None: of all its rows), one every n rows."""

    size: int | None
    every: int

    @property
    def is_shared(self) -> bool:
        """Return whether a window has several panes."""
        return self.size is not None and self.every < self.size

    def __str__(self) -> str:
        if self.size is None:
            return f"all rows, with a result every {self.every}"
        return f"windows of {self.size} rows" + (f" every {self.every}" if self.is_shared else "")


@quotes_user_line
def tumbling(
    *, seconds: Seconds, offset: Seconds = 0, early: Seconds | None = None
) -> TumblingWindows | EarlyTumblingWindows:
    """Assign rows to adjacent windows of ``seconds``; the first of 1970 begins ``offset`` after midnight, in UTC.

    With ``early``, a window emits a result of its rows so far every so many seconds of event time, if it has any. Such
    a result's window ends at that time; the last one is the whole window. It needs contents that can be merged. Raises
    PlanError if ``early`` does not divide ``seconds``.
    """
    size, shift = milliseconds(seconds, "a window's size"), milliseconds(offset, "an offset", least=None)
    if early is None:
        return TumblingWindows(size, shift % size)
    every = milliseconds(early, "the time between early results")
    if size % every or every == size:
        raise PlanError(f"early={_seconds(every)} must be a proper divisor of the window's {_seconds(size)}")
    return EarlyTumblingWindows(size, every, shift % size)


@quotes_user_line
def sliding(*, seconds: Seconds, every: Seconds, offset: Seconds = 0) -> SlidingWindows:
    """Assign rows to windows of ``seconds``, one of which begins every ``every`` seconds: a row is in several.

    Raises PlanError if ``every`` is more than ``seconds``: rows between two windows would be in none.
    """
    size, step = milliseconds(seconds, "a window's size"), milliseconds(every, "the time between two windows")
    if step > size:
        raise PlanError(
            f"windows of {_seconds(size)} every {_seconds(step)} skip the rows between them: filter those rows first"
        )
    return SlidingWindows(size, step, milliseconds(offset, "an offset", least=None) % step)


@quotes_user_line
def days(timezone: str) -> DayWindows:
    """Assign rows to calendar days of a time zone, such as ``"Europe/Berlin"``.

    Raises PlanError for an unknown time zone.
    """
    try:
        _zone(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PlanError(
            f"unknown time zone {timezone!r}: use a name like 'Europe/Berlin' (if it is one, install tzdata)"
        ) from None
    return DayWindows(timezone)


@quotes_user_line
def session(*, gap: Seconds) -> SessionWindows:
    """Assign rows of a key less than ``gap`` seconds apart to one window, which ends ``gap`` after the last row."""
    return SessionWindows(milliseconds(gap, "a gap"))


@quotes_user_line
def rows(count: int, *, every: int | None = None) -> RowCountWindows:
    """Assign rows of a key to windows of ``count`` rows in order of arrival; with ``every``, one per so many rows.

    A window is identified by row numbers. Without ``every``, all state of a full window is dropped, its number
    included: so each window of a key is from 0 to ``count``. Raises PlanError if ``every`` is more than ``count``.

    Note: which rows are grouped depends on the order of arrival, which is defined only within a partition.
    """
    step = count if every is None else every
    if not (_positive(count) and _positive(step) and step <= count):
        raise PlanError(
            f"rows: count must be at least 1, and every between 1 and count (got count={count!r}, every={step!r})"
        )
    return RowCountWindows(count, step)


@quotes_user_line
def global_(*, every: int | None = None) -> RowCountWindows:
    """Assign all rows of a key to one window without an end, with a result of all so far per ``every`` rows.

    Raises PlanError without ``every``: then it would never have a result.
    """
    if not _positive(every):
        raise PlanError(
            f"a global window never ends, so every must be the number of rows per result (got every={every!r})"
        )
    return RowCountWindows(None, every)


def _positive(number: object) -> TypeGuard[int]:
    return type(number) is int and number > 0


class JoinInterval(Struct, frozen=True):
    """Bounds of an interval join in milliseconds, both inclusive."""

    lower: int
    upper: int

    def __str__(self) -> str:
        return f"from {_seconds(self.lower)} to {_seconds(self.upper)} later"


def interval(*, lower: Seconds, upper: Seconds) -> JoinInterval:
    """Build an interval from ``lower`` to ``upper`` seconds. Raises PlanError if ``lower`` is above ``upper``."""
    found = JoinInterval(milliseconds(lower, "lower=", least=None), milliseconds(upper, "upper=", least=None))
    if found.lower > found.upper:
        raise PlanError(f"lower ({_seconds(found.lower)}) must not be greater than upper ({_seconds(found.upper)})")
    return found


_KINDS: Final[Mapping[type, str]] = {
    TumblingWindows: "tumbling",
    EarlyTumblingWindows: "early",
    SlidingWindows: "sliding",
    DayWindows: "days",
    SessionWindows: "session",
    RowCountWindows: "rows",
    JoinInterval: "interval",
}


def describe_window(found: PanedAssigner | SessionWindows | RowCountWindows | JoinInterval) -> dict[str, Json]:
    """Return the stored description of an assigner. Rule: both names are a durable format."""
    if isinstance(found, RowCountWindows) and found.size is None:
        return {"kind": "global"}
    fields: Any = found
    return {"kind": _KINDS[type(found)], **asdict(fields)}


def milliseconds(duration: Seconds, what: str, least: int | None = 1) -> int:
    """Convert a duration to milliseconds. Raises PlanError if the result is not an integer."""
    seconds = to_seconds(duration)
    if type(seconds) in (int, float) and math.isfinite(seconds):
        found = round(seconds * 1000)
        if math.isclose(found, seconds * 1000) and (least is None or found >= least):
            return found
    more = {None: "", 0: ", 0 or more"}.get(least, ", at least one")
    raise PlanError(
        f"{what} must be a number of seconds or a timedelta, in whole milliseconds{more} (got {duration!r})"
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g} s"


def _offset(ms: int) -> str:
    return f" from {_seconds(ms)} on" if ms else ""


@lru_cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(maxsize=1024)
def _midnight(zone: ZoneInfo, day: date) -> int:
    """Return the start of a date: the first of two midnights, or, without a midnight, the moment of the clock
    change."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    start = (midnight - _EPOCH) // _MS
    shown = midnight.replace(tzinfo=None)
    if _shows(zone, start) == shown:
        return start
    before = (midnight.replace(fold=1) - _EPOCH) // _MS  # with the offset after the gap: a moment before the gap
    while start - before > 1:
        middle = (before + start) // 2
        if _shows(zone, middle) < shown:
            before = middle
        else:
            start = middle
    return start


def _shows(zone: ZoneInfo, time: int) -> datetime:
    """Return the local time that a clock shows at a given time."""
    return (_EPOCH + time * _MS).astimezone(zone).replace(tzinfo=None)
