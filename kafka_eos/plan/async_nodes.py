"""The nodes of ``async_map``: rows that wait for responses of an external service.

Rule: waiting rows are the in-flight rows of the exchange in front. So a checkpoint holds them like any in-flight rows,
and a restore sends the requests again. Cached responses are state of their keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import Ttl
from kafka_eos.plan.nodes import ForwardNode, Node
from kafka_eos.plan.retries import Breaker, Retries


class RequestExchangeNode(ForwardNode, frozen=True, kw_only=True):
    """Forward exchange in front of an async_map, which holds its in-flight rows.

    It numbers the outputs of a row, because responses arrive one by one.
    """

    kind: ClassVar[str] = "requests"


class AsyncMapNode(Node, frozen=True, kw_only=True):
    """Makes an asynchronous request for each row. Its input is a ``RequestExchangeNode``.

    ``capacity``: requests at a time. ``timeout``: seconds per attempt. ``retry_on``: errors that are retried.
    ``failed``: the tag of values without a response; without a tag, their records are rejected.
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


class CachedAsyncMapNode(AsyncMapNode, frozen=True, kw_only=True):
    """Makes an asynchronous request for each key, and caches the response as state.

    Its input is a ``RequestExchangeNode`` behind a ``key_by``. ``fn`` takes a key, ``join`` a row and the response for
    its key. ``answers``: the codec of cached responses. ``cache``: for how long they are kept.
    """

    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    join: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    answers: Codec[Any]
    cache: Ttl
