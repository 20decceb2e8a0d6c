"""Requests for the records stored in a partition, sent to its leader.

Rule: no batch between the requested offsets is left out, or the call raises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from kafka_eos.connectors.kafka.rpc.error_codes import LEADER_UNKNOWN, TOPIC_UNKNOWN, expect
from kafka_eos.connectors.kafka.rpc.messages.cluster import MetadataResponse, metadata
from kafka_eos.connectors.kafka.rpc.messages.logs import FetchResponse, RecordBatchHeader, batches_in, fetch
from kafka_eos.connectors.kafka.rpc.messages.wire_format import MalformedMessage
from kafka_eos.connectors.kafka.rpc.retrying_request import RequestSender
from kafka_eos.core.errors import Retryable, UserError
from kafka_eos.core.limits import LIMITS

_ATTEMPT_SECONDS: Final = 5.0
"""Seconds for one leader, before the leader is looked up again."""


class FetchRequests(RequestSender):
    """Requests to partition leaders."""

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[RecordBatchHeader]:
        """Yield the batches with offsets from ``start`` to before ``end``, in order. Raise UserError if rejected."""
        while start < end:
            found = self._fetched(topic, partition, start)
            try:
                batches = batches_in(found.records)
            except MalformedMessage as error:
                raise UserError(f"{topic}/{partition} from offset {start}: {error}") from error
            if not batches:
                if start >= found.end:
                    return
                raise Retryable(
                    f"{topic}/{partition} at offset {start}: no batch, although the log ends at {found.end}"
                )
            for batch in batches:
                if batch.first >= end:
                    return
                yield batch
            start = max(start, batches[-1].last + 1)

    def _fetched(self, topic: str, partition: int, start: int) -> FetchResponse:
        deadline = time.monotonic() + self._patience
        while True:
            request = fetch(topic, partition, start, LIMITS.log_fetch_bytes)
            try:
                leader = self._leader(topic, partition)
                answer = self._send(request, leader, lambda found: found.error, seconds=_ATTEMPT_SECONDS)
            except Retryable:
                if time.monotonic() > deadline:
                    raise
                continue
            expect(answer.error, {0}, f"Fetch of {topic}/{partition} at offset {start}")
            return answer

    def _leader(self, topic: str, partition: int) -> int:
        def leader(found: MetadataResponse) -> int:
            return next((p.leader for t in found.topics for p in t.partitions if p.index == partition), -1)

        def code(found: MetadataResponse) -> int:
            unknown = {t.error for t in found.topics} & {TOPIC_UNKNOWN}
            return TOPIC_UNKNOWN if unknown else 0 if leader(found) >= 0 else LEADER_UNKNOWN

        answer = self._send(metadata([topic]), None, code)
        expect(code(answer), {0}, f"Metadata of topic {topic}")
        return leader(answer)
