"""The job that the golden job directory in this folder was made of: rows in flight.

Two workers, an exchange between them, and a process function slower than its input, in unaligned mode: most payments
that were read lie before it when a checkpoint is taken.
"""

import os
import time
from collections.abc import Iterable

import msgspec

from kafka_eos import ListState, MapState, Pipeline, ProcessContext, ProcessFunction
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class Seen(ProcessFunction[str, Payment, int]):
    ids: ListState[int]
    amounts: MapState[int, int]

    def open(self, ctx: ProcessContext) -> None:
        self.ids = ctx.list_state("ids", int)
        self.amounts = ctx.map_state("amounts", int, int)

    def process(self, key: str, payment: Payment) -> Iterable[int]:
        time.sleep(0.02)
        self.ids.add(payment.id)
        self.amounts.put(payment.id, payment.amount)
        yield payment.id


PAYMENTS = [Payment(n, f"a{n % 20}", 0 if n % 10 == 7 else n % 13 + 1) for n in range(60)]

pipeline = Pipeline(
    "golden-unaligned",
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    checkpoint_mode="unaligned",
    parallelism=2,
    batch_size=10,
)
(
    pipeline.source(ListSource(PAYMENTS, splits=2), name="payments")
    .key_by(lambda payment: payment.account, name="by-account", values=Payment)
    .process(Seen, name="seen")
    .sink(FileSink(os.environ["TEST_FILES"]), name="ids")
)
