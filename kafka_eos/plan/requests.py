"""The nodes of ``async_map``: where rows wait for answers from outside.

Rule: the rows that wait are those on their way through the exchange in front. So a checkpoint holds them as it holds
any rows under way, and whoever restores it asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kafka_eos.interfaces import Breaker, Retries
from kafka_eos.plan.nodes import Forward, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests(Forward):
    """The exchange in front of an ``AsyncMap``. It numbers the outputs of a row: answers come one by one."""

    kind: ClassVar[str] = "requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncMap(Node):
    """Asks for each row. Its input is a ``Requests``.

    ``capacity``: requests at a time. ``timeout``: seconds for one try. ``retry_on``: errors that another try may not
    have. ``failed``: the tag of values without an answer; without one, their records are refused.
    """

    kind: ClassVar[str] = "async-map"

    fn: Callable[[Any], Any]
    ordered: bool
    capacity: int
    timeout: float
    retries: Retries | None
    breaker: Breaker | None
    retry_on: tuple[type[Exception], ...]
    failed: str | None
