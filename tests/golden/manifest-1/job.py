"""The job that the golden job directories in this folder were made of: every kind of state of manifest format 1."""

import os
from collections.abc import Iterable

import msgspec
import pydantic

from kafka_eos import KeyState, Pipeline, ProcessContext, ProcessFunction
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSource


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
    count: KeyState[int]
    ids: KeyState[list[int]]

    def open(self, ctx: ProcessContext) -> None:
        self.count = ctx.value_state("count", int, 0)
        self.ids = ctx.value_state("ids", list[int], [])

    def process(self, key: str, payment: Payment) -> Iterable[int]:
        self.count.put(self.count.get() + 1)
        self.ids.put([*self.ids.get(), payment.id])
        yield self.count.get()


pipeline = Pipeline(
    f"golden-{os.environ['TEST_BACKEND']}",
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=20,
    state_backend=os.environ["TEST_BACKEND"],
)
payments = pipeline.source("payments", KafkaSource(os.environ["TEST_INPUT"], value=Payment)).key_by(
    lambda payment: payment.account, name="by-account"
)
payments.fold(
    "total",
    init=lambda: Total(0, -1),
    step=lambda total, payment: Total(total.total + payment.amount, payment.id),
).sink("totals", FileSink(os.environ["TEST_FILES"] + "/totals"))
payments.process("seen", Seen).sink("counts", FileSink(os.environ["TEST_FILES"] + "/counts"))
(
    pipeline.source("again", KafkaSource(os.environ["TEST_INPUT"], value=Payment))
    .map(lambda payment: Largest(account=payment.account, amount=payment.amount), name="amounts")
    .key_by(lambda amount: amount.account, name="by-account-too")
    .reduce("largest", lambda a, b: a if a.amount >= b.amount else b, state=Largest)
    .sink("amounts-out", FileSink(os.environ["TEST_FILES"] + "/amounts", value=Largest))
)
