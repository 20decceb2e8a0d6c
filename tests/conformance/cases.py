"""What is fed to each pipeline, and in which sense its outputs must be the same on all engines.

A claim turns what was read from one output into something that must be equal. The stronger, the better: ``in_order``
where rows of a key have an order, ``same`` where they have none, and the others where chance has a say by design:
which of two sources comes first, how many workers copy a row, where an epoch ends.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.conformance import pipelines
from tests.conformance.pipelines import Build

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One committed output. ``origin`` is its provenance without the attempt, "" in files."""

    key: str
    value: Mapping[str, Any]
    origin: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> tuple[object, ...]:
        return (self.key, *sorted(self.value.items()), self.origin, *self.headers)


What = Callable[[Row], Any]
Counts = Counter[Any]
"""What a claim makes of an output: equal facts, equal outputs. A Counter, so that differences can be named."""
Claim = Callable[[Sequence[Row]], Counts]


def _whole(row: Row) -> object:
    return row.whole


def _key(row: Row) -> object:
    return row.key


def field(*names: str) -> What:
    return lambda row: tuple(row.value[name] for name in names)


def value(row: Row) -> object:
    return json.dumps(row.value, sort_keys=True)


def same(what: What = _whole) -> Claim:
    """Equal as multisets."""
    return lambda rows: Counter(map(what, rows))


def in_order(what: What = _whole, per: What = _key) -> Claim:
    """Equal as multisets, and the rows of each key in the same order."""

    def facts(rows: Sequence[Row]) -> Counts:
        places: Counter[Any] = Counter()
        found: Counts = Counter()
        for row in rows:
            found[(per(row), places[per(row)], what(row))] += 1
            places[per(row)] += 1
        return found

    return facts


def final(what: What, per: What = _key) -> Claim:
    """The last row of each key is the same."""
    return lambda rows: Counter({per(row): what(row) for row in rows}.items())


def distinct(what: What) -> Claim:
    """The same rows, however often."""
    return lambda rows: Counter({what(row) for row in rows})


def over(until: int) -> Claim:
    """The last result of each key and window that ends before ``until`` is the same."""
    what, per = field("total", "count"), field("key", "id")
    return lambda rows: final(what, per)([row for row in rows if row.value["id"] <= until])


# ---------------------------------------------------------------- input

Fed = tuple[str, Any, int]
"""Record key, JSON value or raw bytes, timestamp in milliseconds. None is a tombstone."""


def payments(first: int, count: int, accounts: int = 20, at_ms: int = START_MS) -> list[Fed]:
    rows = ((n, f"a{n % accounts}") for n in range(first, first + count))
    return [(a, {"id": n, "account": a, "amount": n % 13 + 1}, at_ms + n) for n, a in rows]


