"""Sums a key of skewed input: BENCH_HOT of the tuples have one key; BENCH_MERGE says how workers share the work.

shuffle        each tuple goes to the worker that owns its key
late-local     partial sums where the tuples are; once an epoch each key's owner merges those of its keys
late-global    the same, and one worker gathers what was merged into a table of all keys
"""

import os
from collections.abc import Iterable

from benchmarks.apps.events import COUNT, COUNTERS, Event, ring
from benchmarks.apps.generated import CountingSink, GeneratedSource
from kafka_eos import Pipeline, ProcessContext, ProcessFunction

MERGE = os.environ["BENCH_MERGE"]


def add(total: int, event: Event) -> int:
    return total + event.amount


def together(one: int, other: int) -> int:
    return one + other


def total_of(key: int, total: int) -> Event:
    return Event(key, total)


class Table(ProcessFunction[int, Event, Event]):
    """All keys' totals, as entries of one key's map."""

    def open(self, ctx: ProcessContext) -> None:
        self.totals = ctx.map_state("totals", int, int)

    def process(self, key: int, value: Event) -> Iterable[Event]:
        self.totals.put(value.key, value.amount)
        return (value,)


pipeline = Pipeline("bench")
hot = float(os.environ["BENCH_HOT"])
keyed = pipeline.source(GeneratedSource(Event, ring(hot), COUNTERS, count=COUNT), name="events").key_by(
    lambda event: event.key, name="by-key"
)
if MERGE == "shuffle":
    totals = keyed.fold(name="sum", init=int, step=add, emit=total_of, state=int)
else:
    totals = keyed.fold(name="sum", init=int, step=add, emit=total_of, state=int, merge=together)
if MERGE == "late-global":
    totals = totals.key_by(lambda total: 0, name="gather").process(Table, name="table")
totals.sink(CountingSink(COUNTERS), name="out")
