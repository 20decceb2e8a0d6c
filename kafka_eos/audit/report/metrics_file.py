"""The verdict as metrics: a file that Prometheus's node exporter reads with its textfile collector.

Rule: the file is replaced as a whole, and holds the time of the verdict, so that an alert notices an audit that no
longer runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from kafka_eos.audit.checks.verdict import Conclusion

_PREFIX: Final = "kafka_eos_audit_"


def write_metrics(path: Path, content: Mapping[str, Any]) -> None:
    """Write the metrics for ``content``, the result of ``as_json``."""
    registry = CollectorRegistry()

    def gauge(name: str, about: str, *labels: str) -> Gauge:
        return Gauge(_PREFIX + name, about, ("job", *labels), registry=registry)

    job = content["job"]
    verdict = gauge("verdict", "1 for the verdict of the newest audit, 0 for the others", "verdict")
    for each in Conclusion:
        verdict.labels(job, each.value).set(each.value == content["verdict"])
    findings = gauge("findings", "Records that break a check, for each check that was made", "check")
    for check in content["checks"]:
        if check["status"] != "skipped":
            findings.labels(job, check["check"]).set(check["count"])
    records = gauge("records", "Records that were judged", "role")
    for role in ("inputs", "outputs"):
        records.labels(job, role).set(content["counts"][role] or 0)
    gauge("timestamp_seconds", "When the verdict was written, in seconds since the Unix epoch").labels(job).set(
        time.time()
    )
    gauge("duration_seconds", "How long the audit took").labels(job).set(content["seconds"])
    write_to_textfile(str(path), registry)
