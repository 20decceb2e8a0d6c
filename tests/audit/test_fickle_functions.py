"""Functions that return something else each time they run: what they make is not compared, and all else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.core.ids import SplitId
from tests.audit.job import Job, Out, epoch, out

PIPELINE = """
import random
from uuid import uuid4
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=bytes), name="words")
words.map(lambda word: word + uuid4().bytes).sink(KafkaSink("{marked}", value=bytes), name="marked")
words.map(lambda word: word + uuid4().bytes).sink(KafkaSink("{plain}", value=bytes, provenance=None), name="plain")
words.filter(lambda word: random.random() < 0.5).sink(KafkaSink("{sampled}", value=bytes), name="sampled")
words.map(bytes.upper).sink(KafkaSink("{steady}", value=bytes), name="steady")
"""
SINKS = ("marked", "plain", "sampled", "steady")
WORDS = [b"%c" % (97 + n) for n in range(20)]


@pytest.fixture
def job(new_job: Callable[..., Job], topic: Callable[..., str]) -> Job:
    return new_job(PIPELINE, input=topic(), **{sink: topic() for sink in SINKS})


def right(job: Job) -> dict[str, list[Out]]:
    def outs(values: dict[int, bytes]) -> list[Out]:
        source = job.topics["input"]
        return [out((0, n), None, value, topic=source, source="words") for n, value in values.items()]

    once = {n: word + b"made once" for n, word in enumerate(WORDS)}
    return {
        "marked": outs(once),
        "plain": [Out(None, value, None) for value in once.values()],
        "sampled": outs({n: word for n, word in enumerate(WORDS) if n % 3}),
        "steady": outs({n: word.upper() for n, word in enumerate(WORDS)}),
    }


def audited(job: Job, outs: dict[str, list[Out]], spark: Any) -> Verdict:
    job.feed(job.topics["input"], [(0, None, word) for word in WORDS])
    job.write_all({job.topics[sink]: some for sink, some in outs.items()})
    positions = {"words": {SplitId(f"{job.topics['input']}/0"): len(WORDS)}}
    counts = {epoch(1, 1): {sink: len(some) for sink, some in outs.items()}}
    job.commits(epoch(1, 0), epoch(1, 1), positions=positions, counts=counts)
    return job.audit(spark)


def test_what_the_next_run_makes_otherwise_is_no_finding(job: Job, spark: Any) -> None:
    verdict = audited(job, right(job), spark)

    assert (Conclusion.PARTIAL, ()) == (verdict.conclusion, verdict.findings), verdict.findings
    reason = "the functions before it return other values when they run again"
    assert f"values of 20 outputs of sink marked not compared: {reason}" in verdict.headline
    assert {"sampled"} == verdict.facts.not_recomputed.keys()
    assert "steady" not in verdict.headline


@pytest.mark.campaign
def test_what_is_lost_or_wrong_beside_it_is_found(job: Job, spark: Any) -> None:
    outs = right(job)
    del outs["marked"][3], outs["plain"][4], outs["steady"][5]
    outs["steady"][0] = outs["steady"][1]

    verdict = audited(job, outs, spark)

    found = {finding.check: finding.by_sink for finding in verdict.findings}
    assert {"marked": 1, "plain": 1, "steady": 2} == found[Check.LOST]
    assert {"steady": 1} == found[Check.DUPLICATE]
