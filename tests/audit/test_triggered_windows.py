"""Results of windows before their end: those at the end are compared beside them, and what follows from the input is.

A job runs through kills with another number of workers. Then its outputs are written once more, into topics of a sink
for each corruption, and one audit judges them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from kafka_eos.audit import Check
from kafka_eos.core.provenance import parse_provenance
from tests.audit.corrupted_job import Corruption, Outs, Spoil, some_or_every, spoilt, without
from tests.audit.job import Job
from tests.audit.test_window_corruptions import BEGIN, at, other, said, sale

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
import msgspec
from kafka_eos import Pipeline, Windowed, monotonic, on_clock, on_count, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Sale(msgspec.Struct):
    user: str
    at: int
    amount: int

def add(total, sale):
    return total + sale.amount

pipeline = Pipeline("{name}")
by_user = pipeline.source(KafkaSource("{input}", value=Sale), name="sales") \\
    .with_timestamps(lambda sale: {begin} + sale.at, watermarks=monotonic()).key_by(lambda sale: sale.user)
fifty = tumbling(seconds=0.05)
streams = {{
    "counted": by_user.window(fifty, trigger=on_count(2)).fold(name="counted", init=int, step=add),
    "clocked": by_user.window(fifty, trigger=on_clock(every=0.01)).fold(name="clocked", init=int, step=add),
}}
for sink, topic in {topics}.items():
    streams[sink.partition(" ")[0]].sink(
        KafkaSink(topic, value=Windowed[str, int], key=lambda found: found.key), name=sink.replace(" ", "-"))
"""
OPEN = 450
"""The end of a window that is open when the job ends, and has four rows of ann by then."""


def none(until: int, **which: Any) -> Spoil:
    """There is no such result."""
    return lambda outs: without(outs, at(outs, until, **which))


def of_the_first_row(outs: Outs) -> Outs:
    """A result by count of a row that is not one too many: the first one of ann, and of its partition."""
    second = outs[at(outs, 50, value=2)]
    return [
        *outs,
        replace(second, text=str(structs.replace(parse_provenance(second.text or ""), offset=0))),
    ]


def between_times(outs: Outs) -> Outs:
    """A firing of the clock at a time at which there are none."""
    index = next(n for n, each in enumerate(outs) if "/processing-timers/" in (each.text or ""))
    origin = parse_provenance(outs[index].text or "")
    moved = replace(outs[index], text=str(structs.replace(origin, offset=origin.offset + 1)))
    return [*outs[:index], moved, *outs[index + 1 :]]


def twice(outs: Outs) -> Outs:
    return [*outs, outs[at(outs, 50, value=2)]]


CORRUPTIONS = (
    Corruption("counted right", list, {}),
    Corruption("clocked right", list, {}),
    Corruption("counted last-missing", none(50, of="timers"), {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("counted last-wrong", other(50, {"of": "timers"}, more=1), {Check.WRONG_VALUE: 1}),
    Corruption("counted early-missing", none(50, value=2), {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("counted early-wrong", other(50, {"value": 4}, more=1), {Check.WRONG_VALUE: 1}),
    Corruption("counted early-of-open", none(OPEN, value=4), {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("counted early-twice", twice, {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1}),
    Corruption("counted too-many", of_the_first_row, {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}),
    Corruption("counted nobody-knows", other(50, {"key": "zoe", "value": 2}, more=1), {}),
    Corruption("clocked last-missing", none(50, of="timers"), {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("clocked last-wrong", other(50, {"of": "timers"}, more=1), {Check.WRONG_VALUE: 1}),
    Corruption("clocked between-times", between_times, {Check.UNEXPECTED: 1}),
)

SOME = (
    "counted right",
    "clocked right",
    "counted last-wrong",
    "counted early-missing",
    "counted too-many",
    "counted nobody-knows",
    "clocked between-times",
)
"""One of each way to be wrong."""


def sales(begin: int, end: int) -> list[tuple[int, str | None, bytes]]:
    """One each ten milliseconds: of ann (partition 1), of carl (partition 0) and of zoe (in both, in turn)."""
    times = range(begin, end, 10)
    of_both = {n: (n // 10 % 2, *sale("zoe", n, 1)[1:]) for n in times}
    return [each for n in times for each in (sale("ann", n, 1), sale("carl", n, 1), of_both[n])]


@pytest.mark.campaign
@some_or_every(CORRUPTIONS, SOME)
def test_final_results_are_compared_beside_early_ones_and_those_that_follow_from_the_input(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, corruptions: tuple[Corruption, ...]
) -> None:
    names = [corruption.sink for corruption in corruptions]
    topics = {name: topic() for name in names}
    given: dict[str, Any] = {"input": topic(partitions=2), "topics": topics, "begin": BEGIN}
    job = new_job(PIPELINE, **given)
    job.feed(given["input"], sales(0, 240))
    job.run(workers=2, failpoints="commit.before=kill@1")
    job.feed(given["input"], sales(240, 440))
    job.run(workers=3, failpoints="timers.fired=kill@2")

    run = spoilt(job, new_job, topic, PIPELINE, given, corruptions, spark)

    run.expect_named()
    left_out = {each.sink: each for each in run.verdict.facts.uncompared}
    assert {*left_out} == {name.replace(" ", "-") for name in names}
    assert {each.what for each in left_out.values()} == {"existence and values"}
    chancy = [
        each for each in run.outs["counted right"] if said(each)[0] == "zoe" and "/timers/" not in (each.text or "")
    ]
    assert left_out["counted-right"].outputs == len(chancy) > 0
    by_clock = [each for each in run.outs["clocked right"] if "/processing-timers/" in (each.text or "")]
    assert left_out["clocked-right"].outputs == len(by_clock) > 0
