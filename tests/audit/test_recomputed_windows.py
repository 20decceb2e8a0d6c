"""Windows are computed again from the input, and what is wrong with their results is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.audit.job import FED_AT, Job
from tests.chaos.harness import read
from tests.marks import campaign

pytestmark = pytest.mark.timeout(600)

VERBS = """
import msgspec
from kafka_eos import Pipeline, Windowed, agg, bounded, days, session, sliding, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Sale(msgspec.Struct):
    user: str
    at: int
    amount: float

def add(total, sale):
    return total + sale.amount

def plus(one, other):
    return one + other

pipeline = Pipeline("{name}")
sales = pipeline.source(KafkaSource("{input}", value=Sale), name="sales") \\
    .with_timestamps(lambda sale: sale.at, watermarks=bounded(seconds=0.02))
by_user = sales.filter(lambda sale: sale.amount > 0).key_by(lambda sale: sale.user)

def into(topic, stream, name):
    stream.sink(KafkaSink(topic, value=Windowed[str, float], key=lambda found: found.key), name=name)

totals = by_user.window(tumbling(seconds=0.05)).fold(name="tumbling", init=float, step=add, state=float)
into("{tumbling}", totals, "to-tumbling")
into("{sliding}", by_user.window(sliding(seconds=0.1, every=0.04)).fold(
    name="sliding", init=float, step=add, merge=plus, state=float), "to-sliding")
into("{early}", by_user.window(tumbling(seconds=0.1, early=0.02)).fold(
    name="early", init=float, step=add, merge=plus, state=float), "to-early")
into("{sessions}", by_user.window(session(gap=0.03)).fold(
    name="sessions", init=float, step=add, merge=plus, state=float), "to-sessions")
into("{rate}", by_user.window(tumbling(seconds=0.1)).rate(name="rate"), "to-rate")
by_user.window(days("Europe/Berlin")).aggregate(
    agg.count(), total=agg.sum(lambda sale: sale.amount), average=agg.mean(lambda sale: sale.amount),
    first=agg.first(lambda sale: sale.amount), name="days",
).sink(KafkaSink("{days}", value=dict, key=lambda row: row.key), name="to-days")
by_user.window(tumbling(seconds=0.05)).top_n(2, by=lambda sale: sale.amount, name="top").sink(
    KafkaSink("{top}", value=Windowed[str, list[Sale]], key=lambda found: found.key), name="to-top")
by_user.window(session(gap=0.02)).process(
    lambda user, window, found: [f"{{user}} {{window.end}} {{[sale.at for sale in found]}}"], name="all",
).sink(KafkaSink("{all}", value=str), name="to-all")
nested = totals.key_by(lambda found: found.key[-1], name="by-letter").window(tumbling(seconds=0.2)).fold(
    name="nested", init=float, step=lambda total, found: total + found.value, state=float)
into("{nested}", nested.union(totals, name="both"), "to-nested")
"""
ROLES = ("tumbling", "sliding", "early", "sessions", "rate", "days", "top", "all", "nested")
DAY = 86_400_000
BEGIN = FED_AT - 3 * DAY


def sales(count: int) -> list[tuple[int, str | None, bytes]]:
    """By partition and in it out of order by up to 20 ms; the last two close all windows."""
    found = []
    for n in range(count):
        at = BEGIN + n * 3 + (-17 if n % 7 == 3 else 0) + (200 if n > count / 2 else 0)
        found.append((n % 2, None, b'{"user":"u%d","at":%d,"amount":%d.1}' % (n % 5, at, n % 11 - 1)))
    return found + [(p, None, b'{"user":"end","at":%d,"amount":1}' % (BEGIN + 2 * DAY)) for p in (0, 1)]


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ["embedded", campaign("spark")])
def test_what_windows_of_every_kind_make_is_computed_again(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, engine: str
) -> None:
    source, *outputs = topic(partitions=2), topic(partitions=2), *(topic() for _ in ROLES[1:])
    job = new_job(VERBS, input=source, **dict(zip(ROLES, outputs, strict=True)))
    job.feed(source, sales(400))
    job.run("--engine", engine)

    verdict = job.audit(spark)

    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), verdict.headline
    assert "not" not in verdict.headline
    assert verdict.facts.outputs == verdict.facts.expected


SESSIONS = """
from kafka_eos import Pipeline, Windowed, monotonic, session
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
times = pipeline.source(KafkaSource("{input}", value=int), name="times")
times.sink(KafkaSink("{copies}", value=int), name="copies")
times.with_timestamps(lambda at: {begin} + at, watermarks=monotonic()).key_by(lambda at: "all") \\
    .window(session(gap=0.03)).fold(name="sessions", init=int, step=lambda n, at: n + 1, merge=lambda a, b: a + b) \\
    .sink(KafkaSink("{output}", value=Windowed[str, int]), name="to-sessions")
"""


@pytest.mark.campaign
def test_a_session_that_may_have_been_closed_when_a_row_came_is_not_called_wrong(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    """The row at 75 is in no time for the session from 60 to 90, and not late: it begins one that goes on."""
    source, copies, output = topic(), topic(), topic()
    job = new_job(SESSIONS, input=source, copies=copies, output=output, begin=BEGIN)
    job.feed(source, [(0, None, b"%d" % at) for at in (0, 10, 60, 100)])
    job.run()
    job.feed(source, [(0, None, b"%d" % at) for at in (75, 200, 300)])
    job.run()

    verdict = job.audit(spark)

    assert [json.loads(message.value())["value"] for message in read(job.bootstrap, output)] == [2, 1, 2, 1]
    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), verdict.headline
    reason = "may depend on the watermark at which rows arrived; 1 are not the recomputed ones"
    assert f"sink to-sessions not recomputed: which outputs exist {reason}" in verdict.headline


SLIDING = SESSIONS.replace("monotonic, session", "monotonic, sliding").replace(
    "session(gap=0.03)", "sliding(seconds=0.06, every=0.01)"
)


@pytest.mark.campaign
def test_a_window_that_was_over_when_a_row_came_for_later_ones_is_not_called_wrong(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    """The row at 6 is late for the windows that end at 10, 20 and 30, and in those that end later."""
    source, copies, output = topic(), topic(), topic()
    job = new_job(SLIDING, input=source, copies=copies, output=output, begin=BEGIN)
    job.feed(source, [(0, None, b"%d" % at) for at in (5, 35)])
    job.run()
    job.feed(source, [(0, None, b"%d" % at) for at in (6, 300)])
    job.run()

    verdict = job.audit(spark)

    counts = [json.loads(message.value())["value"] for message in read(job.bootstrap, output)]
    assert counts == [1, 1, 1, 3, 3, 3, 1, 1, 1]
    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), verdict.headline
    assert "values of 6 outputs of sink to-sessions not compared" in verdict.headline
