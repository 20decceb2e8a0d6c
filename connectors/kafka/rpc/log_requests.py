"""Requests for what is stored in a partition, as the broker that leads it has it.

Rule: nothing is left out between the offsets that were asked for, or the call raises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from kafka_eos.connectors.kafka.rpc.error_codes import LEADER_UNKNOWN, TOPIC_UNKNOWN, expect
from kafka_eos.connectors.kafka.rpc.messages.cluster import ClusterSeen, metadata
from kafka_eos.connectors.kafka.rpc.messages.logs import BatchSeen, Fetched, batches_in, fetch
from kafka_eos.connectors.kafka.rpc.messages.wire_format import Malformed
from kafka_eos.connectors.kafka.rpc.retrying_request import Asking
from kafka_eos.core.errors import Retryable, UserError
from kafka_eos.core.limits import LIMITS

_ATTEMPT_SECONDS: Final = 5.0
"""For one leader, before it is asked who leads now."""


class Logs(Asking):
    """The leaders of partitions."""

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[BatchSeen]:
        """The batches that hold offsets from ``start`` to before ``end``, in their order. UserError if refused."""
        while start < end:
            found = self._fetched(topic, partition, start)
            try:
                batches = batches_in(found.records)
            except Malformed as error:
                raise UserError(f"{topic}/{partition} from offset {start}: {error}") from error
            if not batches:
                if start >= found.end:
                    return
                raise Retryable(f"{topic}/{partition} at offset {start}: no batch, and the log ends at {found.end}")
            for batch in batches:
                if batch.first >= end:
                    return
                yield batch
            start = max(start, batches[-1].last + 1)

    def _fetched(self, topic: str, partition: int, start: int) -> Fetched:
        deadline = time.monotonic() + self._patience
        while True:
            request = fetch(topic, partition, start, LIMITS.log_fetch_bytes)
            try:
                leader = self._leader(topic, partition)
                answer = self._ask(request, leader, lambda found: found.error, seconds=_ATTEMPT_SECONDS)
            except Retryable:
                if time.monotonic() > deadline:
                    raise
                continue
            expect(answer.error, {0}, f"Fetch of {topic}/{partition} at offset {start}")
            return answer

    def _leader(self, topic: str, partition: int) -> int:
        def leader(found: ClusterSeen) -> int:
            return next((p.leader for t in found.topics for p in t.partitions if p.index == partition), -1)

        def code(found: ClusterSeen) -> int:
            unknown = {t.error for t in found.topics} & {TOPIC_UNKNOWN}
            return TOPIC_UNKNOWN if unknown else 0 if leader(found) >= 0 else LEADER_UNKNOWN

        answer = self._ask(metadata([topic]), None, code)
        expect(code(answer), {0}, f"Metadata of topic {topic}")
        return leader(answer)
