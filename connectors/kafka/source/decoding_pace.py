"""The number of records that are decoded at once. Pure.

A checkpoint waits for the batch that is being decoded. A record whose schema the registry does not have takes a
request, so that a batch of such records could take longer than a checkpoint may, and again after each restart. Rule:
after a batch that took too long, the next ones are as large as the time allows. A reader begins with a small one.
"""

from __future__ import annotations

from typing import Final

from kafka_eos.core.limits import LIMITS

_LONGEST: Final = 1.0
"""Seconds in which a batch is to be decoded."""


class DecodingPace:
    """The size of the next batch, by the time that the last one took."""

    def __init__(self) -> None:
        self.records = LIMITS.records_decoded_first
        """The most records of the next batch."""

    def adapt(self, decoded: int, seconds: float) -> None:
        """Adapt to a batch of so many records that took so long."""
        if seconds > _LONGEST:
            self.records = max(1, int(decoded * _LONGEST / seconds))
        elif decoded >= self.records:
            self.records *= 2
