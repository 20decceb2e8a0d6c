"""Consumer groups for markers: offsets that become visible with one transaction, and prove its commit.

Rule: a marker overwrites the previous one in its group, so transactions of one epoch never share a group. Transactions
of two epochs may, if each process numbers its transactions from zero (as in Structured Streaming), for two reasons:
- An epoch is decided only after the receipt of the previous one, and the marker of an epoch with a receipt is not
  needed.
- The transactions of an epoch begin after the previous epoch is decided, so their offset is later in the log of the
  coordinator. Of two pending offsets the later one wins, whichever is committed first.
"""

from __future__ import annotations

from msgspec import Struct

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import Consumer, map_errors
from kafka_eos.connectors.kafka.client.log_bridge import SILENT


class MarkerGroup(Struct, frozen=True):
    """A marker group. ``metadata`` is librdkafka's form of the name."""

    name: str
    metadata: object


def open_marker_group(where: Cluster, name: str) -> MarkerGroup:
    """Return the marker group of this name on a cluster. Its metadata requires a consumer, which is closed at once."""
    with map_errors("consumer group"):
        consumer = Consumer(where.build_client_config(SILENT, {"group.id": name, "enable.auto.commit": False}))
        group = MarkerGroup(name, consumer.consumer_group_metadata())
        consumer.close()
    return group
