"""Outputs that only their sink could refuse, for their size: a dead letter answers for each, and for nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.audit.checks.dead_letters import answered
from kafka_eos.audit.checks.provenance_checks import gaps
from kafka_eos.connectors.kafka.sink.dead_letters import LEFT_OUT
from kafka_eos.core.ids import SplitId
from kafka_eos.core.provenance import parse_provenance
from kafka_eos.runtime.operators.rejections import hash_operator
from tests.audit.job import FED_AT, Job, Out, epoch, out, refused_at
from tests.chaos.harness import read
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)

HEAD = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

pipeline = Pipeline("{name}", checkpoint_interval=0.05, batch_size=20)
words = pipeline.source(KafkaSource("{input}", value=str), name="orders", on_error=dead_letter("{letters}")) \\
    .flat_map(str.split)
"""
SPLIT = HEAD + 'words.sink(KafkaSink("{output}", value=str), name="words")\n'
COUNTS = (
    HEAD
    + """
words.key_by(lambda word: word[0], values=str) \\
    .fold(name="count", init=lambda: (0, ""), step=lambda so_far, word: (so_far[0] + 1, word),
          emit=lambda key, so_far: so_far, state=tuple[int, str]) \\
    .sink(KafkaSink("{output}", value=tuple[int, str], key=lambda pair: pair[1][0]), name="counts")
"""
)


# ---------------------------------------------------------------- who answers for whom

Side = tuple[str, str]
PAIRS = "sink string, id string, there boolean, should boolean"


def row(tail: str, sink: str = "out") -> Side:
    return sink, f"orders/in/0/7/{tail}"


def letter(tail: str, by: str = "out") -> Side:
    """A dead letter of a row with this lane, branch and number."""
    head, _, number = tail.rpartition("|")
    return "refused", f"orders/in/0/7/0.{head}-{hash_operator(by)}-{number}"


ANSWERED: Sequence[tuple[Sequence[Side], Sequence[Side], int]] = (
    ([row("0.0")], [letter("0|0")], 1),
    ([row("0.2"), row("0.5")], [letter("0|0"), letter("0|1")], 2),  # their numbers are each their own
    ([row("0.2"), row("0.5")], [letter("0|3")], 1),  # one for one
    ([row("0.2")], [letter("0|0"), letter("0|1")], 1),
    ([row("1.0-3-0")], [letter("0-3-1|0")], 1),  # another lane, behind an exchange
    ([row("0.0-3-0")], [letter("0|0")], 0),  # of another way
    ([row("1.0")], [letter("0|0")], 0),  # of another lane
    ([row("0.0")], [letter("0|0", by="other")], 0),  # of another sink
    ([row("0.0")], [("refused", f"orders/in/0/8/0.0-{hash_operator('out')}-0")], 0),  # of another record
    ([row("0.0")], [("elsewhere", letter("0|0")[1])], 0),  # in no dead letter topic
    ([], [letter("0|0")], 0),
    ([row("0.0")], [], 0),
)
"""Missing outputs, letters, and how many of each belong together."""


def test_a_letter_answers_for_one_missing_output_of_its_record_way_and_sink(spark: Any) -> None:
    """Each case is of an input topic of its own; one query answers for all."""

    def of_case(number: int, sides: Sequence[Side]) -> set[Side]:
        return {(sink, identity.replace("/in/", f"/in{number}/")) for sink, identity in sides}

    rows: list[tuple[str, str, bool | None, bool | None]] = []
    for number, (missing, letters, _) in enumerate(ANSWERED):
        rows += ((*side, True, True) for side in of_case(number, [row("0.9"), letter("0|9")]))  # not in question
        rows += ((*side, None, True) for side in of_case(number, missing))
        rows += ((*side, True, None) for side in of_case(number, letters))

    found = [tuple(each) for each in answered(spark.createDataFrame(rows, PAIRS), ["refused"]).collect()]

    told = [
        tuple(len(of_case(number, sides).intersection(found)) for sides in (missing, letters))
        for number, (missing, letters, _) in enumerate(ANSWERED)
    ]
    assert told == [(both, both) for *_, both in ANSWERED]
    assert len(found) == 2 * sum(both for *_, both in ANSWERED)


def test_a_letter_of_a_timer_answers_for_all_missing_outputs_of_its_firing(spark: Any) -> None:
    own = f"0-{hash_operator('sums')}-0"
    rows = [
        ("out", "sums/timers/5/99/0.1-2-0", None, True),
        ("other", "sums/timers/5/99/0.1-2-1", None, True),
        ("refused", f"sums/timers/5/99/0.1-2-{own}", True, None),
        ("refused", f"sums/timers/5/199/0.1-2-{own}", True, None),  # the recompute makes no output there, either
        ("out", "sums/timers/5/99/0.1-3-0", None, True),  # of another key
        ("out", "sums/timers/5/98/0.1-2-0", None, True),  # of another time
        ("out", "sums/processing-timers/5/99/0.1-2-0", None, True),
        ("refused", f"maxima/timers/5/98/0.1-2-{own}", True, None),  # of another operator
    ]

    found = answered(spark.createDataFrame(rows, PAIRS), ["refused"], ["sums", "maxima"]).collect()

    assert sorted(tuple(each) for each in found) == sorted(row[:2] for row in rows[:4])


