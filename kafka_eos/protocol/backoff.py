"""The pause before a job restarts from its last checkpoint.

Pure. Rule: a committed epoch alone does not reset the failure count. Otherwise a job that commits an epoch, fills its
disk and fails would restart without a pause forever.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

_JITTER: Final = 0.1
"""The fraction of a pause that jitter may remove, so that jobs that failed together do not restart together."""
_DOUBLINGS: Final = 60
"""Most doublings of the first pause: a number that is doubled a thousand times overflows a float."""


class Backoff(Struct, frozen=True):
    """The pauses between attempts. ``initial``, ``longest`` and ``reset`` are the settings of these names, in
    seconds.
    """

    initial: float
    longest: float
    reset: float
    failures: int = 0
    """Failures since an attempt last ran for ``reset`` seconds."""

    def record_failure(self) -> Backoff:
        return replace(self, failures=self.failures + 1)

    def record_commit(self, seconds: float) -> Backoff:
        """Record a committed epoch; reset the count if the attempt has run for ``reset`` seconds."""
        return replace(self, failures=0) if seconds >= self.reset else self

    def pause(self, chance: float) -> float:
        """Return the seconds to wait after the newest failure: 0 after the first. ``chance`` is from 0 to 1."""
        if self.failures < 2:
            return 0.0
        doubled = self.initial * 2.0 ** min(self.failures - 2, _DOUBLINGS)
        return min(doubled, self.longest) * (1 - _JITTER * chance)
