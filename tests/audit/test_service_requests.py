"""What services have answered nobody can ask for again: the audit says so, does not ask, and finds what is doubled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion
from tests.audit.job import Job, out
from tests.audit.test_uncompared_outputs import HEAD, audited

pytestmark = pytest.mark.timeout(300)

ASKED = (
    HEAD
    + """
async def ask(word):
    raise SystemExit("the audit asks")

words.async_map(ask, name="ask", values=str).map(str.upper, name="loud") \\
    .sink(KafkaSink("{output}", value=str), name="answers")
words.sink(KafkaSink("{copies}", value=str), name="copies")
"""
)


@pytest.mark.campaign
def test_sinks_behind_a_service_are_named_and_an_answer_that_is_there_twice_is_found(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    source, copies = topic(partitions=2), topic()
    job = new_job(ASKED, input=source, output=topic(), copies=copies)
    places = [(p, i) for i in range(2) for p in (0, 1)]
    right = [out(at, None, b"x%d" % n, topic=source, source="words") for n, at in enumerate(places)]
    job.write(copies, [out(at, None, b"a", topic=source, source="words") for at in places[1:]])

    verdict = audited(job, source, 2, [*right, right[2]], spark)

    assert verdict.conclusion is Conclusion.FAIL
    why = "the requests to a service cannot be repeated: async_map: ask"
    assert verdict.facts.not_recomputed == {"answers": why}
    found = {finding.check: finding.count for finding in verdict.findings}
    assert (found[Check.DUPLICATE], found[Check.LOST]) == (1, 1), verdict.findings
