"""The audit of any topics: what is wrong in real ones is found and named, and no Python is in any plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from kafka_eos.audit import Check, Outcome, Verdict
from kafka_eos.audit.cluster import Cluster, Range, Ranges, settle
from kafka_eos.audit.topics import Question, audit_topics
from kafka_eos.audit.topics.auditor import _compacted_away
from kafka_eos.audit.topics.question import expression, moment
from kafka_eos.audit.topics.window import reading_ends, window
from kafka_eos.audit.verdict import Evidence, Facts, Offender, judge
from kafka_eos.cli import app as cli
from kafka_eos.errors import ConfigError
from tests.audit.job import FED_AT, Job, Out, out
from tests.marks import campaign

pytestmark = pytest.mark.timeout(300)
ORDERS = 24
USERS = ("ann", "bob", "cid", "dee")
DOUBLE = "SELECT key, to_json(named_struct('id', id, 'twice', n * 2)) AS value FROM (SELECT key, json.* FROM input)"


@dataclass
class Pair:
    """An input topic, and the right outputs of it for an output topic: of other programs, or with provenance."""

    job: Job
    input: str
    output: str
    outs: list[Out]

    def question(self, **asked: Any) -> Question:
        return Question(self.job.bootstrap, **{"inputs": (self.input,), "outputs": (self.output,), **asked})

    def feed(self, numbers: range) -> None:
        orders = [json.dumps({"id": i, "n": i % 7}).encode() for i in numbers]
        self.job.feed(self.input, [(i % 2, USERS[i % 4], order) for i, order in zip(numbers, orders, strict=True)])

    def made(self, numbers: range, attempt: tuple[int, int] = (1, 1)) -> list[Out]:
        return [
            out((i % 2, i // 2), USERS[i % 4], b'{"id":%d,"twice":%d}' % (i, i % 7 * 2), topic=self.input,
                epoch=attempt, target=i % 2)
            for i in numbers
        ]  # fmt: skip


@pytest.fixture
def pair(bootstrap: str, topic: Callable[..., str], tmp_path: Path) -> Pair:
    source, target = topic(partitions=2), topic(partitions=2)
    made = Pair(Job(bootstrap, tmp_path, tmp_path / "none.py", f"pair-{uuid4().hex[:8]}"), source, target, [])
    made.feed(range(ORDERS))
    made.outs = made.made(range(ORDERS // 2)) + made.made(range(ORDERS // 2, ORDERS), (1, 2))
    return made


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def first(verdict: Verdict, check: Check) -> str:
    return next(str(finding.first[0]) for finding in verdict.findings if finding.check is check)


def spoilt(outs: list[Out]) -> list[Out]:
    """One output lost, one doubled in its partition, one moved behind later ones of its key, one made up."""
    kept = [o for i, o in enumerate(outs) if i not in (5, 8)]
    made_up = replace(outs[3], value=b'{"id":999,"twice":0}', text=(outs[3].text or "").replace("/1/1/", "/1/999/"))
    return [*kept, outs[8], outs[6], made_up]


EARLIER = {
    "resume": {},
    "verdict": "PASS",
    "question": {"inputs": "('i',)", "outputs": "('t',)", "id": "$.x", "value": "value"},
}
SPOILT = {Check.LOST: 1, Check.DUPLICATE: 1, Check.REORDERED: 1, Check.UNEXPECTED: 1}


def test_clean_topics_pass_by_id_and_by_query_and_no_plan_holds_python(pair: Pair, spark: Any, tmp_path: Path) -> None:
    pair.job.write(pair.output, pair.outs)
    plans: list[str] = []
    question = pair.question(id="$.id", sql=DOUBLE, schema="id LONG, n INT")

    verdict = audit_topics(question, spark=spark, report_dir=tmp_path, plans=plans)

    assert (Outcome.PASS, {}) == (verdict.outcome, found(verdict)), verdict.headline
    assert (ORDERS, ORDERS, ORDERS) == (verdict.facts.inputs, verdict.facts.outputs, verdict.facts.expected)
    assert len(plans) > 5
    assert [] == [plan for plan in plans if "Python" in plan or "Arrow" in plan or "Pandas" in plan]
    report = json.loads((tmp_path / "report.json").read_text())
    assert ("PASS", ORDERS // 2) == (report["verdict"], report["partitions"][0]["records"])
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_corruptions_are_named_by_an_id_of_the_user(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, [replace(o, text=None) for o in spoilt(pair.outs)])

    verdict = audit_topics(pair.question(id="json.id", schema="id LONG"), spark=spark)

    assert SPOILT | {Check.REORDERED: 1} == found(verdict), verdict.findings
    assert "id 5: " in first(verdict, Check.LOST)
    assert "id 6: " in first(verdict, Check.DUPLICATE)
    assert "id 999: " in first(verdict, Check.UNEXPECTED)


def test_corruptions_are_named_by_provenance(pair: Pair, spark: Any) -> None:
    """A lost output, a doubled one, one out of order, one made up, one without provenance, an epoch of two terms."""
    rival = replace(pair.outs[0], text=(pair.outs[0].text or "").replace("1.1/", "2.1/", 1))
    moved = replace(pair.outs[11], partition=0)
    outs = [moved if o is pair.outs[11] else o for o in spoilt(pair.outs)]
    pair.job.write(pair.output, [*outs, rival, Out("ann", b"{}", None)])
    pair.job.write(pair.output, pair.outs[5:6], commit=False)

    verdict = audit_topics(pair.question(id="provenance"), spark=spark)

    expected = {**SPOILT, Check.DUPLICATE: 2, Check.REORDERED: 3, Check.FOREIGN: 1, Check.ABORTED_VISIBLE: 1,
                Check.COMMITTED_HIDDEN: 1, Check.MISPLACED: 1}  # fmt: skip
    assert expected == found(verdict), verdict.findings


def test_a_record_that_was_applied_twice_is_a_duplicate_though_its_updates_differ(pair: Pair, spark: Any) -> None:
    keyed = [replace(o, text=f"{o.text}/{i}") for i, o in enumerate(pair.outs)]
    pair.job.write(pair.output, [*keyed, replace(keyed[-1], text=f"{pair.outs[-1].text}/99")])

    verdict = audit_topics(pair.question(id="provenance"), spark=spark)

    assert {Check.DUPLICATE: 1} == found(verdict), verdict.findings


def test_two_sinks_of_one_stream_are_no_duplicates_of_each_other(
    pair: Pair, topic: Callable[..., str], spark: Any
) -> None:
    second = topic(partitions=2)
    pair.job.write(pair.output, pair.outs)
    pair.job.write(second, [*pair.outs, pair.outs[-1]])

    verdict = audit_topics(pair.question(id="provenance", outputs=(pair.output, second)), spark=spark)

    assert {Check.DUPLICATE: 1} == found(verdict), verdict.findings


def test_two_jobs_that_count_alike_are_no_rivals(pair: Pair, topic: Callable[..., str], spark: Any) -> None:
    """Each in another term: to a topic of its own, and to the same one from another partition of the input."""
    second = topic(partitions=2)
    parts = [[o for o in pair.outs if o.partition == p] for p in (0, 1)]
    other = [replace(o, text=f"3.{(o.text or '').partition('.')[2]}") for o in pair.outs]
    pair.job.write(pair.output, [*parts[0], *(o for o in other if o.partition == 1)])
    pair.job.write(second, pair.outs[:-1])
    pair.job.write(second, other[-1:], commit=False)

    verdict = audit_topics(pair.question(id="provenance", outputs=(pair.output, second)), spark=spark)

    assert (Outcome.PASS, {}) == (verdict.outcome, found(verdict)), verdict.findings
    assert "two jobs count alike" in verdict.not_possible[Check.COMMITTED_HIDDEN]


def test_what_a_task_that_lost_wrote_is_not_hidden(pair: Pair, spark: Any) -> None:
    """It wrote the same in the same attempt as the one that won; a row that nobody wrote again is a finding."""
    pair.job.write(pair.output, pair.outs[:6], commit=False)
    pair.job.write(pair.output, pair.outs[:-1])
    clean = audit_topics(pair.question(id="provenance", inputs=()), spark=spark)
    pair.job.write(pair.output, pair.outs[-1:], commit=False)
    half = audit_topics(pair.question(id="provenance", inputs=()), spark=spark)

    assert (Outcome.PASS, {}) == (clean.outcome, found(clean)), clean.findings
    assert {Check.COMMITTED_HIDDEN: 1} == found(half), half.findings


def test_what_a_dead_worker_wrote_and_its_successor_in_a_later_epoch_is_not_hidden(pair: Pair, spark: Any) -> None:
    """The others' output of the epoch in which it died is committed: only its own was aborted."""
    died = pair.made(range(2, 6))
    pair.job.write(pair.output, died, commit=False)
    again = pair.made(range(2, 6), (1, 2))
    pair.job.write(pair.output, [*pair.made(range(2)), *again, *pair.made(range(6, ORDERS), (1, 2))])

    verdict = audit_topics(pair.question(id="provenance"), spark=spark)

    assert (Outcome.PASS, {}) == (verdict.outcome, found(verdict)), verdict.findings


