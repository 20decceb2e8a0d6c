"""Matches of patterns are computed again from the input, and what is wrong with them is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.audit import Check
from tests.audit.corrupted_job import Corruption, Outs, shown, some_or_every, spoilt, without
from tests.audit.job import FED_AT, Input, Job, Out
from tests.chaos.harness import read
from tests.marks import campaign

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
import msgspec
from kafka_eos import OutputTag, Pattern, Pipeline, bounded
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Login(msgspec.Struct):
    user: str
    at: int
    ok: bool

class Found(msgspec.Struct):
    user: str
    tried: list[int]

def guessed(user, rows):
    return Found(user, [row.at for name in rows for row in rows[name]])

OVER, LATE = OutputTag("over", Found), OutputTag("late", Login)
pipeline = Pipeline("{name}")
keyed = (
    pipeline.source(KafkaSource("{logins}", value=Login), name="logins")
    .with_timestamps(lambda row: {begin} + row.at, watermarks=bounded(0.02))
    .key_by(lambda row: row.user, name="by-user", values=Login)
)
three = Pattern[Login].begin("failed", lambda row: not row.ok).times(3).followed_by("in", lambda row: row.ok)
at_once = Pattern[Login].begin("failed", lambda row: not row.ok).next("in", lambda row: row.ok)
found = keyed.match(
    three.within(seconds=0.06), guessed, name="three", timed_out=OVER, on_timeout=guessed, late=LATE)
both = keyed.match(at_once.within(seconds=0.02).overlapping(), guessed, name="at-once", late=LATE)
streams = {{"found": found, "over": found.side_output(OVER), "late": found.side_output(LATE),
            "both": both, "late-too": both.side_output(LATE)}}
for sink, topic in {topics}.items():
    streams[sink.partition(" ")[0]].sink(KafkaSink(topic, value=dict, key=lambda row: row.user),
                                         name=sink.replace(" ", "-"))
"""
STREAMS = ("found", "over", "late", "both", "late-too")
BEGIN = (FED_AT - 86_400_000) // 1000 * 1000
HIT = {"user": "ann", "tried": [0, 10, 20, 30]}


def row(user: str, at: int, ok: bool) -> Input:
    return len(user) % 2, None, json.dumps({"user": user, "at": at, "ok": ok}).encode()


def logins(begin: int, end: int) -> list[Input]:
    """Of ann (partition 1) and carl (partition 0), each second one out of order."""
    times = [n + (10 if n // 10 % 2 == 0 else -10) if n % 140 >= 80 else n for n in range(begin, end, 10)]
    return [row(user, n, n // 10 % 7 in (3, 6)) for n in times for user in ("ann", "carl")]


def fed(new_job: Callable[..., Job], topic: Callable[..., str], names: tuple[str, ...]) -> Any:
    given = {"begin": BEGIN, "logins": topic(partitions=2), "topics": {name: topic() for name in names}}
    return new_job(PIPELINE, **given), given


@pytest.mark.parametrize("engine", ["embedded", campaign("spark")])
@pytest.mark.campaign
def test_what_patterns_find_is_computed_again(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, engine: str
) -> None:
    job, given = fed(new_job, topic, STREAMS)
    job.feed(given["logins"], logins(0, 700))
    job.run("--engine", engine)

    verdict = job.audit(spark)

    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), shown(verdict)
    assert "not" not in verdict.headline, verdict.headline
    assert verdict.facts.outputs == verdict.facts.expected
    assert {name for name, at in given["topics"].items() if not read(job.bootstrap, at)} == {"late", "late-too"}


def said(out: Out) -> Any:
    return json.loads(out.value or b"")


def twice(outs: Outs) -> Outs:
    return [*outs, outs[0]]


def missing(outs: Outs) -> Outs:
    return without(outs, 0)


def other(outs: Outs) -> Outs:
    """A match that takes another row than the first one that it could."""
    index = next(n for n, each in enumerate(outs) if said(each) == HIT)
    changed = json.dumps({**HIT, "tried": [0, 10, 20, 60]}).encode()
    of = outs[index]
    return [*outs[:index], Out(of.key, changed, of.text, 0, (), of.timestamp), *outs[index + 1 :]]


def too_early(outs: Outs) -> Outs:
    """One more, of a time when there was no match."""
    of = outs[0]
    where = (of.text or "").split("/")
    where[4] = str(int(where[4]) - 1)
    return [*outs, Out(of.key, of.value, "/".join(where), 0, (), (of.timestamp or 0) - 1)]


CORRUPTIONS = (
    *(Corruption(f"{name} right", list, {}) for name in STREAMS),
    Corruption("found twice", twice, {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1}),
    Corruption("found missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("found other", other, {Check.WRONG_VALUE: 1}),
    Corruption("found too-early", too_early, {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}),
    Corruption("over missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("over too-early", too_early, {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}),
    Corruption("both missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
)
SOME = (*(f"{name} right" for name in STREAMS), "found other", "over too-early", "both missing")
"""One of each kind of match, and of each way to be wrong."""


@pytest.mark.campaign
@some_or_every(CORRUPTIONS, SOME)
def test_each_corruption_is_named(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, corruptions: tuple[Corruption, ...]
) -> None:
    names = tuple(corruption.sink for corruption in corruptions)
    job, given = fed(new_job, topic, names)
    job.feed(given["logins"], logins(0, 400))
    job.run(workers=2, failpoints="commit.before=kill@1")
    job.feed(given["logins"], [row("ann", 101, False), row("carl", 102, True), *logins(400, 700)])
    job.run(workers=3, failpoints="timers.fired=kill@2")

    run = spoilt(job, new_job, topic, PIPELINE, given, corruptions, spark)

    assert [len(run.outs[f"{name} right"]) > 0 for name in STREAMS] == [True] * len(STREAMS)
    run.expect_named()
    assert "not recomputed" not in run.verdict.headline
