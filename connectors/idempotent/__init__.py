"""Any system that honours idempotency keys: ``IdempotentSink``, for which you write what sends.

Rule: how rows wait for their epoch, and which key each has, is in ``outbox``.
"""

from __future__ import annotations

from kafka_eos.connectors._outbox.outbox_rows import Row
from kafka_eos.connectors.idempotent.receiver import Receiver, Refused
from kafka_eos.connectors.idempotent.sink import IdempotentSink

__all__ = ["IdempotentSink", "Receiver", "Refused", "Row"]
