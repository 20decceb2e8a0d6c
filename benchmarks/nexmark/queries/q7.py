"""q7, highest bid: of every ten seconds, of all auctions; several where they are equal."""

from benchmarks.nexmark.events import Bid, Events
from benchmarks.nexmark.queries.q0 import Passed, passed
from kafka_eos import tumbling
from kafka_eos.connectors.kafka import KafkaSink


def highest(best: list[Bid], bid: Bid) -> list[Bid]:
    if not best or bid.price > best[0].price:
        return [bid]
    return [*best, bid] if bid.price == best[0].price else best


def q7(events: Events, topic: str) -> None:
    windows = events.bids.key_by(lambda bid: 0, name="q7-all").window(tumbling(seconds=10))
    best = windows.fold(
        init=list, step=highest, emit=lambda key, window, found: found, state=list[Bid], name="q7-highest"
    )
    rows = best.flat_map(lambda found: [passed(bid) for bid in found], name="q7-rows")
    rows.sink(KafkaSink(topic, value=Passed, key=lambda row: str(row.auction)), name="q7")