def with_bad(rows: list[Fed]) -> list[Fed]:
    """Every hundredth record is preceded by one that is not JSON."""
    bad = (b"not json", b"[]", b'{"id": "x"}')
    out: list[Fed] = []
    for n, row in enumerate(rows):
        out += [(row[0], bad[n // 100 % 3], row[2])] * (n % 100 == 50) + [row]
    return out


def rates(accounts: range, versions: int, kept: int, at_ms: int, every: int) -> list[Fed]:
    """A table of so many versions of each account, one every so many milliseconds; those from ``kept`` on are taken
    away again.
    """
    rows: list[Fed] = [
        (f"a{n}", {"id": version, "account": f"a{n}", "amount": version + n}, at_ms + version * every)
        for version in range(versions)
        for n in accounts
    ]
    return [*rows, *((f"a{n}", None, at_ms + versions * every) for n in accounts if n >= kept)]


# ---------------------------------------------------------------- cases


@dataclass(frozen=True, slots=True)
class Case:
    """A pipeline, what it reads phase by phase (it drains one before the next is fed), and what must be equal.

    ``claims`` say of each output in which senses; ``rows`` how many rows it has in all, if chance has no say in that.
    """

    build: Build
    phases: Sequence[Mapping[str, list[Fed]]]
    claims: Mapping[str, Sequence[Claim]]
    rows: Mapping[str, int]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.phases[0])

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.claims)


def _shares(count: int) -> int:
    return sum((n % 13 + 1) % 4 for n in range(count))


def _statements(count: int, accounts: int) -> int:
    """One a payment; every fifth of an account brings one an amount so far, and one of the list."""
    seen: dict[int, list[int]] = defaultdict(list)
    total = 0
    for n in range(count):
        mine = seen[n % accounts]
        mine.append(n % 13 + 1)
        total += 1 + (len(set(mine)) + 1 if len(mine) % 5 == 0 else 0)
    return total


N = 900
_once = [{"input": payments(0, N)}]

CASES: Mapping[str, Case] = {
    "stateless": Case(
        pipelines.stateless,
        _once,
        {"output": [in_order()], "shares": [in_order()], "doubled": [in_order()], "files": [same()]},
        {
            "output": sum((n % 13 + 1) % 3 > 0 for n in range(N)),
            "shares": _shares(N),
            "doubled": N,
            "files": N // 2,
        },
    ),
    "spread": Case(
        pipelines.spread,
        _once,
        {"output": [same()], "copies": [distinct(field("key", "total", "id"))]},
        {"output": _shares(N)},
    ),
    "diamond": Case(pipelines.diamond, _once, {"output": [same()]}, {"output": 2 * N}),
    "keyed": Case(
        pipelines.keyed,
        _once,
        {"output": [in_order()], "highest": [in_order()], "statements": [in_order()]},
        {"output": _shares(N), "highest": N, "statements": _statements(N, 20)},
    ),
    "united": Case(
        pipelines.united,
        [{"input": payments(0, N), "second": payments(N, N // 2)}],
        # Which source comes first is chance: so is which of their rows sees which total, but not how many there are.
        {"output": [in_order(field("count")), same(field("id")), final(field("total", "count"))]},
        {"output": N + N // 2},
    ),
    "stages": Case(
        pipelines.stages,
        _once,
        # Accounts share the second stage's keys, and no order holds between them.
        {"first": [in_order()], "output": [in_order(field("count")), same(field("key", "id", "total"))]},
        {"first": N, "output": N},
    ),
    "letters": Case(
        pipelines.letters,
        [{"input": with_bad(payments(0, N))}],
        {"output": [in_order()], "letters": [same()]},
        {"output": N - N // 5, "letters": N // 5 + N // 100},
    ),
    "merged": Case(
        pipelines.merged,
        [{"input": payments(0, N)}],
        # There is one output a key and epoch, and epochs end where they end.
        {"output": [final(field("total", "count", "id"))]},
        {},
    ),
    "expiring": Case(
        pipelines.expiring,
        [{"input": payments(0, 300, 300)}, {"input": payments(300, 300, 300, START_MS + HOUR_MS)}],
        # An account comes once a phase, and all that it had is gone by the second one.
        {
            "output": [in_order()],
            "minutes": [in_order()],
            "highest": [in_order()],
            "merged": [same(field("key", "total", "count", "id"))],
            "rows": [same()],
        },
        {"output": 600, "minutes": 600, "highest": 600, "merged": 600, "rows": 1200},
    ),
    "timed": Case(
        pipelines.timed,
        _once,
        # The last window ends behind the last payment: it stays open.
        {"totals": [in_order()], "output": [in_order()], "branches": [in_order()]},
        {"totals": N, "output": (N // 100 - 1) * 20, "branches": (N // 100 - 1) * 4},
    ),
    "windowed": Case(
        pipelines.windowed,
        _once,
        # The day is not over, and partitions end at different times.
        {
            "totals": [in_order()],
            "output": [same()],
            "branches": [in_order()],
            "sessions": [in_order()],
            "counted": [in_order()],
        },
        {"totals": N, "counted": 20 * (N // 20 // 3)},
    ),
    "triggered": Case(
        pipelines.triggered,
        _once,
        # What the clock has come to, and when, is chance; not the last result of a window that is over.
        {"output": [same()], "clocked": [over(START_MS + N - 100)]},
        {},
    ),
    "joined": Case(
        pipelines.joined,
        [{"input": payments(0, N), "second": payments(0, N, at_ms=START_MS + 3)}],
        # Which source is ahead is chance; what a join makes is not, nor what it is called.
        {"output": [in_order()], "alone": [same()], "windows": [same()], "balances": [in_order()]},
        {},
    ),
    "matched": Case(
        pipelines.matched,
        _once,
        # Partitions end at different times: what waits behind the slowest one is in no match yet.
        {"output": [in_order()], "over": [in_order()], "sums": [same()]},
        {},
    ),
    "looked-up": Case(
        pipelines.looked_up,
        # A table changes when nothing else is there to be read: else which version a row meets is chance.
        [
            {"input": payments(0, N // 2), "second": rates(range(15), 40, 12, START_MS, N // 80)},
            {"second": rates(range(5, 10), 45, 8, START_MS + N, 1)},
            {"input": payments(N // 2, N // 2)},
        ],
        {"output": [in_order()], "all": [in_order()], "sums": [same()], "then": [in_order()]},
        # Of the accounts from 0 to 11, a table that changed has lost 8 and 9. As of a time, rows wait that are newer
        # than 50 ms before the end of the partition that ends first.
        {
            "output": sum(n % 20 < 12 and (n < N // 2 or n % 20 not in (8, 9)) for n in range(N)),
            "all": N,
            "then": N - 55,
        },
    ),
    "ruled": Case(
        pipelines.ruled,
        # Rules change when nothing else is there to be read: else which of them a row meets is chance.
        [
            {"input": payments(0, N // 2), "second": rates(range(15), 40, 12, START_MS, 1)},
            {"second": rates(range(5, 10), 45, 8, START_MS + N, 1)},
            {"input": payments(N // 2, N // 2)},
        ],
        # The timers of the last payments of each partition stay pending. Others have no place among the payments, which
        # do not wait for event time.
        {"output": [same()], "all": [in_order()], "nobody": [in_order()]},
        {
            "all": sum(n % 20 < 12 and (n < N // 2 or n % 20 not in (8, 9)) for n in range(N)),
            "nobody": sum(n % 20 >= 12 or (n >= N // 2 and n % 20 in (8, 9)) for n in range(N)),
        },
    ),
    "requests": Case(
        pipelines.async_requests,
        _once,
        # Which answer comes first is chance, but not what it is called; nor what is in a window of event time.
        {
            "output": [in_order()],
            "nobody": [in_order()],
            "rates": [in_order()],
            "both": [same()],
            "windows": [in_order()],
        },
        {"output": _shares(N) - sum((n % 13 + 1) % 4 == 3 for n in range(N)), "both": N, "rates": N},
    ),
    "aligned": Case(
        pipelines.aligned,
        # The second topic is ahead by 0.3 s, and may be by 0.05 s.
        [{"input": payments(0, N), "second": payments(N, N, at_ms=START_MS - N + 300)}],
        # Which of the two topics a window's last payment came from is chance.
        {"output": [in_order(field("key", "total", "count"))]},
        {"output": 20 * ((N - 100) // 100)},
    ),
    "aggregated": Case(pipelines.aggregated, _once, {"output": [in_order()], "best": [final(value)]}, {"output": N}),
    "sides": Case(
        pipelines.sides,
        _once,
        # The three partitions end at different times: the timers of the last payments stay pending.
        {"output": [in_order()], "large": [in_order()], "seen": [in_order()]},
        {"output": sum(n % 13 < 9 for n in range(N)), "large": 2 * sum(n % 13 >= 9 for n in range(N))},
    ),
    "clocked": Case(
        pipelines.clocked,
        [{"input": payments(0, N // 2)}, {"input": payments(N // 2, N // 2)}],
        # When the clock is looked at is chance, and so is what a firing is called.
        {"output": [in_order(field("key", "id"))]},
        {"output": N},
    ),
    "named-windows": Case(
        pipelines.named_windows,
        _once,
        # Windows and sessions that end behind the last payment of all partitions stay open.
        {"output": [in_order(value)], "best": [in_order(value)], "rates": [in_order(value)]},
        {"best": (N // 100 - 1) * 20, "rates": (N // 100 - 1) * 20},
    ),
    "deduplicated": Case(
        pipelines.deduplicated,
        # The second phase says that all is over: nothing is left of the first one.
        [*_once, {"input": payments(N, 20, 20, START_MS + HOUR_MS)}],
        {"output": [same()], "firsts": [in_order()]},
        {"output": 260 + 260 + 20, "firsts": 20},
    ),
    "loop": Case(
        pipelines.loop,
        [{"input": payments(0, 300)}],
        # Rows of different rounds meet as they come; the last to leave has seen all.
        {"output": [same(field("key", "id")), final(field("total"))]},
        {"output": 300},
    ),
}
