"""Rows that nobody has said the type of, and that cannot be written, wait where two ways meet: a slow place."""

import os
import time

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

AFTER = float(os.environ.get("TEST_PAUSE_AFTER", "0"))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Item(msgspec.Struct):
    account: str
    id: int
    number: int


class Held:
    """Nothing that a codec knows."""

    def __init__(self, payment: Payment, number: int) -> None:
        self.payment, self.number = payment, number


def item(held: Held) -> Item:
    time.sleep(AFTER)
    return Item(held.payment.account, held.payment.id, held.number)


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=20,
    restart_backoff_initial=0.05,
)
payments = pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
over = payments.rebalance(name="over", values=Payment).map(lambda payment: Held(payment, 0), name="went-over")
(
    over.union(payments.map(lambda payment: Held(payment, 1), name="stayed"), name="both")
    .map(item, name="items")
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Item, key=lambda row: row.account), name="to-kafka")
)

if __name__ == "__main__":
    pipeline.run()
