"""A topic's log as a broker serves it, for ``ScriptedBroker``: records and control records, at given offsets.

Rule: it answers what a consumer and a look at offsets ask, and no more. What a broker does late or seldom is set by
the test.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import response as fetched
from kio.schema.find_coordinator.v2.response import FindCoordinatorResponse
from kio.schema.list_offsets.v7 import response as listed
from kio.schema.metadata.v11 import response as metadata

from kafka_eos.connectors.kafka.client.librdkafka import Message
from kafka_eos.connectors.kafka.source.fetched_records import MessageRecords
from tests.scripted_broker import FIND_COORDINATOR, NOW, Answer, ScriptedBroker
from tests.wire import METADATA

FETCH: Final = 1
LIST_OFFSETS: Final = 2
VERSIONS: Final = {FETCH: 11, LIST_OFFSETS: 7, METADATA: 11, FIND_COORDINATOR: 2}
"""The newest of each that this answers."""
TOPIC_ID: Final = UUID(int=7)
_EARLIEST, _LATEST = -2, -1
_READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class Stored:
    """One record: an ordinary one with a value, or a control record without."""

    offset: int
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[bytes, bytes]] = ()
    packed: bool = False
    ahead: int = 0
    """By how much the offset that its producer stated within the batch is too high."""


class Part:
    """One partition. ``stable`` is where readers of committed records end; None: where the log ends."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.start = self.end = 0
        self.stable: int | None = None
        self.leader = 1
        self.refused: ErrorCode = ErrorCode.none
        self.damaged: set[int] = set()
        self.fetched_from: list[int] = []
        """Where each fetch that was answered began."""

    def limit(self, *, committed: bool) -> int:
        return self.end if self.stable is None or not committed else self.stable


class Log:
    """The only topic of a broker. Thread-safe: appended to while it is read."""

    def __init__(self, partitions: int = 1, topic: str = "in") -> None:
        self.topic, self.topic_id = topic, TOPIC_ID
        self.parts = [Part() for _ in range(partitions)]
        self.port = 0
        """Where the broker listens; 0 while it names none, not even itself."""
        self.cluster: dict[int, int] = {}
        """Ports by node, if it names more brokers than itself."""
        self.group_error = ErrorCode.coordinator_not_available
        self.changed = threading.Condition()

    @property
    def answers(self) -> Mapping[int, Answer]:
        return {
            FETCH: self._fetch,
            LIST_OFFSETS: self._list,
            METADATA: self._describe,
            FIND_COORDINATOR: self._coordinator,
        }

    def append(
        self,
        partition: int,
        *values: bytes | None,
        timestamp: int = 1_000,
        headers: Sequence[tuple[bytes, bytes]] = (),
        packed: bool = False,
        ahead: int = 0,
    ) -> None:
        """At the end; None is the control record of a commit. ``packed``: by zstd, without the size of the content."""
        part = self.parts[partition]
        with self.changed:
            for value in values:
                part.records.append(Stored(part.end, value, timestamp, headers, packed, ahead))
                part.end += 1
            self.changed.notify_all()

    def damage(self, partition: int, offset: int) -> None:
        """The checksum of this record is wrong from now on."""
        self.parts[partition].damaged.add(offset)

    @contextmanager
    def served(self) -> Iterator[ScriptedBroker]:
        """A broker that serves it, and says where it listens."""
        with ScriptedBroker(self.answers, VERSIONS) as broker:
            self.port = broker.port
            yield broker

    # ------------------------------------------------------------ answers

    def _describe(self, request: Any) -> Any:
        ports = self.cluster or ({1: self.port} if self.port else {})
        brokers = tuple(
            _any(metadata.MetadataResponseBroker)(node_id=node, host="127.0.0.1", port=port)
            for node, port in ports.items()
        )
        wanted = [self.topic] if request.topics is None else [topic.name for topic in request.topics]
        topics = tuple(self._topic(name) for name in wanted)
        answer = _any(metadata.MetadataResponse)
        return answer(throttle_time=NOW, brokers=brokers, controller_id=1, topics=topics)

    def _topic(self, name: str) -> Any:
        topic, known = _any(metadata.MetadataResponseTopic), name == self.topic
        return topic(
            error_code=ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
            name=name,
            topic_id=self.topic_id if known else None,
            partitions=tuple(_led(number, part) for number, part in enumerate(self.parts)) if known else (),
        )

    def _coordinator(self, request: Any) -> Any:
        answer = _any(FindCoordinatorResponse)
        return answer(
            throttle_time=NOW, error_code=self.group_error, error_message=None, node_id=-1, host="",
            port=-1,
        )  # fmt: skip

    def _list(self, request: Any) -> Any:
        topics = tuple(
            _any(listed.ListOffsetsTopicResponse)(
                name=topic.name, partitions=tuple(self._offset(part, request) for part in topic.partitions)
            )
            for topic in request.topics
        )
        return _any(listed.ListOffsetsResponse)(throttle_time=NOW, topics=topics)

    def _offset(self, asked: Any, request: Any) -> Any:
        part = self.parts[asked.partition_index]
        end = part.limit(committed=request.isolation_level == _READ_COMMITTED)
        later = [each for each in part.records if each.timestamp >= asked.timestamp and each.offset < end]
        at = {_EARLIEST: part.start, _LATEST: end}.get(asked.timestamp, later[0].offset if later else -1)
        return _any(listed.ListOffsetsPartitionResponse)(
            partition_index=asked.partition_index, error_code=part.refused, timestamp=-1, offset=at, leader_epoch=0
        )

    def _fetch(self, request: Any) -> Any:
        wanted = [(topic.topic, part) for topic in request.topics for part in topic.partitions]
        with self.changed:
            self.changed.wait_for(lambda: any(self._has(part) for _, part in wanted), request.max_wait / _SECOND)
            parts = tuple(self._fetched(part) for _, part in wanted)
        topic = _any(fetched.FetchableTopicResponse)(topic=self.topic, partitions=parts)
        answer = _any(fetched.FetchResponse)
        return answer(throttle_time=NOW, error_code=ErrorCode.none, session_id=0, responses=(topic,) if parts else ())

    def _has(self, asked: Any) -> bool:
        part = self.parts[asked.partition]
        return bool(_refusal(part, asked)) or asked.fetch_offset < part.limit(committed=True)

    def _fetched(self, asked: Any) -> Any:
        part = self.parts[asked.partition]
        part.fetched_from.append(asked.fetch_offset)
        end = part.limit(committed=True)
        records = [each for each in part.records if asked.fetch_offset <= each.offset < end]
        return _any(fetched.PartitionData)(
            partition_index=asked.partition,
            error_code=_refusal(part, asked),
            high_watermark=part.end,
            last_stable_offset=end,
            log_start_offset=part.start,
            aborted_transactions=None,
            records=b"".join(_batch(each, damaged=each.offset in part.damaged) for each in records),
        )


