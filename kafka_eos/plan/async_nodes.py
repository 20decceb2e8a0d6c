"""The nodes of ``async_map``: where rows wait for answers from outside.

Rule: the rows that wait are those on their way through the exchange in front. So a checkpoint holds them as it holds
any rows under way, and whoever restores it asks again. Answers that are kept for a key are its state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import Ttl
from kafka_eos.plan.nodes import Forward, Node
from kafka_eos.plan.retries import Breaker, Retries


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAsyncMap(AsyncMap):
    """Asks for the key of a row, unless the key's answer is kept. Its input is a ``Requests`` behind a ``key_by``.

    ``fn`` is of a key, ``join`` of a row and the answer for its key. ``answers``: the codec of what is kept. ``cache``:
    how long.
    """

    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    join: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    answers: Codec[Any]
    cache: Ttl
