"""What a broker's coordinators hold of transactions and of groups, as far as a committer asks: for ``ScriptedBroker``.

Rule: it ends, fences and tells as a broker does, at once. What a broker does late or seldom is set by the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kio.index import load_response_schema
from kio.schema.describe_quorum.v1 import response as quorum
from kio.schema.describe_transactions.v0 import response as described
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.list_transactions.v2 import response as listed
from kio.schema.offset_commit.v8 import response as committed
from kio.schema.offset_fetch.v8 import response as fetched

from tests.scripted_broker import NOW, Answer

OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
INIT_PRODUCER_ID: Final = 22
END_TXN: Final = 26
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66
DESCRIBE_QUORUM: Final = 55
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Held:
    """One transactional id, with a transaction that is open. ``started_at`` is -1 if none is."""

    state: str = "Ongoing"
    producer_id: int = 7
    producer_epoch: int = 3
    timeout_ms: int = 60_000
    started_at: int = 1_000


class Coordinator:
    """``ids`` by name. ``markers``: the metadata of a group's committed offset in a partition of a topic."""

    def __init__(self) -> None:
        self.ids: dict[str, Held] = {}
        self.markers: dict[tuple[str, str, int], str] = {}
        self.marked_at = 0
        """The offset with a marker as its metadata."""
        self.group_error = self.partition_error = self.listing_error = self.quorum_error = ErrorCode.none
        self.described: dict[str, ErrorCode] = {}
        """Ids of which nothing but this error is told."""
        self.clock_ms: Callable[[], int] | None = None
        """The cluster's clock; None is told to nobody."""
        self.goes_by_patterns = True
        """Brokers before 4.1 list all ids, whatever they are asked for."""

    @property
    def answers(self) -> Mapping[int, Answer]:
        return {
            OFFSET_COMMIT: self.stored,
            OFFSET_FETCH: self._offsets,
            INIT_PRODUCER_ID: self._fence,
            END_TXN: self.end,
            DESCRIBE_TRANSACTIONS: self._describe,
            LIST_TRANSACTIONS: self._list,
            DESCRIBE_QUORUM: self._quorum,
        }

    def end(self, request: Any) -> Any:
        """Ends what is open under the id and the epoch that the request names. A repetition is answered alike."""
        state = "CompleteCommit" if request.committed else "CompleteAbort"
        held = self.ids.get(request.transactional_id)
        raised, identity = request.__version__ >= 5, (request.producer_id, request.producer_epoch)
        if held is None or held.state not in ("Ongoing", state):
            return self.ended(request, ErrorCode.invalid_producer_epoch)
        ongoing = held.state == "Ongoing"
        if (held.producer_id, held.producer_epoch - (raised and not ongoing)) != identity:
            return self.ended(request, ErrorCode.invalid_producer_epoch)
        if ongoing:
            epoch = held.producer_epoch + raised
            self.ids[request.transactional_id] = replace(held, state=state, producer_epoch=epoch, started_at=-1)
        return self.ended(request)

    @staticmethod
    def ended(request: Any, error: ErrorCode = ErrorCode.none) -> Any:
        """An answer to EndTxn, in the version in which it was asked."""
        after = {"producer_id": 7, "producer_epoch": 4} if request.__version__ >= 5 else {}
        answer: Any = load_response_schema(END_TXN, request.__version__)
        return answer(throttle_time=NOW, error_code=error, **after)

    def _fence(self, request: Any) -> Any:
        held = self.ids.get(request.transactional_id, Held(producer_epoch=-1))
        if request.producer_id not in (-1, held.producer_id) and request.transactional_id in self.ids:
            return self.fenced(ErrorCode.producer_fenced)
        epoch, timeout = held.producer_epoch + 1, request.transaction_timeout // _MILLISECOND
        self.ids[request.transactional_id] = Held("Empty", held.producer_id, epoch, timeout, -1)
        return self.fenced()

    @staticmethod
    def fenced(error: ErrorCode = ErrorCode.none) -> Any:
        answer: Any = InitProducerIdResponse
        return answer(throttle_time=NOW, error_code=error, producer_id=7, producer_epoch=0)

    def _describe(self, request: Any) -> Any:
        answer: Any = described.DescribeTransactionsResponse
        return answer(throttle_time=NOW, transaction_states=tuple(map(self._described, request.transactional_ids)))

    def _described(self, name: str) -> Any:
        held, state = self.ids.get(name) if name not in self.described else None, _any(described.TransactionState)
        seen = held or Held("Dead", -1, -1, 0, -1)
        return state(
            error_code=ErrorCode.none if held else self.described.get(name, ErrorCode.transactional_id_not_found),
            transactional_id=name,
            transaction_state=seen.state,
            transaction_timeout=seen.timeout_ms * _MILLISECOND,
            transaction_start_time=_BEGINNING + seen.started_at * _MILLISECOND,
            producer_id=seen.producer_id,
            producer_epoch=seen.producer_epoch,
            topics=(),
        )

    def _quorum(self, request: Any) -> Any:
        """The clock of the cluster, as the leader of the metadata log tells it."""
        if self.clock_ms is None:
            return _any(quorum.DescribeQuorumResponse)(error_code=ErrorCode.cluster_authorization_failed, topics=())
        voter = _any(quorum.ReplicaState)(
            replica_id=1, log_end_offset=0, last_fetch_timestamp=0, last_caught_up_timestamp=self.clock_ms()
        )
        partition = _any(quorum.PartitionData)(
            partition_index=0, error_code=self.quorum_error, leader_id=1, leader_epoch=1, high_watermark=0,
            current_voters=(voter,), observers=(),
        )  # fmt: skip
        topic = _any(quorum.TopicData)(topic_name="__cluster_metadata", partitions=(partition,))
        return _any(quorum.DescribeQuorumResponse)(error_code=ErrorCode.none, topics=(topic,))

    def _list(self, request: Any) -> Any:
        answer, state = _any(listed.ListTransactionsResponse), _any(listed.TransactionState)
        states = tuple(
            state(transactional_id=name, producer_id=held.producer_id, transaction_state=held.state)
            for name, held in self.ids.items()
            if (re.match(request.transactional_id_pattern, name) or not self.goes_by_patterns)
            and (not request.state_filters or held.state in request.state_filters)
        )
        return answer(throttle_time=NOW, error_code=self.listing_error, transaction_states=states)

    @staticmethod
    def stored(request: Any, error: ErrorCode = ErrorCode.none) -> Any:
        """An answer to OffsetCommit."""
        part, topic = _any(committed.OffsetCommitResponsePartition), _any(committed.OffsetCommitResponseTopic)
        topics = tuple(
            topic(name=each.name, partitions=tuple(part(partition_index=one.partition_index, error_code=error)
                                                   for one in each.partitions))
            for each in request.topics
        )  # fmt: skip
        return _any(committed.OffsetCommitResponse)(throttle_time=NOW, topics=topics)

    def _offsets(self, request: Any) -> Any:
        return _any(fetched.OffsetFetchResponse)(throttle_time=NOW, groups=tuple(map(self._group, request.groups)))

    def _group(self, group: Any) -> Any:
        parts, topic = _any(fetched.OffsetFetchResponsePartitions), _any(fetched.OffsetFetchResponseTopics)
        topics = []
        for asked in group.topics:
            markers = {n: self.markers.get((group.group_id, asked.name, n)) for n in asked.partition_indexes}
            seen = tuple(
                parts(
                    partition_index=number,
                    committed_offset=-1 if marker is None else self.marked_at,
                    metadata=marker,
                    error_code=self.partition_error,
                )
                for number, marker in markers.items()
            )
            topics.append(topic(name=asked.name, partitions=seen))
        answer = _any(fetched.OffsetFetchResponseGroup)
        return answer(group_id=group.group_id, topics=tuple(topics), error_code=self.group_error)


def _any(made: type) -> Any:
    """A message whose fields take plain numbers: kio's own types of them say no more."""
    return made
