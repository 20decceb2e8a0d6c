"""q12, processing time windows: how many bids of each bidder came in ten seconds by the clock.

Windows of the library are of event time, so this one is a function with timers of the clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.nexmark.events import Bid, Event, Events
from kafka_eos import ProcessContext, ProcessFunction
from kafka_eos.connectors.kafka import KafkaSink


class Came(Event, frozen=True):
    bidder: int
    start: int
    bids: int


class ByTheClock(ProcessFunction[int, Bid, Came]):
    """A count a window, by its start."""

    def __init__(self, size_ms: int) -> None:
        self._size = size_ms

    def open(self, ctx: ProcessContext) -> None:
        self._ctx, self._timers = ctx, ctx.processing_timers()
        self._counts = ctx.map_state("counts", int, int)

    def process(self, key: int, value: Bid) -> Iterable[Came]:
        start = self._ctx.processing_time // self._size * self._size
        count = self._counts.get(start)
        if count is None:
            self._timers.register(start + self._size)
        self._counts.put(start, (count or 0) + 1)
        return []

    def on_processing_timer(self, key: int, time: int) -> Iterable[Came]:
        for start, count in self._counts.items():
            if start + self._size <= time:
                self._counts.remove(start)
                yield Came(key, start, count)


def q12(events: Events, topic: str, size_ms: int = 10_000) -> None:
    by_bidder = events.bids.key_by(lambda bid: bid.bidder, name="q12-bidder")
    sink = KafkaSink(topic, value=Came, key=lambda row: str(row.bidder))
    by_bidder.process(ByTheClock(size_ms), name="q12-counts").sink(sink, name="q12")
