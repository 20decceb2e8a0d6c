"""Timers in processing time: what has come of an account is handed on a moment later, each payment as a row."""

import os
import time
from collections.abc import Iterable

import msgspec

from kafka_eos import Pipeline, ProcessContext, ProcessFunction
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

PAUSE = float(os.environ.get("TEST_PAUSE", "0.0002"))
AFTER = round(1000 * float(os.environ.get("TEST_AFTER", "0.05")))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


def slowly(payment: Payment) -> Payment:
    time.sleep(PAUSE)
    return payment


class Gathered(ProcessFunction[str, Payment, Payment]):
    def open(self, ctx: ProcessContext) -> None:
        self.ctx, self.timers = ctx, ctx.processing_timers()
        self.waiting = ctx.list_state("waiting", Payment)

    def process(self, key: str, value: Payment) -> Iterable[Payment]:
        if not self.waiting.get():
            self.timers.register(self.ctx.processing_time + AFTER)
        self.waiting.add(value)
        return []

    def on_processing_timer(self, key: str, at: int) -> Iterable[Payment]:
        assert at <= self.ctx.processing_time, "a timer fires before its time"
        found = self.waiting.get()
        assert found, f"{key} fires at {at}, and nothing waits"
        self.waiting.clear()
        return found


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=100,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
(
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .map(slowly)
    .key_by(lambda payment: payment.account)
    .process(Gathered, name="gathered")
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Payment, key=lambda payment: payment.account), name="to-kafka")
)

if __name__ == "__main__":
    pipeline.run()
