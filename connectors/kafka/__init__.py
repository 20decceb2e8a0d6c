"""Apache Kafka: ``KafkaSource``, ``KafkaSink``, whole ``Record``s, and ``dead_letter`` topics.

Rule: only ``client.librdkafka`` imports confluent_kafka; requests that librdkafka cannot send are sent by ``rpc``.
"""

from __future__ import annotations

from typing import Any

from kafka_eos.abc.sink import DeadLetters
from kafka_eos.connectors.kafka.sink.kafka_sink import KafkaSink
from kafka_eos.connectors.kafka.source.kafka_source import KafkaSource
from kafka_eos.core.records import Record

__all__ = ["KafkaSink", "KafkaSource", "Record", "dead_letter"]


def dead_letter(topic: str, **options: Any) -> DeadLetters:
    """Write records that cannot be processed to ``topic``, in the same epoch, and continue.

    Each keeps its key, value, headers and timestamp; headers ``dead_letter.topic``, ``.partition``, ``.offset``,
    ``.operator``, ``.error``, ``.message`` give its origin and the reason. ``options`` are those of ``KafkaSink``:
    bootstrap_servers, config, delivery, transaction_timeout.
    """
    return DeadLetters(KafkaSink.dead_letters(topic, **options))
