"""Topics whose values have schemas of a registry: their fields are ids, whatever language they are in."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from google.protobuf.message_factory import GetMessageClass

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.codecs import Registry, avro
from kafka_eos.codecs.protobuf.descriptor_pools import load_schema
from kafka_eos.codecs.registry.registry_client import RegisteredSchema
from tests.audit.topic_pair import first, found
from tests.registry_server import RegistryServer
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)
TOTAL = 'syntax = "proto3"; message Total { int64 order_id = 1; int64 total = 2; }'
ORDERS = 12


class Order(msgspec.Struct):
    order_id: int
    amount: int


def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE) == 0


@pytest.mark.campaign
def test_outputs_in_protobuf_are_compared_with_inputs_in_avro(
    bootstrap: str, topic: Callable[..., str], registry: RegistryServer, spark: Any
) -> None:
    """One is lost, one is there twice. A value of an unknown schema has no id."""
    source, target, known = topic(), topic(), Registry(registry.url)
    orders = avro(Order, registry=known, auto_register=True).for_topic(source, "value")
    orders.check()
    schema_id = known.register(f"{target}-value", RegisteredSchema("PROTOBUF", TOTAL))
    message = GetMessageClass(load_schema(TOTAL, {}).message_types_by_name["Total"])
    totals = [
        struct.pack(">bI", 0, schema_id) + b"\0" + message(order_id=n, total=n * 2).SerializeToString()
        for n in range(ORDERS)
    ]
    write(bootstrap, source, [orders.encode(Order(n, n)) for n in range(ORDERS)])
    write(bootstrap, target, [*totals[:5], *totals[6:], totals[7]])
    question = TopicAuditOptions(
        bootstrap, (source,), (target,), "get_json_object(value, '$.order_id')", registry=registry.url
    )

    verdict = audit_topics(question, spark=spark)
    write(bootstrap, target, [struct.pack(">bI", 0, (1 << 31) - 2) + b"{}"])
    unknown = audit_topics(question, spark=spark)

    assert {Check.LOST: 1, Check.DUPLICATE: 1} == found(verdict), verdict.headline
    assert 'id 5: {"order_id":5,"amount":5}' in first(verdict, Check.LOST)
    assert Conclusion.INCONCLUSIVE is unknown.conclusion
    assert f"1 outputs have no valid id {question.id!r}; the first is {target}/0/{ORDERS}" in unknown.headline
