"""Detection of event times in another unit than milliseconds.

Pure. Rule: only times so close to 1970, or so far from today, that nothing but a wrong unit explains them are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_CENTURY = range(1_000_000_000, 4_200_000_000)
"""From 2001 to 2103, in seconds. As milliseconds these are some weeks at the beginning of 1970."""
_UNITS = {"seconds": 1, "microseconds": 1_000_000}


class TimeUnitCheck:
    """The check for event times that are not milliseconds. It warns once per operator."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def find_warnings(self, watermarks: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        """Yield a warning for each operator with implausible event times."""
        for operator in watermarks.keys() - self._warned:
            units = {unit for time in watermarks[operator].values() if (unit := _unit(time)) is not None}
            for unit in sorted(units):
                self._warned.add(operator)
                yield (
                    f"the times of {operator!r} look like {unit} since 1970, but event times are milliseconds: later "
                    "windows and timers fire at wrong times. Return milliseconds from the function of with_timestamps"
                )


def _unit(time: int) -> str | None:
    """Return the unit in which a time would be in this century; None if it is in milliseconds."""
    return next((unit for unit, each in _UNITS.items() if time // each in _CENTURY), None)
