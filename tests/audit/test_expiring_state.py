"""Jobs whose state goes away: what a recompute cannot know is not compared, and said; the rest is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, Ttl, rows
from kafka_eos.audit import Check
from kafka_eos.audit.tables.plan_cut import cut
from kafka_eos.core.ids import SplitId
from kafka_eos.testing import ListSource, MemorySink
from tests.audit.job import ONCE, Job, Out, epoch, out

pytestmark = pytest.mark.timeout(600)

HEAD = """
from kafka_eos import Pipeline, ProcessFunction, Ttl
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="orders").key_by(lambda word: word)
"""
COUNTS = (
    HEAD
    + """
words.fold(name="count", init=lambda: 0, step=lambda n, _: n + 1, ttl=Ttl(3600)) \\
    .map(lambda pair: pair[1]).sink(KafkaSink("{output}", value=int), name="counts")
"""
)
EACH_ONCE = (
    HEAD
    + ONCE
    + """
words.process(Once, name="once").sink(KafkaSink("{output}", value=str), name="words")
"""
)
NUMBERED = (
    HEAD
    + """
class Numbered(ProcessFunction):
    def open(self, ctx):
        self.n = ctx.value_state("n", int, 0)

    def process(self, key, word):
        self.n.put(self.n.get() + 1)
        yield self.n.get()

words.process(Numbered, name="numbered").sink(KafkaSink("{output}", value=int), name="numbers")
"""
)


@pytest.fixture
def ran(new_job: Callable[..., Job], topic: Callable[..., str]) -> Callable[..., Job]:
    """``ran(plan, words, outs)``: a job that has read the words and written (offset of the word, value, update)."""

    def run(plan: str, words: list[str], outs: list[tuple[int, bytes, int | None]]) -> Job:
        source, target = topic(), topic()
        job = new_job(plan, input=source, output=target)
        job.feed(source, [(0, None, word.encode()) for word in words])
        job.write(target, [_out(source, *each) for each in outs])
        positions = {"orders": {SplitId(f"{source}/0"): len(words)}}
        job.commits(epoch(1, 0), epoch(1, 1), positions=positions, counts={epoch(1, 1): len(outs)})
        return job

    return run


def _out(source: str, offset: int, value: bytes, update: int | None) -> Out:
    return replace(out((0, offset), None, value, update=update, topic=source))


@pytest.mark.campaign
def test_of_a_fold_with_a_time_to_live_existence_is_compared(ran: Callable[..., Job], spark: Any) -> None:
    """The job stood still for an hour before the third word; the audit reads all of them at once."""
    outs = [(0, b"1", None), (1, b"2", None), (2, b"1", None)]

    right = ran(COUNTS, ["a", "a", "a"], outs).audit(spark)
    short = ran(COUNTS, ["a", "a", "a"], outs[:2]).audit(spark)

    assert (right.conclusion.is_clean, right.facts.expected, right.findings) == (True, 3, ()), right.headline
    assert any("counts: their values depend on when state with a time to live" in note for note in right.facts.notes)
    assert "values of 3 outputs of sink counts not compared: they depend on when state with a" in right.headline
    assert {finding.check for finding in short.findings} == {Check.LOST}


@pytest.mark.campaign
def test_which_outputs_there_are_may_depend_on_what_had_expired(ran: Callable[..., Job], spark: Any) -> None:
    """The second word came when the first one's state had expired; nothing tells that to the recompute."""
    verdict = ran(EACH_ONCE, ["a", "a", "b"], [(0, b"a", None), (1, b"a", None), (2, b"b", None)]).audit(spark)

    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), verdict.headline
    assert "when state expired; 1 are others" in verdict.facts.not_recomputed["words"]


@pytest.mark.campaign
def test_where_nothing_expired_nothing_is_left_out(ran: Callable[..., Job], spark: Any) -> None:
    verdict = ran(EACH_ONCE, ["a", "a", "b"], [(0, b"a", None), (2, b"b", None)]).audit(spark)

    assert (verdict.conclusion.is_clean, verdict.facts.expected, verdict.facts.not_recomputed) == (True, 2, {})


@pytest.mark.campaign
def test_outputs_of_process_are_compared_whether_they_carry_a_number_or_not(
    ran: Callable[..., Job], spark: Any
) -> None:
    """Earlier versions numbered them."""
    right = ran(NUMBERED, ["a", "b", "a"], [(0, b"1", 1), (1, b"1", 1), (2, b"2", None)]).audit(spark)
    swapped = ran(NUMBERED, ["a", "b", "a"], [(0, b"1", None), (1, b"1", None), (2, b"3", None)]).audit(spark)
    late = ran(NUMBERED, ["a", "b", "a"], [(2, b"2", None), (1, b"1", None), (0, b"1", None)]).audit(spark)

    assert (right.conclusion.is_clean, right.findings) == (True, ()), right.headline
    assert {finding.check for finding in swapped.findings} == {Check.WRONG_VALUE}
    assert {finding.check for finding in late.findings} == {Check.REORDERED}


def test_what_lies_behind_state_that_expires_is_told_by_the_plan() -> None:
    class Once(ProcessFunction[str, str, str]):
        def open(self, ctx: ProcessContext) -> None:
            ctx.map_state("seen", str, int, ttl=Ttl(60))

        def process(self, key: str, value: str) -> list[str]:
            return [value]

    pipeline = Pipeline("expiring")
    keyed = pipeline.source(ListSource([]), name="words").key_by(str, name="word")
    keyed.fold(name="kept", init=int, step=count).sink(MemorySink(), name="lasting")
    keyed.fold(name="hourly", init=int, step=count, ttl=Ttl(3600)).map(str, name="text").sink(
        MemorySink(), name="hours"
    )
    keyed.reduce(max, name="highest", ttl=Ttl(1)).sink(MemorySink(), name="seconds")
    keyed.process(Once, name="once").sink(MemorySink(), name="minutes")
    merged = keyed.fold(name="merged", init=int, step=count, merge=add, ttl=Ttl(9))
    merged.sink(MemorySink(), name="totals")
    keyed.window(rows(3)).reduce(max, name="of-three").sink(MemorySink(), name="threes")
    keyed.window(rows(2), ttl=Ttl(60)).reduce(max, name="of-two").sink(MemorySink(), name="pairs")

    found = cut(pipeline.plan())

    assert {sink.name for sink in found.plan.sinks} & found.expiring == {
        "hours", "seconds", "minutes", "totals", "pairs"
    }  # fmt: skip
    assert not found.totals


def count(n: int, _: str) -> int:
    return n + 1


def add(one: int, other: int) -> int:
    return one + other
