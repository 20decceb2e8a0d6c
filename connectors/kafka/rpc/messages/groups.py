"""Offsets of consumer groups.

Pure. See ``request``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_eos.connectors.kafka.client.access_rights import Kind, Operation, Right, reads
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import NO_TAGS, Reader, array, boolean, int32, int64, text


@dataclass(frozen=True, slots=True)
class OffsetSeen:
    partition: int
    offset: int
    metadata: str
    error: int


@dataclass(frozen=True, slots=True)
class OffsetsSeen:
    error: int
    partitions: tuple[OffsetSeen, ...]


def offset_fetch(group: str, topic: str, partitions: Sequence[int]) -> Request[OffsetsSeen]:
    """The last committed offsets, whether or not a transaction holds newer ones."""

    def partition(found: Reader) -> OffsetSeen:
        index, offset = found.int32(), found.int64()
        found.int32()
        seen = OffsetSeen(index, offset, found.text_or_none() or "", found.int16())
        found.tags()
        return seen

    def parts(found: Reader) -> tuple[OffsetSeen, ...]:
        found.text()
        seen = found.array(partition)
        found.tags()
        return seen

    def of_group(found: Reader) -> OffsetsSeen:
        found.text()
        seen = [part for each in found.array(parts) for part in each]
        error = found.int16()
        found.tags()
        return OffsetsSeen(error, tuple(seen))

    def read(found: Reader, version: int) -> OffsetsSeen:
        found.int32()
        (seen,) = found.array(of_group)
        found.tags()
        return seen

    wanted = text(topic) + array(map(int32, partitions)) + NO_TAGS
    body = array([text(group) + array([wanted]) + NO_TAGS]) + boolean(False) + NO_TAGS
    needs = Right(Operation.DESCRIBE, Kind.GROUP, group), Right(Operation.DESCRIBE, Kind.TOPIC, topic)
    return Request("OffsetFetch", 9, 8, 8, lambda _: body, read, needs=needs)


def offset_commit(group: str, topic: str, offsets: Mapping[int, int], metadata: str) -> Request[tuple[int, ...]]:
    """As a consumer without members does. The answer is the error of each partition."""

    def partition(found: Reader) -> int:
        found.int32()
        error = found.int16()
        found.tags()
        return error

    def parts(found: Reader) -> tuple[int, ...]:
        found.text()
        errors = found.array(partition)
        found.tags()
        return errors

    def read(found: Reader, version: int) -> tuple[int, ...]:
        found.int32()
        errors = [error for each in found.array(parts) for error in each]
        found.tags()
        return tuple(errors)

    parts_sent = [int32(part) + int64(at) + int32(-1) + text(metadata) + NO_TAGS for part, at in offsets.items()]
    member = int32(-1) + text("") + text(None)
    body = text(group) + member + array([text(topic) + array(parts_sent) + NO_TAGS]) + NO_TAGS
    needs = Right(Operation.READ, Kind.GROUP, group), reads(topic)
    return Request("OffsetCommit", 8, 8, 9, lambda _: body, read, needs=needs)
