"""The audit of a job's state: the newest committed checkpoint beside what the input makes, key by key.

    verdict = audit_state(pipeline, settings, report_dir=Path("report"))

That every output is there once is one claim; that what the job has stored for the next ones is right, is another.
``auditor`` has the steps, ``doubts`` what cannot be compared, ``scan`` the tables, ``rows`` what runs in Spark's Python
workers.
"""

from kafka_eos.audit.state.state_audit import audit_state

__all__ = ["audit_state"]
