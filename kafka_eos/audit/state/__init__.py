"""The audit of a job's state: the newest committed checkpoint, compared key by key with a recompute from the input.

    verdict = audit_state(pipeline, settings, report_dir=Path("report"))

The other audit checks outputs; this one checks the state on which the next outputs depend.
``state_audit`` has the steps, ``uncertain_state`` the state that cannot be compared, ``state_scan`` the tables, and
``state_rows`` the code that runs in Spark's Python workers.
"""

from kafka_eos.audit.state.state_audit import audit_state

__all__ = ["audit_state"]
