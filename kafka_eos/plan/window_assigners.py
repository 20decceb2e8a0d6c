"""Which windows a row is in, by its event time.

Time is cut into *panes*, and a window is some panes in a row: so windows that overlap share what they hold, and each
row is added once. ``session`` has no panes: its windows follow from its rows.

Pure; times are in milliseconds since the Unix epoch. Rules: no two windows end at one time, and whatever ends there is
known by it; a pane is in at least one window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Protocol, TypeGuard
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kafka_eos._util.call_site import quoting
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class Paned(Protocol):
    """Windows that are made of panes. A pane is named by its start, a window by its end."""

    def pane(self, time: int) -> int:
        """The pane of a row. ValueError if it can have none."""

    def ends(self, pane: int) -> Sequence[int]:
        """The windows that have the pane, in order."""

    def panes(self, end: int) -> Sequence[int]:
        """The panes of the window that ends there, in order; none if no window does."""

    def start(self, end: int) -> int:
        """Of the window that ends there."""

    @property
    def shared(self) -> bool:
        """Has a window several panes?"""


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, one behind the other."""

    size: int
    offset: int
    shared = False

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


@dataclass(frozen=True, slots=True)
class Early:
    """Tumbling windows with a result each ``every``, of what the window has up to there; the last one is the whole."""

    size: int
    every: int
    offset: int
    shared = True

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
        return f"{whole}, with a result each {_seconds(self.every)}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of one size, of which one begins each ``every``."""

    size: int
    every: int
    offset: int
    shared = True

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
        return f"windows of {_seconds(self.size)} each {_seconds(self.every)}{_offset(self.offset)}"


@dataclass(frozen=True, slots=True)
class Days:
    """Calendar days of a time zone: from midnight to midnight, so some have 23 or 25 hours."""

    timezone: str
    shared = False

    def pane(self, time: int) -> int:
        return self._day(time)[0]

    def ends(self, pane: int) -> Sequence[int]:
        return (self._day(pane)[1],)

    def panes(self, end: int) -> Sequence[int]:
        return (self.start(end),) if self._day(end)[0] == end else ()

    def start(self, end: int) -> int:
        return self._day(end - 1)[0]

    def _day(self, time: int) -> tuple[int, int]:
        """Where the day of a time begins and ends."""
        zone = _zone(self.timezone)
        try:
            day = (_EPOCH + time * _MS).astimezone(zone).date()
            start, end = _midnight(zone, day), _midnight(zone, day + timedelta(days=1))
            while end <= time:  # clocks that go back across midnight give a day's last minutes its date twice
                day += timedelta(days=1)
                start, end = end, _midnight(zone, day + timedelta(days=1))
        except OverflowError:
            raise ValueError(f"the event time {time} is in no year from 1 to 9999, so it has no calendar day") from None
        return start, end

    def __str__(self) -> str:
        return f"calendar days of {self.timezone}"


@dataclass(frozen=True, slots=True)
class Session:
    """Windows of rows that are less than ``gap`` apart, from the first one to ``gap`` behind the last."""

    gap: int

    def __str__(self) -> str:
        return f"sessions with a gap of {_seconds(self.gap)}"


@dataclass(frozen=True, slots=True)
class RowCount:
    """Windows of the last ``size`` rows of a key, or of all (None); one each ``every`` rows."""

    size: int | None
    every: int

    @property
    def shared(self) -> bool:
        """Has a window several panes?"""
        return self.size is not None and self.every < self.size

    def __str__(self) -> str:
        if self.size is None:
            return f"all rows, with a result each {self.every}"
        return f"windows of {self.size} rows" + (f" each {self.every}" if self.shared else "")


@quoting
def tumbling(*, seconds: float, offset: float = 0, early: float | None = None) -> Tumbling | Early:
    """Windows of ``seconds``, one behind the other; the first of 1970 begins ``offset`` behind midnight, in UTC.

    With ``early`` there is a result of what the window has so far each so many seconds of event time, if it has
    anything. Its window ends there; the last one is the whole. It needs a part of the window that can be merged.
    PlanError if ``early`` does not divide ``seconds``.
    """
    size, shift = milliseconds(seconds, "a window's size"), milliseconds(offset, "an offset", least=None)
    if early is None:
        return Tumbling(size, shift % size)
    every = milliseconds(early, "the time between early results")
    if size % every or every == size:
        raise PlanError(f"early results come each {early:g} s, which is no part of a window of {seconds:g} s")
    return Early(size, every, shift % size)


