"""q3, local item suggestion: who sells something of category 10 in three states."""

from benchmarks.nexmark.events import Auction, Event, Events, Person
from benchmarks.nexmark.queries.one_to_many import OneToMany
from kafka_eos import connect
from kafka_eos.connectors.kafka import KafkaSink


class Suggestion(Event, frozen=True):
    name: str
    city: str
    state: str
    id: int


def suggested(seller: Person, auction: Auction) -> list[Suggestion]:
    if seller.state not in ("OR", "ID", "CA"):
        return []
    return [Suggestion(seller.name, seller.city, seller.state, auction.id)]


def q3(events: Events, topic: str) -> None:
    wanted = events.auctions.filter(lambda auction: auction.category == 10, name="q3-wanted")
    persons = events.persons.key_by(lambda person: person.id, name="q3-persons")
    auctions = wanted.key_by(lambda auction: auction.seller, name="q3-auctions")
    joined = connect(persons, auctions, name="q3-both").process(OneToMany(Person, Auction, suggested), name="q3-joined")
    joined.sink(KafkaSink(topic, value=Suggestion, key=lambda row: str(row.id)), name="q3")
