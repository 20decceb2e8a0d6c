"""What a PASS does not prove is in its headline and in the report, by sink, with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit import Conclusion
from kafka_eos.core.ids import SplitId
from tests.audit.job import Job, Out, epoch, out
from tests.marks import campaign

pytestmark = pytest.mark.timeout(300)

HEAD = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="words")
"""
COUNTED = (
    HEAD
    + """
words.key_by(lambda word: word).fold(name="count", init=lambda: 0, step=lambda n, _: n + 1) \\
    .map(lambda pair: pair[1]).filter(lambda n: n > 0).sink(KafkaSink("{output}", value=int), name="counts")
"""
)
COPIES = HEAD + 'words.sink(KafkaSink("{output}", value=str), name="copies")\n'
SENT = HEAD + 'words.sink(KafkaSink("{output}", value=str, timestamp=None), name="copies")\n'
PLAIN = HEAD + 'words.sink(KafkaSink("{output}", value=str, provenance=None), name="copies")\n'


def audited(job: Job, source: str, inputs: int, outs: list[Out], spark: Any, **options: Any) -> Any:
    """``inputs`` words were read from each of two partitions; the verdict on ``outs``."""
    job.feed(source, [(p, None, b"a") for _ in range(inputs) for p in (0, 1)])
    job.write(job.topics["output"], outs)
    ends = {SplitId(f"{source}/{p}"): inputs for p in (0, 1)}
    job.commits(epoch(1, 0), epoch(1, 1), positions={"words": ends}, counts={epoch(1, 1): len(outs)})
    return job.audit(spark, **options)


def copied(source: str) -> list[Out]:
    return [out((p, i), None, b"a", topic=source, source="words") for i in range(2) for p in (0, 1)]


@pytest.mark.campaign
def test_values_whose_order_nothing_tells(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, tmp_path: Path
) -> None:
    """The job read the second partition first. A filter may have left out some of the numbers that would tell."""
    source = topic(partitions=2)
    job = new_job(COUNTED, input=source, output=topic())
    read = enumerate([(1, 0), (1, 1), (0, 0), (0, 1)], 1)
    outs = [out(at, None, b"%d" % n, update=n, topic=source, source="words") for n, at in read]

    verdict = audited(job, source, 2, outs, spark, report_dir=tmp_path)

    said = (
        "values of 4 outputs of sink counts not compared: no record shows in which order the input of "
        "their keys was read"
    )
    assert (Conclusion.PARTIAL, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert said in verdict.headline
    left_out = json.loads((tmp_path / "report.json").read_text())["not_compared"]
    assert [("counts", "values", 4)] == [(one["sink"], one["what"], one["outputs"]) for one in left_out]
    assert "no record shows in which order" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("plan", [pytest.param(COPIES, id="marked"), campaign(PLAIN, named="plain")])
def test_timestamps_that_the_broker_writes(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, plan: str
) -> None:
    source = topic(partitions=2)
    job = new_job(plan, input=source, output=topic(config={"message.timestamp.type": "LogAppendTime"}))
    text = {"text": None} if plan is PLAIN else {}

    verdict = audited(job, source, 2, [replace(o, **text) for o in copied(source)], spark)  # type: ignore[arg-type]

    assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert "timestamps of 4 outputs of sink copies not compared: the broker" in verdict.headline
    assert ("order and epochs of sink copies" in verdict.headline) == (plan is PLAIN)


@pytest.mark.campaign
def test_the_time_of_sending_is_right_at_any_time(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    source = topic(partitions=2)
    job = new_job(SENT, input=source, output=topic())

    verdict = audited(job, source, 2, [replace(o, timestamp=0) for o in copied(source)], spark)

    assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert "not compared" not in verdict.headline
