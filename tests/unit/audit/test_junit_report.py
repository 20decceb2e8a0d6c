"""The report as CI systems read it."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kafka_eos.audit.checks.verdict import (
    Check,
    Evidence,
    Observations,
    OutputClaim,
    SkippedCheck,
    UncomparedOutput,
    Violation,
    judge,
)
from kafka_eos.audit.report.junit_report import as_junit
from kafka_eos.audit.report.report_files import Context, as_json

CHECKS = (Check.DUPLICATE, Check.LOST, Check.REORDERED)
CLEAN: dict[Any, Any] = {
    Check.DUPLICATE: Evidence(5),
    Check.LOST: Evidence(5),
    Check.REORDERED: SkippedCheck("no order"),
}
LOST = Evidence(5, 2, (Violation("t", 0, 7, "its <output>\0 & more"), Violation("a file", -1, -1, "gone")))


def suite(facts: Observations) -> ET.Element:
    return ET.fromstring(as_junit(as_json(judge(facts, checks=CHECKS), Context(job="job \1", app="app.py"))))


def outcomes(found: ET.Element) -> dict[str, str]:
    return {case.get("name", ""): next((outcome.tag for outcome in case), "passed") for case in found}


def facts(**more: Any) -> Observations:
    return Observations(**{"inputs": 5, "outputs": 5, "committed_epochs": 1, "evidence": CLEAN, **more})


PARTLY = UncomparedOutput("out", "values", "no order", 1, (OutputClaim.VALUES,))


@pytest.mark.parametrize(
    ("given", "verdict", "lost"),
    [
        (facts(), "passed", "passed"),
        (facts(uncompared=(PARTLY,)), "skipped", "passed"),
        (facts(evidence={**CLEAN, Check.LOST: LOST}), "failure", "failure"),
        (facts(obstacles=["the job runs"], evidence={}), "error", "skipped"),
    ],
)
def test_a_case_for_the_verdict_and_for_each_check(given: Observations, verdict: str, lost: str) -> None:
    found = suite(given)

    cases = outcomes(found)
    assert [*cases] == ["verdict", "duplicate", "lost", "reordered"]
    assert (cases["verdict"], cases["lost"], cases["reordered"]) == (verdict, lost, "skipped")
    counted = {"tests": 4, **{kind: [*cases.values()].count(kind.rstrip("s")) for kind in ("failures", "errors")}}
    assert {name: found.get(name) for name in counted} == {name: str(n) for name, n in counted.items()}


def test_examples_are_text_of_any_characters() -> None:
    failure = suite(facts(evidence={**CLEAN, Check.LOST: LOST})).find("testcase[@name='lost']/failure")

    assert failure is not None
    assert failure.get("message") == "2 found"
    assert failure.text == "t/0/7: its <output>\ufffd & more\na file: gone"
