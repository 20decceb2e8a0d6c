"""q4, average price for a category: of the auctions that have ended, a row whenever one does."""

from benchmarks.nexmark.events import Event, Events
from benchmarks.nexmark.queries.closing import closing
from kafka_eos import agg
from kafka_eos.connectors.kafka import KafkaSink


class Average(Event, frozen=True):
    category: int
    auctions: int
    average: float


def q4(events: Events, topic: str) -> None:
    by_category = closing(events, "q4").key_by(lambda won: won.category, name="q4-category")
    averages = by_category.aggregate(
        auctions=agg.count(), average=agg.mean(lambda won: won.price), key="category", out=Average, name="q4-average"
    )
    averages.sink(KafkaSink(topic, value=Average, key=lambda row: str(row.category)), name="q4")