def test_branches_of_a_source_are_in_order_each(pair: Pair, spark: Any) -> None:
    """A union writes a batch of one branch, and then of the other."""
    other = [replace(o, text=(o.text or "").replace("/0.0", "/1.0")) for o in pair.outs]
    pair.job.write(pair.output, [*pair.outs, *other])

    verdict = audit_topics(pair.question(id="provenance"), spark=spark)

    assert (Outcome.PASS, {}) == (verdict.outcome, found(verdict)), verdict.findings


def test_numbers_and_their_texts_are_the_same_id(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, pair.outs)

    verdict = audit_topics(pair.question(id="$.id", input_id="json.id", schema="id LONG"), spark=spark)

    assert (Outcome.PASS, {}) == (verdict.outcome, found(verdict)), verdict.findings


def test_an_order_of_the_users_own_within_a_key_of_the_users_own(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, [*pair.outs[1:], pair.outs[0]])
    asked = {"inputs": (), "order": "json.id", "key": "json.id % 2", "schema": "id LONG"}

    verdict = audit_topics(pair.question(**asked), spark=spark)

    assert {Check.REORDERED: 1} == found(verdict), verdict.findings
    assert ORDERS == verdict.facts.evidence[Check.REORDERED].looked_at  # type: ignore[union-attr]