# ---------------------------------------------------------------- update numbers beside what is refused

UPDATES = (
    "sink string, series string, id string, update long, e_update long, there boolean, should boolean, "
    "answered boolean, loose boolean, summed boolean, grp_text string, topic string, partition int, offset long"
)


GAPS: Sequence[tuple[Sequence[int | None], Sequence[int], bool, bool]] = (
    ((5, 6, 7, 8), (), False, False),
    ((5, None, 7, 8), (6,), False, False),
    ((None, 6, 7, None), (5, 8), False, False),
    ((None, None), (5, 6), False, False),
    ((5, None, 8, 9), (6,), True, True),  # a step that was taken twice moves all that follow
    ((5, None, 5, 8), (6,), True, True),  # state went back
    ((5, None, 6, 7), (6,), True, False),  # the step of what was refused is not in the state: 8 could be its number
)
"""What the outputs of a key say, in the order in which it was made, the first should say 5; what was refused of it; is
there a gap, and is there one if the audit does not know this order?
"""


def test_an_output_that_was_refused_hides_no_wrong_update(spark: Any) -> None:
    """Each case is a key; one query judges all."""
    rows = [
        ("out", key, f"r{n}", update, n, update is not None, True, n in refused, loose, False, key, "t", 0, n)
        for number, (updates, refused, *_) in enumerate(GAPS)
        for loose, key in ((False, f"known-{number}"), (True, f"loose-{number}"))
        for n, update in enumerate(updates, start=5)
    ]

    offenders = gaps(spark.createDataFrame(rows, UPDATES), steady=True).collect()

    known = {f"known-{number}" for number, case in enumerate(GAPS) if case[2]}
    loose = {f"loose-{number}" for number, case in enumerate(GAPS) if case[3]}
    assert {each.detail.split()[1] for each in offenders} == known | loose
    assert {each.check for each in offenders} == {Check.UPDATE_GAP.name}


# ---------------------------------------------------------------- a job made by hand


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


LARGE = "b" * 50
Spoil = Callable[[list[Out], list[Out]], tuple[list[Out], list[Out]]]


def large(first: Out) -> Out:
    """The output that the sink refused, as it would follow the first of its record."""
    return replace(
        first, value=LARGE.encode(), text=str(structs.replace(parse_provenance(str(first.text)), ordinal="1"))
    )


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda outs, letters: (outs, letters), {}),
        campaign(lambda outs, letters: (outs, letters * 2), {Check.DUPLICATE: 1}),
        campaign(lambda outs, letters: (outs, []), {Check.LOST: 1}),
        campaign(lambda outs, letters: (outs[:1] + outs[2:], letters), {Check.LOST: 1}),
        campaign(lambda outs, letters: ([outs[0], large(outs[0]), *outs[1:]], letters), {Check.UNEXPECTED: 1}),
        campaign(lambda outs, letters: (outs, [*letters, replace(letters[0], text=str(letters[0].text)[:-1] + "1")]),
                 {Check.UNEXPECTED: 1}),
    ],
    ids=["right", "letter-twice", "no-letter", "another-is-lost", "with-its-output", "one-letter-more"],
)  # fmt: skip
def test_what_a_sink_refused_is_neither_lost_nor_unexpected(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, spoil: Spoil, expected: dict[Check, int]
) -> None:
    source, target, refused = topic(), topic(), topic()
    job = new_job(SPLIT, input=source, output=target, letters=refused)
    job.feed(source, [(0, None, f"a {LARGE} c".encode()), (0, None, b"d")])
    outs = [out((0, 0), None, b"a", topic=source), out((0, 0), None, b"c", topic=source, ordinal=2),
            out((0, 1), None, b"d", topic=source)]  # fmt: skip
    told = out((0, 0), None, f"a {LARGE} c".encode(), topic=source, ordinal=f"0-{hash_operator('words')}-0")
    outs, letters = spoil(outs, [replace(told, headers=refused_at(source, 0))])
    job.write_all({target: outs, refused: letters})
    positions = {"orders": {SplitId(f"{source}/0"): 2}}
    job.commits(epoch(1, 0), epoch(1, 1), positions=positions, counts={epoch(1, 1): len(outs) + len(letters)})

    verdict = job.audit(spark)

    assert expected == found(verdict), verdict.findings
    assert verdict.conclusion is (Conclusion.FAIL if expected else Conclusion.PASS), verdict.headline
    if not expected:
        assert {"words": 1} == verdict.facts.rejected
        assert "1 output of sink words rejected by it" in verdict.headline


