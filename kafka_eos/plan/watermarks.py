"""How watermarks are made: what the user says of the order of rows in a split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kafka_eos._util.call_site import quoting
from kafka_eos.core.errors import PlanError

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Generator:
    """How far event time is in a split, by functions of the user; see ``generated``."""

    state: Any
    on_event: Callable[[Any, Any, int], Any]
    watermark: Callable[[Any], int | None]


@dataclass(frozen=True, slots=True)
class Alignment:
    """Splits of one ``group`` are read together; see ``WatermarkStrategy.with_alignment``. In milliseconds."""

    group: str
    max_drift: int


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """Make one with ``bounded``, ``monotonic`` or ``generated``.

    ``delay``       milliseconds by which a row may be older than the newest one of its split before it
    ``idle_after``  seconds without a row after which a split is not waited for; None: it always is
    ``clock_after`` seconds without a row after which time goes on in a split with the clock; None: rows alone tell
    ``generator``   says in place of the delay how far event time is in a split; None: the delay does
    ``alignment``   which other splits a fast one waits for; None: it waits for none
    """

    delay: int
    idle_after: float | None = None
    clock_after: float | None = None
    generator: Generator | None = None
    alignment: Alignment | None = None

    @quoting
    def with_idleness(self, seconds: float) -> WatermarkStrategy:
        """Do not wait for a split (a partition) that has brought nothing for so long.

        Event time goes on without it, and what it then brings may be late. Time in which nothing is read does not
        count. PlanError if ``seconds`` is not more than zero.
        """
        if not _is_number(seconds) or not seconds > 0:
            raise PlanError(f"a split is idle after more than 0 seconds, not {seconds!r}")
        return replace(self, idle_after=seconds)

    @quoting
    def with_clock(self, *, after: float) -> WatermarkStrategy:
        """When a split (a partition) has brought nothing for so many seconds, time goes on in it with the clock.

        So windows close, and timers fire, also when no rows come any more; rows that come later than that may be late.
        A split that has never brought a row is not waited for then. Time in which nothing is read does not count.
        PlanError if ``after`` is not more than zero.
        """
        if not _is_number(after) or not after > 0:
            raise PlanError(f"time goes on with the clock after more than 0 seconds, not {after!r}")
        return replace(self, clock_after=after)

    @quoting
    def with_alignment(self, *, max_drift: float, group: str = "default") -> WatermarkStrategy:
        """Do not read a split (a partition) further while it is more than ``max_drift`` seconds of event time ahead.

        Ahead of the slowest split of all sources of ``group``: so what waits in the state for the slow ones does not
        grow with the fast ones. Nobody waits for a split that is idle; without ``with_idleness``, for one of which all
        that there is has been read. PlanError if ``max_drift`` is negative or no finite number, or ``group`` no name.
        """
        if not _is_number(max_drift) or not 0 <= max_drift < math.inf:
            raise PlanError(f"a split may be ahead by 0 seconds or more, not by {max_drift!r}")
        if type(group) is not str or not group:
            raise PlanError(
                f"a group of sources has a name, a text: with_alignment(max_drift=…, group=…), not {group!r}"
            )
        return replace(self, alignment=Alignment(group, round(max_drift * 1000)))

    @property
    def heeds_silence(self) -> bool:
        """Is something done when a split brings nothing?"""
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


@quoting
def bounded(seconds: float) -> WatermarkStrategy:
    """Rows of a split may be up to ``seconds`` older than the newest one before them; what is older is late.

    PlanError if ``seconds`` is negative or no finite number.
    """
    if not _is_number(seconds) or not 0 <= seconds < math.inf:
        raise PlanError(f"rows are out of order by 0 seconds or more, not by {seconds!r}")
    return WatermarkStrategy(round(seconds * 1000))


def monotonic() -> WatermarkStrategy:
    """Rows of a split come in the order of their times; equal times are in order."""
    return WatermarkStrategy(0)


def generated(
    state: type[S], *, on_event: Callable[[S | None, T, int], S], watermark: Callable[[S], int | None]
) -> WatermarkStrategy:
    """Your own strategy: ``on_event(state, value, time)`` gives what is known of a split after a row of it.

    ``state`` is the type of that, and part of the checkpoint; it is None before the first row. ``watermark(state)``
    says that rows of this time, or before it, will not come any more, and None that nothing can be said yet. Both must
    be pure: ``on_event`` returns a new object and changes none. Event time never goes back, whatever they say.
    """
    return WatermarkStrategy(0, generator=Generator(state, on_event, watermark))


def _is_number(found: object) -> bool:
    return type(found) in (int, float)
