"""What a source or a sink promises.

Rule: a promise that the outside system cannot keep is refused at the start.
"""

from __future__ import annotations

import enum


class Guarantee(enum.Enum):
    """What a source or sink can promise; a path has the weakest of its ends."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
