"""q11, user sessions: how many bids each bidder made without a pause of ten seconds."""

from benchmarks.nexmark.events import Event, Events
from kafka_eos import agg, session
from kafka_eos.connectors.kafka import KafkaSink


class Visit(Event, frozen=True):
    bidder: int
    start: int
    end: int
    bids: int


def q11(events: Events, topic: str) -> None:
    by_bidder = events.bids.key_by(lambda bid: bid.bidder, name="q11-bidder")
    visits = by_bidder.window(session(gap=10)).aggregate(bids=agg.count(), key="bidder", out=Visit, name="q11-visits")
    visits.sink(KafkaSink(topic, value=Visit, key=lambda row: str(row.bidder)), name="q11")
