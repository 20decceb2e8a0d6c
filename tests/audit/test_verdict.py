"""The judgement, without any topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos.audit.checks.verdict import (
    Check,
    Conclusion,
    Evidence,
    Observations,
    OutputClaim,
    SkippedCheck,
    UncomparedOutput,
    Violation,
    judge,
)
from kafka_eos.audit.job_audit import _left_out

CLEAN = Observations(
    inputs=10,
    outputs=8,
    expected=8,
    committed_epochs=2,
    evidence={check: Evidence(8) for check in Check},
)
ONE = Evidence(8, 1, (Violation("out", 0, 7, "copy 2"),))


def test_no_finding_is_a_pass_with_exit_code_0() -> None:
    verdict = judge(CLEAN)

    assert (Conclusion.PASS, 0) == (verdict.conclusion, verdict.exit_code)


@pytest.mark.parametrize("check", Check)
def test_every_check_can_fail_alone_and_is_named(check: Check) -> None:
    verdict = judge(replace(CLEAN, evidence={**CLEAN.evidence, check: ONE}))

    assert (Conclusion.FAIL, 1) == (verdict.conclusion, verdict.exit_code)
    assert f"FAIL: {check.value}: 1" == verdict.headline


@pytest.mark.parametrize("missing", ["inputs", "outputs", "committed_epochs"])
def test_without_ground_nothing_passes(missing: str) -> None:
    verdict = judge(replace(CLEAN, **{missing: 0}))  # type: ignore[arg-type]

    assert (Conclusion.INCONCLUSIVE, 2) == (verdict.conclusion, verdict.exit_code)


def test_an_obstacle_is_the_reason() -> None:
    verdict = judge(Observations(obstacles=["transaction x is open"]))

    assert "INCONCLUSIVE: transaction x is open" == verdict.headline


@pytest.mark.parametrize("vital", [Check.LOST, Check.DUPLICATE])
def test_a_vital_check_that_could_not_be_made_is_no_pass(vital: Check) -> None:
    verdict = judge(replace(CLEAN, evidence={**CLEAN.evidence, vital: SkippedCheck("no way")}))

    assert (Conclusion.INCONCLUSIVE, {vital: "no way"}) == (verdict.conclusion, verdict.skipped)


def test_of_inputs_that_cannot_be_read_it_says_so_and_not_that_there_are_none() -> None:
    blind = SkippedCheck("source files cannot be read again by the audit")
    verdict = judge(replace(CLEAN, inputs=0, evidence={**CLEAN.evidence, Check.LOST: blind}))

    assert verdict.headline == "INCONCLUSIVE: lost not checked: source files cannot be read again by the audit"


def test_a_check_without_evidence_is_not_possible_rather_than_clean() -> None:
    evidence = {check: e for check, e in CLEAN.evidence.items() if check is not Check.LOST}

    assert Conclusion.INCONCLUSIVE is judge(replace(CLEAN, evidence=evidence)).conclusion


def test_expected_faults_need_a_recorded_kill_but_a_finding_outranks_them() -> None:
    broken = replace(CLEAN, evidence={**CLEAN.evidence, Check.LOST: ONE})

    assert Conclusion.INCONCLUSIVE is judge(CLEAN, expect_faults=True).conclusion
    assert Conclusion.PASS is judge(replace(CLEAN, kills=1), expect_faults=True).conclusion
    assert Conclusion.FAIL is judge(broken, expect_faults=True).conclusion


def test_what_a_sink_refused_is_in_the_headline() -> None:
    verdict = judge(replace(CLEAN, rejected={"words": 2}))

    assert Conclusion.PASS is verdict.conclusion
    assert "2 outputs of sink words rejected by it, each with a dead letter" in verdict.headline


def test_what_was_not_compared_or_checked_is_in_the_headline() -> None:
    left_out = (
        UncomparedOutput("totals", "values", "no order", 1),
        UncomparedOutput("plain", "order and epochs", "no provenance"),
    )
    evidence = {
        **CLEAN.evidence,
        **dict.fromkeys((Check.WRONG_COUNT, Check.ABORTED_VISIBLE), SkippedCheck("no history")),
    }

    verdict = judge(replace(CLEAN, uncompared=left_out, evidence=evidence))

    assert verdict.reasons[1:] == (
        "values of 1 output of sink totals not compared: no order",
        "order and epochs of sink plain not compared: no provenance",
        "aborted but visible, wrong count not checked: no history",
    )


def test_of_topics_a_check_that_nobody_asked_for_is_not_in_the_headline() -> None:
    evidence = {**CLEAN.evidence, Check.WRONG_COUNT: SkippedCheck("not asked")}

    assert 1 == len(judge(replace(CLEAN, committed_epochs=None, evidence=evidence)).reasons)


WITHOUT_ORDER = UncomparedOutput("plain", "order and epochs", "no provenance", claims=(OutputClaim.ORDER,))
WITHOUT_VALUES = UncomparedOutput("totals", "values", "no order", 1, (OutputClaim.VALUES,))
NUMBER_ONLY = UncomparedOutput("totals", "all but the number", "no order", 1, (*OutputClaim,))


@pytest.mark.parametrize(
    ("facts", "conclusion", "promise"),
    [
        (replace(CLEAN, uncompared=(WITHOUT_ORDER,)), Conclusion.PASS, "none duplicated;"),
        (replace(CLEAN, uncompared=(WITHOUT_VALUES,)), Conclusion.PARTIAL, "none duplicated;"),
        (replace(CLEAN, uncompared=(NUMBER_ONLY,)), Conclusion.PARTIAL, "none duplicated of what was compared;"),
        (replace(CLEAN, not_audited={"files": "it offers no audit"}), Conclusion.PARTIAL, "of what was compared;"),
        (replace(CLEAN, not_recomputed={"totals": "timers"}), Conclusion.PARTIAL, "of what was compared;"),
    ],
)
def test_outputs_that_were_not_compared_make_a_pass_partial(
    facts: Observations, conclusion: Conclusion, promise: str
) -> None:
    """Order alone does not: there are sinks that have none."""
    verdict = judge(facts)

    assert (conclusion, {Conclusion.PASS: 0, Conclusion.PARTIAL: 3}[conclusion]) == (
        verdict.conclusion,
        verdict.exit_code,
    )
    assert promise in verdict.headline


def test_what_was_not_judged_is_in_the_headline() -> None:
    verdict = judge(replace(CLEAN, left_out=["not judged: 500 unread of the inputs"]))

    assert verdict.headline == (
        "PASS: 10 records in, 8 out, none lost, none duplicated; not judged: 500 unread of the inputs"
    )


@pytest.mark.parametrize(
    ("allowed", "headline"),
    [
        (True, "PASS: 10 records in, 8 out, none lost, none duplicated; 1 of others among the outputs, not judged"),
        (False, "FAIL: foreign: 1"),
    ],
)
def test_outputs_of_others_that_are_allowed_are_counted_in_the_headline(allowed: bool, headline: str) -> None:
    foreign = replace(CLEAN, evidence={**CLEAN.evidence, Check.FOREIGN: ONE})

    assert judge(foreign, allow_foreign=allowed).headline == headline


@pytest.mark.parametrize(
    ("skipped", "unread", "text"),
    [
        (0, 0, []),
        (1000, 500, ["not judged: 1,000 before the start (offsets) and 500 unread of the inputs"]),
        (0, 7, ["not judged: 7 unread of the inputs"]),
    ],
)
def test_input_that_the_job_did_not_read_is_in_the_headline(skipped: int, unread: int, text: list[str]) -> None:
    assert text == _left_out(skipped, unread)
