"""Nexmark's three kinds of events, and the streams of them that the queries begin with.

An auction house: persons open auctions, and bid on those of others. Each kind has a topic, in JSON, with the names that
Nexmark gives to fields (``dateTime``). Times are milliseconds since 1970.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from kafka_eos import Pipeline, Stream, bounded
from kafka_eos.connectors.kafka import KafkaSource

DISORDER_MS = 500
"""A record may be that much older than one before it."""


class Event(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What all rows have in common: how their fields are called in JSON."""


class Person(Event, frozen=True):
    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: int
    extra: str


class Auction(Event, frozen=True):
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


class Bid(Event, frozen=True):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str


class Events:
    """The input of a pipeline: topics whose names begin with ``prefix``. Only those that a query asks for are read."""

    def __init__(self, pipeline: Pipeline, prefix: str = "nexmark-") -> None:
        self._pipeline, self._prefix = pipeline, prefix

    @cached_property
    def persons(self) -> Stream[Person]:
        persons = self._pipeline.source(KafkaSource(f"{self._prefix}persons", value=Person), name="persons")
        return persons.with_timestamps(lambda person: person.date_time, watermarks=bounded(DISORDER_MS / 1000))

    @cached_property
    def auctions(self) -> Stream[Auction]:
        auctions = self._pipeline.source(KafkaSource(f"{self._prefix}auctions", value=Auction), name="auctions")
        return auctions.with_timestamps(lambda auction: auction.date_time, watermarks=bounded(DISORDER_MS / 1000))

    @cached_property
    def bids(self) -> Stream[Bid]:
        bids = self._pipeline.source(KafkaSource(f"{self._prefix}bids", value=Bid), name="bids")
        return bids.with_timestamps(lambda bid: bid.date_time, watermarks=bounded(DISORDER_MS / 1000))
