"""q0, pass through: every bid."""

from benchmarks.nexmark.events import Bid, Event, Events
from kafka_eos.connectors.kafka import KafkaSink


class Passed(Event, frozen=True):
    auction: int
    bidder: int
    price: int
    date_time: int
    extra: str


def passed(bid: Bid) -> Passed:
    return Passed(bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra)


def q0(events: Events, topic: str) -> None:
    sink = KafkaSink(topic, value=Passed, key=lambda row: str(row.auction))
    events.bids.map(passed, name="q0-passed").sink(sink, name="q0")
