"""The audit of topics of any producer: duplicates, losses, order, aborted records, and a recompute in SQL.

    question = TopicAuditOptions("127.0.0.1:9092", inputs=("orders",), outputs=("totals",), id="$.order_id")
    verdict = audit_topics(question, report_dir=Path("report"))

``question`` says what may be asked, ``topic_scan`` has the checks as Spark tables without any Python in their plans,
``topic_audit`` the steps.
"""

from kafka_eos.audit.topics.question import TopicAuditOptions
from kafka_eos.audit.topics.topic_audit import TopicFindings, audit_topics, tabulate_findings

__all__ = ["TopicAuditOptions", "TopicFindings", "audit_topics", "tabulate_findings"]
