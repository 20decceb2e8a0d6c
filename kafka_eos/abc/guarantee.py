"""The delivery guarantees of sources and sinks.

Rule: if the external system cannot provide the guarantee, the start is refused.
"""

from __future__ import annotations

import enum


class Guarantee(enum.Enum):
    """The delivery guarantee of a source or sink; a path has the weakest guarantee of its ends."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
