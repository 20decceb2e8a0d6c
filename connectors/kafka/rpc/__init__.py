"""Requests that librdkafka cannot send: ending, describing and fencing other processes' transactions.

A synchronous client of our own for thirteen of Kafka's APIs (see ``docs/decisions``): ``wire`` and ``messages`` are
what is sent, ``connection`` and ``login`` one broker, ``brokers`` and ``asking`` the cluster; ``transactions``,
``groups``, ``facts`` and ``logs`` are what one asks it.

Rule: every call ends within its patience; what is still unknown then is Retryable, never a guess.
"""

from __future__ import annotations

from kafka_eos.connectors.kafka.rpc.cluster_facts import Facts, TopicFacts
from kafka_eos.connectors.kafka.rpc.group_requests import Groups
from kafka_eos.connectors.kafka.rpc.log_requests import Logs
from kafka_eos.connectors.kafka.rpc.transaction_requests import Ended, Transactions

__all__ = ["KafkaRequests", "Ended", "TopicFacts"]


class KafkaRequests(Transactions, Groups, Logs, Facts):
    """Everything that is asked of one cluster, over the same connections."""
