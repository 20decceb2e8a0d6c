"""What ``deduplicate`` lets pass is computed again, since its timers only end what it knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos.audit import Check, Conclusion
from kafka_eos.core.provenance import HEADER, parse_provenance
from tests.audit.job import FED_AT, Job, Out
from tests.chaos.harness import read

pytestmark = pytest.mark.timeout(600)

ONCE = """
from kafka_eos import OutputTag, Pipeline, monotonic
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

LATE = OutputTag("late", str)

pipeline = Pipeline("{name}")
found = (
    pipeline.source(KafkaSource("{input}", value=str), name="orders")
    .with_timestamps(lambda word: FED_AT + int(word[1:]), watermarks=monotonic())
    .key_by(lambda word: word[0])
    .deduplicate(within=0.01, late=LATE, name="once")
)
found.sink(KafkaSink("{output}", value=str), name="passed")
found.side_output(LATE).sink(KafkaSink("{late}", value=str), name="late")
""".replace("FED_AT", str(FED_AT))


def _outs(job: Job, topic: str) -> list[Out]:
    return [Out(None, each.value(), dict(each.headers())[HEADER].decode()) for each in read(job.bootstrap, topic)]


def _ran(new_job: Callable[..., Job], topic: Callable[..., str], words: Sequence[bytes]) -> tuple[Job, str]:
    """A job that has read these words from one partition, and the topic of what has passed."""
    source, passed = topic(), topic()
    job = new_job(ONCE, input=source, output=passed, late=topic())
    job.feed(source, [(0, None, word) for word in words])
    job.run(workers=1)
    return job, passed


WORDS = [b"%c%d" % (97 + n % 2, n) for n in range(40)]


@pytest.mark.campaign
def test_what_has_passed_is_computed_again(new_job: Callable[..., Job], topic: Callable[..., str], spark: Any) -> None:
    job, passed = _ran(new_job, topic, WORDS)

    sound = job.audit(spark)

    assert [each.value for each in _outs(job, passed)] == [
        b"a0", b"b1", b"a10", b"b11", b"a20", b"b21", b"a30", b"b31"
    ]  # fmt: skip
    assert sound.conclusion.is_clean, sound.headline
    assert (sound.facts.not_recomputed, sound.facts.expected) == ({}, 8)


def test_a_row_that_should_not_have_passed_is_named_and_no_other_is(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    job, passed = _ran(new_job, topic, WORDS)
    third = str(replace(parse_provenance(_outs(job, passed)[0].text or ""), offset=2))
    job.write(passed, [Out(None, b"a2", third)])

    wrong = job.audit(spark)

    assert {f.check: f.count for f in wrong.findings} == {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}, wrong.headline
    assert (wrong.facts.not_recomputed, wrong.facts.expected) == ({}, 8)


@pytest.mark.campaign
def test_a_row_that_should_have_passed_is_missed(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    job, passed = _ran(new_job, topic, WORDS)
    fewer = topic()
    job.app.write_text(job.app.read_text().replace(passed, fewer))
    job.write_all({fewer: _outs(job, passed)[1:]})

    verdict = job.audit(spark)

    assert {f.check: f.count for f in verdict.findings} == {Check.LOST: 1, Check.WRONG_COUNT: 1}, verdict.headline


@pytest.mark.campaign
def test_rows_that_came_too_late_are_said_and_never_called_wrong(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    """Nobody knows any more whether another ``c`` had passed: it goes to the side output."""
    job, _ = _ran(new_job, topic, [b"a0", b"d100"])
    job.feed(job.topics["input"], [(0, None, b"c1")])
    job.run(workers=1)

    verdict = job.audit(spark)

    assert verdict.conclusion is Conclusion.INCONCLUSIVE, verdict.headline
    assert verdict.findings == ()
    assert "rows were late for 'once', and no record shows whether it still remembered earlier rows" in verdict.headline
