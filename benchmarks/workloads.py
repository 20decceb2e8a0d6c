"""What is computed: the input, and what every contender must have made of it.

    W1  JSON → keep 90 % → add a field → JSON
    W2  JSON → running sum for each of 100,000 keys, one output for each input → JSON

Rule: a run whose output is not exactly this gets no number.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

KEYS = 100_000
SEED = 20_261_121
DROPPED = 7
"""W1 drops records whose amount ends in this digit."""


class Output(msgspec.Struct):
    """The fields that are compared, of both workloads."""

    account: str
    id: int = 0
    twice: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What the output must be: how many records, their ids in sum (W1), the last total of each account (W2)."""

    records: int
    ids: int
    totals: dict[str, int]


def payments(count: int, keys: int = KEYS) -> Iterator[tuple[str, int, bytes]]:
    """(account, amount, record of about 100 bytes), the same for the same arguments everywhere."""
    rng = random.Random(SEED)
    below = rng.random
    for number in range(count):
        account, amount = f"account-{int(below() * keys):07d}", int(below() * 1000)
        note = f"paid by card, reference {number:09d}"
        yield account, amount, f'{{"id":{number},"account":"{account}","amount":{amount},"note":"{note}"}}'.encode()


def expected(workload: str, inputs: Iterable[tuple[str, int, bytes]]) -> Expected:
    """Compute in plain Python what ``workload`` must put out."""
    records = ids = 0
    totals: dict[str, int] = {}
    for number, (account, amount, _) in enumerate(inputs):
        if workload == "W1" and amount % 10 == DROPPED:
            continue
        records, ids = records + 1, ids + number
        totals[account] = totals.get(account, 0) + amount
    return Expected(records, ids if workload == "W1" else 0, totals if workload == "W2" else {})


def difference(wanted: Expected, values: Iterable[bytes]) -> str | None:
    """None if the committed output ``values`` is what was wanted, else what is wrong with it."""
    decode = msgspec.json.Decoder(Output).decode
    records = ids = 0
    totals: dict[str, int] = {}
    for output in map(decode, values):
        records, ids = records + 1, ids + output.id
        totals[output.account] = output.total
    if records != wanted.records:
        return f"{records} records instead of {wanted.records}"
    if wanted.ids and ids != wanted.ids:
        return "other records than wanted: their ids have another sum"
    if wanted.totals and totals != wanted.totals:
        wrong = sum(totals.get(account) != total for account, total in wanted.totals.items())
        return f"the last total of {wrong} accounts is wrong"
    return None
