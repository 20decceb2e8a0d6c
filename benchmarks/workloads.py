"""What is computed: the input, and what every contender must have made of it.

    W1  JSON → keep 90 % → add a field → JSON
    W2  JSON → running sum for each of 100,000 keys, one output for each input → JSON
    W4  JSON, out of order by up to a minute → sum for each of 100,000 keys and five minutes, once they are over → JSON

(W3 is the word count of ``benchmarks.abs_paper``.)

Rule: a run whose output is not exactly this gets no number.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

KEYS = 100_000
SEED = 20_261_121
DROPPED = 7
"""W1 drops records whose amount ends in this digit."""
WINDOW_MS = 300_000
DISORDER_MS = 60_000
_BEGIN_MS = 1_760_000_100_000
_CLOSERS = 256
"""Records behind the others, enough of them that each partition gets some: event time goes past all windows."""


class Output(msgspec.Struct):
    """The fields that are compared, of all workloads."""

    account: str
    id: int = 0
    start: int = 0
    twice: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What the output must be: how many records, their ids in sum (W1), the last total of each account (W2).

    ``windows`` has the total of each account and start of a window (W4).
    """

    records: int
    ids: int = 0
    totals: Mapping[str, int] = field(default_factory=dict)
    windows: Mapping[tuple[str, int], int] = field(default_factory=dict)


def payments(count: int, keys: int = KEYS) -> Iterator[tuple[str, int, bytes]]:
    """(account, amount, record of about 100 bytes), the same for the same arguments everywhere."""
    rng = random.Random(SEED)
    below = rng.random
    for number in range(count):
        account, amount = f"account-{int(below() * keys):07d}", int(below() * 1000)
        note = f"paid by card, reference {number:09d}"
        yield account, amount, f'{{"id":{number},"account":"{account}","amount":{amount},"note":"{note}"}}'.encode()


def late_payments(count: int, keys: int = KEYS) -> Iterator[tuple[str, int, int, bytes]]:
    """(account, event time in ms, amount, record of about 110 bytes): 1,000 a second, up to a minute out of order."""
    rng = random.Random(SEED)
    below = rng.random
    for number in range(count):
        account, amount = f"account-{int(below() * keys):07d}", int(below() * 1000)
        at = _BEGIN_MS + number - int(below() * DISORDER_MS)
        yield account, at, amount, _late(number, account, at, amount)
    for number in range(_CLOSERS):
        at = _BEGIN_MS + count + 2 * WINDOW_MS
        yield f"closer-{number:07d}", at, 0, _late(count + number, f"closer-{number:07d}", at, 0)


def _late(number: int, account: str, at: int, amount: int) -> bytes:
    note = f"paid by card, {number:09d}"
    return f'{{"id":{number},"account":"{account}","amount":{amount},"at":{at},"note":"{note}"}}'.encode()


def window_totals(inputs: Iterable[tuple[str, int, int, bytes]]) -> Expected:
    """Compute in plain Python what W4 must put out: all windows but the last one, which nothing closes."""
    windows: dict[tuple[str, int], int] = {}
    for account, at, amount, _ in inputs:
        place = account, at // WINDOW_MS * WINDOW_MS
        windows[place] = windows.get(place, 0) + amount
    open_still = max(start for _, start in windows)
    closed = {place: total for place, total in windows.items() if place[1] != open_still}
    return Expected(len(closed), windows=closed)


def expected(workload: str, inputs: Iterable[tuple[str, int, bytes]]) -> Expected:
    """Compute in plain Python what ``workload`` must put out."""
    records = ids = 0
    totals: dict[str, int] = {}
    for number, (account, amount, _) in enumerate(inputs):
        if workload == "W1" and amount % 10 == DROPPED:
            continue
        records, ids = records + 1, ids + number
        totals[account] = totals.get(account, 0) + amount
    return Expected(records, ids) if workload == "W1" else Expected(records, totals=totals)


def difference(wanted: Expected, values: Iterable[bytes]) -> str | None:
    """None if the committed output ``values`` is what was wanted, else what is wrong with it."""
    decode = msgspec.json.Decoder(Output).decode
    records = ids = 0
    totals: dict[str, int] = {}
    windows: dict[tuple[str, int], int] = {}
    for output in map(decode, values):
        records, ids = records + 1, ids + output.id
        totals[output.account] = windows[output.account, output.start] = output.total
    if records != wanted.records:
        return f"{records} records instead of {wanted.records}"
    if wanted.ids and ids != wanted.ids:
        return "other records than wanted: their ids have another sum"
    if wanted.totals and totals != wanted.totals:
        wrong = sum(totals.get(account) != total for account, total in wanted.totals.items())
        return f"the last total of {wrong} accounts is wrong"
    if wanted.windows and windows != wanted.windows:
        wrong = sum(windows.get(place) != total for place, total in wanted.windows.items())
        return f"the totals of {wrong} windows are wrong or missing"
    return None
