"""A loop with state: each payment goes round until it has been seen three times, and counts what its account saw."""

import os
import time
from collections.abc import Iterable

import msgspec

from kafka_eos import Pipeline, Stream
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.plan.process_functions import ProcessContext, ProcessFunction

ROUNDS = 3
PAUSE = float(os.environ.get("TEST_PAUSE", "0"))


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int
    seen: int = 0


class Visit(msgspec.Struct):
    account: str
    total: int
    id: int


class Count(ProcessFunction[str, Payment, Payment]):
    """Each visit adds the amount to the account's total; the last visit leaves with it."""

    def open(self, ctx: ProcessContext) -> None:
        self.total = ctx.value_state("total", int, 0)

    def process(self, key: str, value: Payment) -> Iterable[Payment]:
        time.sleep(PAUSE)
        self.total.put(self.total.get() + value.amount)
        amount = self.total.get() if value.seen == ROUNDS - 1 else value.amount
        return [Payment(value.id, key, amount, value.seen + 1)]


def body(payments: Stream[Payment]) -> tuple[Stream[Payment], Stream[Payment]]:
    counted = payments.key_by(lambda p: p.account).process(Count, name="count")
    return counted.filter(lambda p: p.seen < ROUNDS), counted.filter(lambda p: p.seen == ROUNDS)


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=100,
    restart_backoff_initial=0.05,
)
(
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .filter(lambda p: p.amount > 0)
    .iterate(body, name="rounds")
    .map(lambda p: Visit(p.account, p.amount, p.id))
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Visit, key=lambda v: v.account), name="to-kafka")
)

if __name__ == "__main__":
    pipeline.run()
