"""The job that the golden job directories in this folder were made of: windows of all kinds, and state that ends.

Its payments are in the file, and no broker is needed. They had come to the first sixty; with TEST_MORE there are sixty
more, for a version that goes on with what is stored.
"""

import os
from typing import Any

import msgspec

from kafka_eos import Pipeline, agg, bounded, days, global_, rows, session, sliding, tumbling
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
    "totals": keyed.window(tumbling(seconds=5), lateness=1).aggregate(
        agg.count(),
        name="totals",
        total=agg.sum(lambda p: p.amount),
        mean=agg.mean(lambda p: p.amount),
        least=agg.min(lambda p: p.id),
        best=agg.max_by(lambda p: p.amount),
        first=agg.first(),
        last=agg.last(),
        three=agg.top(3, lambda p: p.amount),
        ids=agg.collect(lambda p: p.id),
        about=agg.approx_distinct(lambda p: p.id),
        halves=agg.approx_quantiles(lambda p: p.amount, 0.5),
    ),
    "early": keyed.window(tumbling(seconds=10, early=5)).aggregate(agg.count(), name="early"),
    "moving": keyed.window(sliding(seconds=6, every=2)).fold(
        name="moving", init=lambda: 0, step=lambda n, _: n + 1, merge=lambda a, b: a + b
    ),
    "sessions": keyed.sessionize(name="sessions", gap=3),
    "of-sessions": keyed.window(session(gap=3)).aggregate(agg.count(), name="of-sessions"),
    "days": keyed.window(days("Europe/Berlin")).reduce(lambda a, b: a if at(a) > at(b) else b, name="days"),
    "rows": keyed.window(rows(4, every=2)).process(lambda key, window, values: [(key, values)], name="rows"),
    "all": keyed.window(global_(every=7)).aggregate(agg.count(), name="all"),
    "running": keyed.aggregate(agg.count(), name="running", total=agg.sum(lambda p: p.amount)),
    "few": keyed.deduplicate(name="few", within=2),
    "accounts": keyed.distinct(name="accounts", ttl=None),
}
for name, stream in results.items():
    stream.map(line, name=f"{name}-line").sink(FileSink(f"{os.environ['TEST_FILES']}/{name}"), name=f"{name}-out")
