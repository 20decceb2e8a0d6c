"""Rows through a map, and no exchange, one, or three; BENCH_HOPS says which.

With BENCH_RATE the input comes at that many records a second, and the sink writes down how old they are.
"""

import os

import msgspec

from benchmarks.apps.events import COUNT, COUNTERS, Event, ring
from benchmarks.apps.generated import CountingSink, GeneratedSource
from kafka_eos import Pipeline
from kafka_eos.codecs import KeyCodec
from kafka_eos.runtime.state.key_groups import group_of, subtask_of

WORKERS = 2
HOPS = os.environ["BENCH_HOPS"]
RATE = float(os.environ["BENCH_RATE"]) if "BENCH_RATE" in os.environ else None


class Timed(msgspec.Struct, array_like=True, gc=False):
    """An event with the moment at which it was due."""

    key: int
    at: float


def same(event: Event) -> Event:
    return event


def timed(event: Event, at: float) -> Timed:
    return Timed(event.key, at)


def at_home(split: int) -> list[Event]:
    """As ``ring``, but only keys that the worker of this split owns: a partitioned input, as ``local=True`` needs."""
    encode = KeyCodec().encode
    owned = [e for e in ring()(split) if subtask_of(group_of(encode(e.key)), WORKERS) == split % WORKERS]
    return owned * 2


pipeline = Pipeline("bench")
if RATE is not None:
    source = GeneratedSource(Timed, ring(), COUNTERS, rate=RATE, stamp=timed)
    stream = pipeline.source(source, name="events").rebalance(name="spread")
    stream.sink(CountingSink(COUNTERS, latency=True), name="out")
else:
    values = at_home if HOPS == "local" else ring()
    stream = pipeline.source(GeneratedSource(Event, values, COUNTERS, count=COUNT), name="events").map(same)
    if HOPS == "rebalance":
        stream = stream.rebalance(name="spread")
    elif HOPS == "three":
        stream = stream.rebalance(name="one").rebalance(name="two").rebalance(name="three")
    elif HOPS in ("key_by", "local"):
        keyed = stream.key_by(lambda event: event.key, name="by-key", local=HOPS == "local")
        stream = keyed.reduce(lambda old, new: new, name="last", state=Event)
    stream.sink(CountingSink(COUNTERS), name="out")
