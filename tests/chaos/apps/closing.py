"""Windows that end for many keys at once, and take their time over it: how many payments each account had in each.

The id of a payment tells its window and its account: ``window * KEYS + account``. See ``windows.py`` for its time.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline, Windowed, monotonic, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

BASE = int(os.environ["TEST_BASE"])
PAUSE = float(os.environ.get("TEST_PAUSE", "0"))
KEYS = int(os.environ["TEST_KEYS"])


class Payment(msgspec.Struct):
    id: int


class Count(msgspec.Struct):
    key: int
    window: int
    count: int


def slowly(found: Windowed[int, int]) -> Count:
    time.sleep(PAUSE)
    return Count(found.key, (found.window.start - BASE) // 1000, found.value)


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.05,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
(
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .with_timestamps(lambda payment: BASE + payment.id // KEYS * 1000, watermarks=monotonic())
    .key_by(lambda payment: payment.id % KEYS)
    .window(tumbling(seconds=1))
    .fold(name="counts", init=lambda: 0, step=lambda count, payment: count + 1)
    .map(slowly)
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Count, key=lambda found: str(found.key)), name="to-kafka")
)

if __name__ == "__main__":
    pipeline.run()
