"""Requests for the offsets of groups, and for the markers stored as their metadata.

Rule: only committed offsets count; offsets of an open transaction are not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kafka_eos.connectors.kafka.rpc.brokers import CoordinatorKey
from kafka_eos.connectors.kafka.rpc.error_codes import TOPIC_UNKNOWN, expect
from kafka_eos.connectors.kafka.rpc.messages.cluster import GROUP
from kafka_eos.connectors.kafka.rpc.messages.groups import (
    OffsetFetchResponse,
    offset_commit,
    offset_fetch,
    prove_group_coordinator,
)
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.retrying_request import RequestSender

_NO_OFFSETS: Final = {TOPIC_UNKNOWN, 69, 100}
"""Codes that mean that a group, or its topic, does not exist."""


class GroupRequests(RequestSender):
    """Requests to group coordinators."""

    def marker(self, group: str, topic: str, partition: int, *, current: bool = False) -> str | None:
        """Return the metadata of the group's last *committed* offset there; None if there is none.

        ``current``: the coordinator must prove first that it has not been replaced. A coordinator that is cut off from
        the other brokers does not know what was committed since.
        """
        proof = prove_group_coordinator(group, topic, partition) if current else None
        return self._committed(group, topic, [partition], proof).get(partition)

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, str]:
        """Return the metadata of the group's last committed offset in each of these partitions that has one."""
        return self._committed(group, topic, partitions, None)

    def _committed(
        self, group: str, topic: str, partitions: Sequence[int], proof: Request[int] | None
    ) -> dict[int, str]:
        answer = self._send(offset_fetch(group, topic, partitions), CoordinatorKey(GROUP, group), _error, proof=proof)
        if code := _error(answer):
            expect(code, _NO_OFFSETS, f"OffsetFetch of group {group}")
            return {}
        # confluent-kafka sends the terminating NUL of its C string along with an offset's metadata.
        return {seen.partition: seen.metadata.rstrip("\0") for seen in answer.partitions if seen.offset >= 0}

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int], metadata: str) -> None:
        """Store offsets of a group by partition, as a consumer without members does. Raise UserError if rejected.

        librdkafka's admin client keeps using a coordinator that has moved, which then rejects each partition by itself.
        """
        answer = self._send(offset_commit(group, topic, offsets, metadata), CoordinatorKey(GROUP, group), _first)
        expect(_first(answer), {0}, f"OffsetCommit of group {group}")


def _error(answer: OffsetFetchResponse) -> int:
    return answer.error or _first(seen.error for seen in answer.partitions)


def _first(errors: Iterable[int]) -> int:
    """Return the first error of any partition; 0 if there is none."""
    return next((error for error in errors if error), 0)
