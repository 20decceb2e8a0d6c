"""The topology of the ABS paper's experiment: six operators, three full shuffles, per-key state in each of three.

source → map ⇒ fold ⇒ process ⇒ process → sink          (⇒ is key_by, each by another key)

With ``BENCH_STOP_THE_WORLD`` the whole job is at a halt at each checkpoint, as the paper's comparison is.
"""

import os
from collections.abc import Iterable
from functools import partial

from benchmarks.apps.events import COUNT, COUNTERS, KEYS, Event, ring
from benchmarks.apps.generated import CountingSink, GeneratedSource
from kafka_eos import Pipeline, ProcessContext, ProcessFunction
from kafka_eos.embedded import supervisor
from kafka_eos.protocol.engine_policy import AttemptPolicy

if os.environ.get("BENCH_STOP_THE_WORLD"):
    supervisor.AttemptPolicy = partial(AttemptPolicy, pauses_sources=True)  # type: ignore[misc, assignment]


def greater(event: Event) -> Event:
    return Event(event.key, event.amount + 1)


def summed(key: int, total: int) -> Event:
    return Event((key * 7919 + 1) % KEYS, total % 1000)


class Count(ProcessFunction[int, Event, Event]):
    """How many records the key has had, to the next key."""

    def open(self, ctx: ProcessContext) -> None:
        self.seen = ctx.value_state("seen", int, 0)

    def process(self, key: int, value: Event) -> Iterable[Event]:
        seen = self.seen.get() + 1
        self.seen.put(seen)
        return (Event((key * 31337 + 7) % KEYS, seen),)


pipeline = Pipeline("bench")
events = pipeline.source(GeneratedSource(Event, ring(), COUNTERS, count=COUNT), name="events").map(greater)
sums = events.key_by(lambda event: event.key, name="by-key").fold(
    name="sum", init=lambda: 0, step=lambda total, event: total + event.amount, emit=summed, state=int
)
counts = sums.key_by(lambda event: event.key, name="by-sum").process(Count, name="first")
again = counts.key_by(lambda event: event.key, name="by-count").process(Count, name="second")
again.sink(CountingSink(COUNTERS), name="out")
