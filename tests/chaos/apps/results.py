"""Windows and sums of which some results cannot be made, and others cannot be written: numbers and texts are too large.

Event times are milliseconds since ``TEST_BASE``.
"""

import os

import msgspec

from kafka_eos import Pipeline, agg, monotonic, sliding, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

BASE = int(os.environ["TEST_BASE"])


class Sale(msgspec.Struct):
    user: str
    at: int
    amount: int
    note: str = ""


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=20,
    restart_backoff_initial=0.05,
    max_dead_letters="none",
)
sales = pipeline.source(
    KafkaSource(os.environ["TEST_INPUT"], value=Sale), name="sales", on_error=dead_letter(os.environ["TEST_LETTERS"])
)
by_user = sales.with_timestamps(lambda sale: BASE + sale.at, watermarks=monotonic()).key_by("user")
results = {
    "sums": by_user.window(sliding(seconds=0.1, every=0.05)).aggregate(agg.sum("amount"), name="sums"),
    "notes": by_user.window(tumbling(seconds=0.1)).aggregate(agg.collect("note"), name="notes"),
    "totals": sales.key_by("user").aggregate(agg.sum("amount"), key="user", merge=True, name="totals"),
}
for name, stream in results.items():
    stream.sink(KafkaSink(f"{os.environ['TEST_OUTPUT']}-{name}"), name=f"to-{name}")

if __name__ == "__main__":
    pipeline.run()
