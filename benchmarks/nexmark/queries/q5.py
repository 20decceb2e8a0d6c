"""q5, hot items: the auctions with the most bids of the last ten seconds, every two seconds."""

from benchmarks.nexmark.events import Event, Events
from kafka_eos import agg, sliding, tumbling
from kafka_eos.connectors.kafka import KafkaSink


class Hot(Event, frozen=True):
    auction: int
    start: int
    end: int
    bids: int


def hottest(most: list[Hot], found: Hot) -> list[Hot]:
    if not most or found.bids > most[0].bids:
        return [found]
    return [*most, found] if found.bids == most[0].bids else most


def q5(events: Events, topic: str) -> None:
    by_auction = events.bids.key_by(lambda bid: bid.auction, name="q5-auction")
    counts = by_auction.window(sliding(seconds=10, every=2)).aggregate(
        bids=agg.count(), key="auction", out=Hot, name="q5-counts"
    )
    by_window = counts.key_by(lambda found: found.end, name="q5-window")
    # A count has the last moment of its window as event time, so those of one window are together.
    most = by_window.window(tumbling(seconds=2)).fold(
        init=list, step=hottest, emit=lambda end, window, found: found, state=list[Hot], name="q5-hottest"
    )
    sink = KafkaSink(topic, value=Hot, key=lambda row: str(row.start))
    most.flat_map(lambda found: found, name="q5-rows").sink(sink, name="q5")
