"""A loop with state: payments are tried up to five times, and an account that failed too often is left alone.

Topic ``payments`` in; ``settled`` and ``given-up`` out. What is still to be tried goes round; rows on their way round
are part of every checkpoint, so a kill neither loses an attempt nor makes it twice.
"""

from collections.abc import Iterable

import msgspec

from kafka_eos import Pipeline, Stream
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.plan.process_functions import ProcessContext, ProcessFunction

MOST = 5


class Payment(msgspec.Struct, frozen=True):
    id: int
    account: str
    amount: int
    attempts: int = 0
    state: str = "open"


class Charge(ProcessFunction[str, Payment, Payment]):
    """One attempt. Whether it succeeds depends on the payment alone, so that every run can be compared."""

    def open(self, ctx: ProcessContext) -> None:
        self.failed = ctx.value_state("failed", int, 0)

    def process(self, key: str, value: Payment) -> Iterable[Payment]:
        attempts = value.attempts + 1
        succeeds = (value.id + attempts) % 7 == 0
        self.failed.put(self.failed.get() + (not succeeds))
        state = "settled" if succeeds else "given up" if attempts == MOST else "open"
        return [Payment(value.id, key, value.amount, attempts, state)]


def tried(payments: Stream[Payment]) -> tuple[Stream[Payment], Stream[Payment]]:
    """What goes round again, and what leaves."""
    charged = payments.key_by(lambda payment: payment.account).process(Charge, name="charge")
    return charged.filter(lambda p: p.state == "open"), charged.filter(lambda p: p.state != "open")


def account(payment: Payment) -> str:
    return payment.account


pipeline = Pipeline("retries")
done = pipeline.source(KafkaSource("payments", value=Payment), name="payments").iterate(tried, name="try")
done.filter(lambda p: p.state == "settled").sink(KafkaSink("settled", value=Payment, key=account), name="settled")
done.filter(lambda p: p.state == "given up").sink(KafkaSink("given-up", value=Payment, key=account), name="given-up")

if __name__ == "__main__":
    pipeline.run()
