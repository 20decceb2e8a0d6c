"""Consumer groups that only carry markers: an offset that becomes visible with one transaction, and proves its commit.

Rule: a marker overwrites the one before it in its group, so transactions of one epoch never share a group. Those of
two epochs may, where each process numbers its transactions anew (as on Spark), because
- an epoch is decided only after the receipt of the one before, and nobody asks for the marker of an epoch with one;
- the transactions of an epoch begin after the one before is decided, so its offset stands later in the log
  of the coordinator, and of two pending offsets the later one counts, whichever is committed first.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import Consumer, kafka_errors
from kafka_eos.connectors.kafka.client.log_bridge import SILENT


@dataclass(frozen=True, slots=True)
class MarkerGroup:
    """``metadata`` is librdkafka's form of the name."""

    name: str
    metadata: object


class MarkerGroups:
    """The marker groups of one cluster. The metadata comes from a consumer only; none is kept."""

    def __init__(self, where: Cluster) -> None:
        self._where = where
        self._known: dict[str, MarkerGroup] = {}

    def named(self, name: str) -> MarkerGroup:
        if name not in self._known:
            with kafka_errors("consumer group"):
                consumer = Consumer(self._where.client(SILENT, {"group.id": name, "enable.auto.commit": False}))
                self._known[name] = MarkerGroup(name, consumer.consumer_group_metadata())
                consumer.close()
        return self._known[name]
