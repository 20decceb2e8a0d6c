"""The verdict as Prometheus reads it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kafka_eos.audit.checks.verdict import Check, Evidence, Observations, SkippedCheck, judge
from kafka_eos.audit.report.metrics_file import write_metrics
from kafka_eos.audit.report.report_files import Context, as_json

CHECKS = (Check.DUPLICATE, Check.LOST, Check.REORDERED)


def samples(path: Path, facts: Observations) -> dict[tuple[str, ...], float]:
    """Write the metrics of a verdict; return them by name and labels, without the job."""
    write_metrics(path, as_json(judge(facts, checks=CHECKS), Context(job='a "job"', app="app.py")))
    found = [s for family in text_string_to_metric_families(path.read_text()) for s in family.samples]
    assert {'a "job"'} == {sample.labels.pop("job") for sample in found}
    return {(sample.name.removeprefix("kafka_eos_audit_"), *sample.labels.values()): sample.value for sample in found}


@pytest.mark.parametrize(("lost", "verdict"), [(0, "PASS"), (2, "FAIL")])
def test_a_verdict_its_findings_and_what_it_judged(tmp_path: Path, lost: int, verdict: str) -> None:
    evidence = {Check.DUPLICATE: Evidence(5), Check.LOST: Evidence(5, lost), Check.REORDERED: SkippedCheck("no order")}
    facts = Observations(inputs=5, outputs=4, committed_epochs=1, evidence=evidence)
    before = time.time()

    found = samples(tmp_path / "metrics.prom", facts)

    assert {"PASS": 0.0, "PARTIAL": 0.0, "FAIL": 0.0, "INCONCLUSIVE": 0.0} | {verdict: 1.0} == {
        labels[0]: value for (name, *labels), value in found.items() if name == "verdict"
    }
    assert (0, lost) == (found["findings", "duplicate"], found["findings", "lost"])
    assert ("findings", "reordered") not in found
    assert (5, 4) == (found["records", "inputs"], found["records", "outputs"])
    assert before <= found["timestamp_seconds",] <= time.time()
    assert [tmp_path / "metrics.prom"] == [*tmp_path.iterdir()]


def test_an_audit_that_judged_nothing_has_no_findings(tmp_path: Path) -> None:
    found = samples(tmp_path / "metrics.prom", Observations(inputs=None, obstacles=["no cluster"]))

    assert 1 == found["verdict", "INCONCLUSIVE"]
    assert not [labels for labels in found if labels[0] == "findings"]
