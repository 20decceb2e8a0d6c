"""Two jobs that write one topic from one input: the audit of each judges its own outputs, and counts the others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.core.provenance import HEADER, parse_provenance
from tests.audit.conftest import TOTALS
from tests.audit.job import Job
from tests.audit.output_records import Out
from tests.chaos.harness import read
from tests.producers import in_transactions
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)
USERS = ("ann", "bob", "cid", "dee")
FED = 40
MADE = FED * 9 // 10
"""Outputs of each job: every tenth order is filtered out."""


@dataclass
class Jobs:
    """Two jobs with the same operators, so that their outputs differ in nothing but the job."""

    a: Job
    b: Job
    input: str
    output: str

    @property
    def outs(self) -> list[Out]:
        """What both have written, as it would be written again."""
        return [
            Out((m.key() or b"").decode(), m.value(), dict(m.headers())[HEADER].decode(), m.partition(),
                timestamp=m.timestamp()[1])
            for m in read(self.a.bootstrap, self.output)
        ]  # fmt: skip


@pytest.fixture
def jobs(new_job: Callable[..., Job], topic: Callable[..., str]) -> Jobs:
    source, target = topic(partitions=2), topic(partitions=2)
    both = Jobs(*(new_job(TOTALS, input=source, output=target) for _ in range(2)), source, target)
    orders = [{"user": USERS[n % 4], "amount": n % 10} for n in range(FED)]
    both.a.feed(source, [(n % 4 % 2, order["user"], json.dumps(order).encode()) for n, order in enumerate(orders)])
    for job in (both.a, both.b):
        job.run(workers=1)
    return both


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


@contextmanager
def always_open(bootstrap: str, topic: str) -> Iterator[None]:
    """Write the topic in transactions of a third job, of which one is always open."""
    producers = [in_transactions(bootstrap, f"{topic}.{n}", {"linger.ms": 0}) for n in range(2)]
    stopped, open_ = threading.Event(), threading.Event()

    def write() -> None:
        before = None
        for number in range(10**6):
            now = producers[number % 2]
            now.begin_transaction()
            now.produce(topic, b"{}", headers={HEADER: b"third.1.1/orders/in/0/%d/0.0" % number}, partition=0)
            assert now.flush(PATIENCE) == 0
            open_.set()
            stopped.wait(1)  # longer than from one look at the offsets to the next
            if before is not None:
                before.commit_transaction(PATIENCE)
            before = now
            if stopped.is_set():
                break
        now.commit_transaction(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            assert open_.wait(PATIENCE)
            yield
        finally:
            stopped.set()
        writing.result(PATIENCE)


def test_one_of_two_jobs_is_judged_while_a_third_one_writes_their_topic(jobs: Jobs, spark: Any) -> None:
    with always_open(jobs.a.bootstrap, jobs.output):
        verdict = jobs.a.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert (FED, MADE) == (verdict.facts.inputs, verdict.facts.outputs)
    assert f"records of other jobs in {jobs.output} not judged ({jobs.b.name}, third)" in verdict.headline


def test_what_is_wrong_with_the_outputs_of_one_job_is_no_finding_of_the_other(
    jobs: Jobs, topic: Callable[..., str], spark: Any
) -> None:
    """One is lost, one doubled, and one is forged: an output of a filtered order, under the name of the job."""
    outs, copy = jobs.outs, topic(partitions=2)
    own = [n for n, each in enumerate(outs) if parse_provenance(each.text or "").job == jobs.a.name]
    forged = structs.replace(parse_provenance(outs[own[-1]].text or ""), offset=0, partition=0, update=99)
    spoilt = [*outs[: own[0]], *outs[own[0] + 1 :], outs[own[1]], replace(outs[own[-1]], text=str(forged))]
    jobs.a.write(copy, spoilt)
    a, b = (elsewhere(job, jobs, copy).audit(spark) for job in (jobs.a, jobs.b))

    assert Conclusion.FAIL is a.conclusion
    assert {Check.LOST: 1, Check.DUPLICATE: 1, Check.UNEXPECTED: 1}.items() <= found(a).items(), a.findings
    assert (Conclusion.PASS, {}) == (b.conclusion, found(b)), b.findings
    assert f"{MADE + 1} records of other jobs in {copy} not judged ({jobs.a.name})" in b.headline


def elsewhere(job: Job, jobs: Jobs, output: str) -> Job:
    """The same job, as if it had written to another topic."""
    app = job.app.with_name(f"elsewhere_{job.app.name}")
    app.write_text(job.app.read_text().replace(jobs.output, output))
    return replace(job, app=app, pipeline=None)
