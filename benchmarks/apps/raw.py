"""Both workloads as a careful loop over confluent-kafka and orjson: what a Python program can reach at all.

W1 is exactly-once: offsets and output in one transaction a second. W2 keeps its sums in a dict that a crash loses,
so it is faster than anything that could be recovered.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

SERVERS = {"bootstrap.servers": os.environ["BENCH_BOOTSTRAP"]}
INPUT, OUTPUT = os.environ["BENCH_INPUT"], os.environ["BENCH_OUTPUT"]
PARTITIONS = 4
INTERVAL = 1.0

totals: dict[str, int] = {}


def double(message: Message) -> tuple[bytes | None, Any]:
    payment = orjson.loads(message.value() or b"")
    if payment["amount"] % 10 == 7:
        return None, None
    payment["twice"] = 2 * payment["amount"]
    return orjson.dumps(payment), None


def add(message: Message) -> tuple[bytes | None, Any]:
    payment = orjson.loads(message.value() or b"")
    account = payment["account"]
    total = totals[account] = totals.get(account, 0) + payment["amount"]
    return orjson.dumps({"account": account, "total": total}), account


def transform(messages: list[Message], work: Callable[[Message], tuple[bytes | None, Any]], producer: Producer) -> None:
    for message in messages:
        value, key = work(message)
        while value is not None:
            try:
                producer.produce(OUTPUT, value, key)
                break
            except BufferError:
                producer.poll(0.05)
    producer.poll(0)


def main() -> None:
    consumer = Consumer(
        {
            **SERVERS,
            "group.id": f"raw-{OUTPUT}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 200_000,
            "fetch.message.max.bytes": 4_194_304,
        }
    )
    producer = Producer(
        {
            **SERVERS,
            "transactional.id": f"raw-{OUTPUT}",
            "linger.ms": 20,
            "batch.size": 262_144,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
        }
    )
    producer.init_transactions(30)
    consumer.assign([TopicPartition(INPUT, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    work = double if os.environ["BENCH_WORKLOAD"] == "W1" else add
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        producer.begin_transaction()
        due = time.monotonic() + INTERVAL
        while time.monotonic() < due and len(ended) < PARTITIONS:
            messages = consumer.consume(10_000, 0.05)
            ended |= {m.partition() for m in messages if _is_end(m)}
            transform([m for m in messages if m.error() is None], work, producer)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
        )
        producer.commit_transaction(30)
    consumer.close()


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise RuntimeError(str(error))
    return error is not None


main()