ORDERS_OF = {
    "text": "$.at",
    "long": "variant_get(json, '$.at', 'long')",
    "decimal": "cast(variant_get(json, '$.at', 'long') as decimal(20,0))",
    "double": "variant_get(json, '$.at', 'double') - 1700000000000000000",
    "timestamp": "timestamp_micros(variant_get(json, '$.at', 'long') div 10)",
}


@pytest.mark.parametrize("kind", [*list(ORDERS_OF)[:1], *(campaign(kind, named=kind) for kind in [*ORDERS_OF][1:])])
def test_an_order_tells_numbers_of_64_bits_apart(pair: Pair, spark: Any, kind: str) -> None:
    """The second is below the first by less than doubles of their size can tell."""
    fall = 1024 if kind == "double" else 100
    ids = (1_700_000_000_000_000_000 + fall, 1_700_000_000_000_000_000)
    pair.job.write(pair.output, [Out("ann", b'{"at":%d}' % at, None) for at in ids])

    verdict = audit_topics(pair.question(inputs=(), order=ORDERS_OF[kind]), spark=spark)

    assert {Check.REORDERED: 1} == found(verdict), verdict.headline


def test_inputs_that_should_have_no_output_are_left_out(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, [o for i, o in enumerate(pair.outs) if i % 7])

    every = audit_topics(pair.question(id="$.id"), spark=spark)
    some = audit_topics(pair.question(id="$.id", where="json.n > 0", schema="n INT"), spark=spark)

    assert {Check.LOST: 4} == found(every), every.findings
    assert (Outcome.PASS, ORDERS - 4) == (some.outcome, some.facts.inputs), some.findings


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"id": "$.typo"}, "none of the 24 outputs has an id: look at '$.typo'"),
        ({"id": "$.id", "input_id": "$.typo"}, "none of the 24 inputs has an id: look at '$.typo'"),
        ({"inputs": (), "order": "json.typo", "schema": "typo LONG"}, "no output has a key and something that tells"),
    ],
)
def test_a_comparison_of_nothing_is_invalid(pair: Pair, spark: Any, asked: dict[str, Any], why: str) -> None:
    pair.job.write(pair.output, pair.outs)

    verdict = audit_topics(pair.question(**asked), spark=spark, allow_foreign=True)

    assert Outcome.INVALID is verdict.outcome
    assert why in verdict.headline


