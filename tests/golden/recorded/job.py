"""The job that the golden job directories in this folder were made of: provenance is recorded beside a topic.

Its sixty payments are in the file. One of its sinks is a topic of three partitions.
"""

import os
from collections.abc import Iterable

import msgspec
import pydantic

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, ValueState
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.testing import ListSource


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Total(msgspec.Struct):
    total: int
    last: int


class Largest(pydantic.BaseModel):
    account: str
    amount: int


class Seen(ProcessFunction[str, Payment, int]):
    count: ValueState[int]
    ids: ValueState[list[int]]

    def open(self, ctx: ProcessContext) -> None:
        self.count = ctx.value_state("count", int, 0)
        self.ids = ctx.value_state("ids", list[int], [])

    def process(self, key: str, payment: Payment) -> Iterable[int]:
        self.count.put(self.count.get() + 1)
        self.ids.put([*self.ids.get(), payment.id])
        yield self.count.get()


PAYMENTS = [Payment(n, f"a{n % 20}", 0 if n % 10 == 7 else n % 13 + 1) for n in range(60)]

pipeline = Pipeline(
    f"golden-{os.environ['TEST_BACKEND']}",
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=60,
    state_backend=os.environ["TEST_BACKEND"],
)
payments = pipeline.source(ListSource(PAYMENTS), name="payments").key_by(
    lambda payment: payment.account, name="by-account"
)
payments.fold(
    name="total",
    init=lambda: Total(0, -1),
    step=lambda total, payment: Total(total.total + payment.amount, payment.id),
).map(lambda pair: b"%d" % pair[1].total, name="numbers").sink(
    KafkaSink(os.environ["TEST_TOPIC"], value=bytes, provenance="ledger"), name="totals"
)
payments.process(Seen, name="seen").sink(FileSink(os.environ["TEST_FILES"] + "/counts"), name="counts")
(
    pipeline.source(ListSource(PAYMENTS), name="again")
    .map(lambda payment: Largest(account=payment.account, amount=payment.amount), name="amounts")
    .key_by(lambda amount: amount.account, name="by-account-too")
    .reduce(lambda a, b: a if a.amount >= b.amount else b, name="largest", state=Largest)
    .sink(FileSink(os.environ["TEST_FILES"] + "/amounts", value=Largest), name="amounts-out")
)
