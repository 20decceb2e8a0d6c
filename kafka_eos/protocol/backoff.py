"""How long a job waits before it goes back to its last checkpoint once more.

Pure. Rule: a committed epoch alone begins no new count. A job that commits an epoch, fills its disk and fails would
otherwise start again at once, for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_JITTER: Final = 0.1
"""The part of a pause that chance may take away, so that jobs which failed together do not come back together."""
_DOUBLINGS: Final = 60
"""Of the first pause, at most: a number that is doubled a thousand times is no float any more."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts. ``initial``, ``longest`` and ``reset`` are seconds, as the settings of these names."""

    initial: float
    longest: float
    reset: float
    failures: int = 0
    """Since an attempt last ran for ``reset`` seconds."""

    def failed(self) -> Backoff:
        return replace(self, failures=self.failures + 1)

    def committed(self, seconds: float) -> Backoff:
        """An epoch was committed by an attempt that has run for so many seconds."""
        return replace(self, failures=0) if seconds >= self.reset else self

    def pause(self, chance: float) -> float:
        """Seconds to wait after the newest failure; none after the first. ``chance`` is from 0 to 1."""
        if self.failures < 2:
            return 0.0
        doubled = self.initial * 2.0 ** min(self.failures - 2, _DOUBLINGS)
        return min(doubled, self.longest) * (1 - _JITTER * chance)
