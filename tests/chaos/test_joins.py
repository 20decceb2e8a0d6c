"""Joins under fault: each pair, and each row without one, comes once, whoever dies, with any number of workers."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos.savepoints import Snapshot
from tests.chaos.harness import Job, open_transactions, read
from tests.chaos.storm import PAYMENTS, Steps, in_storms, rescaled
from tests.chaos.test_windows import FEW, STEPS, name_of

NewJob = Callable[..., Job]
Found = tuple[str, str, tuple[int, ...]]
"""Kind, key, ids."""

BASE = int(time.time()) * 1000
LOWER, UPPER, SIZE, EVERY, GAP = -30, 60, 100, 50, 45


@pytest.mark.campaign
@pytest.mark.chaos
@in_storms(FEW, STEPS)
def test_each_pair_comes_once_in_a_storm_with_other_numbers_of_workers(
    new_job: NewJob, mode: str, backend: str, steps: Steps
) -> None:
    job = new_job(
        PAYMENTS,
        "joined.py",
        KAFKA_EOS_CHECKPOINT_MODE=mode,
        TEST_BACKEND=backend,
        TEST_BASE=BASE,
        TEST_PAUSE=0.0002,
    )
    rescaled(job, steps)
    job.run()

    messages = read(job.bootstrap, job.output)
    names = Counter(map(name_of, messages))

    kinds = {"near", "unpaid", "unordered", "window", "lonely", "session", "counts"}
    found, wanted = Counter(map(row, messages)), Counter(due(read(job.bootstrap, job.input)))
    assert {kind for kind, *_ in wanted} == kinds
    assert (found - wanted, wanted - found) == (Counter(), Counter())
    assert max(names.values()) == 1
    assert not open_transactions(job)
    snapshot = Snapshot.open(job.checkpoints / job.name)
    oldest = max(payment["id"] for payment in map(said, read(job.bootstrap, job.input))) - 500
    for state in ("left", "right", "left-met", "right-met"):
        assert all(at - BASE > oldest for _, at in dict(snapshot.read("near", state)))


def said(message: Any) -> Any:
    return json.loads(message.value())


def row(message: Any) -> Found:
    found = said(message)
    return found["kind"], found["key"], tuple(found["ids"])


def due(messages: list[Any]) -> Iterator[Found]:
    """All that event time has come to at the end of the input."""
    newest: dict[int, int] = defaultdict(int)
    sides: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for message in messages:
        payment = said(message)
        newest[message.partition()] = max(newest[message.partition()], payment["id"])
        if payment["id"] % 3 and payment["id"] % 300 < 200:
            sides[payment["account"]][0].append(payment["id"])
        elif not payment["id"] % 3 and payment["amount"] > 3:
            sides[payment["account"]][1].append(payment["id"])
    watermark = min(newest.values()) - 1
    for key, (orders, payments) in sides.items():
        yield from near(key, sorted(orders), sorted(payments), watermark)
        yield from windows(key, sorted(orders), sorted(payments), watermark)
        yield from sessions(key, orders, payments, watermark)
        for end in sorted({each // 100 * 100 + 100 for each in (*orders, *payments)}):
            if end - 1 <= watermark:
                yield "counts", key, (end, *(sum(end - 100 <= n < end for n in side) for side in (orders, payments)))


def near(key: str, orders: list[int], payments: list[int], watermark: int) -> Iterator[Found]:
    pairs = [(one, other) for one in orders for other in payments if LOWER <= other - one <= UPPER]
    yield from (("near", key, both) for both in pairs if max(both) <= watermark)
    paid, ordered = ({pair[side] for pair in pairs} for side in (0, 1))
    yield from (("unpaid", key, (one,)) for one in orders if one not in paid and one + UPPER <= watermark)
    yield from (("unordered", key, (one,)) for one in payments if one not in ordered and one - LOWER <= watermark)


def windows(key: str, orders: list[int], payments: list[int], watermark: int) -> Iterator[Found]:
    for start in range(-SIZE, watermark + 1, EVERY):
        if start + SIZE - 1 <= watermark:
            left, right = ([n for n in side if start <= n < start + SIZE] for side in (orders, payments))
            yield from (("window", key, (one, other)) for one in left for other in right)
            yield from (("lonely", key, (one,)) for one in left if not right)


def sessions(key: str, orders: list[int], payments: list[int], watermark: int) -> Iterator[Found]:
    found: list[list[int]] = []
    for n in sorted([*orders, *payments]):
        if found and n - found[-1][-1] < GAP:
            found[-1].append(n)
        else:
            found.append([n])
    for each in found:
        if each[-1] + GAP - 1 <= watermark:
            mine = [[n for n in each if n in side] for side in (orders, payments)]
            yield from (("session", key, (one, other)) for one in mine[0] for other in mine[1])
