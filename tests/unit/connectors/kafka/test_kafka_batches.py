"""The headers of stored batches, read from bytes, and from the leader of their partition."""

from __future__ import annotations

import struct
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import response as fetched

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.messages.logs import RecordBatchHeader, batches_in
from kafka_eos.connectors.kafka.rpc.messages.wire_format import MalformedMessage
from kafka_eos.core.errors import Retryable, UserError
from tests.kafka_log import FETCH, Log
from tests.scripted_broker import NOW, ScriptedBroker

seen = st.builds(
    RecordBatchHeader,
    first=st.integers(0, 2**60),
    last=st.just(0),
    producer_id=st.integers(-1, 2**62),
    producer_epoch=st.integers(-1, 2**15 - 1),
    sequence=st.integers(-1, 2**31 - 1),
)


def stored(batch: RecordBatchHeader, records: bytes, magic: int = 2, attributes: int = 0) -> bytes:
    last = batch.last - batch.first
    head = struct.pack(">ibIhi", 0, magic, 0, attributes, last)
    head += struct.pack(">qqqhii", 0, 0, batch.producer_id, batch.producer_epoch, batch.sequence, len(records))
    return struct.pack(">qi", batch.first, len(head) + len(records)) + head + records


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[RecordBatchHeader, bytes]]:
    found = []
    for each in draw(st.lists(seen, max_size=5)):
        last = each.first + draw(st.integers(0, 2**31 - 1))
        found.append((RecordBatchHeader(each.first, last, each.producer_id, each.producer_epoch, each.sequence),
                      draw(st.binary(max_size=50))))  # fmt: skip
    return found


@given(batches(), st.integers(0, 200))
def test_batches_are_read_as_far_as_they_are_whole(written: list[tuple[RecordBatchHeader, bytes]], cut: int) -> None:
    whole = b"".join(stored(*each) for each in written)
    ends = [sum(len(stored(*each)) for each in written[: n + 1]) for n in range(len(written))]
    kept = whole[: max(0, len(whole) - cut)]

    assert batches_in(kept) == tuple(batch for (batch, _), end in zip(written, ends, strict=True) if end <= len(kept))


def test_the_marker_of_a_transaction_is_nobodys_record() -> None:
    marker = RecordBatchHeader(7, 7, 4, 1, -1)

    assert batches_in(stored(marker, b"commit", attributes=0x30)) == (RecordBatchHeader(7, 7, -1, 1, -1),)


def test_batches_of_an_older_format_say_nobody_and_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="a batch of format 1"):
        batches_in(stored(RecordBatchHeader(0, 3, 4, 0, 0), b"x", magic=1))


# ---------------------------------------------------------------- read from a broker

STORED = [RecordBatchHeader(*each) for each in ((0, 2, 7, 0, 0), (3, 3, 8, 0, 0), (10, 14, 7, 0, 3), (15, 15, 7, 0, 8))]
"""Compaction removed what was between 3 and 10."""


class Partition:
    """Partition 1 of the topic ``in``: a response has two batches, from the one that holds the offset on."""

    def __init__(self) -> None:
        self.log, self.asked = Log(2), list[int]()
        self.log.parts[1].leader = 0  # the number of a node, like any other
        self.end, self.magic, self.error = 16, 2, ErrorCode.none

    def fetch(self, request: Any) -> Any:
        of_topic: Any = request.topics[0]
        (part,) = of_topic.partitions
        assert (of_topic.topic, part.partition) == ("in", 1)
        self.asked.append(part.fetch_offset)
        found = [batch for batch in STORED if batch.last >= part.fetch_offset][:2]
        made: Any = fetched.PartitionData
        whole = made(partition_index=1, error_code=self.error, high_watermark=self.end, aborted_transactions=None,
                     records=b"".join(stored(batch, b"record", self.magic) for batch in found))  # fmt: skip
        topic: Any = fetched.FetchableTopicResponse
        answer: Any = fetched.FetchResponse
        return answer(throttle_time=NOW, error_code=ErrorCode.none, session_id=0,
                      responses=(topic(topic="in", partitions=(whole,)),))  # fmt: skip

    def read(self, start: int, end: int, topic: str = "in") -> list[RecordBatchHeader]:
        with ScriptedBroker({**self.log.answers, FETCH: self.fetch}, {FETCH: 12}) as broker:
            self.log.cluster = {0: broker.port}
            with KafkaRequests(Cluster(broker.address), 0.5) as rpc:
                return list(islice(rpc.batches(topic, 1, start, end), 10))


@pytest.mark.parametrize(
    ("start", "end", "found", "asked"),
    [
        (0, 16, STORED, [0, 4]),
        (0, 15, STORED[:3], [0, 4]),
        (0, 11, STORED[:3], [0, 4]),
        (0, 10, STORED[:2], [0, 4]),
        (3, 15, STORED[1:3], [3]),
        (4, 20, STORED[2:], [4, 16]),
        (12, 16, STORED[2:], [12]),
        (0, 0, [], []),
    ],
)
def test_all_batches_between_two_offsets_are_read_once_and_in_order(
    start: int, end: int, found: list[RecordBatchHeader], asked: list[int]
) -> None:
    partition = Partition()

    assert partition.read(start, end) == found
    assert partition.asked == asked


def test_what_is_missing_or_refused_ends_the_reading() -> None:
    partition = Partition()
    partition.end = 18
    with pytest.raises(Retryable, match=r"^in/1 at offset 16: no batch, although the log ends at 18$"):
        partition.read(4, 18)
    partition.magic = 1
    with pytest.raises(UserError, match=r"^in/1 from offset 4: a batch of format 1"):
        partition.read(4, 18)
    partition.error = ErrorCode.offset_out_of_range
    with pytest.raises(UserError, match=r"^Fetch of in/1 at offset 4 was refused: OFFSET_OUT_OF_RANGE$"):
        partition.read(4, 18)
    with pytest.raises(UserError, match=r"^Metadata of topic other was refused: UNKNOWN_TOPIC_OR_PARTITION$"):
        partition.read(4, 18, "other")
    partition.log.parts[1].leader = -1
    with pytest.raises(Retryable):
        partition.read(4, 18)
