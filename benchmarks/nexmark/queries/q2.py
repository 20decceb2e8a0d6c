"""q2, selection: the price of each bid for some auctions."""

from benchmarks.nexmark.events import Bid, Event, Events
from kafka_eos.connectors.kafka import KafkaSink


class Selected(Event, frozen=True):
    auction: int
    price: int


def selected(bid: Bid) -> Selected:
    return Selected(bid.auction, bid.price)


def q2(events: Events, topic: str) -> None:
    wanted = events.bids.filter(lambda bid: bid.auction % 123 == 0, name="q2-wanted")
    sink = KafkaSink(topic, value=Selected, key=lambda row: str(row.auction))
    wanted.map(selected, name="q2-selected").sink(sink, name="q2")
