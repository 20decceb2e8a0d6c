"""Requests about the offsets of groups, and about the markers that are kept as their metadata.

Rule: only what is committed counts; offsets of a transaction that has not ended are not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kafka_eos.connectors.kafka.rpc.brokers import CoordinatorOf
from kafka_eos.connectors.kafka.rpc.error_codes import TOPIC_UNKNOWN, expect
from kafka_eos.connectors.kafka.rpc.messages.cluster import GROUP
from kafka_eos.connectors.kafka.rpc.messages.groups import OffsetsSeen, offset_commit, offset_fetch
from kafka_eos.connectors.kafka.rpc.retrying_request import Asking

_NO_OFFSETS: Final = {TOPIC_UNKNOWN, 69, 100}
"""Codes that mean that a group, or its topic, is not there."""


class Groups(Asking):
    """The coordinators of groups."""

    def marker(self, group: str, topic: str, partition: int) -> str | None:
        """Metadata of the group's last *committed* offset there; None if there is none."""
        return self.committed(group, topic, [partition]).get(partition)

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, str]:
        """Metadata of the group's last committed offset in each of these partitions that has one."""
        answer = self._ask(offset_fetch(group, topic, partitions), CoordinatorOf(GROUP, group), _error)
        if code := _error(answer):
            expect(code, _NO_OFFSETS, f"OffsetFetch of group {group}")
            return {}
        # confluent-kafka sends the terminating NUL of its C string along with an offset's metadata.
        return {seen.partition: seen.metadata.rstrip("\0") for seen in answer.partitions if seen.offset >= 0}

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int], metadata: str) -> None:
        """Store offsets of a group by partition, as a consumer without members does; raises UserError if refused.

        librdkafka's admin client goes on with a coordinator that has moved: that one refuses each partition by itself.
        """
        answer = self._ask(offset_commit(group, topic, offsets, metadata), CoordinatorOf(GROUP, group), _first)
        expect(_first(answer), {0}, f"OffsetCommit of group {group}")


def _error(answer: OffsetsSeen) -> int:
    return answer.error or _first(seen.error for seen in answer.partitions)


def _first(errors: Iterable[int]) -> int:
    """The first error of any partition; 0 if there is none."""
    return next((error for error in errors if error), 0)
