"""The job that the golden job directories in this folder were made of: windows that end without timers.

Its payments are in the file, and no broker is needed. They had come to the first sixty; with TEST_MORE there are sixty
more, for a version that goes on with what is stored.
"""

import os
from typing import Any

import msgspec

from kafka_eos import Pipeline, agg, bounded, days, on_count, tumbling
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource

GOLDEN = 60


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: float


def at(payment: Payment) -> int:
    """About half a second apart, some a second late, with a pause each thirteen: of four seconds, and once of a day."""
    pauses = payment.id // 13 * 4000 + payment.id // 100 * 86_400_000
    return payment.id * 500 + pauses - (1000 if payment.id % 3 == 0 else 0)


def line(result: Any) -> bytes:
    return repr(result).encode()


PAYMENTS = [Payment(n, f"a{n * n % 4}", n * 0.1) for n in range(2 * GOLDEN)]

pipeline = Pipeline(
    f"golden-{os.environ['TEST_BACKEND']}",
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    state_backend=os.environ["TEST_BACKEND"],
)
keyed = (
    pipeline.source(ListSource(PAYMENTS if os.environ.get("TEST_MORE") else PAYMENTS[:GOLDEN]), name="payments")
    .with_timestamps(at, watermarks=bounded(1))
    .key_by(lambda payment: payment.account, name="by-account", values=Payment)
)
results = {
    "totals": keyed.window(tumbling(seconds=5)).aggregate(
        agg.count(), name="totals", total=agg.sum(lambda p: p.amount)
    ),
    "days": keyed.window(days("Europe/Berlin")).reduce(lambda a, b: a if at(a) > at(b) else b, name="days"),
    "lists": keyed.window(tumbling(seconds=30, offset=7)).process(lambda key, _, values: [(key, values)], name="lists"),
    "counted": keyed.window(tumbling(seconds=20), trigger=on_count(3)).aggregate(agg.count(), name="counted"),
}
for name, stream in results.items():
    stream.map(line, name=f"{name}-line").sink(FileSink(f"{os.environ['TEST_FILES']}/{name}"), name=f"{name}-out")
