"""The audit of topics of any producer: duplicates, losses, order, aborted records, and a recompute in SQL.

    question = Question("127.0.0.1:9092", inputs=("orders",), outputs=("totals",), id="$.order_id")
    verdict = audit_topics(question, report_dir=Path("report"))

``question`` says what may be asked, ``scan`` has the checks as Spark tables without any Python in their plans,
``auditor`` the steps.
"""

from kafka_eos.audit.topics.question import TopicAuditOptions
from kafka_eos.audit.topics.topic_audit import audit_topics

__all__ = ["TopicAuditOptions", "audit_topics"]
