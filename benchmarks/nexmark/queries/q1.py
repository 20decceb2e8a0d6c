"""q1, currency conversion: every bid, its price in another currency."""

from benchmarks.nexmark.events import Bid, Event, Events
from kafka_eos.connectors.kafka import KafkaSink


class Converted(Event, frozen=True):
    auction: int
    bidder: int
    price: float
    date_time: int
    extra: str


def converted(bid: Bid) -> Converted:
    return Converted(bid.auction, bid.bidder, 0.908 * bid.price, bid.date_time, bid.extra)


def q1(events: Events, topic: str) -> None:
    sink = KafkaSink(topic, value=Converted, key=lambda row: str(row.auction))
    events.bids.map(converted, name="q1-converted").sink(sink, name="q1")
