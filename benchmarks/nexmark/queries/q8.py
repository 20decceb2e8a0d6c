"""q8, monitor new users: who came and opened an auction within the same ten seconds."""

from benchmarks.nexmark.events import Auction, Event, Events, Person
from kafka_eos import connect, tumbling
from kafka_eos.connectors.kafka import KafkaSink


class NewSeller(Event, frozen=True):
    id: int
    name: str
    start: int


def new_seller(person: Person, auction: Auction) -> NewSeller:
    return NewSeller(person.id, person.name, person.date_time // 10_000 * 10_000)


def q8(events: Events, topic: str) -> None:
    persons = events.persons.key_by(lambda person: person.id, name="q8-persons")
    auctions = events.auctions.key_by(lambda auction: auction.seller, name="q8-auctions")
    both = connect(persons, auctions, name="q8-both").window_join(tumbling(seconds=10), new_seller, name="q8-pairs")
    # One row for all auctions of a window; that of the next window would come ten seconds later.
    once = both.key_by(lambda row: row.id, name="q8-seller").deduplicate(within=10, name="q8-once")
    once.sink(KafkaSink(topic, value=NewSeller, key=lambda row: str(row.id)), name="q8")
