"""The jars that Spark gets read a real topic, headers and committed records only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from tests.waiting import PATIENCE


def write(bootstrap: str, topic: str, value: bytes, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{value.decode()}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, value, headers={"kafka_eos": b"job.1.2/orders/in/0/7/0.0"})
    assert producer.flush(PATIENCE) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(60)


def test_spark_reads_committed_records_and_their_headers(spark: Any, bootstrap: str, topic: Callable[..., str]) -> None:
    name = topic()
    write(bootstrap, name, b"aborted", commit=False)
    write(bootstrap, name, b"committed", commit=True)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": name,
        "includeHeaders": "true",
    }
    rows = spark.read.format("kafka").options(**options).load().select("value", "headers").collect()

    assert [(bytes(row.value), [(h.key, bytes(h.value)) for h in row.headers]) for row in rows] == [
        (b"committed", [("kafka_eos", b"job.1.2/orders/in/0/7/0.0")])
    ]
