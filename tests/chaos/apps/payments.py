"""Kafka to Kafka, with what a user chooses about the input: where to start, and what becomes of bad records.

Every user function has records that it refuses: ``map`` amounts of 13, the fold's ``step`` and ``emit`` some ids.
"""

import os
import time
from datetime import datetime

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Total(msgspec.Struct):
    account: str
    total: int
    id: int


BAD = os.environ.get("TEST_BAD", "none").split(",")
LETTERS = os.environ.get("TEST_LETTERS")
START = os.environ.get("TEST_START", "earliest")


PAUSE = float(os.environ.get("TEST_PAUSE", "0"))


def checked(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    if "map" in BAD and payment.amount == 13:
        raise ValueError("an amount of 13")
    return payment


def add(total: Total, payment: Payment) -> Total:
    if "step" in BAD and payment.id % 50 == 3:
        raise ArithmeticError("an id of 3")
    return Total(payment.account, total.total + payment.amount, payment.id)


def emitted(account: str, total: Total) -> Total:
    if "emit" in BAD and total.id % 50 == 4:
        raise LookupError("an id of 4")
    return total


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=50,
    restart_backoff_initial=0.05,
)
(
    pipeline.source(
        KafkaSource(
            [os.environ["TEST_INPUT"], *filter(None, [os.environ.get("TEST_OTHER")])],
            value=Payment,
            start=datetime.fromisoformat(START) if START[0].isdigit() else START,
        ),
        name="payments",
        on_error=dead_letter(LETTERS) if LETTERS else "stop",
    )
    .map(checked, name="checked")
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=emitted)
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
)

if __name__ == "__main__":
    pipeline.run()
