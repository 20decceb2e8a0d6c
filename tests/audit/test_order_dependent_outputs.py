"""Jobs whose outputs come to be or not as order, or time, decided: what the audit cannot know is no finding, and is
said; what it can know is still found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit import Check, Verdict
from kafka_eos.core.ids import SplitId
from kafka_eos.runtime.operators.rejections import hash_operator
from tests.audit.job import ONCE, Job, Out, epoch, out, refused_at

pytestmark = pytest.mark.timeout(600)

HEAD = """
from kafka_eos import Pipeline, ProcessFunction, Ttl
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="words"{letters})
def sink(stream, tp=int, **options):
    stream.sink(KafkaSink("{output}", value=tp, **options), name="out")
"""
FIVES = """
sink(words.key_by(lambda word: word[0]).fold(name="sum", init=lambda: 0, step=lambda n, word: n + int(word[1:]))
     .map(lambda pair: pair[1]).filter(lambda n: n == 5))
"""
REFUSING = """
def step(n, word):
    if n + int(word[1:]) > 5:
        raise ValueError("too much")
    return n + int(word[1:])

sink(words.key_by(lambda word: word[0]).fold(name="sum", init=lambda: 0, step=step).map(lambda pair: pair[1]))
"""
BY_COUNT = """
counts = words.key_by(lambda word: word).fold(name="count", init=lambda: 0, step=lambda n, _: n + 1)
sink(counts.key_by(lambda pair: pair[1]).fold(name="alike", init=lambda: 0, step=lambda n, _: n + 1)
     .map(lambda pair: pair[1]))
"""
BACK = """
class Back(ProcessFunction):
    def open(self, ctx):
        self.fresh = ctx.value_state("fresh", bool, ttl=Ttl(3600))
        self.known = ctx.value_state("known", bool)

    def process(self, key, word):
        if self.known.get() and not self.fresh.get():
            yield word
        self.fresh.put(True)
        self.known.put(True)

sink(words.key_by(lambda word: word).process(Back, name="back"), str)
"""
ONCE_EACH = (
    ONCE
    + """
sink(words.key_by(lambda word: word).process(Once, name="once"), str, provenance=None)
words.sink(KafkaSink("{copies}", value=str), name="copies")
"""
)
Words = Mapping[int, Sequence[str]]
"""By partition."""


class Fed:
    """A job that has read the words; ``audit`` judges what it is said to have written."""

    def __init__(self, job: Job, source: str, spark: Any, words: Words) -> None:
        self.job, self.source, self._spark = job, source, spark
        job.feed(source, [(p, None, word.encode()) for p, some in words.items() for word in some])
        self._ends = {SplitId(f"{source}/{p}"): len(some) for p, some in words.items()}

    def out(self, partition: int, offset: int, value: bytes, update: int | None = None) -> Out:
        return out((partition, offset), None, value, update=update, topic=self.source, source="words")

    def letter(self, partition: int, offset: int, word: bytes, who: str) -> Out:
        made = out(
            (partition, offset), None, word, topic=self.source, source="words", ordinal=f"0-{hash_operator(who)}-0"
        )
        return replace(made, headers=refused_at(self.source, offset, partition))

    def audit(self, **outs: Sequence[Out]) -> Verdict:
        """``outs`` by role of the topic. Every epoch shows as many as it committed."""
        self.job.write_all({self.job.topics[role]: some for role, some in outs.items()})
        counts = {epoch(1, 1): sum(map(len, outs.values()))}
        self.job.commits(epoch(1, 0), epoch(1, 1), positions={"words": self._ends}, counts=counts)
        return self.job.audit(self._spark)


@pytest.fixture
def fed(new_job: Callable[..., Job], topic: Callable[..., str], spark: Any) -> Callable[..., Fed]:
    def feed(plan: str, words: Words, *roles: str) -> Fed:
        source, topics = topic(partitions=len(words)), {role: topic() for role in ("output", *roles)}
        policy = f', on_error=dead_letter("{topics["refused"]}")' if "refused" in roles else ""
        job = new_job(HEAD + plan, input=source, letters=policy, **topics)
        return Fed(job, source, spark, words)

    return feed


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


@pytest.mark.campaign
def test_an_output_that_only_another_order_makes(fed: Callable[..., Fed]) -> None:
    """The recompute makes none of this key: 2, 6, 9; the job read the other partition first: 3, 5, 9."""
    right = fed(FIVES, {0: ["a2", "a4", "b5"], 1: ["a3"]})
    wrong = fed(FIVES, {0: ["a2", "a4", "b5"], 1: ["a3"]})

    verdict = right.audit(output=[right.out(0, 0, b"5", 2), right.out(0, 2, b"5", 1)])
    lost = wrong.audit(output=[wrong.out(0, 0, b"5", 2)])

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert "sink out not recomputed: which outputs exist may depend on the order of records; 1 are" in verdict.headline
    assert {Check.LOST: 1, Check.WRONG_TOTAL: 1} == found(lost), (
        "all of this key is in one partition: its order is known"
    )


@pytest.mark.campaign
def test_a_record_that_only_another_order_refuses(fed: Callable[..., Fed]) -> None:
    words = {0: ["a3", "c1"], 1: ["a4"]}
    right, wrong = fed(REFUSING, words, "refused"), fed(REFUSING, words, "refused")

    def outs(job: Fed) -> list[Out]:
        return [job.out(1, 0, b"4", 1), job.out(0, 1, b"1", 1)]

    verdict = right.audit(output=outs(right), refused=[right.letter(0, 0, b"a3", "sum")])
    lost = wrong.audit(output=outs(wrong), refused=[])

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert "the order of records" in verdict.headline
    assert {Check.LOST: 1} == found(lost), "a record makes its output or a dead letter"


@pytest.mark.campaign
def test_a_key_that_depends_on_state_has_no_order_that_the_recompute_knows(fed: Callable[..., Fed]) -> None:
    """The job read the second partition first: its word and b are the first of their kind."""
    job = fed(BY_COUNT, {0: ["b", "a"], 1: ["a"]})

    verdict = job.audit(output=[job.out(1, 0, b"1", 1), job.out(0, 0, b"2", 2), job.out(0, 1, b"1", 1)])

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert "values and order of 3 outputs of sink out not compared" in verdict.headline


@pytest.mark.campaign
def test_an_output_that_only_expired_state_makes(fed: Callable[..., Fed]) -> None:
    """The second word came when the first one's state had expired; to the recompute nothing ever comes back."""
    job = fed(BACK, {0: ["a", "a", "b"]})

    verdict = job.audit(output=[job.out(0, 1, b"a")])

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert "when state expired; 1 are others" in verdict.facts.not_recomputed["out"]


@pytest.mark.campaign
def test_expired_state_in_front_of_a_sink_without_provenance_leaves_the_others_to_be_judged(
    fed: Callable[..., Fed],
) -> None:
    right, wrong = (fed(ONCE_EACH, {0: ["a", "a"]}, "copies") for _ in range(2))

    def audit(job: Fed, copies: int) -> Verdict:
        twice = [replace(job.out(0, i, b"a"), text=None) for i in range(2)]
        return job.audit(output=twice, copies=[job.out(0, i, b"a") for i in range(copies)])

    verdict, lost = audit(right, 2), audit(wrong, 1)

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.headline
    assert "sink out not audited: which outputs exist may depend on when state expired; 1 are" in verdict.headline
    assert {Check.LOST: 1} == found(lost), lost.headline
