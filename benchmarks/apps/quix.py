"""All workloads in Quix Streams, exactly-once, one commit a second. Runs in a virtual environment of its own."""

import os
from typing import Any

from quixstreams import Application, State

app = Application(
    broker_address=os.environ["BENCH_BOOTSTRAP"],
    consumer_group=f"quix-{os.environ['BENCH_OUTPUT']}",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=1.0,
    state_dir=os.environ["BENCH_DIRECTORY"],
    consumer_extra_config={
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 200_000,
        "fetch.message.max.bytes": 4_194_304,
    },
    producer_extra_config={"linger.ms": 20, "batch.size": 262_144, "compression.type": "lz4"},
)


def event_time(payment: Any, headers: Any, timestamp: float, kind: Any) -> int:
    """Of W4; the others know none."""
    return int(payment.get("at", timestamp))


payments = app.topic(
    os.environ["BENCH_INPUT"], value_deserializer="json", key_deserializer="str", timestamp_extractor=event_time
)
output = app.topic(os.environ["BENCH_OUTPUT"], value_serializer="json", key_serializer="str")


def add(payment: dict[str, Any], state: State) -> dict[str, Any]:
    total = state.get("total", 0) + payment["amount"]
    state.set("total", total)
    return {"account": payment["account"], "total": total}


def windowed(window: dict[str, Any], key: str, timestamp: int, headers: Any) -> dict[str, Any]:
    return {"account": key, "start": window["start"], "end": window["end"], "total": window["value"]}


stream = app.dataframe(payments)
if os.environ["BENCH_WORKLOAD"] == "W1":
    stream = stream.filter(lambda payment: payment["amount"] % 10 != 7)
    stream = stream.apply(lambda payment: {**payment, "twice": 2 * payment["amount"]})
elif os.environ["BENCH_WORKLOAD"] == "W2":
    stream = stream.apply(add, stateful=True)
else:
    windows = stream.apply(lambda payment: payment["amount"]).tumbling_window(duration_ms=300_000, grace_ms=60_000)
    stream = windows.sum().final(closing_strategy="partition")
    stream = stream.apply(windowed, metadata=True)
stream.to_topic(output)

app.run()
