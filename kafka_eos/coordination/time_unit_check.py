"""Detection of event times in another unit than milliseconds.

Rule: only times so close to 1970, or so far from today, that nothing but a wrong unit explains them are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

_CENTURY = range(1_000_000_000, 4_200_000_000)
"""From 2001 to 2103, in seconds. As milliseconds these are some weeks at the beginning of 1970."""
_UNITS = {"seconds": 1, "microseconds": 1_000_000}


class TimeUnitObserver:
    """An observer that reports event times that are not milliseconds, to ``notice``, once per operator."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._warned: set[str] = set()

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event != "decided":
            return
        watermarks = cast("Mapping[str, Mapping[str, int]]", facts.get("watermarks", {}))
        for operator in watermarks.keys() - self._warned:
            units = {unit for time in watermarks[operator].values() if (unit := _unit(time)) is not None}
            for unit in sorted(units):
                self._warned.add(operator)
                self._notice(
                    f"the times of {operator!r} look like {unit} since 1970, but event times are milliseconds: later "
                    "windows and timers fire at wrong times. Return milliseconds from the function of with_timestamps"
                )


def _unit(time: int) -> str | None:
    """Return the unit in which a time would be in this century; None if it is in milliseconds."""
    return next((unit for unit, each in _UNITS.items() if time // each in _CENTURY), None)
