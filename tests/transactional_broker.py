"""Topics that transactional producers write to, without a broker: for ``ScriptedBroker``, and through librdkafka.

    with TransactionalBroker({"out": 2}).served() as broker: …

Rule: it admits, fences, commits and aborts as a broker does. A row is visible from the commit of its transaction on.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.add_offsets_to_txn.v1.response import AddOffsetsToTxnResponse
from kio.schema.add_partitions_to_txn.v1 import response as added
from kio.schema.describe_configs.v4 import response as configured
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v2.response import FindCoordinatorResponse
from kio.schema.metadata.v11 import response as metadata
from kio.schema.produce.v7 import response as produced
from kio.schema.txn_offset_commit.v3 import response as marked

from tests.kafka_coordinator import INIT_PRODUCER_ID, Coordinator, Held
from tests.scripted_broker import FIND_COORDINATOR, NOW, Answer, ScriptedBroker
from tests.wire import METADATA

PRODUCE: Final = 0
ADD_PARTITIONS: Final = 24
ADD_OFFSETS: Final = 25
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_CONFIGS: Final = 32
VERSIONS: Final = {
    PRODUCE: 7,
    METADATA: 11,
    INIT_PRODUCER_ID: 4,
    ADD_PARTITIONS: 1,
    ADD_OFFSETS: 1,
    TXN_OFFSET_COMMIT: 3,
    DESCRIBE_CONFIGS: 4,
}
"""The newest of each that this answers."""
_MILLISECOND = NOW.resolution * 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a topic."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=(), compare=False)
    timestamp: int = field(default=0, compare=False)


class TransactionalBroker(Coordinator):
    """``topics``: their numbers of partitions. ``visible``: what readers of committed records see, in order."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        super().__init__()
        self._topics, self.max_message_bytes = topics, 1_048_588
        self.visible: list[Row] = []
        self.initialized: Counter[str] = Counter()
        """How many producers have got an identity, by transactional id."""
        self.batches: Counter[str] = Counter()
        """How many batches of records were written, by transactional id."""
        self._written: dict[tuple[int, int], list[Row]] = defaultdict(list)
        self._marked: dict[tuple[int, int], dict[tuple[str, str, int], str]] = defaultdict(dict)
        self._port = 0
        self._lock = threading.RLock()

    @property
    def values(self) -> list[bytes | None]:
        """Of all visible rows, in the order of their commits."""
        return [row.value for row in self.visible]

    @property
    def open(self) -> list[str]:
        """Transactional ids with a transaction that has not ended."""
        return sorted(name for name, held in self.ids.items() if held.state == "Ongoing")

    @contextmanager
    def served(self) -> Iterator[ScriptedBroker]:
        with ScriptedBroker(self.answers, VERSIONS) as broker:
            self._port = broker.port
            broker.script(FIND_COORDINATOR, self._coordinator(broker))
            yield broker

    @property
    def answers(self) -> Mapping[int, Answer]:
        own = {
            PRODUCE: self._produce,
            METADATA: self._metadata,
            ADD_PARTITIONS: self._add_partitions,
            ADD_OFFSETS: self._add_offsets,
            TXN_OFFSET_COMMIT: self._mark,
            DESCRIBE_CONFIGS: self._configs,
        }
        return {key: self._locked(answer) for key, answer in {**super().answers, **own}.items()}

    def _locked(self, answer: Answer) -> Answer:
        def locked(request: Any) -> Any:
            with self._lock:
                return answer(request)

        return locked

    # ------------------------------------------------------------ transactions

    def _fence(self, request: Any) -> Any:
        """As Kafka: a new id gets a producer id of its own; of a known one the epoch rises, and what is open ends."""
        name = request.transactional_id
        held = self.ids.get(name, Held(producer_id=1_000 + len(self.ids), producer_epoch=-1))
        self._forget(held)
        epoch, timeout = held.producer_epoch + 1, request.transaction_timeout // _MILLISECOND
        self.ids[name] = Held("Empty", held.producer_id, epoch, timeout, -1)
        self.initialized[name] += 1
        answer: Any = load_response_schema(INIT_PRODUCER_ID, request.__version__)
        return answer(throttle_time=NOW, error_code=ErrorCode.none, producer_id=held.producer_id, producer_epoch=epoch)

    def end(self, request: Any) -> Any:
        with self._lock:
            held = self.ids.get(request.transactional_id)
            answer = super().end(request)
            if held is not None and answer.error_code is ErrorCode.none:
                identity = (held.producer_id, held.producer_epoch)
                if not request.committed:
                    self._forget(held)
                self.visible += self._written.pop(identity, [])
                self.markers |= self._marked.pop(identity, {})
            return answer

    def _forget(self, held: Held) -> None:
        self._written.pop((held.producer_id, held.producer_epoch), None)
        self._marked.pop((held.producer_id, held.producer_epoch), None)

    def _admitted(self, name: str, producer_id: int, epoch: int) -> ErrorCode:
        """Begins the transaction, if none is open."""
        held = self.ids.get(name)
        if held is None or (held.producer_id, held.producer_epoch) != (producer_id, epoch):
            return ErrorCode.invalid_producer_epoch
        if held.state != "Ongoing":
            self.ids[name] = replace(held, state="Ongoing", started_at=int(time.time() * 1000))
        return ErrorCode.none

    def _add_partitions(self, request: Any) -> Any:
        error = self._admitted(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        part, topic = _any(added.AddPartitionsToTxnPartitionResult), _any(added.AddPartitionsToTxnTopicResult)
        topics = tuple(
            topic(
                name=each.name,
                results_by_partition=tuple(
                    part(partition_index=n, partition_error_code=error) for n in each.partitions
                ),
            )
            for each in request.v3_and_below_topics
        )
        return _any(added.AddPartitionsToTxnResponse)(throttle_time=NOW, results_by_topic_v3_and_below=topics)

    def _produce(self, request: Any) -> Any:
        part, topic = _any(produced.PartitionProduceResponse), _any(produced.TopicProduceResponse)
        held = self.ids[request.transactional_id]
        self.batches[request.transactional_id] += sum(len(each.partition_data) for each in request.topic_data)
        topics = tuple(
            topic(
                name=each.name,
                partition_responses=tuple(
                    part(index=one.index, error_code=self._append(held, each.name, one), base_offset=0)
                    for one in each.partition_data
                ),
            )
            for each in request.topic_data
        )
        return _any(produced.ProduceResponse)(responses=topics, throttle_time=NOW)

    def _append(self, held: Held, topic: str, to: Any) -> ErrorCode:
        data = bytes(to.records)
        if _HEADER.unpack_from(data)[_ATTRIBUTES] & _COMPRESSION:
            return ErrorCode.unsupported_compression_type
        identity, records = _batch(data)
        if held.state != "Ongoing" or identity != (held.producer_id, held.producer_epoch):
            return ErrorCode.invalid_producer_epoch
        self._written[identity] += [Row(topic, to.index, *record) for record in records]
        return ErrorCode.none

    def _add_offsets(self, request: Any) -> Any:
        error = self._admitted(request.transactional_id, request.producer_id, request.producer_epoch)
        return _any(AddOffsetsToTxnResponse)(throttle_time=NOW, error_code=error)

    def _mark(self, request: Any) -> Any:
        error = self._admitted(request.transactional_id, request.producer_id, request.producer_epoch)
        pending = self._marked[request.producer_id, request.producer_epoch]
        part, topic = _any(marked.TxnOffsetCommitResponsePartition), _any(marked.TxnOffsetCommitResponseTopic)
        topics = []
        for each in request.topics:
            for one in each.partitions:
                pending[request.group_id, each.name, one.partition_index] = one.committed_metadata
            parts = tuple(part(partition_index=one.partition_index, error_code=error) for one in each.partitions)
            topics.append(topic(name=each.name, partitions=parts))
        return _any(marked.TxnOffsetCommitResponse)(throttle_time=NOW, topics=tuple(topics))

    # ------------------------------------------------------------ the cluster

    def _coordinator(self, broker: ScriptedBroker) -> Answer:
        """librdkafka asks for one key with an older version than we ask for several."""

        def answer(request: Any) -> Any:
            if request.__version__ >= 4:
                return broker.coordinator(request)
            return _any(FindCoordinatorResponse)(
                throttle_time=NOW,
                error_code=ErrorCode.none,
                error_message=None,
                node_id=1,
                host="127.0.0.1",
                port=broker.port,
            )

        return answer

    def _metadata(self, request: Any) -> Any:
        broker = _any(metadata.MetadataResponseBroker)(node_id=1, host="127.0.0.1", port=self._port)
        wanted = list(self._topics) if request.topics is None else [topic.name for topic in request.topics]
        answer = _any(metadata.MetadataResponse)
        return answer(throttle_time=NOW, brokers=(broker,), controller_id=1, topics=tuple(map(self._topic, wanted)))

    def _topic(self, name: str) -> Any:
        part, known = _any(metadata.MetadataResponsePartition), name in self._topics
        numbers = range(self._topics.get(name, 0))
        return _any(metadata.MetadataResponseTopic)(
            error_code=ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
            name=name,
            topic_id=UUID(int=1 + list(self._topics).index(name)) if known else None,
            partitions=tuple(
                part(error_code=ErrorCode.none, partition_index=n, leader_id=1, leader_epoch=0,
                     replica_nodes=(1,), isr_nodes=(1,))
                for n in numbers
            ),
        )  # fmt: skip

    def _configs(self, request: Any) -> Any:
        """The only setting of a topic that is told is how large its batches may be."""
        entry, result = _any(configured.DescribeConfigsResourceResult), _any(configured.DescribeConfigsResult)
        size = entry(
            name="max.message.bytes", value=str(self.max_message_bytes), read_only=False, is_sensitive=False,
            synonyms=(), documentation=None,
        )  # fmt: skip
        results = tuple(
            result(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=(size,),
            )
            for each in request.resources
        )
        return _any(configured.DescribeConfigsResponse)(throttle_time=NOW, results=results)


def _any(made: Any) -> Any:
    """A message whose fields take plain numbers: kio's own types of them say no more."""
    return made


# ---------------------------------------------------------------- record batches

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""From the base offset to the number of records."""
_ATTRIBUTES: Final = 5
"""The place of the attributes in it; among their bits is the compression, which this does not undo."""
_COMPRESSION: Final = 7


_Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


def _batch(data: bytes) -> tuple[tuple[int, int], list[tuple[bytes | None, bytes | None, _Headers, int]]]:
    """Producer id and epoch, and keys, values, headers and timestamps, of one uncompressed batch."""
    *_, first_timestamp, _, producer_id, epoch, _, count = _HEADER.unpack_from(data)
    take, at, found = _reader(data), _HEADER.size, []
    for _ in range(count):
        length, at = take(at)
        end, at = at + length, at + 1  # the attributes of a record
        later, at = take(at)
        _, at = take(at)  # the offset
        key, at = _bytes(data, take, at)
        value, at = _bytes(data, take, at)
        headers, at = take(at)
        pairs = []
        for _ in range(headers):
            name, at = _bytes(data, take, at)
            content, at = _bytes(data, take, at)
            pairs.append(((name or b"").decode(), content))
        found.append((key, value, tuple(pairs), first_timestamp + later))
        at = end
    return (producer_id, epoch), found


def _bytes(data: bytes, take: Callable[[int], tuple[int, int]], at: int) -> tuple[bytes | None, int]:
    size, at = take(at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _reader(data: bytes) -> Callable[[int], tuple[int, int]]:
    """Of the varint at a place: its number, and where the next begins."""

    def take(at: int) -> tuple[int, int]:
        number = shift = 0
        while True:
            byte = data[at]
            number, shift, at = number | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1), at

    return take