_SECOND = timedelta(seconds=1)


def _any(made: type) -> Any:
    """A message whose fields take plain numbers: kio's own types of them say no more."""
    return made


def _refusal(part: Part, asked: Any) -> ErrorCode:
    return part.refused or (ErrorCode.offset_out_of_range if asked.fetch_offset < part.start else ErrorCode.none)


def _led(number: int, part: Part) -> Any:
    return _any(metadata.MetadataResponsePartition)(
        error_code=ErrorCode.none if part.leader >= 0 else ErrorCode.leader_not_available,
        partition_index=number,
        leader_id=part.leader,
        leader_epoch=0,
        replica_nodes=(1,),
        isr_nodes=(1,),
    )


def fetched_records(*places: tuple[int, int]) -> MessageRecords:
    """Records of the topic ``in``, as a fetch returns them, at these partitions and offsets."""
    return MessageRecords("in", [Message("in", partition, offset) for partition, offset in places])


# ---------------------------------------------------------------- record batches, of one record each

_ZSTD, _TRANSACTIONAL, _CONTROL = 4, 1 << 4, 1 << 5
_COMMIT = struct.pack(">hh", 0, 1)


def _batch(stored: Stored, *, damaged: bool) -> bytes:
    control = stored.value is None
    attributes = _TRANSACTIONAL | _CONTROL if control else 0
    key, value = (_COMMIT, b"\0" * 6) if control else (None, stored.value)
    record = b"\0" + _varint(0) + _varint(stored.ahead) + _sized(key) + _sized(value) + _varint(len(stored.headers))
    record += b"".join(_sized(part) for header in stored.headers for part in header)
    body = _varint(len(record)) + record
    if stored.packed:
        attributes, body = attributes | _ZSTD, _packed(body)
    producer = 9 if control else -1
    of_crc = struct.pack(">hiqqqhii", attributes, 0, stored.timestamp, stored.timestamp, producer, 0, -1, 1) + body
    of_length = struct.pack(">ibI", 0, 2, _crc32c(of_crc) ^ damaged) + of_crc
    return struct.pack(">qi", stored.offset, len(of_length)) + of_length


def _packed(data: bytes) -> bytes:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(data)
    return bytes(packed.getvalue())


def _sized(part: bytes | None) -> bytes:
    return _varint(-1) if part is None else _varint(len(part)) + part


def _varint(number: int) -> bytes:
    left, found = (number << 1) ^ (number >> 31), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


@cache
def _table() -> Sequence[int]:
    def entry(byte: int) -> int:
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        return byte

    return [entry(byte) for byte in range(256)]


def _crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ _table()[(found ^ byte) & 0xFF]
    return found ^ 0xFFFFFFFF
