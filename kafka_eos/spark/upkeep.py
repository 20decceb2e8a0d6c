"""What is done between two epochs of a term: old epochs go, and output that nobody will commit is aborted.

Rule: only while nothing is on its way. No manifest names the files of an epoch that runs, and aborting fences every
producer of the term, those of prepared output too. So when it is due, the next epoch waits for the receipt of the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka_eos.coordinator import Coordinator
from kafka_eos.errors import Retryable

_EPOCHS = 8
"""Epochs after which old ones are dropped even if there is always more to read."""
_LOOK = 10.0
"""Seconds between two looks for what a task left that outlived its executor, or the driver before this one."""


class Upkeep:
    """Of one term. ``generation`` counts how often its producers were fenced: the next epoch needs new ones."""

    def __init__(self, coordinator: Coordinator, observe: Callable[..., None]) -> None:
        self._coordinator, self._observe = coordinator, observe
        self.generation = 0
        self._epochs = self._retried = 0
        """Since old ones were dropped; and how many of them have lost attempts of tasks, which may have left output."""
        self._looked = time.monotonic()

    def decided(self, retried: bool) -> None:
        """One more epoch is. ``retried``: it has lost attempts of tasks."""
        self._epochs += 1
        self._retried += retried

    @property
    def due(self) -> bool:
        """May no epoch begin before ``run``?"""
        return self._retried > 0 or self._epochs >= _EPOCHS or time.monotonic() >= self._looked + _LOOK

    def run(self) -> None:
        """All of it."""
        if self._retried or self._left_over():
            self._coordinator.abort_left_over()
            self.generation += 1
            self._retried = 0
        self._looked = time.monotonic()
        self.drop()

    def drop(self) -> None:
        """Drop old epochs, if there are any: when there is time for it."""
        if self._epochs:
            self._coordinator.drop_old()
            self._epochs = 0

    def _left_over(self) -> bool:
        """Is output open, with nothing on its way?"""
        try:
            return bool(self._coordinator.staged())
        except Retryable as error:
            self._observe("notice", text=f"could not look for output that is left open: {error}")
            return False
