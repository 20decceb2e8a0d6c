"""Both workloads as a user of kafka_eos writes them. BENCH_MODEL chooses the kind of record.

BENCH_INTERVAL: seconds between checkpoints. BENCH_MERGE=on: W2 puts out one row a key and epoch, not one an input.
"""

import operator
import os
from typing import Any

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

if os.environ.get("BENCH_MODEL") == "pydantic":
    from benchmarks.apps.model_pydantic import Doubled, Payment, Total, doubled, total
else:
    from benchmarks.apps.model_struct import Doubled, Payment, Total, doubled, total  # type: ignore[assignment]

OUTPUT = os.environ["BENCH_OUTPUT"]
PROVENANCE: Any = {"header": "header", "ledger": "ledger", "none": None}[os.environ.get("BENCH_PROVENANCE", "header")]

MERGE = operator.add if os.environ.get("BENCH_MERGE") == "on" else None
INTERVAL = float(os.environ.get("BENCH_INTERVAL", "1.0"))

pipeline = Pipeline("bench", checkpoint_dir=os.environ["BENCH_DIRECTORY"], checkpoint_interval=INTERVAL)
payments = pipeline.source(KafkaSource(os.environ["BENCH_INPUT"], value=Payment), name="payments")

if os.environ["BENCH_WORKLOAD"] == "W1":
    payments.filter(lambda payment: payment.amount % 10 != 7).map(doubled).sink(
        KafkaSink(OUTPUT, value=Doubled, provenance=PROVENANCE), name="doubled"
    )
else:
    payments.key_by(lambda payment: payment.account).fold(
        name="total",
        init=lambda: 0,
        step=lambda sum_, payment: sum_ + payment.amount,
        emit=total,
        state=int,
        merge=MERGE,
    ).sink(KafkaSink(OUTPUT, value=Total, key=lambda total: total.account, provenance=PROVENANCE), name="totals")
