"""Two topics of which one may be a day ahead: windows of both, whose sources keep together if ``TEST_DRIFT`` says so.

The id of a payment tells its event time, in milliseconds since ``TEST_BASE``; a topic's name stands in the results.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline, Stream, Windowed, monotonic, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

BASE = int(os.environ["TEST_BASE"])
PAUSE = float(os.environ.get("TEST_PAUSE", "0"))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Sum(msgspec.Struct):
    key: str
    start: int
    ids: list[int]


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


def add(ids: list[int], payment: Payment) -> list[int]:
    return sorted([*ids, payment.id])


def shown(found: Windowed[str, list[int]]) -> Sum:
    return Sum(found.key, found.window.start - BASE, found.value)


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    retained_checkpoints=1000,
    batch_size=50,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "memory"),
)
watermarks = monotonic()
if "TEST_DRIFT" in os.environ:
    watermarks = watermarks.with_alignment(max_drift=float(os.environ["TEST_DRIFT"]))
if "TEST_IDLE_AFTER" in os.environ:
    watermarks = watermarks.with_idleness(float(os.environ["TEST_IDLE_AFTER"]))


def timed(topic: str, name: str) -> Stream[Payment]:
    return pipeline.source(KafkaSource(topic, value=Payment), name=name).with_timestamps(
        lambda payment: BASE + payment.id, watermarks=watermarks, name=f"{name}-times"
    )


(
    timed(os.environ["TEST_INPUT"], "slow")
    .union(timed(os.environ["TEST_FAST"], "fast"), name="both")
    .map(slowly)
    .key_by(lambda payment: payment.account)
    .window(tumbling(seconds=0.05))
    .fold(name="windows", init=list, step=add, state=list[int])
    .map(shown, name="shown")
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Sum, key=lambda sum_: sum_.key), name="to-kafka")
)

if __name__ == "__main__":
    pipeline.run()
