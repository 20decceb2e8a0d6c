"""The headers of stored batches, read from bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.connectors.kafka.rpc.messages.logs import RecordBatchHeader, batches_in
from kafka_eos.connectors.kafka.rpc.messages.wire_format import MalformedMessage

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
