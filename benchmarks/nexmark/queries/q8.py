"""q8, monitor new users: who came and opened an auction within the same ten seconds.

``window_join`` would make a pair for each auction of a seller, and keep them all. One is as good as many here, so what
is known of a person in a window is one small row.
"""

from benchmarks.nexmark.events import Auction, Event, Events, Person
from kafka_eos import Window, tumbling
from kafka_eos.connectors.kafka import KafkaSink


class Seen(Event, frozen=True):
    id: int
    name: str | None = None
    sells: bool = False


class NewSeller(Event, frozen=True):
    id: int
    name: str | None
    start: int


def came(person: Person) -> Seen:
    return Seen(person.id, name=person.name)


def sells(auction: Auction) -> Seen:
    return Seen(auction.seller, sells=True)


def together(known: Seen, seen: Seen) -> Seen:
    if (known.sells or not seen.sells) and (known.name is not None or seen.name is None):
        return known  # nothing new
    return Seen(seen.id, known.name or seen.name, known.sells or seen.sells)


def new_sellers(key: int, window: Window, seen: Seen) -> list[NewSeller]:
    return [NewSeller(key, seen.name, window.start)] if seen.sells and seen.name is not None else []


def q8(events: Events, topic: str) -> None:
    seen = events.persons.map(came, name="q8-came").union(events.auctions.map(sells, name="q8-sells"), name="q8-seen")
    windows = seen.key_by(lambda row: row.id, name="q8-person").window(tumbling(seconds=10))
    found = windows.fold(init=lambda: Seen(0), step=together, emit=new_sellers, state=Seen, name="q8-known")
    rows = found.flat_map(lambda rows: rows, name="q8-rows")
    rows.sink(KafkaSink(topic, value=NewSeller, key=lambda row: str(row.id)), name="q8")
