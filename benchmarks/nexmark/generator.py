"""The input: persons, auctions and bids in the ratio 1 : 3 : 46, the same for the same arguments everywhere.

Written after the public description of Nexmark: most bids go to few auctions, most auctions are of few sellers, and an
auction lasts about as long as it takes until a hundred others have been opened. Event time goes on evenly; a record may
be up to ``DISORDER_MS`` older than that.

Rule: the real events are followed by *closers*, one day later, so many that each partition gets some: event time goes
past all windows and auctions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from benchmarks.nexmark.events import DISORDER_MS, Auction, Bid, Person

T = TypeVar("T")
Kind: TypeAlias = Literal["persons", "auctions", "bids"]
KINDS: Final[tuple[Kind, ...]] = ("persons", "auctions", "bids")
SEED: Final = 1931
BEGIN_MS: Final = 1_760_000_100_000
_DAY_MS: Final = 86_400_000
_ROUND: Final = 50
"""Events of which one is a person, and three are auctions."""
_OPENED: Final = 3
_FIRST_ID: Final = 1000
_OPEN_AUCTIONS: Final = 100
_ACTIVE_PERSONS: Final = 1000
_CATEGORIES: Final = range(10, 15)
_CLOSERS: Final = 64
_CLOSER_ID: Final = 10**12
_FIRST = ("Ada", "Bela", "Carl", "Dora", "Emil", "Frida", "Gero", "Hanna", "Ivo", "Jette", "Kai", "Lea")
_LAST = ("Ahrens", "Brandt", "Claus", "Dietz", "Ebert", "Franke", "Gross", "Huber", "Iven", "Jahn")
_CITIES = ("Portland", "Boise", "San Diego", "Seattle", "Phoenix", "Cheyenne", "Salem", "Fresno")
_STATES = ("OR", "ID", "CA", "WA", "AZ", "WY")
_ITEMS = ("lamp", "chair", "atlas", "violin", "teapot", "clock", "bicycle", "camera")
_CHANNELS = ("search", "mail", "app", "partner")


@dataclass(frozen=True)
class Generator:
    """``events`` of them, ``per_second`` of event time. Without ``bids`` these are left out, and count all the same."""

    events: int
    per_second: int = 1000
    seed: int = SEED
    bids: bool = True
    _rng: random.Random = field(init=False, repr=False, compare=False, default_factory=random.Random)

    @property
    def end(self) -> int:
        """The event time at which the last real event was made."""
        return BEGIN_MS + self.events * 1000 // self.per_second

    @property
    def closed(self) -> int:
        """All that is over by then is closed by the closers."""
        return self.end + _DAY_MS // 2

    def records(self) -> Iterator[tuple[Kind, str, bytes]]:
        """(topic, key, JSON): persons and auctions by their own id, bids by that of the auction."""
        encode = msgspec.json.encode
        for event in self.all():
            match event:
                case Bid():
                    yield "bids", str(event.auction), encode(event)
                case Auction():
                    yield "auctions", str(event.id), encode(event)
                case Person():
                    yield "persons", str(event.id), encode(event)

    def all(self) -> Iterator[Person | Auction | Bid]:
        """The events themselves, closers last."""
        self._rng.seed(self.seed)
        for number in range(self.events):
            done, place = divmod(number, _ROUND)
            at = BEGIN_MS + number * 1000 // self.per_second - self._below(DISORDER_MS + 1)
            if place == 0:
                yield self._person(_FIRST_ID + done, at)
            elif place <= _OPENED:
                yield self._auction(_FIRST_ID + done * _OPENED + place - 1, _FIRST_ID + done, at)
            elif self.bids:
                yield self._bid(_FIRST_ID + done * _OPENED + _OPENED - 1, _FIRST_ID + done, at)
        yield from _closers(self.end + _DAY_MS)

    def _person(self, number: int, at: int) -> Person:
        first, last = self._one(_FIRST), self._one(_LAST)
        card = " ".join(f"{self._below(10_000):04d}" for _ in range(4))
        mail = f"{first}.{last}@example.com".lower()
        city, state = self._one(_CITIES), self._one(_STATES)
        return Person(number, f"{first} {last}", mail, card, city, state, at, self._padding(60))

    def _auction(self, number: int, newest: int, at: int) -> Auction:
        """Three of four are of one of the newest hundred sellers, the others of anybody."""
        seller = self._person_of(newest, hot=0.75, number=0)
        lasts = 1 + self._below(2 * _OPEN_AUCTIONS * _ROUND // _OPENED * 1000 // self.per_second)
        first_bid = self._price()
        item, category = self._one(_ITEMS), self._one(_CATEGORIES)
        about = f"a {item} of good quality, {self._padding(60)}"
        reserve = first_bid + self._price()
        return Auction(
            number, f"{item} {number}", about, first_bid, reserve, at, at + lasts, seller, category, self._padding(200)
        )

    def _bid(self, newest_auction: int, newest_person: int, at: int) -> Bid:
        """Every other one is for the hot auction, the others for any of those that were opened last."""
        if self._below(2):
            auction = newest_auction // _OPEN_AUCTIONS * _OPEN_AUCTIONS
        else:
            auction = newest_auction - self._below(_OPEN_AUCTIONS)
        auction = max(_FIRST_ID, auction)
        channel = self._one(_CHANNELS)
        bidder = self._person_of(newest_person, hot=0.75, number=1)
        url = f"https://auctions.example.com/{channel}/item.php?id={auction}"
        return Bid(auction, bidder, self._price(), channel, url, at, self._padding(20))

    def _person_of(self, newest: int, *, hot: float, number: int) -> int:
        if self._rng.random() < hot:
            return max(_FIRST_ID, newest // 100 * 100 + number)
        return max(_FIRST_ID, newest - self._below(_ACTIVE_PERSONS))

    def _price(self) -> int:
        """Most are small, a few a million times as much."""
        return round(10 ** (self._rng.random() * 6) * 100)

    def _below(self, bound: int) -> int:
        return int(self._rng.random() * bound)

    def _one(self, of: Sequence[T]) -> T:
        return of[self._below(len(of))]

    def _padding(self, length: int) -> str:
        """Text that does not compress to nothing."""
        return f"{self._rng.getrandbits(4 * length):0{length}x}"


def _closers(at: int) -> Iterator[Person | Auction | Bid]:
    """They belong to nothing and to nobody."""
    for id_ in range(_CLOSER_ID, _CLOSER_ID + _CLOSERS):
        yield Person(id_, "closer", "", "", "", "", at, "")
        yield Auction(id_, "closer", "", 0, 0, at, at + 100 * _DAY_MS, 0, 0, "")
        yield Bid(id_, id_, 1, "", "", at, "")
