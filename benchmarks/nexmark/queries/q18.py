"""q18, find the last bid: of each bidder for each auction, whenever there is one."""

from benchmarks.nexmark.events import Bid, Events
from kafka_eos.connectors.kafka import KafkaSink


def newer(one: Bid, other: Bid) -> Bid:
    return max(one, other, key=lambda bid: (bid.date_time, bid.price))


def q18(events: Events, topic: str) -> None:
    by_both = events.bids.key_by(lambda bid: (bid.bidder, bid.auction), name="q18-bidder-auction")
    sink = KafkaSink(topic, value=Bid, key=lambda bid: f"{bid.bidder}-{bid.auction}")
    by_both.reduce(newer, name="q18-last").sink(sink, name="q18")
