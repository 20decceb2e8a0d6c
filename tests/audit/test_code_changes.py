"""A job whose code was changed in place: what the old code made is not compared, and all else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.coordination.job_history import append_event
from kafka_eos.core.ids import AppRef, SplitId
from kafka_eos.runtime.program import CodeFingerprint, load_program
from tests.audit.job import Job, Out, epoch, out
from tests.marks import campaign

PRICES = """
from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from pathlib import Path

VAT = 19

pipeline = Pipeline("{name}")
prices = pipeline.source(KafkaSource("{input}", value=int), name="orders").map(lambda net: net * (100 + VAT))
prices.sink(KafkaSink("{output}", value=int), name="prices")
"""
TOTALS = (
    PRICES
    + """
prices.sink(FileSink(Path(__file__).parent / "plain", value=int), name="plain")
(
    prices.key_by(lambda gross: gross % 2).fold(name="total", init=int, step=lambda total, gross: total + gross)
    .sink(KafkaSink("{totals}", value=tuple[int, int]), name="totals")
)
"""
)


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def test_a_job_whose_code_was_replaced_between_two_runs_is_no_failure(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    job = new_job(TOTALS, input=topic(), output=topic(), totals=topic())
    for vat in (19, 20):
        job.app.write_text(job.app.read_text().replace("VAT = 19", f"VAT = {vat}"))
        job.feed(job.topics["input"], [(0, None, b"%d" % n) for n in range(1, 11)])
        job.run(workers=1)

    verdict = job.audit(spark)

    assert (Conclusion.PARTIAL, {}) == (verdict.conclusion, found(verdict)), verdict.findings
    why = "not compared: other code than the audit has loaded produced them, or the state that they depend on"
    assert f"existence and values of 10 outputs of sink prices {why}" in verdict.headline
    assert f"existence and values of 20 outputs of sink totals {why}" in verdict.headline
    assert "sink plain not audited: other code than the audit has loaded processed the input up to" in verdict.headline


def made_by(job: Job, vats: tuple[int, int]) -> list[Out]:
    """Two outputs of each of two terms."""
    source = job.topics["input"]
    return [
        out((0, n), None, b"%d" % (n * (100 + vats[n // 2])), topic=source, epoch=(n // 2 + 1, n // 2 + 1))
        for n in range(4)
    ]


def audited(job: Job, outs: list[Out], spark: Any, *, changed: bool = True) -> Verdict:
    """Audit a job whose second term ran the code that is there, and whose first term ran other code if ``changed``."""
    job.feed(job.topics["input"], [(0, None, b"%d" % n) for n in range(4)])
    job.write(job.topics["output"], outs)
    first, second = ({"orders": {SplitId(f"{job.topics['input']}/0"): end}} for end in (2, 4))
    epochs = epoch(1, 0), epoch(1, 1), epoch(2, 2)
    job.commits(*epochs, positions=second, earlier={epochs[1]: first},
                counts={each: {"prices": 2} for each in epochs[1:]})  # fmt: skip
    files = CodeFingerprint.compute(job.app, load_program(AppRef(job.app, job.name)).plan()).files
    for term, code in enumerate((dict.fromkeys(files, "other") if changed else files, files), 1):
        append_event(job.store, "started", code=code)
        append_event(job.store, "recovered", term=term)
    return job.audit(spark)


LOST = {Check.LOST: 1, Check.WRONG_COUNT: 1}


@pytest.mark.parametrize(
    ("vats", "change", "changed", "conclusion", "findings"),
    [
        campaign((25, 19), None, True, Conclusion.PARTIAL, {}, named="values of the old code"),
        campaign((19, 19), None, True, Conclusion.PASS, {}, named="nothing differs"),
        campaign((25, 19), None, False, Conclusion.FAIL, {Check.WRONG_VALUE: 1}, named="the code is the same"),
        pytest.param((25, 19), "wrong", True, Conclusion.FAIL, {Check.WRONG_VALUE: 1}, id="a value of the new code"),
        campaign((25, 19), "lost", True, Conclusion.FAIL, LOST, named="lost by the new code"),
        campaign((25, 19), "lost before", True, Conclusion.FAIL, {Check.WRONG_COUNT: 1}, named="lost by the old code"),
    ],
)
def test_what_the_new_code_made_is_compared(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any,
    vats: tuple[int, int], change: str | None, changed: bool, conclusion: Conclusion, findings: dict[Check, int],
) -> None:  # fmt: skip
    job = new_job(PRICES, input=topic(), output=topic())
    outs = made_by(job, vats)
    if change == "wrong":
        outs[3] = replace(outs[3], value=b"7")
    elif change is not None:
        del outs[3 if change == "lost" else 1]

    verdict = audited(job, outs, spark, changed=changed)

    assert (conclusion, findings) == (verdict.conclusion, found(verdict)), verdict.headline
