"""Windows of rows that expire by the timestamps of records, and one by the clock that outlives the job.

Each tells of the payments that are in it; see ``test_expiring_windows.py``.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline, Ttl, Window, global_, rows
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

SECONDS, PAUSE = float(os.environ["TEST_SECONDS"]), float(os.environ["TEST_PAUSE"])


class Payment(msgspec.Struct):
    id: int
    account: str


class Found(msgspec.Struct):
    kind: str
    account: str
    start: int
    end: int
    ids: list[int]


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


def in_threes(account: str, window: Window, payments: list[Payment]) -> list[Found]:
    return [Found("threes", account, window.start, window.end, [payment.id for payment in payments])]


def in_hour(account: str, window: Window, payments: list[Payment]) -> list[Found]:
    return [Found("hour", account, window.start, window.end, [payment.id for payment in payments])]


def add(ids: list[int], payment: Payment) -> list[int]:
    return [*ids, payment.id]


def plus(one: list[int], other: list[int]) -> list[int]:
    return one + other


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=20,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
by_account = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .map(slowly)
    .key_by(lambda payment: payment.account)
)
ttl = Ttl(SECONDS, clock="event")
threes = by_account.window(rows(3), ttl=ttl).process(in_threes, name="threes")
hour = by_account.window(rows(4), ttl=Ttl(3600)).process(in_hour, name="hour")
sliding = by_account.window(rows(3, every=2), ttl=ttl).fold(
    name="sliding", init=list, step=add, merge=plus, state=list[int],
    emit=lambda account, window, ids: Found("sliding", account, window.start, window.end, ids),
)  # fmt: skip
ever = by_account.window(global_(every=2), ttl=ttl).fold(
    name="ever", init=list, step=add, merge=plus, state=list[int],
    emit=lambda account, window, ids: Found("ever", account, window.start, window.end, ids),
)  # fmt: skip
threes.union(hour, sliding, ever, name="all").sink(
    KafkaSink(os.environ["TEST_OUTPUT"], value=Found, key=lambda found: found.account), name="to-kafka"
)

if __name__ == "__main__":
    pipeline.run()
