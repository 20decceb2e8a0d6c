"""Two workers, and one of them slow before the exchange, as if it waited for an answer once a batch.

Most rows stay in their worker, few go to another one. So all that the quick worker does behind the exchange waits for
the slow one's barrier, and its source goes on meanwhile or does not.
"""

import os
import time

from benchmarks.apps.events import COUNTERS, Event, ring
from benchmarks.apps.generated import CountingSink, GeneratedSource
from kafka_eos import Pipeline

PAUSE = float(os.environ["BENCH_PAUSE"])
"""Seconds that the slow worker waits, once a batch."""
BATCH = 5000
SLOW = -1


def values(split: int) -> list[Event]:
    events = ring()(split)
    if split % 2 == 1:
        events[::BATCH] = [Event(SLOW, 0)] * len(events[::BATCH])
    return events


def before(event: Event) -> Event:
    if event.key == SLOW:
        time.sleep(PAUSE)
    return Event(event.key, event.amount + event.key % 7)


def behind(event: Event) -> Event:
    return Event(event.key, event.amount * 3 % 11)


pipeline = Pipeline("bench")
read = pipeline.source(GeneratedSource(Event, values, COUNTERS), name="events").map(before)
few = read.filter(lambda event: event.amount == 0, name="few").rebalance(name="over")
read.forward(name="stays").union(few, name="both").map(behind).sink(CountingSink(COUNTERS), name="out")
