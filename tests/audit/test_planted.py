"""Faults planted in real topics: the audit finds each and names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_eos.audit import Check, Outcome, Verdict
from tests.audit.conftest import Totals
from tests.audit.job import Out, epoch

pytestmark = pytest.mark.timeout(300)


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def first(verdict: Verdict, check: Check) -> str:
    return next(str(finding.first[0]) for finding in verdict.findings if finding.check is check)


def test_a_clean_run_passes_and_every_check_was_made(totals: Totals, spark: Any) -> None:
    totals.finish()

    verdict = totals.job.audit(spark)

    assert (Outcome.PASS, {}) == (verdict.outcome, found(verdict)), verdict.headline
    assert not verdict.not_possible
    facts = verdict.facts
    assert (20, 16, 16, 4, 0) == (facts.inputs, facts.outputs, facts.expected, facts.keys, facts.not_yet_processed)


def test_a_duplicate_is_found_even_if_another_epoch_wrote_it(totals: Totals, spark: Any) -> None:
    copied = totals.outs[totals.out("bob", 2)]
    assert copied.text is not None
    totals.outs.append(replace(copied, text="2.2/" + copied.text.split("/", 1)[1]))
    totals.finish()

    verdict = totals.job.audit(spark)

    assert Outcome.FAIL is verdict.outcome
    assert {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1} == found(verdict)


def test_a_lost_output_is_found_with_its_input_record(totals: Totals, spark: Any) -> None:
    del totals.outs[totals.out("cid", 2)]
    totals.finish()

    verdict = totals.job.audit(spark)

    assert {Check.LOST: 1, Check.UPDATE_GAP: 1, Check.WRONG_COUNT: 1} == found(verdict)
    assert first(verdict, Check.LOST).startswith(f"{totals.input}/0/3: ")


def test_a_lost_last_output_is_also_a_wrong_total(totals: Totals, spark: Any) -> None:
    del totals.outs[totals.out("cid", 4)]
    totals.finish()

    verdict = totals.job.audit(spark)

    assert {Check.LOST: 1, Check.WRONG_TOTAL: 1, Check.WRONG_COUNT: 1} == found(verdict)


def test_a_reordering_within_a_key_is_found(totals: Totals, spark: Any) -> None:
    a, b = totals.out("dee", 2), totals.out("dee", 3)
    totals.outs[a], totals.outs[b] = totals.outs[b], totals.outs[a]
    totals.finish()

    verdict = totals.job.audit(spark)

    assert {Check.REORDERED: 1} == found(verdict)


def test_a_visible_record_of_an_undecided_epoch_is_found(totals: Totals, spark: Any) -> None:
    i = totals.out("ann", 4)
    text = totals.outs[i].text
    assert text is not None
    totals.outs[i] = replace(totals.outs[i], text="1.2/" + text.split("/", 1)[1])
    totals.finish()

    verdict = totals.job.audit(spark)

    assert {Check.ABORTED_VISIBLE: 1, Check.WRONG_COUNT: 1} == found(verdict)


def test_an_aborted_record_of_a_committed_epoch_is_hidden_and_lost(totals: Totals, spark: Any) -> None:
    taken = totals.outs.pop(totals.out("ann", 2))
    totals.job.write(totals.output, [taken], commit=False)
    totals.finish()

    verdict = totals.job.audit(spark)

    expected = {Check.COMMITTED_HIDDEN: 1, Check.LOST: 1, Check.UPDATE_GAP: 1, Check.WRONG_COUNT: 1}
    assert expected == found(verdict)
    assert 1 == verdict.facts.invisible


def test_aborted_records_of_undecided_epochs_are_no_finding(totals: Totals, spark: Any) -> None:
    replayed = [replace(o, text=f"1.2/{o.text.split('/', 1)[1]}") for o in totals.outs if o.text]
    totals.job.write(totals.output, replayed, commit=False)
    totals.finish()

    verdict = totals.job.audit(spark)

    assert (Outcome.PASS, 16) == (verdict.outcome, verdict.facts.invisible), verdict.headline


def test_a_wrong_total_is_found(totals: Totals, spark: Any) -> None:
    i = totals.out("bob", 4)
    totals.outs[i] = replace(totals.outs[i], value=b'{"user":"bob","total":1000000}')
    totals.finish()

    verdict = totals.job.audit(spark)

    assert {Check.WRONG_VALUE: 1, Check.WRONG_TOTAL: 1} == found(verdict)
    assert 'key bob is {"user":"bob","total":1000000} and should be' in first(verdict, Check.WRONG_TOTAL)


def test_two_swapped_values_are_found(totals: Totals, spark: Any) -> None:
    a, b = totals.out("bob", 1), totals.out("bob", 2)
    x, y = totals.outs[a], totals.outs[b]
    totals.outs[a], totals.outs[b] = replace(x, value=y.value), replace(y, value=x.value)
    totals.finish()

    verdict = totals.job.audit(spark)

    assert {Check.WRONG_VALUE: 2} == found(verdict)


def test_an_output_of_a_filtered_record_is_unexpected(totals: Totals, spark: Any) -> None:
    text = f"2.2/orders/{totals.input}/0/8/0.0/5"
    totals.outs.append(Out("ann", b'{"user":"ann","total":28}', text))
    totals.finish()

    verdict = totals.job.audit(spark)

    assert {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1} == found(verdict)


def test_foreign_records_fail_unless_they_are_allowed(totals: Totals, spark: Any) -> None:
    totals.outs += [Out("ann", b"{}", None), Out("ann", b"{}", "not/a/provenance")]
    totals.finish()

    strict, lenient = totals.job.audit(spark), totals.job.audit(spark, allow_foreign=True)

    assert {Check.FOREIGN: 2} == found(strict)
    assert (Outcome.PASS, {}) == (lenient.outcome, found(lenient))


def test_input_after_the_last_epoch_is_not_lost(totals: Totals, spark: Any) -> None:
    totals.finish()
    totals.job.feed(totals.input, [(0, "ann", b'{"user":"ann","amount":1}')] * 3)

    verdict = totals.job.audit(spark)

    assert (Outcome.PASS, 3) == (verdict.outcome, verdict.facts.not_yet_processed), verdict.headline


def test_without_history_the_epoch_checks_are_named_as_not_made(totals: Totals, spark: Any) -> None:
    totals.finish(history=False)

    verdict = totals.job.audit(spark)

    assert Outcome.PASS is verdict.outcome, verdict.headline
    assert {Check.ABORTED_VISIBLE, Check.COMMITTED_HIDDEN, Check.WRONG_COUNT} == set(verdict.not_possible)


# ---------------------------------------------------------------- no ground for a verdict


def test_an_open_transaction_is_named(totals: Totals, spark: Any) -> None:
    totals.finish()
    producer = Producer({"bootstrap.servers": totals.job.bootstrap, "transactional.id": f"{totals.job.name}.2.0.0"})
    producer.init_transactions(30)
    totals.job.begin(producer, {totals.output: totals.outs[:1]})

    verdict = totals.job.audit(spark, settle_seconds=1.0)
    producer.abort_transaction(30)

    assert Outcome.INVALID is verdict.outcome
    assert f"transaction {totals.job.name}.2.0.0 (Ongoing) is open" in verdict.headline


def test_no_committed_checkpoint_is_no_ground(totals: Totals, spark: Any) -> None:
    totals.job.write(totals.output, totals.outs)

    verdict = totals.job.audit(spark)

    assert Outcome.INVALID is verdict.outcome
    assert "no committed checkpoint" in verdict.headline


def test_a_decided_epoch_without_commit_is_no_ground(totals: Totals, spark: Any) -> None:
    totals.finish()
    totals.job.decide(epoch(2, 3), {"orders": totals.ends})

    verdict = totals.job.audit(spark)

    assert Outcome.INVALID is verdict.outcome
    assert "decided but not committed" in verdict.headline


def test_expected_faults_that_did_not_happen_prove_nothing(totals: Totals, spark: Any) -> None:
    totals.finish()

    verdict = totals.job.audit(spark, expect_faults=True)

    assert Outcome.INVALID is verdict.outcome
