"""What the event times of a job tell of its code: some are in another unit than milliseconds.

Pure. Rule: only times that are so near 1970, or so far from today, that no unit but a wrong one explains them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_CENTURY = range(1_000_000_000, 4_200_000_000)
"""From 2001 to 2103, in seconds. As milliseconds these are some weeks at the beginning of 1970."""
_UNITS = {"seconds": 1, "microseconds": 1_000_000}


class Units:
    """Remarks on the watermarks of epochs, each once in a run."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def remarks(self, watermarks: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        """``watermarks``: by the operator that makes them, and by split."""
        for operator in watermarks.keys() - self._said:
            units = {unit for time in watermarks[operator].values() if (unit := _unit(time)) is not None}
            for unit in sorted(units):
                self._said.add(operator)
                yield (
                    f"the times of {operator!r} look like {unit} since 1970, and event times are milliseconds: windows "
                    "and timers behind it come at other moments than you mean. Let the function of with_timestamps "
                    "give milliseconds"
                )


def _unit(time: int) -> str | None:
    """The unit in which a time would be of our century, if it is not milliseconds."""
    return next((unit for unit, each in _UNITS.items() if time // each in _CENTURY), None)
