"""A job for many workers: a thousand partitions, two operators whose state changes in each epoch, one that rests."""

import os
from collections.abc import Iterable

from benchmarks.apps.events import COUNTERS, Event
from benchmarks.apps.generated import CountingSink, GeneratedSource
from kafka_eos import Pipeline, ProcessContext, ProcessFunction

PARTITIONS, RATE = int(os.environ["BENCH_PARTITIONS"]), float(os.environ["BENCH_RATE"])
_RING = 64
"""Values of a partition."""


def values(split: int) -> list[Event]:
    return [Event(split * _RING + number, 1 + number) for number in range(_RING)]


def stay(event: Event, due: float) -> Event:
    return event


def summed(key: int, total: int) -> Event:
    return Event(key, total)


class Count(ProcessFunction[int, Event, Event]):
    """The number of rows of each key."""

    def open(self, ctx: ProcessContext) -> None:
        self.seen = ctx.value_state("seen", int, 0)

    def process(self, key: int, value: Event) -> Iterable[Event]:
        seen = self.seen.get() + 1
        self.seen.put(seen)
        return (Event(key, seen),)


pipeline = Pipeline("bench")
source = GeneratedSource(Event, values, COUNTERS, splits=PARTITIONS, rate=RATE, stamp=stay)
events = pipeline.source(source, name="events")
sums = events.key_by(lambda event: event.key, name="by-key").fold(
    name="sum", init=lambda: 0, step=lambda total, event: total + event.amount, emit=summed, state=int
)
counts = sums.key_by(lambda event: event.key + 1, name="by-next").process(Count, name="count")
rare = counts.filter(lambda event: event.amount < 0, name="never").key_by(lambda event: event.key, name="by-rare")
rare.process(Count, name="rest").sink(CountingSink(COUNTERS), name="rare-out")
counts.sink(CountingSink(COUNTERS), name="out")
