"""Clients with which tests write topics.

Rule: what a client sends again stays in its order, and is there once. A topic that was just made may answer the first
request of a client that it has no leader yet, and take the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer


def in_order(bootstrap: str, settings: Mapping[str, Any] | None = None) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **(settings or {})})
