"""Jobs that really ran, judged with what they have written, and with something else in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from kafka_eos.audit import Verdict
from kafka_eos.core.provenance import Provenance, parse_provenance
from tests.audit.job import FED_AT, Job
from tests.chaos.harness import read
from tests.producers import in_order
from tests.waiting import PATIENCE

Rows = list[Any]
"""(partition, key, value, headers) of each output."""


def fed_at(partition: int, offset: int) -> int:
    """The timestamp of an input: each has its own, of the last minute."""
    return FED_AT - 60_000 + 1000 * (3 * offset + partition)


@dataclass
class Ran:
    """A finished job. ``spoil`` audits it with other records in its output than it wrote."""

    job: Job
    source: str
    output: str
    topic: Callable[..., str]
    template: str

    def audit(self, spark: Any) -> Verdict:
        return self.job.audit(spark)

    def spoilt(self, spark: Any, spoil: Callable[[Rows], Rows]) -> Verdict:
        """``spoil`` gets what is there, and returns what shall be there instead."""
        copy = self.topic(partitions=2)
        rows = [(m.partition(), m.key(), m.value(), m.headers()) for m in read(self.job.bootstrap, self.output)]
        producer = in_order(self.job.bootstrap)
        for partition, key, value, headers in spoil(rows):
            origin = told_by(headers)
            time = fed_at(origin.partition, origin.offset)
            producer.produce(copy, value, key, partition, headers=headers, timestamp=time)
        assert producer.flush(PATIENCE) == 0
        app = self.job.app.with_name(f"spoilt_{uuid4().hex[:8]}.py")
        app.write_text(self.template.replace("{output}", copy))
        return replace(self.job, app=app, pipeline=None).audit(spark)


def told_by(headers: Any) -> Provenance:
    return parse_provenance(dict(headers)["kafka_eos"].decode())


def last_of_a_key(rows: Rows) -> int:
    """Where the output with the highest update number of some key is."""
    key = rows[0][1]
    of_key = [i for i, row in enumerate(rows) if row[1] == key]
    return max(of_key, key=lambda i: told_by(rows[i][3]).update or 0)
