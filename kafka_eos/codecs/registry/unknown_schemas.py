"""Retries for schemas that a registry does not know yet.

One server of a registry may learn of a new schema later than another, and a record may arrive sooner. So the lookup is
retried before the record is rejected. Rule: the total waiting time of a codec is a small share of its time, so that a
stream of unknown ids does not block the job. A lookup that takes long is not retried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

from kafka_eos.core.error_messages import UnfitValue

T = TypeVar("T")

PAUSES: Final = (0.25, 0.75, 2.0)
"""Seconds before the second, the third and the last lookup."""
_SHARE: Final = 0.1
_MOST_WAITING: Final = 6.0
"""Maximum waiting time at once, enough for two ids. It is regained over time, by ``_SHARE`` of the elapsed time."""
_LONGEST_LOOKUP: Final = 5.0
"""Seconds after which a lookup is not retried: with its retries it would take minutes."""
_REFUSED_FOR: Final = 5.0
"""Seconds in which an unknown id is not looked up again."""
_MOST_IDS: Final = 1000
"""Maximum number of such ids in memory."""


class SchemaNotFound(UnfitValue):
    """The registry does not have a schema, or one that it refers to, or refuses it."""


def expect_found(schema: T | None, schema_id: object, url: str) -> T:
    """Return the schema that a lookup in the registry at ``url`` has returned. Raise SchemaNotFound if it is None."""
    if schema is None:
        raise SchemaNotFound(f"the schema registry {url} has no schema {schema_id}")
    return schema


class SchemaLookupRetry:
    """Retries lookups of unknown schemas, within a time budget per codec.

    ``pauses``: before each retry; empty if the response cannot change.
    """

    def __init__(self, pauses: Sequence[float] = PAUSES) -> None:
        self._pauses = pauses
        self._left, self._counted_at = _MOST_WAITING, time.monotonic()
        self._refused: dict[Hashable, tuple[float, str]] = {}
        """Ids: until when they are refused unasked, and why."""

    def retry(self, schema_id: Hashable, ask: Callable[[], T]) -> T:
        """Call a lookup again until it finds the schema or the budget is spent.

        Then it raises SchemaNotFound.
        """
        now = time.monotonic()
        until, why = self._refused.get(schema_id, (now, ""))
        if now < until:
            raise SchemaNotFound(why)
        pauses = iter(self._pauses)
        while True:
            asked_at = time.monotonic()
            try:
                return ask()
            except SchemaNotFound as error:
                pause = next(pauses, None)
                slow = time.monotonic() - asked_at > _LONGEST_LOOKUP
                if pause is None or slow or not self._may_wait(pause):
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

    def _refuse(self, schema_id: Hashable, error: SchemaNotFound) -> None:
        now = time.monotonic()
        self._refused = {each: kept for each, kept in self._refused.items() if now < kept[0]}
        if len(self._refused) < _MOST_IDS:
            self._refused[schema_id] = now + _REFUSED_FOR, str(error)
