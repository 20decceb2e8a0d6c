"""A pair of topics, input and output, for audits of topics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kafka_eos.audit import Check, Verdict
from kafka_eos.audit.topics import TopicAuditOptions
from kafka_eos.storage import object_names as paths
from tests.audit.job import Job, Out, out

ORDERS = 24
USERS = ("ann", "bob", "cid", "dee")


@dataclass
class Pair:
    """An input topic, and the right outputs of it for an output topic: of other programs, or with provenance."""

    job: Job
    input: str
    output: str
    outs: list[Out]

    def question(self, **asked: Any) -> TopicAuditOptions:
        return TopicAuditOptions(self.job.bootstrap, **{"inputs": (self.input,), "outputs": (self.output,), **asked})

    def write_beside(self, outs: list[Out], *, commit: bool = True) -> None:
        """Write outputs with their provenance in the job's ledger."""
        self.job.write_beside({self.output: outs}, {self.output: "out"}, commit=commit)

    @property
    def ledgers(self) -> tuple[str, ...]:
        """The job's checkpoints, which name all files of provenance; none if there are no files."""
        if not self.job.kept:
            return ()
        if not self.job.storage.list(paths.MANIFESTS):
            for attempt in self.job.kept:
                self.job.decide(attempt, {})
        return (str(self.job.storage.root),)

    def feed(self, numbers: range) -> None:
        orders = [json.dumps({"id": i, "n": i % 7}).encode() for i in numbers]
        self.job.feed(self.input, [(i % 2, USERS[i % 4], order) for i, order in zip(numbers, orders, strict=True)])

    def made(self, numbers: range, attempt: tuple[int, int] = (1, 1)) -> list[Out]:
        return [
            out((i % 2, i // 2), USERS[i % 4], b'{"id":%d,"twice":%d}' % (i, i % 7 * 2), topic=self.input,
                epoch=attempt, target=i % 2)
            for i in numbers
        ]  # fmt: skip


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def first(verdict: Verdict, check: Check) -> str:
    return next(str(finding.examples[0]) for finding in verdict.findings if finding.check is check)


EARLIER = {
    "resume": {},
    "verdict": "PASS",
    "question": {"inputs": "('i',)", "outputs": "('t',)", "id": "$.x", "expect": "one"},
}
