"""Any system that honours idempotency keys: ``IdempotentSink``, for which you write what sends.

Rule: how rows wait for their epoch, and which key each has, is in ``outbox``.
"""

from __future__ import annotations

from kafka_eos.connectors.idempotent.receiver import Receiver, Refused
from kafka_eos.connectors.idempotent.sink import IdempotentSink
from kafka_eos.connectors.outbox.rows import Row

__all__ = ["IdempotentSink", "Receiver", "Refused", "Row"]
