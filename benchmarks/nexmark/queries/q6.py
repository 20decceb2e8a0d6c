"""q6, average selling price: for each auction that ends, that of the last ten auctions of its seller."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.nexmark.events import Event, Events
from benchmarks.nexmark.queries.closing import Won, closing
from kafka_eos import ProcessContext, ProcessFunction
from kafka_eos.connectors.kafka import KafkaSink

_LAST = 10


class Selling(Event, frozen=True):
    seller: int
    auction: int
    average: float


class LastTen(ProcessFunction[int, Won, Selling]):
    """``window(rows(10, every=1))`` would take auctions as they come: they come from several workers, in any order.

    So each waits for its own time: those of a seller are taken in the order in which they end.
    """

    def open(self, ctx: ProcessContext) -> None:
        self._timers = ctx.timers()
        self._ended = ctx.map_state("ended", tuple[int, int], int)
        self._prices = ctx.value_state("prices", list[int], [])

    def process(self, key: int, value: Won) -> Iterable[Selling]:
        self._ended.put((value.expires, value.id), value.price)
        self._timers.register(value.expires)
        return []

    def on_timer(self, key: int, time: int) -> Iterable[Selling]:
        prices = self._prices.get()
        for (expires, auction), price in sorted(self._ended.items()):
            if expires <= time:
                prices = [*prices, price][-_LAST:]
                self._ended.remove((expires, auction))
                yield Selling(key, auction, sum(prices) / len(prices))
        self._prices.put(prices)


def q6(events: Events, topic: str) -> None:
    by_seller = closing(events, "q6").key_by(lambda won: won.seller, name="q6-seller")
    sink = KafkaSink(topic, value=Selling, key=lambda row: str(row.seller))
    by_seller.process(LastTen, name="q6-average").sink(sink, name="q6")
