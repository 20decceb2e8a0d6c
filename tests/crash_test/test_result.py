"""What a crash test concludes from what was seen."""

from __future__ import annotations

import pytest

from kafka_eos.audit.checks.verdict import Check, Conclusion, Evidence, Observations, Verdict, Violation, judge
from kafka_eos.devtools.crash_test.faults import plan_faults
from kafka_eos.devtools.crash_test.result import (
    Audits,
    CrashTestAborted,
    CrashTestResult,
    InjectedFault,
    RunRecord,
    conclude,
)

PLAN = plan_faults(1)
RECORDS = 1000


def verdict(**changed: Evidence) -> Verdict:
    found = {check: changed.get(check.name, Evidence(900)) for check in Check}
    return judge(Observations(inputs=RECORDS, outputs=900, expected=900, committed_epochs=9, kills=6, evidence=found))


def struck(epochs: int = 2, flowing: bool = True) -> list[InjectedFault]:
    return [InjectedFault(fault, at, 1, epochs, 10, flowing, fault.name, 0.5) for at, fault in enumerate(PLAN.faults)]


def result(
    struck: list[InjectedFault], verdict: Verdict | None, ended: CrashTestAborted | None = None
) -> CrashTestResult:
    return conclude(PLAN.faults, RunRecord(struck=struck), RECORDS, Audits(verdict), ended, 41.4)


def test_all_faults_and_a_clean_audit_pass() -> None:
    found = result(struck(), verdict())

    assert found.headline == (
        "PASS: 1 000 in, 900 out, 0 duplicated, 0 lost, 6 kills, 1 broker outage, rescaled 2 → 3, 41 s"
    )
    assert found.numbers["killed"] == {"worker": 5, "supervisor": 1}
    assert found.exit_code == 0


def test_a_finding_of_the_audit_fails() -> None:
    doubled = Evidence(900, 3, (Violation("totals", 0, 5, "again"),))
    found = result(struck(), verdict(DUPLICATE=doubled))

    assert (found.conclusion, found.exit_code, found.numbers["duplicated"]) == (Conclusion.FAIL, 1, 3)


def test_a_planned_fault_that_did_not_happen_proves_nothing() -> None:
    found = result(struck()[:-1], verdict())

    assert (found.conclusion, found.exit_code) == (Conclusion.INCONCLUSIVE, 2)
    assert PLAN.faults[-1].title in found.headline


def test_two_equal_faults_of_which_one_happened_prove_nothing() -> None:
    twin = PLAN.faults[0]
    seen = [InjectedFault(twin, 1.0, 1, 2, 10, True, twin.name)]

    found = conclude((twin, twin), RunRecord(struck=seen), RECORDS, Audits(verdict()), None, 1.0)
    assert found.conclusion is Conclusion.INCONCLUSIVE
    assert found.headline.startswith("INVALID: planned, but did not happen")


def test_faults_without_load_prove_nothing() -> None:
    assert result(struck(flowing=False), verdict()).conclusion is Conclusion.INCONCLUSIVE
    assert result(struck(epochs=0), verdict()).conclusion is Conclusion.INCONCLUSIVE


@pytest.mark.parametrize("written", [RECORDS - 1, RECORDS + 1])
def test_an_audit_of_other_records_than_were_written_proves_nothing(written: int) -> None:
    found = conclude(PLAN.faults, RunRecord(struck=struck()), written, Audits(verdict()), None, 1.0)

    assert found.conclusion is Conclusion.INCONCLUSIVE


def test_a_job_that_breaks_fails_without_an_audit() -> None:
    found = result(struck()[:2], None, CrashTestAborted(Conclusion.FAIL, "the job ended with code 1"))

    assert found.headline == "FAIL: the job ended with code 1, 2 kills, 0 broker outages, 41 s"
    assert found.exit_code == 1


def test_a_step_that_the_pipeline_does_not_pass_is_no_doubt() -> None:
    recording = RunRecord(struck=struck()[1:], unreached=[PLAN.faults[0]])

    assert conclude(PLAN.faults, recording, RECORDS, Audits(verdict()), None, 1.0).conclusion is Conclusion.PASS


def test_wrong_state_fails_a_test_whose_outputs_are_right() -> None:
    wrong = judge(Observations(inputs=RECORDS, obstacles=["the checkpoint is damaged"]))
    assert result(struck(), verdict()).conclusion is Conclusion.PASS
    found = conclude(PLAN.faults, RunRecord(struck=struck()), RECORDS, Audits(verdict(), wrong), None, 1.0)

    assert found.conclusion is Conclusion.PASS, "a state audit that proves nothing is a note of the report"
    failed = verdict(DUPLICATE=Evidence(900, 3, (Violation("totals", 0, 5, "again"),)))
    found = conclude(PLAN.faults, RunRecord(struck=struck()), RECORDS, Audits(verdict(), failed), None, 1.0)
    assert found.conclusion is Conclusion.FAIL


def test_the_lines_of_sinks_with_findings_are_reasons() -> None:
    failed = verdict(DUPLICATE=Evidence(900, 3, (Violation("totals", 0, 5, "again"),)))
    audits = Audits(failed, lines=("sink 'totals': shop.py:19: .sink(…)",))

    assert "shop.py:19" in conclude(PLAN.faults, RunRecord(struck=struck()), RECORDS, audits, None, 1.0).headline
