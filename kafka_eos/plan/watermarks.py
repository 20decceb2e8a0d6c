"""Watermark strategies: the user's statement about the order of rows in a split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos._util.call_site import quotes_user_line
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.errors import PlanError

T = TypeVar("T")
S = TypeVar("S")


class WatermarkGenerator(Struct, frozen=True):
    """A watermark generator made of the user's functions; see generated()."""

    state: Any
    on_event: Callable[[Any, Any, int], Any]
    watermark: Callable[[Any], int | None]


class WatermarkAlignment(Struct, frozen=True):
    """Watermark alignment of a source: its group, and max_drift in milliseconds."""

    group: str
    max_drift: int


class WatermarkStrategy(Struct, frozen=True):
    """The rule by which splits get their watermarks. Create one with ``bounded``, ``monotonic`` or ``generated``.

    - ``delay``: the milliseconds by which a row may be older than the newest row before it in its split.
    - ``idle_after``: the seconds without a row after which a split is idle; None: never.
    - ``clock_after``: the seconds without a row after which a split's event time advances with the clock; None: never.
    - ``generator``: computes the watermark of a split; None: ``delay`` determines it.
    - ``alignment``: the splits for which a fast one waits; None: it waits for none.
    """

    delay: int
    idle_after: float | None = None
    clock_after: float | None = None
    generator: WatermarkGenerator | None = None
    alignment: WatermarkAlignment | None = None

    @quotes_user_line
    def with_idleness(self, seconds: Seconds) -> WatermarkStrategy:
        """Exclude a split (a partition) from the watermark after so many seconds without a row.

        The watermark advances without it, so its next rows may be late. Time in which nothing is read does not count.
        Raises PlanError if ``seconds`` is not above zero.
        """
        idle_after = to_seconds(seconds)
        if not _is_number(idle_after) or not idle_after > 0:
            raise PlanError(f"with_idleness: seconds must be greater than 0 (got {seconds!r})")
        return replace(self, idle_after=idle_after)

    @quotes_user_line
    def with_clock(self, *, after: Seconds) -> WatermarkStrategy:
        """Advance event time with the clock in a split (a partition) without rows for so many seconds.

        So windows close, and timers fire, even if no more rows arrive; rows that arrive later may be late. A split that
        has never had a row is idle then. Time in which nothing is read does not count. Raises PlanError if ``after`` is
        not above zero.
        """
        clock_after = to_seconds(after)
        if not _is_number(clock_after) or not clock_after > 0:
            raise PlanError(f"with_clock: seconds must be greater than 0 (got {after!r})")
        return replace(self, clock_after=clock_after)

    @quotes_user_line
    def with_alignment(self, *, max_drift: Seconds, group: str = "default") -> WatermarkStrategy:
        """Pause a split (a partition) while it is more than ``max_drift`` seconds of event time ahead.

        It is compared with the slowest split of all sources of ``group``, so fast splits do not fill state with rows
        that wait for slow ones. Idle splits are ignored; without ``with_idleness``, so are splits that were read to
        their current end. Raises PlanError if ``max_drift`` is negative or not finite, or if ``group`` is not a valid
        name.
        """
        ahead = to_seconds(max_drift)
        if not _is_number(ahead) or not 0 <= ahead < math.inf:
            raise PlanError(f"with_alignment: max_drift must be at least 0 seconds (got {max_drift!r})")
        if type(group) is not str or not group:
            raise PlanError(f"with_alignment: group must be a string (got {group!r})")
        return replace(self, alignment=WatermarkAlignment(group, round(ahead * 1000)))

    @property
    def detects_idleness(self) -> bool:
        """Return whether the strategy handles splits without rows."""
        return self.idle_after is not None or self.clock_after is not None

    def __str__(self) -> str:
        order = f"up to {self.delay / 1000:g} s out of order" if self.delay else "in order"
        order = order if self.generator is None else "as its generator says"
        idle = "" if self.idle_after is None else f", idle after {self.idle_after:g} s"
        clock = "" if self.clock_after is None else f", by the clock after {self.clock_after:g} s"
        return order + idle + clock + self._aligned

    @property
    def _aligned(self) -> str:
        if self.alignment is None:
            return ""
        return f", at most {self.alignment.max_drift / 1000:g} s ahead of group {self.alignment.group!r}"


@quotes_user_line
def bounded(seconds: Seconds) -> WatermarkStrategy:
    """Allow rows of a split to be up to ``seconds`` older than the newest one before them; older rows are late.

    Raises PlanError if ``seconds`` is negative or not finite.
    """
    delay = to_seconds(seconds)
    if not _is_number(delay) or not 0 <= delay < math.inf:
        raise PlanError(f"bounded: seconds must be at least 0 (got {seconds!r})")
    return WatermarkStrategy(round(delay * 1000))


def monotonic() -> WatermarkStrategy:
    """Expect rows of a split in the order of their times; equal times are in order."""
    return WatermarkStrategy(0)


def generated(
    state: type[S], *, on_event: Callable[[S | None, T, int], S], watermark: Callable[[S], int | None]
) -> WatermarkStrategy:
    """Use your own strategy: ``on_event(state, value, time)`` returns a split's new state after a row.

    ``state`` is the type of that state, which is part of the checkpoint; it is None before the first row.
    ``watermark(state)`` returns the time up to which no more rows are expected, or None if it is unknown. Both must be
    pure: ``on_event`` returns a new object and modifies none. A watermark never decreases, whatever they return.
    """
    return WatermarkStrategy(0, generator=WatermarkGenerator(state, on_event, watermark))


def _is_number(found: object) -> bool:
    return type(found) in (int, float)