def test_a_query_names_altered_lost_and_doubled_values_even_if_counts_agree(pair: Pair, spark: Any) -> None:
    outs = list(pair.outs)
    outs[4] = replace(outs[4], value=b'{"id":4,"twice":1}')
    outs[7] = outs[9]
    outs[10] = replace(outs[10], key="eve")
    pair.job.write(pair.output, outs)

    verdict = audit_topics(pair.question(sql=DOUBLE, schema="id LONG, n INT"), spark=spark)

    assert {Check.LOST: 3, Check.UNEXPECTED: 2, Check.DUPLICATE: 1} == found(verdict), verdict.findings
    assert verdict.facts.inputs == verdict.facts.outputs


def test_files_are_an_output_too(pair: Pair, spark: Any, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    lines = [b'{"provenance":"%b","value":%b}\n' % ((o.text or "").encode(), o.value or b"") for o in pair.outs]
    (directory / "part-1.jsonl").write_bytes(b"".join(lines[:10]))
    (directory / "part-2.jsonl").write_bytes(b"".join([*lines[11:], lines[12]]))

    verdict = audit_topics(pair.question(id="provenance", outputs=(str(directory),)), spark=spark)

    assert {Check.LOST: 1, Check.DUPLICATE: 1} == found(verdict), verdict.findings


def test_an_audit_resumes_where_an_earlier_one_ended(pair: Pair, spark: Any, tmp_path: Path) -> None:
    pair.job.write(pair.output, pair.outs)
    audit_topics(pair.question(id="$.id"), spark=spark, report_dir=tmp_path)
    earlier = json.loads((tmp_path / "report.json").read_text())
    more = range(ORDERS, ORDERS + 8)
    pair.feed(more)
    pair.job.write(pair.output, [*pair.made(more)[1:], pair.outs[0]])

    verdict = audit_topics(pair.question(id="$.id", resume=earlier), spark=spark)

    assert {Check.LOST: 1, Check.UNEXPECTED: 1} == found(verdict), verdict.findings
    assert (ORDERS + 8, ORDERS + 8) == (verdict.facts.inputs, verdict.facts.outputs)


def test_a_window_of_offsets_is_all_that_is_judged(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, pair.outs[1:])
    start = {pair.input: {0: 4, 1: 4}, pair.output: {0: 3, 1: 4}}

    verdict = audit_topics(pair.question(id="$.id", start=start), spark=spark)

    assert (Outcome.PASS, ORDERS - 8) == (verdict.outcome, verdict.facts.inputs), verdict.headline


def test_a_window_of_times_judges_what_lies_in_it_and_reads_more(pair: Pair, spark: Any) -> None:
    """The outputs are an hour later than their inputs: counterparts are found in the slack."""
    later = [replace(o, timestamp=FED_AT + 3_600_000) for o in pair.outs]
    pair.job.write(pair.output, [*later[:3], *later[4:]])
    fed = datetime.fromtimestamp(FED_AT / 1000, UTC)
    inside = {"start": fed - timedelta(minutes=1), "end": fed + timedelta(minutes=1)}

    verdict = audit_topics(pair.question(id="$.id", slack=7200.0, **inside), spark=spark)
    outside = audit_topics(pair.question(id="$.id", slack=7200.0, start=fed + timedelta(minutes=1)), spark=spark)

    assert {Check.LOST: 1} == found(verdict), verdict.findings
    assert ORDERS == verdict.facts.inputs
    assert {} == found(outside), outside.findings


def test_what_lies_below_an_open_transaction_can_be_judged(pair: Pair, spark: Any) -> None:
    """By offsets, or up to a time; not up to the ends, nor into the transaction."""
    fed = datetime.fromtimestamp(FED_AT / 1000, UTC)
    pair.job.write(pair.output, [replace(o, timestamp=FED_AT - 3_600_000) for o in pair.outs])
    settings = {"transactional.id": f"{pair.job.name}.busy", "transaction.timeout.ms": 300_000}
    busy = Producer({"bootstrap.servers": pair.job.bootstrap, **settings})
    busy.init_transactions(30)
    pair.job.begin(busy, {pair.output: pair.outs[:1]})
    below = {pair.output: dict.fromkeys((0, 1), ORDERS // 2 + 1)}
    quiet = [{"end": below}, {"end": fed - timedelta(minutes=30)}]
    never = [{}, {"end": {pair.output: {0: ORDERS // 2 + 2}}}, {"end": fed + timedelta(hours=1)}]

    with closing(Cluster(spark, {"bootstrap.servers": pair.job.bootstrap})) as cluster:

        def still_open(seconds: float, asked: dict[str, Any]) -> list[str]:
            question = pair.question(id="$.id", **asked)
            return settle(cluster, question.topics, seconds, partial(reading_ends, question, cluster))[1]

        open_below, open_above = [still_open(30, asked) for asked in quiet], [still_open(0, asked) for asked in never]
    verdict = audit_topics(pair.question(id="$.id", end=below), spark=spark)
    busy.abort_transaction(30)

    assert [[], []] == open_below
    assert all(f"{pair.job.name}.busy" in line and "--to" in line for (line,) in open_above)
    assert (Outcome.PASS, ORDERS) == (verdict.outcome, verdict.facts.outputs), verdict.headline


@pytest.mark.campaign
def test_a_time_tells_what_expired_only_where_something_older_is_left(
    pair: Pair, admin: AdminClient, spark: Any
) -> None:
    """An output topic that keeps less than its input: what is older than that is not lost."""
    fed = datetime.fromtimestamp(FED_AT / 1000, UTC)
    old = [replace(o, timestamp=FED_AT - 7_200_000) for o in pair.outs]
    pair.job.write(pair.output, old)
    pair.feed(range(ORDERS, ORDERS + 8))
    pair.job.write(pair.output, [replace(o, timestamp=FED_AT) for o in pair.made(range(ORDERS, ORDERS + 8))])
    for future in admin.delete_records([TopicPartition(pair.output, p, 2) for p in (0, 1)]).values():
        future.result(30)

    whole = audit_topics(pair.question(id="$.id"), spark=spark)
    since = audit_topics(pair.question(id="$.id", start=fed - timedelta(hours=9)), spark=spark)
    later = audit_topics(pair.question(id="$.id", start=fed - timedelta(minutes=1), slack=1.0), spark=spark)

    assert (Outcome.INVALID, Outcome.INVALID) == (whole.outcome, since.outcome), (whole.headline, since.headline)
    assert "have expired" in whole.headline and "have expired" in since.headline
    assert {Check.LOST: ORDERS} == found(later), later.headline  # nothing that they need has expired


def test_a_group_tells_how_far_the_input_was_processed(pair: Pair, spark: Any) -> None:
    """Outputs of inputs behind it are there already: they are neither unexpected nor are others lost."""
    pair.job.write(pair.output, pair.outs[: ORDERS - 2])
    group = f"group-{uuid4().hex[:8]}"
    done = [TopicPartition(pair.input, p, ORDERS // 2 - 4) for p in (0, 1)]
    Consumer({"bootstrap.servers": pair.job.bootstrap, "group.id": group}).commit(offsets=done, asynchronous=False)

    verdict = audit_topics(pair.question(id="$.id", group=group), spark=spark)

    assert (Outcome.PASS, ORDERS - 8) == (verdict.outcome, verdict.facts.inputs), verdict.findings

    pair.feed(range(2))  # the same ids once more, behind what was processed

    verdict = audit_topics(pair.question(id="$.id", group=group), spark=spark)

    assert (Outcome.INVALID, {}) == (verdict.outcome, found(verdict)), verdict.headline
    assert "2 ids are also outside of what is judged, and have fewer outputs" in verdict.headline
    assert "(id 0: 1 of 2)" in verdict.headline


ACCOUNTS = {
    "all": ("xxxxx", "xxxxx", Outcome.PASS),
    "one lost": ("xxxxx", "xxxx", Outcome.INVALID),
    "more lost than lie outside": ("xxx", "x", Outcome.FAIL),
    "one more, in or of the slack": ("xxxxxx", "xxxxx", Outcome.INVALID),
    "more than all inputs": ("xxxxx", "xxxxxxxxxxx", Outcome.FAIL),
}
"""Of an account with five inputs inside and five outside: its outputs outside and inside."""


@pytest.mark.parametrize("named", [campaign(name, named=name) for name in ACCOUNTS])
def test_ids_of_many_records_are_judged_in_a_window_of_times_as_far_as_they_tell(
    pair: Pair, topic: Callable[..., str], spark: Any, named: str
) -> None:
    outside, inside, outcome = ACCOUNTS[named]
    source, fed = topic(), datetime.fromtimestamp(FED_AT / 1000, UTC)
    before = FED_AT - 300_000
    order = Out("ann", b'{"account":1}', None)
    pair.job.write(source, [*[replace(order, timestamp=before)] * 5, *[replace(order, timestamp=FED_AT)] * 5])
    times = [*[before] * len(outside), *[FED_AT] * len(inside)]
    pair.job.write(pair.output, [replace(order, timestamp=time) for time in times])
    question = replace(pair.question(id="$.account", start=fed - timedelta(seconds=10)), inputs=(source,))

    verdict = audit_topics(question, spark=spark)

    assert outcome is verdict.outcome, verdict.headline
    assert (outcome is Outcome.FAIL) == bool(verdict.findings)


def test_the_command_asks_what_its_options_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Question] = []

    def answer(question: Question, **_: Any) -> Verdict:
        asked.append(question)
        return judge(Facts(obstacles=["no cluster"]))

    monkeypatch.setattr("kafka_eos.audit.topics.audit_topics", answer)
    options = ["--input", "a", "--output", "b", "--output", "/c", "--id", "$.x", "--from", '{"a": {"0": 1}}']

    result = CliRunner().invoke(cli, ["audit", "topics", "-b", "host:1", *options, "--report-dir", str(tmp_path)])

    assert (2, ("a",), ("b", "/c"), {"a": {0: 1}}) == (
        result.exit_code, asked[0].inputs, asked[0].outputs, asked[0].start
    )  # fmt: skip
    assert "INVALID: no cluster" in result.output


def test_a_topic_that_was_made_anew_is_not_resumed() -> None:
    earlier = {**EARLIER, "resume": {"ends": {"t": {"0": 100}, "i": {"0": 100}}, "files": {}}}
    question = Question("host:1", ("i",), ("t",), "$.x", resume=earlier)
    ranges = {"i": {0: Range(0, 120, 120)}, "t": {0: Range(0, 10, 10)}}

    with pytest.raises(ConfigError, match="t/0 ends at offset 10, before 100"):
        window(question, None, ranges)


def asked(**more: Any) -> Question:
    return Question("host:1", ("i",), ("t",), "$.x", **more)


LOST = {Check.LOST: Evidence(9, 2, (Offender("i", 0, 3, "x"),))}
COPIED = {Check.DUPLICATE: Evidence(9, 2, (Offender("t", 0, 3, "x"),))}


@pytest.mark.parametrize(
    ("compacted", "found", "named", "doubtful"),
    [
        (["t"], LOST, "$.x", True),
        (["i"], LOST, "$.x", False),
        (["i"], COPIED, "$.x", True),
        (["i"], COPIED, "provenance", False),
        (["t"], COPIED, "$.x", False),
        ([], LOST, "$.x", False),
    ],
)
def test_what_compaction_may_have_done_is_no_finding(
    compacted: list[str], found: dict[Check, Evidence], named: str, doubtful: bool
) -> None:
    nothing = dict.fromkeys(Check, Evidence(9))
    told = _compacted_away(replace(asked(), id=named), compacted, {**nothing, **found})

    assert ([*found] if doubtful else []) == [*told]
    assert all("the first: " in why.reason for why in told.values())


@pytest.mark.campaign
def test_compacted_topics_are_invalid_where_they_lack_something(
    pair: Pair, topic: Callable[..., str], spark: Any
) -> None:
    compacted = topic(partitions=2, config={"cleanup.policy": "compact"})
    pair.job.write(compacted, pair.outs[:-1])
    question = replace(pair.question(id="$.id"), outputs=(compacted,))
    short = audit_topics(question, spark=spark)
    pair.job.write(compacted, pair.outs[-1:])
    whole = audit_topics(question, spark=spark)

    assert (Outcome.INVALID, Outcome.PASS) == (short.outcome, whole.outcome), (short.headline, whole.headline)
    assert "lost not checked: compaction of" in short.headline


# ---------------------------------------------------------------- windows

FULL = {"i": {0: Range(0, 200, 200), 1: Range(0, 50, 50)}, "t": {0: Range(0, 300, 300)}}
SINCE_100 = {**FULL, "i": {0: Range(100, 200, 200), 1: Range(0, 50, 50)}}


@pytest.mark.parametrize(
    ("ranges", "start"),
    [
        (SINCE_100, None),
        ({**FULL, "t": {0: Range(100, 300, 300)}}, None),
        ({**FULL, "t": {0: Range(300, 300, 300)}}, None),
        (SINCE_100, {"i": {1: 10}, "t": {0: 100}}),
    ],
    ids=["of the input", "of the output", "all of the output", "of a partition that --from does not name"],
)
def test_expired_records_are_no_losses_but_no_ground_to_judge_on(
    ranges: Ranges, start: dict[str, dict[int, int]] | None
) -> None:
    with pytest.raises(ConfigError, match=r"have expired \([it]/0 begins at offset \d00\), .*--from"):
        window(asked(start=start), None, ranges)


def test_offsets_to_start_from_judge_what_has_not_expired() -> None:
    found = window(asked(start={"i": {0: 100}, "t": {0: 150}}), None, SINCE_100)

    assert ({0: (100, 200), 1: (0, 50)}, {0: (150, 300)}) == (found.judged["i"], found.judged["t"])


def test_what_expired_since_an_earlier_audit_ends_it() -> None:
    earlier = {**EARLIER, "resume": {"ends": {"t": {"0": 100}, "i": {"0": 90}}, "files": {}}}
    with pytest.raises(ConfigError, match=r"i/0 begins at offset 100.*without --resume"):
        window(asked(resume=earlier), None, SINCE_100)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"start": {"typo": {0: 9}}}, "--from names 'typo', which is not audited; there are: i, t"),
        ({"end": {"t": {1: 9}}}, "--to names t/1; the last partition is t/0"),
        ({"start": {"i": {0: 99}}}, "--from says 99 of i/0, which has offsets 100 to 200"),
        ({"end": {"i": {0: 201}}}, "--to says 201 of i/0, which has offsets 100 to 200"),
        ({"start": {"i": {0: 150}}, "end": {"i": {0: 149}}}, "of i/0 --from says 150, which is behind 149"),
    ],
)
def test_offsets_that_are_not_there_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        window(asked(**given), None, SINCE_100)


# ---------------------------------------------------------------- questions


def test_short_forms_stand_for_spark_sql() -> None:
    assert "get_json_object(value, '$.a.b')" == expression("$.a.b")
    assert "h.key = 'id\\'s'" in expression("header:id's")
    assert "json.id" == expression("json.id")


def test_a_moment_is_a_time_or_offsets() -> None:
    assert {"t": {0: 5}} == moment('{"t": {"0": 5}}')
    assert "+00:00" in str(moment("2026-11-21T08:00:00"))
    with pytest.raises(ConfigError, match="no time and no offsets"):
        moment("yesterday")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"outputs": (), "id": "$.x"}, "nothing to audit"),
        ({"outputs": ("t",)}, "nothing to compare"),
        ({"inputs": ("t",), "outputs": ("t",), "id": "$.x"}, "input and output at once"),
        ({"inputs": (), "outputs": ("t",), "sql": "SELECT 1"}, "needs an input"),
        ({"outputs": ("t",), "id": "$.x", "resume": {"resume": {}, "verdict": "INVALID"}}, "proved nothing"),
        ({"outputs": ("t",), "id": "$.x", "resume": {"resume": {}, "verdict": "FAIL"}}, "would hide what it found"),
        ({"outputs": ("t",), "id": "$.x", "resume": EARLIER}, "takes the inputs"),
        ({"inputs": ("i",), "outputs": ("t",), "id": "$.y", "resume": EARLIER}, r"asked something else \(id\)"),
        ({"inputs": ("i",), "outputs": ("t",), "id": "$.x", "group": "g", "resume": EARLIER}, "either side"),
        ({"inputs": ("i",), "outputs": ("t",), "id": "$.x", "order": "offset", "resume": EARLIER}, "cannot be resumed"),
        ({"inputs": ("i",), "outputs": ("t",), "sql": "SELECT 1", "resume": EARLIER}, "query cannot be resumed"),
        ({"inputs": ("i",), "outputs": ("t",), "sql": "SELECT 1", "group": "g"}, "compared with everything"),
        ({"outputs": ("/t",), "id": "$.x", "end": datetime(2026, 11, 21, tzinfo=UTC)}, "no times"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Question("localhost:9092", **asked)
