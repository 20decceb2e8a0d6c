"""JSON in Confluent's wire format by Confluent's own serializers, which compare each value with its schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext


def written(url: str, topic: str, schema: dict[str, Any], values: Iterable[Any]) -> list[bytes]:
    """Each value as Confluent's serializer writes it, which registers the schema."""
    serialize = JSONSerializer(json.dumps(schema), SchemaRegistryClient({"url": url}))
    return [serialize(value, SerializationContext(topic, MessageField.VALUE)) for value in values]


def told(url: str, topic: str, data: bytes) -> Any:
    """What Confluent's deserializer makes of it. Raises if it does not fit the schema that it was written with."""
    deserialize = JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": url}))
    return deserialize(data, SerializationContext(topic, MessageField.VALUE))
