"""Requests that librdkafka cannot send: ending, describing and fencing other processes' transactions.

A synchronous client for thirteen of Kafka's APIs (see ``docs/decisions``). ``messages`` defines what is sent;
``connection``, ``security`` and ``sasl`` handle one broker, ``brokers`` and ``retrying_request`` the cluster;
``transaction_requests``, ``group_requests``, ``cluster_facts`` and ``log_requests`` are the requests.
Rule: every call ends within its timeout; if the outcome is still unknown then, it raises Retryable and never guesses.
"""

from __future__ import annotations

from kafka_eos.connectors.kafka.rpc.cluster_facts import MetadataRequests, TopicMetadata
from kafka_eos.connectors.kafka.rpc.group_requests import GroupRequests
from kafka_eos.connectors.kafka.rpc.log_requests import FetchRequests
from kafka_eos.connectors.kafka.rpc.transaction_requests import TransactionRequests

__all__ = ["KafkaRequests", "TopicMetadata"]


class KafkaRequests(TransactionRequests, GroupRequests, FetchRequests, MetadataRequests):
    """All requests to one cluster, over the same connections."""
