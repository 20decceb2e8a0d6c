"""W1 as a loop over confluent-kafka that secures each record, or each few. BENCH_DESIGN says how:

    acknowledged    each record: write it, wait for the acknowledgement, commit its offset
    transactions    offsets and output of at most BENCH_SIZE records in one transaction

It resumes at the committed offsets. Partitions are assigned by hand, so a restart need not wait until the broker has
given up the group's dead member.
"""

import os
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

SERVERS = {"bootstrap.servers": os.environ["BENCH_BOOTSTRAP"]}
INPUT, OUTPUT = os.environ["BENCH_INPUT"], os.environ["BENCH_OUTPUT"]
SIZE = int(os.environ["BENCH_SIZE"])
PARTITIONS = 4


def resumed() -> Consumer:
    """Return a consumer of all partitions, at the committed offsets."""
    consumer = Consumer(
        {**SERVERS, "group.id": f"loop-{OUTPUT}", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
    )
    known = consumer.committed([TopicPartition(INPUT, p) for p in range(PARTITIONS)], 60)
    for place in known:
        place.offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
    consumer.assign(known)
    return consumer


def doubled(message: Message) -> bytes | None:
    payment: dict[str, Any] = orjson.loads(message.value() or b"")
    if payment["amount"] % 10 == 7:
        return None
    payment["twice"] = 2 * payment["amount"]
    return orjson.dumps(payment)


def received(consumer: Consumer, most: int) -> list[Message]:
    messages = consumer.consume(most, 0.01)
    for message in messages:
        if (error := message.error()) is not None:
            raise KafkaException(error)
    return messages


def acknowledge_each() -> None:
    producer, consumer = Producer({**SERVERS, "acks": "all", "linger.ms": 0}), resumed()
    while True:
        for message in received(consumer, 1):
            if (value := doubled(message)) is not None:
                producer.produce(OUTPUT, value)
                producer.flush()
            consumer.commit(message=message, asynchronous=False)


def commit_transactions() -> None:
    producer = Producer({**SERVERS, "transactional.id": f"loop-{OUTPUT}", "linger.ms": 0 if SIZE == 1 else 5})
    producer.init_transactions(60)  # first: it ends a transaction that a dead process has left, with its offsets
    consumer = resumed()
    while True:
        if not (messages := received(consumer, SIZE)):
            continue
        producer.begin_transaction()
        for message in messages:
            if (value := doubled(message)) is not None:
                producer.produce(OUTPUT, value)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
        )
        producer.commit_transaction(60)


{"acknowledged": acknowledge_each, "transactions": commit_transactions}[os.environ["BENCH_DESIGN"]]()
