"""Payments of files, or of a table, and then those of a topic: each goes out when event time has come to it.

The id of a payment tells its event time, in milliseconds since ``TEST_BASE``. None is late: those of the topic have
higher ids than those of the files, and names of files tell their order.
"""

import os
import time
from collections.abc import Iterable

import msgspec

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, monotonic
from kafka_eos.connectors.files import FileSource
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.postgres import PostgresSource

BASE = int(os.environ["TEST_BASE"])
PAUSE = float(os.environ.get("TEST_PAUSE", "0"))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Sent(msgspec.Struct):
    id: int
    account: str
    live: bool


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


class InOrder(ProcessFunction[str, Payment, Sent]):
    """A payment at its time, and whether some of the topic had come by then."""

    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.timers()
        self.waiting = ctx.map_state("waiting", int, Payment)
        self.live = ctx.value_state("live", bool)

    def process(self, key: str, value: Payment) -> Iterable[Sent]:
        assert self.ctx.timestamp > self.ctx.watermark, f"payment {value.id} is late, and none is"
        self.waiting.put(self.ctx.timestamp, value)
        self.timers.register(self.ctx.timestamp)
        if value.id >= int(os.environ["TEST_IN_FILES"]):
            self.live.put(True)
        return []

    def on_timer(self, key: str, at: int) -> Iterable[Sent]:
        payment = self.waiting.get(at)
        assert payment is not None, f"the payment of {key} at {at} was sent before"
        self.waiting.remove(at)
        return [Sent(payment.id, key, self.live.get() or False)]


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=20,
    restart_backoff_initial=0.05,
)
DATABASE = os.environ.get("TEST_DATABASE")
first = (
    PostgresSource(DATABASE, "payments", value=Payment, splits=4)
    if DATABASE
    else FileSource(os.environ["TEST_HISTORY"], value=Payment, format="parquet", until="latest", in_order=True)
)
history = pipeline.source(first, name="history").with_timestamps(
    lambda payment: BASE + payment.id, watermarks=monotonic()
)
live = pipeline.source(
    KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="live", after=history
).with_timestamps(lambda payment: BASE + payment.id, watermarks=monotonic())
(
    history.union(live, name="both")
    .map(slowly)
    .key_by(lambda payment: payment.account)
    .process(InOrder, name="in-order")
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Sent, key=lambda sent: sent.account), name="sent")
)

if __name__ == "__main__":
    pipeline.run()
