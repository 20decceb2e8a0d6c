"""q19, auction top ten: the ten highest bids of each auction, as they are at the end of each epoch."""

from benchmarks.nexmark.events import Bid, Event, Events
from kafka_eos import agg
from kafka_eos.connectors.kafka import KafkaSink


class Top(Event, frozen=True):
    auction: int
    bids: list[Bid]


def q19(events: Events, topic: str) -> None:
    by_auction = events.bids.key_by(lambda bid: bid.auction, name="q19-auction")
    best = by_auction.aggregate(
        bids=agg.top(10, lambda bid: (bid.price, -bid.date_time, -bid.bidder)),
        key="auction",
        out=Top,
        merge=True,
        name="q19-top",
    )
    best.sink(KafkaSink(topic, value=Top, key=lambda row: str(row.auction)), name="q19")
