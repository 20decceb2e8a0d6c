"""How many outputs each epoch shows, beside what its commit recorded: by sink, or where those are not known by sum."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion, Violation
from kafka_eos.audit.checks.epoch_commits import Counts, Miscount, wrong_counts
from kafka_eos.audit.facts.job_ledger import RecordedCounts
from kafka_eos.core.ids import SplitId
from tests.audit.job import Job, epoch, out

AT = epoch(1, 1)
FIRST = Violation("topic", 0, 0, "")


def counts(by_sink: Mapping[str, int], untold: int = 0, *, others: str = "") -> Counts:
    """Of one epoch; the plan has the sinks a and b."""
    return Counts({AT: RecordedCounts(by_sink, untold)}, frozenset("ab"), frozenset(others))


def shown(**sinks: int) -> dict[str, tuple[int, Violation]]:
    return {sink: (n, FIRST) for sink, n in sinks.items()}


@pytest.mark.parametrize(
    ("recorded", "seen", "wrong"),
    [
        (counts({"a": 2, "b": 1}), shown(a=2, b=1), []),
        (counts({"a": 2}), shown(a=2), []),
        (counts({"a": 2, "b": 1}), shown(a=1, b=2), [Miscount("a", 2, 1), Miscount("b", 1, 2)]),
        (counts({"a": 2}), shown(), [Miscount("a", 2, 0)]),
        (counts({}), shown(b=1), [Miscount("b", 0, 1)]),
        # Nobody knows the sink of some.
        (counts({}, 3), shown(a=1, b=2), []),
        (counts({}, 3), shown(a=1, b=1), [Miscount(None, 3, 2)]),
        (counts({}, 3), shown(a=2, b=2), [Miscount(None, 3, 4)]),
        (counts({"a": 2}, 1), shown(a=2, b=1), []),
        (counts({"a": 2}, 1), shown(a=1, b=2), [Miscount("a", 2, 1)]),
        # Another sink has outputs that cannot be counted.
        (counts({"a": 2, "c": 4}, others="c"), shown(a=2), []),
        (counts({"a": 2, "c": 4}, others="c"), shown(a=3), [Miscount("a", 2, 3)]),
        (counts({"a": 2}, 2, others="c"), shown(a=2), []),
        (counts({"a": 2}, 2, others="c"), shown(a=5), [Miscount(None, 4, 5)]),
        # A sink that the plan does not have: it has another name now, or is gone.
        (counts({"old": 2, "b": 1}), shown(a=2, b=1), []),
        (counts({"old": 2, "b": 1}), shown(b=1), []),
        (counts({"old": 2, "b": 1}), shown(a=2), [Miscount("b", 1, 0)]),
        (counts({"old": 2, "b": 1}), shown(a=3, b=1), [Miscount(None, 3, 4)]),
    ],
)
def test_what_an_epoch_shows_is_compared_as_far_as_its_commit_tells(
    recorded: Counts, seen: Any, wrong: list[Miscount]
) -> None:
    assert recorded.wrong(AT, seen) == wrong


@pytest.mark.parametrize(
    ("recorded", "seen", "whole"),
    [
        (counts({"a": 2}), shown(a=2), True),
        (counts({"a": 2}), shown(a=1), False),
        (counts({}, 2), shown(a=2), True),
        (counts({}, 2, others="c"), shown(a=2), False),
        (counts({"a": 2, "c": 4}, others="c"), shown(a=2), True),
        (counts({"old": 2}), shown(), False),
    ],
)
def test_an_epoch_is_whole_if_it_surely_shows_all_that_it_committed(recorded: Counts, seen: Any, whole: bool) -> None:
    assert recorded.whole(AT, seen) == whole


def test_epochs_whose_sinks_nobody_knows_are_counted() -> None:
    assert [counts({"a": 1}).uncounted(), counts({}, 1).uncounted(), counts({"old": 1}).uncounted()] == [0, 1, 1]
    assert Counts({AT: RecordedCounts({}, 1)}, frozenset("a"), frozenset()).uncounted() == 0, "there is only one sink"


def test_a_finding_names_the_sink_and_its_first_output() -> None:
    at_b = Violation("b", 1, 7, "the first output of its epoch")
    seen = {AT: {"a": (1, Violation("a", 0, 3, "…")), "b": (2, at_b)}}
    evidence = wrong_counts(counts({"a": 1, "b": 1}), seen)

    assert (evidence.count, evidence.by_sink) == (1, {"b": 1})
    (told,) = evidence.examples
    assert (told.topic, told.partition, told.offset) == ("b", 1, 7)
    assert told.detail == "epoch 1 of term 1 committed 1 outputs to sink b, but 2 are visible"


SPLIT = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
numbers = pipeline.source(KafkaSource("{input}", value=int), name="numbers")
numbers.filter(lambda n: n % 2 == 0).sink(KafkaSink("{even}", value=int), name="even")
numbers.filter(lambda n: n % 2 == 1).sink(KafkaSink("{odd}", value=int), name="odd")
"""


def _moved(new_job: Callable[..., Job], topic: Callable[..., str], counts: int | Mapping[str, int], moved: int) -> Job:
    """Six numbers; the odd ones below ``moved`` are in the topic of the even ones."""
    source, even, odd = topic(), topic(), topic()
    job = new_job(SPLIT, input=source, even=even, odd=odd)
    job.feed(source, [(0, None, json.dumps(n).encode()) for n in range(6)])
    outs = [out((0, n), None, json.dumps(n).encode(), topic=source, source="numbers") for n in range(6)]
    here = {n: even if n % 2 == 0 or n < moved else odd for n in range(6)}
    job.write_all({place: [outs[n] for n in range(6) if here[n] == place] for place in (even, odd)})
    positions = {"numbers": {SplitId(f"{source}/0"): 6}}
    job.commits(epoch(1, 0), AT, positions=positions, counts={AT: counts})
    return job


@pytest.mark.timeout(300)
def test_an_output_that_was_moved_to_another_sink_is_named_although_the_sum_is_right(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    verdict = _moved(new_job, topic, {"even": 3, "odd": 3}, 2).audit(spark)

    assert {f.check: f.count for f in verdict.findings} == {Check.LOST: 1, Check.UNEXPECTED: 1, Check.WRONG_COUNT: 2}
    miscounted = next(f for f in verdict.findings if f.check is Check.WRONG_COUNT)
    assert miscounted.by_sink == {"even": 1, "odd": 1}
    assert {o.detail.partition("committed ")[2] for o in miscounted.examples} == {
        "3 outputs to sink even, but 4 are visible",
        "3 outputs to sink odd, but 2 are visible",
    }


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_of_commits_that_know_no_sinks_the_sum_is_compared_and_the_headline_says_so(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    verdict = _moved(new_job, topic, 6, 0).audit(spark)

    assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert "counts by sink of 1 epoch not compared, only their sums" in verdict.headline
