"""Rows through no exchange, one, or three, with next to nothing beside; BENCH_HOPS says which.

With BENCH_RATE the input comes at that many records a second, and the sink writes down how old they are.
"""

import os

import msgspec

from benchmarks.apps.events import COUNT, COUNTERS, Event, ring
from benchmarks.apps.generated import CountingSink, GeneratedSource
from kafka_eos import Pipeline

HOPS = os.environ["BENCH_HOPS"]
RATE = float(os.environ["BENCH_RATE"]) if "BENCH_RATE" in os.environ else None


class Timed(msgspec.Struct, array_like=True, gc=False):
    """An event with the moment at which it was due."""

    key: int
    at: float


def timed(event: Event, at: float) -> Timed:
    return Timed(event.key, at)


def same(key: int, value: Event) -> Event:
    return value


pipeline = Pipeline("bench")
if RATE is not None:
    source = GeneratedSource(Timed, ring(), COUNTERS, rate=RATE, stamp=timed)
    stream = pipeline.source("events", source).rebalance("spread")
    stream.sink("out", CountingSink(COUNTERS, latency=True))
else:
    stream = pipeline.source("events", GeneratedSource(Event, ring(), COUNTERS, count=COUNT))
    if HOPS == "rebalance":
        stream = stream.rebalance("spread")
    elif HOPS == "three":
        stream = stream.rebalance("one").rebalance("two").rebalance("three")
    elif HOPS in ("key_by", "local"):
        keyed = stream.key_by(lambda event: event.key, "by-key", local=HOPS == "local")
        stream = keyed.reduce("last", lambda old, new: new, state=Event)
    stream.sink("out", CountingSink(COUNTERS))
