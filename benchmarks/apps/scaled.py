"""A job for many workers: a thousand partitions, two operators whose state changes in each epoch, one that rests."""

import os

from benchmarks.apps.events import COUNTERS, Event
from benchmarks.apps.generated import CountingSink, GeneratedSource
from kafka_eos import Pipeline

PARTITIONS, RATE = int(os.environ["BENCH_PARTITIONS"]), float(os.environ["BENCH_RATE"])
_RING = 64
"""Values of a partition."""


def values(split: int) -> list[Event]:
    return [Event(split * _RING + number, 1 + number) for number in range(_RING)]


def stay(event: Event, due: float) -> Event:
    return event


def summed(key: int, total: int) -> Event:
    return Event(key, total)


def counted(seen: int, event: Event) -> int:
    return seen + 1


pipeline = Pipeline("bench")
source = GeneratedSource(Event, values, COUNTERS, splits=PARTITIONS, rate=RATE, stamp=stay)
events = pipeline.source(source, name="events")
sums = events.key_by(lambda event: event.key, name="by-key").fold(
    name="sum", init=lambda: 0, step=lambda total, event: total + event.amount, emit=summed, state=int
)
counts = sums.key_by(lambda event: event.key + 1, name="by-next").fold(
    name="count", init=lambda: 0, step=counted, emit=summed, state=int
)
rare = counts.filter(lambda event: event.amount < 0, name="never").key_by(lambda event: event.key, name="by-rare")
rests = rare.fold(name="rest", init=lambda: 0, step=counted, emit=summed, state=int)
rests.sink(CountingSink(COUNTERS), name="rare-out")
counts.sink(CountingSink(COUNTERS), name="out")
