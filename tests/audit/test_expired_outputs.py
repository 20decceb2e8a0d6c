"""Outputs of a job that expired are no losses, and those that were there before the job are nothing to it."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_eos.audit import Check, Conclusion
from tests.audit.conftest import Totals
from tests.audit.job import Out
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.timeout(300), pytest.mark.campaign]


def expire(admin: AdminClient, topic: str, before: int) -> None:
    """What retention does, at once: partition 0 begins at an offset."""
    at = TopicPartition(topic, 0, before)
    admin.delete_records([at])[at].result(PATIENCE)


def test_outputs_that_expired_are_not_judged(totals: Totals, admin: AdminClient, spark: Any) -> None:
    totals.finish()
    expire(admin, totals.output, 2)

    verdict = totals.job.audit(spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion, verdict.headline
    assert f"outputs have expired ({totals.output}/0 begins at offset 2)" in verdict.headline
    assert "retention" in verdict.headline
    assert not verdict.findings
    assert {Check.LOST, Check.WRONG_COUNT, Check.UPDATE_GAP} <= verdict.skipped.keys()


def test_what_expired_before_the_job_began_is_nothing_to_it(totals: Totals, admin: AdminClient, spark: Any) -> None:
    totals.job.write(totals.output, [Out("old", b"{}", None)] * 3)
    expire(admin, totals.output, 3)
    totals.finish()

    verdict = totals.job.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, dict(verdict.skipped)), verdict.headline


@pytest.mark.parametrize(("role", "step"), [("output", "reading"), ("input", "reading"), ("input", "recomputing")])
def test_what_expires_during_the_audit_is_no_finding(
    totals: Totals, admin: AdminClient, spark: Any, role: str, step: str
) -> None:
    """Offsets are pinned, and retention goes on."""
    totals.finish()

    def progress(text: str) -> None:
        if text.startswith(step):
            expire(admin, getattr(totals, role), 2)

    verdict = totals.job.audit(spark, progress=progress)

    assert (Conclusion.INCONCLUSIVE, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert "records were deleted while they were read" in verdict.headline
