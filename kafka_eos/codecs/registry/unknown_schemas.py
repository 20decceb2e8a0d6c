"""Schemas that a registry says it does not have: how long a record waits for one.

A registry of several servers tells one of them later than another what was registered, and a record may come sooner
than that. So the registry is asked again before the record is refused. Rule: all waiting of a codec is a small share of
its time, so that a stream of ids that nobody knows does not hold the job up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

PAUSES: Final = (0.25, 0.75, 2.0)
"""Seconds before the registry is asked for the second time, the third, the last."""
_SHARE: Final = 0.1
_MOST_WAITING: Final = 6.0
"""Seconds that may be waited at once: for two ids in a row. What was waited comes back, ``_SHARE`` of the time."""
_REFUSED_FOR: Final = 5.0
"""Seconds in which the registry is not asked again for an id that it did not know in the end."""
_MOST_IDS: Final = 1000
"""Such ids that are remembered."""


class NotKnown(ValueError):
    """The registry does not have a schema: that of a record, or one to which it refers."""


class Unknown:
    """The patience of one codec. ``pauses``: before each further question; none if the answer cannot change."""

    def __init__(self, pauses: Sequence[float] = PAUSES) -> None:
        self._pauses = pauses
        self._left, self._counted_at = _MOST_WAITING, time.monotonic()
        self._refused: dict[Hashable, tuple[float, str]] = {}
        """Ids: until when they are refused unasked, and why."""

    def waited_for(self, schema_id: Hashable, ask: Callable[[], T]) -> T:
        """What ``ask`` returns as soon as it raises NotKnown no more. Raises that if it still does at the end."""
        now = time.monotonic()
        until, why = self._refused.get(schema_id, (now, ""))
        if now < until:
            raise NotKnown(why)
        pauses = iter(self._pauses)
        while True:
            try:
                return ask()
            except NotKnown as error:
                pause = next(pauses, None)
                if pause is None or not self._may_wait(pause):
                    self._refuse(schema_id, error)
                    raise
            time.sleep(pause)

    def _may_wait(self, pause: float) -> bool:
        now = time.monotonic()
        self._left = min(_MOST_WAITING, self._left + (now - self._counted_at) * _SHARE)
        self._counted_at = now
        if self._left < pause:
            return False
        self._left -= pause
        return True

    def _refuse(self, schema_id: Hashable, error: NotKnown) -> None:
        now = time.monotonic()
        self._refused = {each: kept for each, kept in self._refused.items() if now < kept[0]}
        if len(self._refused) < _MOST_IDS:
            self._refused[schema_id] = now + _REFUSED_FOR, str(error)
