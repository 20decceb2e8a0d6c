"""The audit of any topics: what is wrong in real ones is found and named, and no Python is in any plan."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.audit.checks.verdict import Observations, judge
from kafka_eos.audit.tables.topic_tables import read
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics, tabulate_findings
from kafka_eos.audit.topics.question import expression, moment
from kafka_eos.audit.topics.topic_audit import _unrelated
from kafka_eos.audit.topics.topic_scan import IdComparison
from kafka_eos.audit.topics.topic_tables import with_id
from kafka_eos.cli import app as cli
from kafka_eos.core.errors import ConfigError
from tests.audit.job import Out
from tests.audit.topic_pair import EARLIER, ORDERS, USERS, Pair, first, found
from tests.marks import campaign

pytestmark = pytest.mark.timeout(300)
DOUBLE = "SELECT key, to_json(named_struct('id', id, 'twice', n * 2)) AS value FROM (SELECT key, json.* FROM input)"


def spoilt(outs: list[Out]) -> list[Out]:
    """One output lost, one doubled in its partition, one moved behind later ones of its key, one made up."""
    kept = [o for i, o in enumerate(outs) if i not in (5, 8)]
    made_up = replace(outs[3], value=b'{"id":999,"twice":0}', text=(outs[3].text or "").replace("/1/1/", "/1/999/"))
    return [*kept, outs[8], outs[6], made_up]


SPOILT = {Check.LOST: 1, Check.DUPLICATE: 1, Check.REORDERED: 1, Check.UNEXPECTED: 1}


def test_clean_topics_pass_by_id_and_by_query_and_no_plan_holds_python(pair: Pair, spark: Any, tmp_path: Path) -> None:
    pair.job.write(pair.output, pair.outs)
    plans: list[str] = []
    question = pair.question(id="$.id", sql=DOUBLE, schema="id LONG, n INT")

    verdict = audit_topics(question, spark=spark, report_dir=tmp_path, plans=plans)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert (ORDERS, ORDERS, ORDERS) == (verdict.facts.inputs, verdict.facts.outputs, verdict.facts.expected)
    assert len(plans) > 5
    assert [] == [plan for plan in plans if "Python" in plan or "Arrow" in plan or "Pandas" in plan]
    report = json.loads((tmp_path / "report.json").read_text())
    assert ("PASS", ORDERS // 2) == (report["verdict"], report["partitions"][0]["records"])
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_corruptions_are_named_by_an_id_of_the_user(pair: Pair, spark: Any) -> None:
    """In the verdict, and as tables whose every row is a record."""
    pair.job.write(pair.output, [replace(o, text=None) for o in spoilt(pair.outs)])

    found_tables = tabulate_findings(spark, pair.question(id="json.id", schema="id LONG"))

    verdict, rows = found_tables.verdict, {row.check: row for row in found_tables.findings.collect()}
    assert {check.value for check in SPOILT} == rows.keys()
    lost, doubled, made_up = rows["lost"], rows["duplicate"], rows["unexpected"]
    assert (pair.input, 1, 2, 0, 1) == (lost.topic, lost.partition, lost.offset, lost.outputs, lost.expected)
    assert (pair.output, 2, 1) == (doubled.topic, doubled.outputs, doubled.expected)
    assert doubled.offset > doubled.other_offset and lost.other_topic is None
    assert (pair.output, None) == (made_up.topic, made_up.other_topic)
    assert [("input", ORDERS), ("output", ORDERS + 1)] == [
        (row.role, row.records) for row in found_tables.partitions.groupBy("role").agg(
            F.sum("records").alias("records")).orderBy("role").collect()
    ]  # fmt: skip
    assert SPOILT | {Check.REORDERED: 1} == found(verdict), verdict.findings
    assert "id 5: " in first(verdict, Check.LOST)
    assert "id 6: " in first(verdict, Check.DUPLICATE)
    assert "id 999: " in first(verdict, Check.UNEXPECTED)


@pytest.mark.parametrize("provenance", ["header", campaign("ledger")])
def test_corruptions_are_named_by_provenance(pair: Pair, spark: Any, provenance: str, tmp_path: Path) -> None:
    """A lost output, a doubled one, one out of order, one made up, one without provenance, an epoch of two terms."""
    rival = replace(pair.outs[0], text=(pair.outs[0].text or "").replace("1.1/", "2.1/", 1))
    moved = replace(pair.outs[11], partition=0)
    outs = [moved if o is pair.outs[11] else o for o in spoilt(pair.outs)]
    visible, hidden = [*outs, rival, Out("ann", b"{}", None)], pair.outs[5:6]
    if provenance == "header":
        pair.job.write(pair.output, visible)
        pair.job.write(pair.output, hidden, commit=False)
    else:
        pair.write_beside(visible)
        pair.write_beside(hidden, commit=False)

    question = pair.question(id="provenance", ledgers=pair.ledgers)
    verdict = audit_topics(question, spark=spark, report_dir=tmp_path, all_findings=True)

    lines = (json.loads(line)["check"] for line in (tmp_path / "findings.jsonl").read_text().splitlines())
    assert {check.value: n for check, n in found(verdict).items()} == Counter(lines)
    expected = {**SPOILT, Check.DUPLICATE: 2, Check.REORDERED: 3, Check.FOREIGN: 1, Check.ABORTED_VISIBLE: 1,
                Check.COMMITTED_HIDDEN: 1}  # fmt: skip
    assert expected == found(verdict), verdict.findings
    assert "1 keys are in several partitions" in str(verdict.facts.left_out)


@pytest.mark.campaign
def test_outputs_without_a_header_ask_for_the_ledger_of_their_job(pair: Pair, spark: Any) -> None:
    """All of them, some of them, or with a directory that holds none."""
    pair.write_beside(pair.outs)

    none = audit_topics(pair.question(id="provenance"), spark=spark)
    pair.job.write(pair.output, pair.outs[:1])
    some = audit_topics(pair.question(id="provenance"), spark=spark)
    whole = audit_topics(pair.question(id="provenance", ledgers=pair.ledgers), spark=spark)
    wrong = audit_topics(pair.question(id="provenance", ledgers=(str(pair.job.directory),)), spark=spark)

    assert Conclusion.INCONCLUSIVE is none.conclusion
    assert "name the directory of its job's checkpoints with --ledger" in none.headline
    assert {Check.FOREIGN: ORDERS, Check.LOST: ORDERS - 1} == found(some)
    assert any("--ledger" in note for note in some.facts.notes)
    assert {Check.DUPLICATE: 1, Check.REORDERED: 1} == found(whole), whole.findings
    assert Conclusion.INCONCLUSIVE is wrong.conclusion
    assert "not a job's checkpoint directory" in wrong.headline


@pytest.mark.campaign
def test_a_record_that_was_applied_twice_is_a_duplicate_though_its_updates_differ(pair: Pair, spark: Any) -> None:
    keyed = [replace(o, text=f"{o.text}/{i}") for i, o in enumerate(pair.outs)]
    pair.job.write(pair.output, [*keyed, replace(keyed[-1], text=f"{pair.outs[-1].text}/99")])

    verdict = audit_topics(pair.question(id="provenance"), spark=spark)

    assert {Check.DUPLICATE: 1} == found(verdict), verdict.findings


@pytest.mark.campaign
def test_two_sinks_of_one_stream_are_no_duplicates_of_each_other(
    pair: Pair, topic: Callable[..., str], spark: Any
) -> None:
    second = topic(partitions=2)
    pair.job.write(pair.output, pair.outs)
    pair.job.write(second, [*pair.outs, pair.outs[-1]])

    verdict = audit_topics(pair.question(id="provenance", outputs=(pair.output, second)), spark=spark)

    assert {Check.DUPLICATE: 1} == found(verdict), verdict.findings


def of_another_job(outs: list[Out]) -> list[Out]:
    return [replace(o, text=(o.text or "").replace("job.1.", "other.3.", 1)) for o in outs]


def test_of_several_jobs_that_wrote_a_topic_one_is_judged(pair: Pair, spark: Any) -> None:
    """A record that one of them lost has an output of the other."""
    pair.job.write(pair.output, [*pair.outs, *of_another_job(pair.outs)[:-1]])
    pair.job.write(pair.output, of_another_job(pair.outs)[-1:], commit=False)

    def audited(*jobs: str) -> Verdict:
        return audit_topics(pair.question(id="provenance", jobs=jobs), spark=spark)

    unnamed, whole, lacking, one = audited(), audited(pair.job.name), audited("other"), audited(pair.job.name, "other")

    assert Conclusion.INCONCLUSIVE is unnamed.conclusion
    assert f"jobs other, {pair.job.name} wrote to {pair.output}: name one of them with --job" in unnamed.headline
    assert (Conclusion.PASS, {}) == (whole.conclusion, found(whole)), whole.findings
    assert f"{ORDERS - 1} outputs excluded by --job" in whole.headline
    assert {Check.LOST: 1, Check.COMMITTED_HIDDEN: 1} == found(lacking), lacking.findings
    assert ORDERS - 1 == found(one)[Check.DUPLICATE], one.findings


@pytest.mark.campaign
def test_two_jobs_that_count_alike_are_no_rivals_and_one_has_no_output_in_place_of_the_other(
    pair: Pair, topic: Callable[..., str], spark: Any
) -> None:
    """Each with a topic of its own; an epoch of one of them that is visible in one topic only is a finding."""
    second = topic(partitions=2)
    pair.job.write(pair.output, pair.outs)
    pair.job.write(second, of_another_job(pair.outs[:-1]))
    question = pair.question(id="provenance", outputs=(pair.output, second))
    both = audit_topics(question, spark=spark)
    one = audit_topics(replace(question, jobs=("other",)), spark=spark)
    clean = audit_topics(replace(question, inputs=()), spark=spark)
    pair.job.write(second, pair.outs[-1:], commit=False)
    half = audit_topics(replace(question, inputs=()), spark=spark)

    assert Conclusion.INCONCLUSIVE is both.conclusion, both.headline
    assert f"jobs other, {pair.job.name} wrote to {', '.join(sorted((pair.output, second)))}" in both.headline
    assert {Check.LOST: 1} == found(one), one.findings
    assert (Conclusion.PASS, {}) == (clean.conclusion, found(clean)), clean.findings
    assert {Check.COMMITTED_HIDDEN: 1} == found(half), half.findings


def test_what_a_task_that_lost_wrote_is_not_hidden(pair: Pair, spark: Any) -> None:
    """It wrote the same in the same attempt as the one that won; a row that nobody wrote again is a finding."""
    pair.job.write(pair.output, pair.outs[:6], commit=False)
    pair.job.write(pair.output, pair.outs[:-1])
    clean = audit_topics(pair.question(id="provenance", inputs=()), spark=spark)
    pair.job.write(pair.output, pair.outs[-1:], commit=False)
    half = audit_topics(pair.question(id="provenance", inputs=()), spark=spark)

    assert (Conclusion.PASS, {}) == (clean.conclusion, found(clean)), clean.findings
    assert {Check.COMMITTED_HIDDEN: 1} == found(half), half.findings


@pytest.mark.campaign
def test_what_a_dead_worker_wrote_and_its_successor_in_a_later_epoch_is_not_hidden(pair: Pair, spark: Any) -> None:
    """The others' output of the epoch in which it died is committed: only its own was aborted."""
    died = pair.made(range(2, 6))
    pair.job.write(pair.output, died, commit=False)
    again = pair.made(range(2, 6), (1, 2))
    pair.job.write(pair.output, [*pair.made(range(2)), *again, *pair.made(range(6, ORDERS), (1, 2))])

    verdict = audit_topics(pair.question(id="provenance"), spark=spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.findings


@pytest.mark.campaign
def test_branches_of_a_source_are_in_order_each(pair: Pair, spark: Any) -> None:
    """A union writes a batch of one branch, and then of the other."""
    other = [replace(o, text=(o.text or "").replace("/0.0", "/1.0")) for o in pair.outs]
    pair.job.write(pair.output, [*pair.outs, *other])

    verdict = audit_topics(pair.question(id="provenance"), spark=spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.findings


@pytest.mark.campaign
def test_a_number_is_the_same_id_in_a_struct_and_as_a_token(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, pair.outs)

    verdict = audit_topics(pair.question(id="$.id", input_id="json.id", schema="id LONG"), spark=spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.findings


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


@pytest.mark.campaign
@pytest.mark.parametrize("kind", [*list(ORDERS_OF)[:1], *(campaign(kind, named=kind) for kind in [*ORDERS_OF][1:])])
def test_an_order_tells_numbers_of_64_bits_apart(pair: Pair, spark: Any, kind: str) -> None:
    """The second is below the first by less than doubles of their size can tell."""
    fall = 1024 if kind == "double" else 100
    ids = (1_700_000_000_000_000_000 + fall, 1_700_000_000_000_000_000)
    pair.job.write(pair.output, [Out("ann", b'{"at":%d}' % at, None) for at in ids])

    verdict = audit_topics(pair.question(inputs=(), order=ORDERS_OF[kind]), spark=spark)

    assert {Check.REORDERED: 1} == found(verdict), verdict.headline


@pytest.mark.campaign
def test_an_order_may_be_a_time_in_iso_8601(pair: Pair, spark: Any) -> None:
    """As texts, these would be in another order: of the offsets one is not UTC."""
    times = ("2026-01-02T03:00:00+02:00", "2026-01-02T02:00:00Z", "2026-01-02T01:59:59.999Z", "soon")
    pair.job.write(pair.output, [Out("ann", b'{"at":"%b"}' % at.encode(), None) for at in times])

    verdict = audit_topics(pair.question(inputs=(), order="$.at"), spark=spark)

    assert {Check.REORDERED: 1} == found(verdict), verdict.headline
    assert f"{pair.output}/0/2: it comes after {pair.output}/0/1" in first(verdict, Check.REORDERED)


def test_inputs_that_should_have_no_output_are_left_out(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, [o for i, o in enumerate(pair.outs) if i % 7])

    every = audit_topics(pair.question(id="$.id"), spark=spark)
    some = audit_topics(pair.question(id="$.id", where="json.n > 0", schema="n INT"), spark=spark)

    assert {Check.LOST: 4} == found(every), every.findings
    assert (Conclusion.PASS, ORDERS - 4) == (some.conclusion, some.facts.inputs), some.findings
    assert "4 inputs excluded by --where" in some.headline


@pytest.mark.campaign
def test_a_sample_of_ids_is_compared_on_both_sides(pair: Pair, spark: Any) -> None:
    """Of the ids that are left out one is lost, and so is one of the others."""
    sampled = "crc32(get_json_object(value, '$.id')) % 3 = 0"
    inside = [i for i in range(ORDERS) if zlib.crc32(b"%d" % i) % 3 == 0]
    outside = next(i for i in range(ORDERS) if i not in inside)
    pair.job.write(pair.output, [o for i, o in enumerate(pair.outs) if i not in (inside[0], outside)])

    verdict = audit_topics(pair.question(id="$.id", where=sampled, output_where=sampled), spark=spark)

    assert ({Check.LOST: 1}, len(inside)) == (found(verdict), verdict.facts.inputs), verdict.headline


def test_what_nothing_tells_is_no_pass_unless_it_is_left_out_by_name(pair: Pair, spark: Any) -> None:
    """A tombstone and a record with another field have no id, nor a number for the condition."""
    empty = [replace(o, key="") for o in pair.outs[:2]]
    pair.job.write(pair.output, [*empty, *pair.outs[2:], Out("ann", None, None)])
    pair.job.feed(pair.input, [(0, "ann", None), (1, "bob", b'{"order_id":7}')])

    every = audit_topics(pair.question(id="$.id", where="json.n >= 0", schema="n INT"), spark=spark)
    named = {"where": "json.n is not null", "output_where": "value is not null"}
    some = audit_topics(pair.question(id="$.id", schema="n INT", **named), spark=spark)

    assert Conclusion.INCONCLUSIVE is every.conclusion
    assert "--where is NULL for 2 inputs" in every.headline
    assert f"1 outputs have no valid id '$.id'; the first is {pair.output}/0/" in every.headline
    assert (Conclusion.PASS, ORDERS) == (some.conclusion, some.facts.inputs), some.headline
    assert "2 inputs excluded by --where; 1 outputs excluded by --output-where" in some.headline
    assert "keys are in several partitions" not in some.headline, "an empty key is like none"


@pytest.mark.campaign
@pytest.mark.parametrize("lost", [False, True])
def test_a_tombstone_that_is_lost_is_found_by_its_key(pair: Pair, spark: Any, lost: bool) -> None:
    pair.job.write(pair.output, [*pair.outs, *[Out("eve", None, None)] * (not lost)])
    pair.job.feed(pair.input, [(0, "eve", None)])

    verdict = audit_topics(pair.question(id="coalesce(get_json_object(value, '$.id'), key)"), spark=spark)

    assert {Check.LOST: 1} == found(verdict) if lost else Conclusion.PASS is verdict.conclusion, verdict.headline
    assert not lost or f"{pair.input}/0/{ORDERS // 2}: " in first(verdict, Check.LOST)


@pytest.mark.campaign
def test_how_many_ids_are_of_several_inputs_is_in_the_headline(pair: Pair, spark: Any) -> None:
    pair.feed(range(2))
    pair.job.write(pair.output, [*pair.outs, *pair.made(range(2))])

    verdict = audit_topics(pair.question(id="$.id"), spark=spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert "2 ids are of several inputs: only the number of their outputs was compared" in verdict.headline


TOKENS = {
    b'{"id":1}': "1",
    b'{"id":"1"}': '"1"',
    b'{"id":9007199254740993}': "9007199254740993",
    b'{"id":9007199254740993.0}': "9007199254740993",
    b'{"id":1.12345678901234567901}': "1.12345678901234567901",
    b'{"id":1.12345678901234567902}': "1.12345678901234567902",
    b'{"id":1e400}': None,
    b'{"id":0.1234567890123456789012345678901234567890}': None,
    b'{"id":1,"id":2}': None,
    b'{"id":"\xe9"}': None,
    b'{"id":""}': None,
    b'{"id":null}': None,
    b'{"other":1}': None,
    b"no JSON": None,
    None: None,
}


def test_an_id_is_a_token_that_no_other_id_shares(spark: Any) -> None:
    """Null is what others could share: a number that is no exact one, one of two fields, text that is no UTF-8."""
    rows = [(number, None if value is None else bytearray(value)) for number, value in enumerate(TOKENS)]
    table = spark.createDataFrame(rows, "n int, raw binary").selectExpr("n", "cast(raw as string) as value")

    found = with_id(table, "$.id").orderBy("n").select("named").collect()

    assert [*TOKENS.values()] == [row.named for row in found]
    with pytest.raises(ConfigError, match="is a floating-point number"):
        with_id(table, "cast(value as double)")


def test_a_large_partition_is_read_by_several_tasks(pair: Pair, spark: Any) -> None:
    config, bounds = {"bootstrap.servers": pair.job.bootstrap}, {pair.input: dict.fromkeys((0, 1), (0, ORDERS // 2))}

    table = read(spark, config, bounds, committed=True, records_per_task=5)

    assert 6 == table.rdd.getNumPartitions()
    assert ORDERS == table.select("partition", "offset").distinct().count()


def test_ids_that_inputs_and_outputs_do_not_share_are_of_two_things() -> None:
    question = TopicAuditOptions("host:1", ("i",), ("t",), "$.x")
    unlike, alike = (IdComparison({}, {}, shared, 0, 0) for shared in (0, 1))

    reasons = _unrelated(question, unlike, (4, 4))
    assert ["no output has the id of an input"] == [text.split(",")[0] for text in reasons]
    assert [] == _unrelated(question, alike, (4, 4)) == _unrelated(question, unlike, (4, 0))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"id": "$.typo"}, "none of the 24 outputs has an id: check '$.typo'"),
        campaign({"id": "$.id", "input_id": "$.typo"}, "none of the 24 inputs has an id: check '$.typo'"),
        campaign({"inputs": (), "order": "json.typo", "schema": "typo LONG"}, "no output has both a key and an order"),
    ],
)
def test_a_comparison_of_nothing_is_invalid(pair: Pair, spark: Any, asked: dict[str, Any], why: str) -> None:
    pair.job.write(pair.output, pair.outs)

    verdict = audit_topics(pair.question(**asked), spark=spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
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


@pytest.mark.parametrize("wrong", [campaign(False, named="right"), pytest.param(True, id="wrong")])
def test_the_last_output_of_a_key_is_compared_with_a_sum(pair: Pair, spark: Any, wrong: bool) -> None:
    """A wrong one in between has no effect."""
    sums = Counter[str]()
    outs = []
    for n in range(ORDERS):
        sums[USERS[n % 4]] += n % 7
        outs.append(Out(USERS[n % 4], b'{"total":%d}' % (sums[USERS[n % 4]] + (n == 9)), None, n % 2))
    if wrong:
        outs.append(Out("bob", b'{"total":0}', None, 1))
    pair.job.write(pair.output, outs)
    sql = "SELECT key, sum(json.n) AS value FROM input GROUP BY key"
    last = f"SELECT key, max_by(json.total, offset) AS value FROM `{pair.output}` GROUP BY key"

    verdict = audit_topics(pair.question(sql=sql, output_sql=last, schema="n INT, total INT"), spark=spark)

    assert ({Check.LOST: 1, Check.UNEXPECTED: 1} if wrong else {}) == found(verdict), verdict.headline
    assert not wrong or f": bob = {sums['bob']}" in first(verdict, Check.LOST)


@pytest.mark.campaign
def test_a_query_tells_a_key_without_a_value_from_a_value_without_a_key(pair: Pair, spark: Any) -> None:
    """Strung together, key and value read the same."""
    pair.job.write(pair.output, [Out("7", None, None)])
    right = "SELECT '7' AS key, cast(null AS string) AS value FROM input WHERE partition = 0 AND offset = 0"
    wrong = "SELECT cast(null AS string) AS key, '7' AS value FROM input WHERE partition = 0 AND offset = 0"

    same = audit_topics(pair.question(sql=right), spark=spark)
    swapped = audit_topics(pair.question(sql=wrong), spark=spark)

    assert (Conclusion.PASS, {}) == (same.conclusion, found(same)), same.headline
    assert {Check.LOST: 1, Check.UNEXPECTED: 1} == found(swapped), swapped.findings
    assert "null = 7" in first(swapped, Check.LOST)


def test_files_are_an_output_too(pair: Pair, spark: Any, tmp_path: Path) -> None:
    """Also in directories of partitions; hidden ones are left out."""
    directory = tmp_path / "out"
    directory.mkdir()
    lines = [b'{"provenance":"%b","value":%b}\n' % ((o.text or "").encode(), o.value or b"") for o in pair.outs]
    (directory / "part-1.jsonl").write_bytes(b"".join(lines[:10]))
    (directory / "day=2").mkdir()
    (directory / "day=2" / "part-1.jsonl").write_bytes(b"".join([*lines[11:], lines[12]]))
    (directory / "_temporary").mkdir()
    (directory / "_temporary" / "part-9.jsonl").write_bytes(lines[0])

    verdict = audit_topics(pair.question(id="provenance", outputs=(str(directory),)), spark=spark)

    assert {Check.LOST: 1, Check.DUPLICATE: 1} == found(verdict), verdict.findings
    assert first(verdict, Check.DUPLICATE).startswith("day=2/part-1.jsonl/")


def test_the_command_asks_what_its_options_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[TopicAuditOptions] = []

    def answer(question: TopicAuditOptions, **_: Any) -> Verdict:
        asked.append(question)
        return judge(Observations(obstacles=["no cluster"]))

    monkeypatch.setattr("kafka_eos.audit.topics.audit_topics", answer)
    options = ["--input", "a", "--output", "b", "--output", "/c", "--id", "$.x", "--from", '{"a": {"0": 1}}']
    options += ["--registry", "http://me:secret@host:1", "--registry-config", "timeout=1", "--unordered"]
    options += ["--command-config", __file__, "--input-bootstrap", "far:1", "--input-command-config", __file__]

    result = CliRunner().invoke(cli, ["audit", "topics", "-b", "host:1", *options, "--report-dir", str(tmp_path)])

    assert (2, ("a",), ("b", "/c"), {"a": {0: 1}}) == (
        result.exit_code, asked[0].inputs, asked[0].outputs, asked[0].start
    )  # fmt: skip
    assert "INCONCLUSIVE: no cluster" in result.output
    assert ("http://me:secret@host:1", {"timeout": "1"}) == (asked[0].registry, asked[0].registry_config)
    assert "secret" not in str(asked[0].asked)
    assert (True, Path(__file__), Path(__file__)) == (
        asked[0].unordered, asked[0].command_config, asked[0].input_command_config
    )  # fmt: skip
    assert ["far:1", "host:1"] == [access.bootstrap for access, _ in asked[0].clusters]


# ---------------------------------------------------------------- questions


def test_short_forms_stand_for_spark_sql() -> None:
    assert "get_json_object(value, '$.a.b')" == expression("$.a.b")
    assert "h.key = 'id\\'s'" in expression("header:id's")
    assert "json.id" == expression("json.id")


def test_a_moment_is_a_time_or_offsets() -> None:
    assert {"t": {0: 5}} == moment('{"t": {"0": 5}}')
    assert "+00:00" in str(moment("2026-11-21T08:00:00"))
    with pytest.raises(ConfigError, match="neither a time nor offsets"):
        moment("yesterday")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"outputs": (), "id": "$.x"}, "nothing to audit"),
        ({"outputs": ("t",)}, "nothing to compare"),
        ({"inputs": ("t",), "outputs": ("t",), "id": "$.x"}, "input and output at once"),
        ({"outputs": ("t",), "id": "$.x", "output_sql": "SELECT 1"}, "compared with --sql"),
        ({"inputs": (), "outputs": ("t",), "sql": "SELECT 1"}, "needs an input"),
        ({"outputs": ("t",), "id": "$.x", "resume": {"resume": {}, "verdict": "INCONCLUSIVE"}}, "proved nothing"),
        ({"outputs": ("t",), "id": "$.x", "resume": {"resume": {}, "verdict": "FAIL"}}, "would hide its findings"),
        ({"outputs": ("t",), "id": "$.x", "resume": EARLIER}, "name the inputs"),
        ({"inputs": ("i",), "outputs": ("t",), "id": "$.y", "resume": EARLIER}, r"used other options \(id\)"),
        ({"inputs": ("i",), "outputs": ("t",), "id": "$.x", "group": "g", "resume": EARLIER}, "both sides"),
        ({"inputs": ("i",), "outputs": ("t",), "id": "$.x", "order": "offset", "resume": EARLIER}, "cannot be resumed"),
        ({"inputs": ("i",), "outputs": ("t",), "sql": "SELECT 1", "resume": EARLIER}, "query cannot be resumed"),
        ({"inputs": ("i",), "outputs": ("t",), "sql": "SELECT 1", "group": "g"}, "compared with everything"),
        ({"outputs": ("/t",), "id": "$.x", "end": datetime(2026, 11, 21, tzinfo=UTC)}, "no times"),
        ({"inputs": ("i",), "outputs": ("t",), "id": "provenance", "unordered": True}, "--unordered compares ids of"),
        ({"outputs": ("t",), "id": "$.x", "unordered": True}, "--unordered compares ids of"),
        ({"inputs": ("i",), "outputs": ("t",), "id": "$.x", "order": "offset", "unordered": True}, "omit --order"),
        ({"outputs": ("t",), "id": "$.x", "command_config": Path("/none")}, "--command-config /none is not a file"),
        ({"outputs": ("t",), "id": "$.x", "command_config": Path(__file__), "config": {"a": "b"}}, "one of the two"),
        ({"outputs": ("t",), "id": "provenance", "command_config": Path(__file__), "ledgers": ("d",)}, "without Java"),
        ({"outputs": ("t",), "id": "$.x", "registry": "host"}, "does not name a registry"),
        ({"outputs": ("t",), "id": "$.x", "registry_config": {"timeout": "1"}}, "add its address, --registry"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        TopicAuditOptions("localhost:9092", **asked)
