"""What an engine cannot do, with the reason. The only place for it: everything else must be the same everywhere.

Rule: an engine says so itself, before it reads anything. The test of a gap is strict: it fails as soon as the engine
can do it, or stops for another reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gap:
    """``says``: words of the refusal."""

    reason: str
    says: str


GAPS: Mapping[tuple[str, str], Gap] = {
    ("loop", "spark"): Gap(
        "an epoch on Spark is one job, and a job's stages cannot run in a circle",
        "cannot iterate",
    ),
}
