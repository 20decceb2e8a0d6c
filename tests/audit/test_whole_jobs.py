"""What the audit says of a whole job: when it passes, what it counts, and when it has no ground for a verdict.

What can be wrong with single outputs is in ``corruptions``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_eos.audit import Check, Conclusion, Verdict
from tests.audit.conftest import Totals
from tests.audit.job import epoch
from tests.audit.output_records import OWN, Out

pytestmark = pytest.mark.timeout(300)


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def test_a_clean_run_passes_and_every_check_was_made(totals: Totals, spark: Any) -> None:
    """Input after the last epoch is not lost."""
    totals.finish()
    totals.job.feed(totals.input, [(0, "ann", b'{"user":"ann","amount":1}')] * 3)

    verdict = totals.job.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert not verdict.skipped
    facts = verdict.facts
    assert (20, 16, 16, 4, 3) == (facts.inputs, facts.outputs, facts.expected, facts.keys, facts.not_yet_processed)


@pytest.mark.campaign
def test_a_duplicate_spoils_the_count_of_its_epoch_and_what_others_wrote_may_be_allowed(
    totals: Totals, spark: Any
) -> None:
    copied = totals.outs[totals.out("bob", 2)]
    assert copied.text is not None
    totals.outs.append(replace(copied, text=f"{OWN}.2.2/" + copied.text.split("/", 1)[1]))
    totals.outs.append(Out("ann", b"{}", None))
    totals.finish()

    verdict = totals.job.audit(spark, allow_foreign=True)

    assert Conclusion.FAIL is verdict.conclusion
    assert {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1} == found(verdict)


@pytest.mark.campaign
def test_without_history_the_epoch_checks_are_named_as_not_made(totals: Totals, spark: Any) -> None:
    totals.finish(history=False)

    verdict = totals.job.audit(spark)

    assert Conclusion.PASS is verdict.conclusion, verdict.headline
    history = {Check.ABORTED_VISIBLE, Check.COMMITTED_HIDDEN, Check.WRONG_COUNT}
    assert history | {Check.ALTERED_CHECKPOINT} == set(verdict.skipped)
    assert "aborted but visible, committed but hidden not checked: the job's history" in verdict.headline


# ---------------------------------------------------------------- no ground for a verdict


def test_an_open_transaction_is_named_with_its_own_topics(totals: Totals, spark: Any) -> None:
    totals.finish()
    opened = {f"{totals.job.name}.2.0.0": totals.output, f"{totals.job.name}.feeder": totals.input}
    producers = []
    for name, written in opened.items():
        producers.append(Producer({"bootstrap.servers": totals.job.bootstrap, "transactional.id": name}))
        producers[-1].init_transactions(30)
        totals.job.begin(producers[-1], {written: totals.outs[:1]})

    verdict = totals.job.audit(spark, settle_seconds=1.0)
    for producer in producers:
        producer.abort_transaction(30)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    for name, written in opened.items():
        assert f"a transaction {name} (Ongoing) is open in {written}; stop" in verdict.headline


def test_no_committed_checkpoint_is_no_ground(totals: Totals, spark: Any) -> None:
    totals.job.write(totals.output, totals.outs)

    verdict = totals.job.audit(spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert "no committed checkpoint" in verdict.headline


def test_a_decided_epoch_without_commit_is_no_ground(totals: Totals, spark: Any) -> None:
    totals.finish()
    totals.job.decide(epoch(2, 3), {"orders": totals.ends})

    verdict = totals.job.audit(spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert "decided but not committed" in verdict.headline


@pytest.mark.campaign
def test_expected_faults_that_did_not_happen_prove_nothing(totals: Totals, spark: Any) -> None:
    totals.finish()

    verdict = totals.job.audit(spark, expect_faults=True)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
