"""Clients with which tests write topics.

Rule: what a client sends again stays in its order, and is there once. A topic that was just made may answer the first
request of a client that it has no leader yet, and take the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Producer

from tests.waiting import PATIENCE

_ONE_AT_A_TIME: Final[Mapping[str, Any]] = {
    "acks": "all",
    "max.in.flight.requests.per.connection": 1,
    "request.timeout.ms": int(PATIENCE * 1000),  # a request without an answer is never sent again
}
_IDEMPOTENT: Final[Mapping[str, Any]] = {"enable.idempotence": True}


def in_order(bootstrap: str, settings: Mapping[str, Any] | None = None) -> Producer:
    """A client that keeps the rule. Only one of several brokers, which may die, needs an idempotent one: librdkafka
    waits half a second before it asks for the id of such a client.
    """
    kept = _IDEMPOTENT if "," in bootstrap else _ONE_AT_A_TIME
    return Producer({"bootstrap.servers": bootstrap, **kept, **(settings or {})})


def in_transactions(bootstrap: str, transactional_id: str, settings: Mapping[str, Any] | None = None) -> Producer:
    """A client that can begin a transaction. It has met its broker before it asks for its id: else it may wait too."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **(settings or {})})
    producer.list_topics(timeout=PATIENCE)
    producer.init_transactions(PATIENCE)
    return producer
