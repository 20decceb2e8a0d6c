"""Avro in Confluent's wire format, written and read by Confluent's own serializers: a witness for ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka.schema_registry import Schema as Registered
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.producers import in_order
from tests.waiting import PATIENCE

Schema = Mapping[str, Any]


def record(name: str, **fields: Any) -> Schema:
    """``record("com.x.A", id="long", note=("string", "none"))``: a field may have a default."""
    made = [{"name": n, "type": tp[0], "default": tp[1]} if isinstance(tp, tuple) else {"name": n, "type": tp}
            for n, tp in fields.items()]  # fmt: skip
    return {"type": "record", "name": name, "fields": made}


def written(
    url: str, topic: str, schema: Schema, values: Iterable[Any], references: Mapping[str, Schema] | None = None
) -> list[bytes]:
    """Each value as Confluent's serializer writes it, which registers the schema; ``references`` by their names."""
    client, named = SchemaRegistryClient({"url": url}), list[SchemaReference]()
    for name, part in (references or {}).items():
        subject = f"{topic}-{name}"
        client.register_schema(subject, Registered(json.dumps(part), "AVRO"))
        named.append(SchemaReference(name, subject, 1))
    serialize = AvroSerializer(client, Registered(json.dumps(schema), "AVRO", named))
    return [serialize(value, SerializationContext(topic, MessageField.VALUE)) for value in values]


def told(url: str, data: bytes) -> Any:
    """What Confluent's deserializer makes of it."""
    return AvroDeserializer(SchemaRegistryClient({"url": url}))(data, None)


def send(bootstrap: str, topic: str, values: Iterable[bytes]) -> None:
    producer = in_order(bootstrap)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE) == 0
