"""Durations as users write them: a number of seconds, or a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

Seconds: TypeAlias = float | timedelta
"""A duration."""


def to_seconds(duration: Seconds) -> float:
    """Return a duration in seconds.

    A value that is none is returned unchanged: the caller checks the number, and knows what it is for.
    """
    if not isinstance(duration, timedelta):
        return duration
    seconds = duration.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds
