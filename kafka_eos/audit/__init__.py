"""The audit: prove from the topics themselves that a pipeline lost nothing and doubled nothing.

    verdict = audit(pipeline, settings, report_dir=Path("report"))
    sys.exit(verdict.exit_code)

It reads input and output with Spark's Kafka connector, runs the pipeline's own functions over the input again,
and compares record by record (``auditor`` has the steps, ``verdict`` the judgment).
"""

from kafka_eos.audit.checks.verdict import Check, Conclusion, Finding, Observations, Verdict, Violation, judge
from kafka_eos.audit.job_audit import audit

__all__ = ["Check", "Conclusion", "Finding", "Observations", "Violation", "Verdict", "audit", "judge"]
