"""All workloads as a user of kafka_eos writes them. BENCH_MODEL: kind of records; mixed: pydantic in, Structs out.

BENCH_INTERVAL: seconds between checkpoints. BENCH_MERGE=on: W2 puts out one row a key and epoch, not one an input.
"""

import operator
import os
from typing import Any

from kafka_eos import Pipeline, agg, bounded, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

if os.environ.get("BENCH_MODEL") == "pydantic":
    from benchmarks.apps.model_pydantic import Doubled, Payment, Total, doubled, total
elif os.environ.get("BENCH_MODEL") == "mixed":
    from benchmarks.apps.model_mixed import Doubled, Payment, Total, doubled, total  # type: ignore[assignment]
else:
    from benchmarks.apps.model_struct import Doubled, Payment, Total, doubled, total  # type: ignore[assignment]
from benchmarks.apps.model_struct import LatePayment, WindowTotal

OUTPUT = os.environ["BENCH_OUTPUT"]
PROVENANCE: Any = {"header": "header", "ledger": "ledger", "none": None}[os.environ.get("BENCH_PROVENANCE", "header")]

MERGE = operator.add if os.environ.get("BENCH_MERGE") == "on" else None
INTERVAL = float(os.environ.get("BENCH_INTERVAL", "1.0"))

pipeline = Pipeline("bench", checkpoint_dir=os.environ["BENCH_DIRECTORY"], checkpoint_interval=INTERVAL)


def w1() -> None:
    payments = pipeline.source(KafkaSource(os.environ["BENCH_INPUT"], value=Payment), name="payments")
    kept = payments.filter(lambda payment: payment.amount % 10 != 7)
    kept.map(doubled).sink(KafkaSink(OUTPUT, value=Doubled, provenance=PROVENANCE), name="doubled")


def w2() -> None:
    payments = pipeline.source(KafkaSource(os.environ["BENCH_INPUT"], value=Payment), name="payments")
    payments.key_by(lambda payment: payment.account).fold(
        name="total",
        init=lambda: 0,
        step=lambda total, payment: total + payment.amount,
        emit=total,
        state=int,
        merge=MERGE,
    ).sink(KafkaSink(OUTPUT, value=Total, key=lambda total: total.account, provenance=PROVENANCE), name="totals")


def w4() -> None:
    payments = pipeline.source(KafkaSource(os.environ["BENCH_INPUT"], value=LatePayment), name="payments")
    payments = payments.with_timestamps(lambda payment: payment.at, watermarks=bounded(60))
    payments.key_by(lambda payment: payment.account).window(tumbling(seconds=300)).aggregate(
        name="total", total=agg.sum(lambda payment: payment.amount), out=WindowTotal, key="account"
    ).sink(KafkaSink(OUTPUT, value=WindowTotal, key=lambda total: total.account, provenance=PROVENANCE), name="totals")


{"W1": w1, "W2": w2, "W4": w4}[os.environ["BENCH_WORKLOAD"]]()
