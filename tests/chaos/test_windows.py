"""Windows, and state that ends, under fault: each result comes once, with all of its rows, whoever dies, with any
number of workers.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos.core.provenance import HEADER, TIMERS, parse_provenance
from tests.chaos.harness import Job, open_transactions, read
from tests.chaos.storm import PAYMENTS, Steps, in_storms, rescaled

NewJob = Callable[..., Job]
Found = tuple[str, str, int, int, tuple[int, ...]]
"""Kind, key, start and end of the window, ids of its payments."""

BASE = int(time.time()) * 1000
"""Where event time begins: at a second, of which the windows of this job are parts."""
GAP, APART = 60, 30
STEPS: Steps = (
    (1, ("commit.before=kill@2", "sink.seal=kill@3")),
    (3, ("align.complete=kill@4", "recovery.opened=kill", "snapshot.uploaded=kill@5")),
    (2, ("worker.ack.after=kill@3", "manifest.published=kill@2")),
)
FEW: Steps = ((1, ("commit.before=kill@2",)), (2, ("align.complete=kill@4", "snapshot.uploaded=kill@3")))


@pytest.mark.campaign
@pytest.mark.chaos
@in_storms(FEW, STEPS)
def test_each_window_has_its_result_once_in_a_storm_with_other_numbers_of_workers(
    new_job: NewJob, mode: str, backend: str, steps: Steps
) -> None:
    job = new_job(
        PAYMENTS,
        "window_verbs.py",
        KAFKA_EOS_CHECKPOINT_MODE=mode,
        TEST_BACKEND=backend,
        TEST_BASE=BASE,
        TEST_PAUSE=0.0002,
    )
    rescaled(job, steps)
    job.run()

    messages = read(job.bootstrap, job.output)
    names = Counter(map(name_of, messages))
    of_timers = {row(message)[0] for message in messages if TIMERS in name_of(message).split("/")}

    payments = read(job.bootstrap, job.input)
    assert Counter(found for found in map(row, messages) if found[0] != "clocked") == Counter(due(payments))
    assert max(names.values()) == 1
    assert of_timers >= {"tumbling", "sliding", "session", "branch", "greatest", "counted"}
    check_clocked([found for found in map(row, messages) if found[0] == "clocked"], payments)
    assert not open_transactions(job)


def check_clocked(found: list[Found], payments: list[Any]) -> None:
    """Which result has which payments is chance; none is in two, and in windows that are over none is missing."""
    ids: dict[tuple[str, int], list[int]] = defaultdict(list)
    for _, key, start, end, inside in found:
        assert end == start + 50
        ids[key, start] += inside
    every, _ = payments_of(payments)
    assert all(sorted(mine) == sorted(set(mine)) for mine in ids.values()), "a payment is in two results"
    for _, key, start, _, inside in (each for each in due(payments) if each[0] == "tumbling"):
        assert tuple(sorted(ids.pop((key, start)))) == inside
    for (key, start), mine in ids.items():
        assert set(mine) <= {n for n in every[key] if start <= n < start + 50}


def name_of(message: Any) -> str:
    return parse_provenance(dict(message.headers())[HEADER].decode()).identity


def row(message: Any) -> Found:
    said = json.loads(message.value())
    return said["kind"], said["key"], said["start"], said["end"], tuple(said["ids"])


def due(payments: list[Any]) -> Iterator[Found]:
    """Every window that event time has come to the end of, at the end of the input."""
    ids, watermark = payments_of(payments)
    branches: dict[str, list[int]] = defaultdict(list)
    for account, mine in ids.items():
        mine.sort()
        yield from regular("tumbling", account, mine, 50, 50, watermark)
        for kind, key, start, end, inside in regular("counted", account, mine, 50, 50, 2**62):
            yield from ((kind, key, start, end, inside[:n]) for n in range(2, len(inside) + 1, 2))
            if end - 1 <= watermark:
                yield kind, key, start, end, inside
        yield from regular("sliding", account, mine, 100, 40, watermark)
        for kind, key, start, end, inside in regular("greatest", account, mine, 200, 200, watermark):
            yield kind, key, start, end, tuple(sorted(inside, reverse=True)[:2])
        yield "firsts", account, 0, 0, (mine[0],)
        yield from (("few", account, 0, 0, (n,)) for n in far_apart(mine))
        yield from (("threes", account, 0, 0, tuple(mine[n - 3 : n])) for n in range(3, len(mine) + 1, 3))
        yield from sessions(account, mine, watermark)
        branches[f"b{int(account[1:]) % 4}"] += [n for n in mine if n // 50 * 50 + 49 <= watermark]
    for branch, mine in branches.items():
        yield from regular("branch", branch, sorted(mine), 100, 100, watermark)


def payments_of(payments: list[Any]) -> tuple[dict[str, list[int]], int]:
    """The ids that windows are of, by account, and how far event time has come at the end of the input."""
    newest: dict[int, int] = defaultdict(int)
    ids: dict[str, list[int]] = defaultdict(list)
    for message in payments:
        payment = json.loads(message.value())
        newest[message.partition()] = max(newest[message.partition()], payment["id"])
        if payment["amount"] > 0 and payment["id"] % 300 < 200:
            ids[payment["account"]].append(payment["id"])
    return ids, min(newest.values()) - 1


def regular(kind: str, key: str, ids: list[int], size: int, every: int, watermark: int) -> Iterator[Found]:
    last = min(watermark, max(ids, default=0) + size)
    for start in range((min(ids, default=0) - size) // every * every, last + 1, every):
        inside = tuple(n for n in ids if start <= n < start + size)
        if inside and start + size - 1 <= watermark:
            yield kind, key, start, start + size, inside


def far_apart(ids: list[int]) -> list[int]:
    passed: list[int] = []
    for n in ids:
        if not passed or n - passed[-1] >= APART:
            passed.append(n)
    return passed


def sessions(key: str, ids: list[int], watermark: int) -> Iterator[Found]:
    found: list[list[int]] = []
    for n in ids:
        if found and n - found[-1][-1] < GAP:
            found[-1].append(n)
        else:
            found.append([n])
    for each in found:
        if each[-1] + GAP - 1 <= watermark:
            yield "session", key, each[0], each[-1] + GAP, tuple(each)
