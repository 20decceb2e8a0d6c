"""Any system that honors idempotency keys: ``IdempotentSink``, for which you write the sending code.

Rule: ``_outbox`` keeps rows until their epoch is decided, and defines their keys.
"""

from __future__ import annotations

from kafka_eos.connectors._outbox.outbox_rows import Row
from kafka_eos.connectors.idempotent.receiver import DeliveryRefused, Receiver
from kafka_eos.connectors.idempotent.sink import IdempotentSink

__all__ = ["IdempotentSink", "Receiver", "DeliveryRefused", "Row"]
