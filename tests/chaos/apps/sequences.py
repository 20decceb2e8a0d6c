"""Patterns of an account: two payments of the first kind, and then one of the second, in a tenth of a second.

The id of a payment tells its event time, in milliseconds since ``TEST_BASE``, and its kind; see ``windows.py``.
"""

import os
import time

import msgspec

from kafka_eos import OutputTag, Pattern, Pipeline, Stream, bounded
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

BASE = int(os.environ["TEST_BASE"])
PAUSE = float(os.environ.get("TEST_PAUSE", "0.0002"))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Found(msgspec.Struct):
    kind: str
    key: str
    ids: list[int]


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


def kind_of(number: int) -> int:
    """Of 0, 1 and 2, in no order that one would guess."""
    return number * 2654435761 % 2**32 // 1431655766


def found(key: str, rows: dict[str, list[Payment]]) -> Found:
    return Found("found", key, [row.id for row in (*rows["failed"], *rows["in"])])


def over(key: str, rows: dict[str, list[Payment]]) -> Found:
    return Found("over", key, [row.id for row in rows["failed"]])


OVER = OutputTag("over", Found)
pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=100,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
read: Stream[Payment] = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .with_timestamps(lambda payment: BASE + payment.id, watermarks=bounded(0.1))
    .map(slowly)
)
guessed = (
    Pattern[Payment]
    .begin("failed", lambda payment: kind_of(payment.id) == 0)
    .times(2)
    .followed_by("in", lambda payment: kind_of(payment.id) == 1)
    .within(seconds=0.1)
)
matches = read.key_by(lambda payment: payment.account, name="by-account").match(
    guessed, found, name="guessed", timed_out=OVER, on_timeout=over
)
matches.union(matches.side_output(OVER), name="all").sink(
    KafkaSink(os.environ["TEST_OUTPUT"], value=Found, key=lambda row: row.key), name="to-kafka"
)

if __name__ == "__main__":
    pipeline.run()