@quoting
def sliding(*, seconds: float, every: float, offset: float = 0) -> Sliding:
    """Windows of ``seconds``, one of which begins each ``every`` seconds: a row is in several.

    PlanError if ``every`` is more than ``seconds``: rows between two windows would be in none.
    """
    size, step = milliseconds(seconds, "a window's size"), milliseconds(every, "the time between two windows")
    if step > size:
        raise PlanError(f"windows of {seconds:g} s each {every:g} s leave out rows between them: filter those first")
    return Sliding(size, step, milliseconds(offset, "an offset", least=None) % step)


@quoting
def days(timezone: str) -> Days:
    """Calendar days of a time zone, e.g. ``"Europe/Berlin"``. PlanError if there is none of that name."""
    try:
        _zone(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PlanError(
            f"there is no time zone {timezone!r} here: give a name like 'Europe/Berlin' (if it is one, install tzdata)"
        ) from None
    return Days(timezone)


@quoting
def session(*, gap: float) -> Session:
    """Rows of a key that are less than ``gap`` seconds apart are in one window, which ends ``gap`` behind the last."""
    return Session(milliseconds(gap, "a gap"))


@quoting
def rows(count: int, *, every: int | None = None) -> RowCount:
    """Windows of ``count`` rows of a key as they come, without time; ``every`` so many rows one, of the last ``count``.

    Its window tells rows by their number. Without ``every`` nothing is left of one that is full, its number neither: so
    each window of a key is from 0 to ``count``. The trap: which rows are together depends on the order in which they
    come, and that is only fixed within a partition. PlanError if ``every`` is more than ``count``.
    """
    step = count if every is None else every
    if not (_positive(count) and _positive(step) and step <= count):
        raise PlanError(f"a window has one row or more, and begins each so many or fewer: not {count!r} each {step!r}")
    return RowCount(count, step)


@quoting
def global_(*, every: int | None = None) -> RowCount:
    """One window of all rows of a key, with a result of all so far after each ``every`` rows. It never ends.

    PlanError without ``every``: then it would never have a result.
    """
    if not _positive(every):
        raise PlanError(f"a global window never ends, so say after how many rows it has a result: not every={every!r}")
    return RowCount(None, every)


def _positive(number: object) -> TypeGuard[int]:
    return type(number) is int and number > 0


@dataclass(frozen=True, slots=True)
class Interval:
    """How far a row of one stream may be behind one of another to be near it, in milliseconds; both ends included."""

    lower: int
    upper: int

    def __str__(self) -> str:
        return f"from {_seconds(self.lower)} to {_seconds(self.upper)} later"


def interval(*, lower: float, upper: float) -> Interval:
    """From ``lower`` to ``upper`` seconds. PlanError if the one is more than the other."""
    found = Interval(milliseconds(lower, "lower=", least=None), milliseconds(upper, "upper=", least=None))
    if found.lower > found.upper:
        raise PlanError(f"no row is from {lower:g} s to {upper:g} s behind another: lower= is the lesser of both")
    return found


_KINDS: Final[Mapping[type, str]] = {
    Tumbling: "tumbling",
    Early: "early",
    Sliding: "sliding",
    Days: "days",
    Session: "session",
    RowCount: "rows",
    Interval: "interval",
}


def defined(found: Paned | Session | RowCount | Interval) -> dict[str, Json]:
    """What is stored of it beside the rows that it holds: kind and fields. Rule: both names are a durable format."""
    if isinstance(found, RowCount) and found.size is None:
        return {"kind": "global"}
    fields: Any = found
    return {"kind": _KINDS[type(found)], **asdict(fields)}


def milliseconds(seconds: float, what: str, least: int | None = 1) -> int:
    """As milliseconds. PlanError if it is no whole number of them."""
    if type(seconds) in (int, float) and math.isfinite(seconds):
        found = round(seconds * 1000)
        if math.isclose(found, seconds * 1000) and (least is None or found >= least):
            return found
    more = {None: "", 0: ", 0 or more"}.get(least, ", one at least")
    raise PlanError(f"{what} is a number of seconds, in whole milliseconds{more}: not {seconds!r}")


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g} s"


def _offset(ms: int) -> str:
    return f" from {_seconds(ms)} on" if ms else ""


@lru_cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(maxsize=1024)
def _midnight(zone: ZoneInfo, day: date) -> int:
    """Where a date begins: the first of two midnights, and if there is none, the moment at which clocks leap."""
    return (datetime(day.year, day.month, day.day, tzinfo=zone) - _EPOCH) // _MS
