"""What each auction was sold for, at the moment at which it ends: q9, and what q4 and q6 begin with."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.nexmark.events import Auction, Bid, Event, Events
from kafka_eos import CoProcessFunction, ProcessContext, Stream, connect


class Won(Event, frozen=True):
    """An auction that has ended, and the bid that has won it."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: int
    expires: int
    seller: int
    category: int
    extra: str
    bidder: int
    price: int
    channel: str
    url: str
    bid_date_time: int
    bid_extra: str


def rank(bid: Bid) -> tuple[int, int, int]:
    """The highest wins, and of those the first."""
    return bid.price, -bid.date_time, -bid.bidder


class WinningBids(CoProcessFunction[int, Auction, Bid, Won]):
    """Auctions and bids by auction. What is kept of an auction is it, and the best bid so far, until it ends.

    Topics are not read in step, so a bid may come before its auction. It waits until event time has come to it: by then
    every auction that was open at that time is here.
    """

    def open(self, ctx: ProcessContext) -> None:
        self._timers = ctx.timers()
        self._auction = ctx.value_state("auction", Auction)
        self._best = ctx.value_state("best", Bid)
        self._early = ctx.map_state("early", int, list[Bid])

    def process_left(self, key: int, value: Auction) -> Iterable[Won]:
        self._auction.put(value)
        self._timers.register(value.expires)
        for bids in self._early.values():
            for bid in bids:
                self._offer(value, bid)
        self._early.clear()
        return []

    def process_right(self, key: int, value: Bid) -> Iterable[Won]:
        auction = self._auction.get()
        if auction is None:
            until = self._timers.register(value.date_time)
            self._early.put(until, [*(self._early.get(until) or []), value])
        else:
            self._offer(auction, value)
        return []

    def on_timer(self, key: int, time: int) -> Iterable[Won]:
        auction = self._auction.get()
        if auction is None:
            self._early.remove(time)
        elif auction.expires <= time:
            best = self._best.get()
            self._auction.clear()
            self._best.clear()
            if best is not None:
                yield won(auction, best)

    def _offer(self, auction: Auction, bid: Bid) -> None:
        if auction.date_time <= bid.date_time <= auction.expires:
            best = self._best.get()
            if best is None or rank(bid) > rank(best):
                self._best.put(bid)


def won(auction: Auction, bid: Bid) -> Won:
    return Won(
        auction.id,
        auction.item_name,
        auction.description,
        auction.initial_bid,
        auction.reserve,
        auction.date_time,
        auction.expires,
        auction.seller,
        auction.category,
        auction.extra,
        bid.bidder,
        bid.price,
        bid.channel,
        bid.url,
        bid.date_time,
        bid.extra,
    )


def closing(events: Events, query: str) -> Stream[Won]:
    """The auctions that end, each at the time at which it does. ``query`` is what the names of operators begin with."""
    auctions = events.auctions.key_by(lambda auction: auction.id, name=f"{query}-auctions")
    bids = events.bids.key_by(lambda bid: bid.auction, name=f"{query}-bids")
    return connect(auctions, bids, name=f"{query}-both").process(WinningBids, name=f"{query}-won")
