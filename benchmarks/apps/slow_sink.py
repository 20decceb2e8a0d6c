"""A source that could bring a hundred times as much as the sink takes, and an exchange between them."""

import os
import time
from typing import Any

from benchmarks.apps.events import COUNTERS, Event, ring
from benchmarks.apps.generated import CountingSink, CountingWriter, GeneratedSource
from kafka_eos import Pipeline
from kafka_eos.abc.context import TaskContext
from kafka_eos.core.records import Batch

PAUSE = float(os.environ["BENCH_PAUSE"])
"""Seconds that the sink takes for a row."""


class SlowSink(CountingSink):
    def writer(self, ctx: TaskContext) -> CountingWriter:
        self.counters.mkdir(parents=True, exist_ok=True)
        return SlowWriter(self, ctx)


class SlowWriter(CountingWriter):
    def write(self, batch: Batch[Any]) -> None:
        time.sleep(len(batch) * PAUSE)
        super().write(batch)


pipeline = Pipeline("bench")
rows = pipeline.source(GeneratedSource(Event, ring(), COUNTERS), name="events").rebalance(name="spread")
rows.sink(SlowSink(COUNTERS), name="out")
