"""q20, expand bid with auction: each bid for an auction of category 10, with all that is known of that."""

from benchmarks.nexmark.events import Auction, Bid, Event, Events
from benchmarks.nexmark.queries.one_to_many import OneToMany
from kafka_eos import connect
from kafka_eos.connectors.kafka import KafkaSink


class Expanded(Event, frozen=True):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    auction_date_time: int
    expires: int
    seller: int
    category: int
    auction_extra: str


def expanded(auction: Auction, bid: Bid) -> list[Expanded]:
    if auction.category != 10:
        return []
    row = Expanded(
        bid.auction,
        bid.bidder,
        bid.price,
        bid.channel,
        bid.url,
        bid.date_time,
        bid.extra,
        auction.item_name,
        auction.description,
        auction.initial_bid,
        auction.reserve,
        auction.date_time,
        auction.expires,
        auction.seller,
        auction.category,
        auction.extra,
    )
    return [row]


def q20(events: Events, topic: str) -> None:
    auctions = events.auctions.key_by(lambda auction: auction.id, name="q20-auctions")
    bids = events.bids.key_by(lambda bid: bid.auction, name="q20-bids")
    joined = connect(auctions, bids, name="q20-both").process(OneToMany(Auction, Bid, expanded), name="q20-joined")
    joined.sink(KafkaSink(topic, value=Expanded, key=lambda row: str(row.auction)), name="q20")