@pytest.mark.parametrize("is_said", [True, campaign(False)], ids=["said", "not-said"])
@pytest.mark.campaign
def test_a_dead_letter_that_lacks_the_contents_of_its_record_is_right_if_it_says_so(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, is_said: bool
) -> None:
    source, target, refused = topic(), topic(), topic()
    job = new_job(SPLIT, input=source, output=target, letters=refused)
    job.feed(source, [(0, None, b"\xff" * 50), (0, None, b"d")])
    told = out((0, 0), None, b"", topic=source, ordinal=f"0-{hash_operator('orders')}-0")
    headers = (*refused_at(source, 0), *([(LEFT_OUT, b"50")] if is_said else []))
    letter = replace(told, value=None, headers=headers)  # type: ignore[arg-type]
    job.write_all({target: [out((0, 1), None, b"d", topic=source)], refused: [letter]})
    positions = {"orders": {SplitId(f"{source}/0"): 2}}
    job.commits(epoch(1, 0), epoch(1, 1), positions=positions, counts={epoch(1, 1): 2})

    verdict = job.audit(spark)

    assert found(verdict) == ({} if is_said else {Check.WRONG_VALUE: 1}), verdict.findings


# ---------------------------------------------------------------- a job that ran


RUNS = [campaign(SPLIT, "words", 1, named="split"), pytest.param(COUNTS, "counts", 3, id="counts")]


@pytest.mark.campaign
@pytest.mark.parametrize(("plan", "sink", "workers"), RUNS)
def test_a_job_whose_outputs_were_too_large_for_their_topic_passes(
    bootstrap: str, tmp_path: Path, topic: Callable[..., str], spark: Any, plan: str, sink: str, workers: int
) -> None:
    """Some in the middle of a record's outputs, and of a key's; the last of a key, too."""
    source, target, refused = topic(partitions=2), topic(config={"max.message.bytes": "2000"}), topic()
    name = f"too-large-{uuid4().hex[:8]}"
    app = tmp_path / f"{name.replace('-', '_')}.py"
    app.write_text(plan.format(name=name, input=source, output=target, letters=refused))
    producer = in_order(bootstrap)
    for i in range(60):
        key = "abc"[i % 3]
        large = key + "x" * 3000 if i % 7 == 0 or i > 55 else key
        producer.produce(source, f"{key}1 {large} {key}2 {large}".encode(), partition=i % 2, timestamp=FED_AT)
    assert producer.flush(PATIENCE) == 0
    job = Job(bootstrap, tmp_path, app, name)
    job.run(workers=workers)

    verdict = job.audit(spark)

    letters = Counter(dict(m.headers())["dead_letter.operator"] for m in read(bootstrap, refused))
    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert letters == {sink.encode(): 2 * 12}
    assert verdict.facts.rejected == {sink: 2 * 12}
    assert verdict.facts.outputs == verdict.facts.expected == 60 * 4


RESULTS = """
import msgspec
from kafka_eos import Pipeline, agg, monotonic, sliding, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

class Sale(msgspec.Struct):
    user: str
    at: int
    amount: int
    note: str = ""

pipeline = Pipeline("{name}", checkpoint_interval=0.05, batch_size=20, max_dead_letters="none")
sales = pipeline.source(KafkaSource("{input}", value=Sale), name="sales", on_error=dead_letter("{letters}"))
by_user = sales.with_timestamps(lambda sale: {begin} + sale.at, watermarks=monotonic()).key_by("user")
by_user.window(sliding(seconds=0.1, every=0.05)).aggregate(agg.sum("amount"), name="sums") \\
    .sink(KafkaSink("{sums}"), name="to-sums")
by_user.window(tumbling(seconds=0.1)).aggregate(agg.collect("note"), name="notes") \\
    .map(lambda row: {{"n": 1 // (len(row.collect) - 9), "user": row.key, "notes": row.collect}}, name="shared") \\
    .sink(KafkaSink("{notes}", value=dict), name="to-notes")
"""


@pytest.mark.campaign
def test_a_job_passes_whose_results_could_not_be_made_or_were_rejected_behind_their_windows(
    bootstrap: str, tmp_path: Path, topic: Callable[..., str], spark: Any
) -> None:
    source, refused = topic(partitions=2), topic()
    sums, notes = topic(), topic(config={"max.message.bytes": "2000"})
    name = f"results-{uuid4().hex[:8]}"
    app = tmp_path / f"{name.replace('-', '_')}.py"
    begin = FED_AT // 1000 * 1000
    app.write_text(RESULTS.format(name=name, input=source, letters=refused, sums=sums, notes=notes, begin=begin))
    producer = in_order(bootstrap)
    for at in range(0, 1000, 10):
        for user in range(3):
            large = user == 2 and at in (10, 60)
            sale = {"user": f"u{user}", "at": at, "amount": 2**62 if large else 1, "note": "x" * 3000 * large}
            if user != 1 or at % 100:  # nine in a window
                producer.produce(source, json.dumps(sale).encode(), partition=user % 2, timestamp=FED_AT)
    assert producer.flush(PATIENCE) == 0
    job = Job(bootstrap, tmp_path, app, name)
    job.run(workers=2, failpoints="commit.before=kill@2")

    verdict = job.audit(spark)

    letters = Counter(dict(m.headers())["dead_letter.operator"] for m in read(bootstrap, refused))
    assert letters == {b"sums": 1, b"shared": 9, b"to-notes": 1}
    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert verdict.facts.rejected == {"to-notes": 1, "to-sums": 1}
