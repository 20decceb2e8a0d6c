"""Every shape of plan that the recompute knows: a right run passes, and a wrong value is found where it can be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit import Check
from kafka_eos.core.ids import SplitId
from kafka_eos.runtime.operators.rejections import hash_operator
from tests.audit.job import Job, Out, epoch, out, refused_at
from tests.marks import campaign

pytestmark = pytest.mark.timeout(300)

HEAD = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

pipeline = Pipeline("{name}")
"""
SPLIT = (
    HEAD
    + """
pipeline.source(KafkaSource("{input}", value=str), name="orders", on_error=dead_letter("{letters}")) \\
    .flat_map(str.split).map(int).sink(KafkaSink("{output}", value=int), name="numbers")
"""
)
WORDS = (
    HEAD
    + """
pipeline.source(KafkaSource("{input}", value=str), name="orders").flat_map(str.split).key_by(lambda word: word) \\
    .fold(name="count", init=lambda: 0, step=lambda n, _: n + 1) \\
    .sink(KafkaSink("{output}", value=tuple[str, int], key=lambda pair: pair[0]), name="counts")
"""
)
STAGES = (
    HEAD
    + """
pipeline.source(KafkaSource("{input}", value=str), name="orders").key_by(lambda word: word) \\
    .fold(name="count", init=lambda: 0, step=lambda n, _: n + 1) \\
    .key_by(lambda pair: pair[0][0]).fold(name="initials", init=lambda: 0, step=lambda n, pair: n + 1) \\
    .sink(KafkaSink("{output}", value=tuple[str, int], key=lambda pair: pair[0]), name="counts")
"""
)


def finish(job: Job, source: str, ends: list[int], outs: int) -> None:
    positions = {"orders": {SplitId(f"{source}/{p}"): end for p, end in enumerate(ends)}}
    job.commits(epoch(1, 0), epoch(1, 1), positions=positions, counts={epoch(1, 1): outs})


def numbered(source: str, records: list[tuple[int, int, str]]) -> list[Out]:
    """Word counts as a pipeline makes them that reads ``records`` (partition, offset, text) in this order."""
    counts: dict[str, int] = {}
    outs = []
    for partition, offset, text in records:
        for number, word in enumerate(text.split()):
            ordinal = f"0-{number}-0" if number else "0"  # key_by is exchange 0
            counts[word] = counts.get(word, 0) + 1
            value = json.dumps([word, counts[word]], separators=(",", ":")).encode()
            at = (partition, offset)
            outs.append(out(at, word, value, update=counts[word], topic=source, ordinal=ordinal))
    return outs


@pytest.mark.campaign
def test_a_stateless_plan_with_fan_out_and_dead_letters(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    source, target, letters = topic(), topic(), topic()
    job = new_job(SPLIT, input=source, output=target, letters=letters)
    job.feed(source, [(0, None, b"1 2 3"), (0, None, b"4 x 6"), (0, None, b"\xff")])
    good = [((0, 0), b"1", 0), ((0, 0), b"2", 1), ((0, 0), b"3", 2), ((0, 1), b"4", 0), ((0, 1), b"6", 1)]
    outs = [out(at, None, value, topic=source, ordinal=ordinal) for at, value, ordinal in good]
    job.write(target, outs)
    refused = [
        (1, out((0, 1), None, b"4 x 6", topic=source, ordinal=f"0-{hash_operator('map-1')}-0")),
        (2, out((0, 2), None, b"\xff", topic=source, ordinal=f"0-{hash_operator('orders')}-0")),
    ]
    job.write(letters, [replace(o, headers=refused_at(source, offset)) for offset, o in refused])
    finish(job, source, [3], 7)

    verdict = job.audit(spark)

    assert (True, 7, ()) == (verdict.conclusion.is_clean, verdict.facts.expected, verdict.findings), verdict.headline


@pytest.mark.campaign
@pytest.mark.parametrize("swapped", [campaign(False), True])
def test_keys_from_several_partitions_are_compared_in_the_order_that_the_output_tells(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, swapped: bool
) -> None:
    source, target = topic(partitions=2), topic()
    job = new_job(WORDS, input=source, output=target)
    texts = [(0, 0, "a b a"), (1, 0, "b c"), (1, 1, "a"), (0, 1, "c b")]
    job.feed(source, [(p, None, text.encode()) for p, _, text in texts])
    outs = numbered(source, [texts[1], texts[0], texts[3], texts[2]])
    if swapped:
        first, second = (i for i, o in enumerate(outs) if o.key == "c")
        outs[first], outs[second] = (
            replace(outs[first], value=outs[second].value),
            replace(outs[second], value=outs[first].value),
        )
    job.write(target, outs)
    finish(job, source, [2, 2], len(outs))

    verdict = job.audit(spark)

    expected = {Check.WRONG_VALUE: 2, Check.WRONG_TOTAL: 1} if swapped else {}
    assert expected == {finding.check: finding.count for finding in verdict.findings}
    assert (8, 8, ()) == (verdict.facts.expected, verdict.facts.outputs, tuple(verdict.facts.notes))


@pytest.mark.campaign
def test_stages_one_after_the_other_are_recomputed_in_one_task(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    source, target = topic(), topic()
    job = new_job(STAGES, input=source, output=target)
    words = ["ab", "ac", "ba", "ab"]
    job.feed(source, [(0, None, word.encode()) for word in words])
    counts: dict[str, int] = {}
    outs = []
    for offset, word in enumerate(words):
        n = counts[word[0]] = counts.get(word[0], 0) + 1
        value = json.dumps([word[0], n], separators=(",", ":")).encode()
        outs.append(out((0, offset), word[0], value, update=n, topic=source))
    job.write(target, outs)
    finish(job, source, [4], 4)

    verdict = job.audit(spark)

    assert (True, 4, ()) == (verdict.conclusion.is_clean, verdict.facts.expected, verdict.findings), verdict.headline
    assert "in one task" in verdict.facts.notes[0]
