"""A job that has something to show in every panel of the dashboard for Grafana: refused, late, stored beside the cache.

The id of a payment tells its event time, in milliseconds since ``TEST_BASE``. Payments of 13 are refused.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline, monotonic, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

BASE = int(os.environ["TEST_BASE"])


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Sum(msgspec.Struct):
    account: str
    total: int


def checked(payment: Payment) -> Payment:
    time.sleep(0.002)
    if payment.amount == 13:
        raise ValueError("an amount of 13")
    return payment


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.2,
    restart_backoff_initial=0.05,
    state_cache_entries=2,
    max_dead_letters="none",
)
source = KafkaSource(os.environ["TEST_INPUT"], value=Payment)
(
    pipeline.source(source, name="payments", on_error=dead_letter(os.environ["TEST_LETTERS"]))
    .with_timestamps(lambda payment: BASE + payment.id, watermarks=monotonic())
    .map(checked, name="checked")
    .key_by(lambda payment: payment.account)
    .window(tumbling(seconds=0.05))
    .fold(name="sums", init=lambda: 0, step=lambda total, payment: total + payment.amount, state=int)
    .map(lambda found: Sum(found.key, found.value), name="shown")
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Sum, key=lambda sum_: sum_.account), name="totals")
)

if __name__ == "__main__":
    pipeline.run()
