"""Tumbling windows on timers: what each account was paid within fifty ids, and what its branch was, a stage further.

The id of a payment tells its event time, in milliseconds since ``TEST_BASE``, so that a test can tell every window from
the input. That is not long ago: a broker drops records of long ago.
"""

import os
import time
from collections.abc import Iterable

import msgspec

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, monotonic
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

SIZE = 50
BASE = int(os.environ["TEST_BASE"])
PAUSE = float(os.environ.get("TEST_PAUSE", "0.0002"))
IDLE = float(os.environ.get("TEST_IDLE", "0"))
SILENCE = float(os.environ.get("TEST_SILENCE", "0"))
STRATEGY = monotonic().with_idleness(IDLE) if IDLE else monotonic()
STRATEGY = STRATEGY.with_clock(after=SILENCE) if SILENCE else STRATEGY
AFTER = float(os.environ.get("TEST_PAUSE_AFTER", "0"))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Sum(msgspec.Struct):
    key: str
    end: int
    total: int
    count: int


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


class Windows(ProcessFunction[str, Payment, Sum]):
    """One sum a key and window, when event time has come to the window's end."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers, self.paid = ctx, ctx.timers(), ctx.counter("paid")
        self.sums = ctx.map_state("sums", int, Sum)

    def process(self, key: str, value: Payment) -> Iterable[Sum]:
        time.sleep(AFTER)
        self.paid.inc(value.amount)
        assert self.ctx.timestamp > self.ctx.watermark, "a payment is late, and none is"
        end = (self.ctx.timestamp // SIZE + 1) * SIZE
        sum_ = self.sums.get(end) or Sum(key, end, 0, 0)
        self.sums.put(end, Sum(key, end, sum_.total + value.amount, sum_.count + 1))
        assert self.timers.register(end - 1) == end - 1
        return []

    def on_timer(self, key: str, at: int) -> Iterable[Sum]:
        found = self.sums.get(at + 1)
        assert found is not None, f"the window of {key} up to {at} has fired before"
        self.sums.remove(at + 1)
        return [found]


class Branches(ProcessFunction[str, Sum, Sum]):
    """What came of a branch in each window."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.sums = ctx.map_state("sums", int, Sum)

    def process(self, key: str, value: Sum) -> Iterable[Sum]:
        assert self.ctx.timestamp == value.end - 1
        before = self.sums.get(value.end) or Sum(key, value.end, 0, 0)
        self.sums.put(value.end, Sum(key, value.end, before.total + value.total, before.count + value.count))
        self.timers.register(value.end)
        return []

    def on_timer(self, key: str, at: int) -> Iterable[Sum]:
        found = self.sums.get(at)
        assert found is not None
        self.sums.remove(at)
        return [found]


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=100,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
windows = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .with_timestamps(lambda payment: BASE + payment.id, watermarks=STRATEGY)
    .map(slowly)
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .process(Windows, name="windows")
)
branches = windows.key_by(lambda sum_: f"b{int(sum_.key[1:]) % 4}", name="by-branch", values=Sum)
windows.union(branches.process(Branches, name="branches"), name="both").sink(
    KafkaSink(os.environ["TEST_OUTPUT"], value=Sum, key=lambda sum_: sum_.key), name="to-kafka"
)

if __name__ == "__main__":
    pipeline.run()
