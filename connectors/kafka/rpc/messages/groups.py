"""Offsets of consumer groups.

Pure. See ``request``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import AclOperation, Permission, ResourceType, reads
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import (
    NO_TAGS,
    MessageReader,
    array,
    boolean,
    int32,
    int64,
    text,
)
from kafka_eos.connectors.kafka.rpc.twin_names import twin_of


class OffsetFetchPartition(Struct, frozen=True):
    partition: int
    offset: int
    metadata: str
    error: int


class OffsetFetchResponse(Struct, frozen=True):
    error: int
    partitions: tuple[OffsetFetchPartition, ...]


def offset_fetch(group: str, topic: str, partitions: Sequence[int]) -> Request[OffsetFetchResponse]:
    """Return a request for the last committed offsets, even if a transaction has newer ones."""

    def partition(found: MessageReader) -> OffsetFetchPartition:
        index, offset = found.int32(), found.int64()
        found.int32()
        seen = OffsetFetchPartition(index, offset, found.text_or_none() or "", found.int16())
        found.tags()
        return seen

    def parts(found: MessageReader) -> tuple[OffsetFetchPartition, ...]:
        found.text()
        seen = found.array(partition)
        found.tags()
        return seen

    def of_group(found: MessageReader) -> OffsetFetchResponse:
        found.text()
        seen = [part for each in found.array(parts) for part in each]
        error = found.int16()
        found.tags()
        return OffsetFetchResponse(error, tuple(seen))

    def read(found: MessageReader, version: int) -> OffsetFetchResponse:
        found.int32()
        (seen,) = found.array(of_group)
        found.tags()
        return seen

    wanted = text(topic) + array(map(int32, partitions)) + NO_TAGS
    body = array([text(group) + array([wanted]) + NO_TAGS]) + boolean(False) + NO_TAGS
    needs = (
        Permission(AclOperation.DESCRIBE, ResourceType.GROUP, group),
        Permission(AclOperation.DESCRIBE, ResourceType.TOPIC, topic),
    )
    return Request("OffsetFetch", 9, 8, 8, lambda _: body, read, needs=needs)


def prove_group_coordinator(group: str, topic: str, partition: int) -> Request[int]:
    """Return a write that only the current coordinator of the group can complete; the response is the error.

    It commits an offset of the group's twin, so the group itself does not change.
    """
    write = offset_commit(twin_of(group), topic, {partition: 0}, "")
    return Request(
        write.name, write.key, write.lowest, write.highest, write.body,
        lambda found, version: next((error for error in write.answer(found, version) if error), 0), needs=write.needs,
    )  # fmt: skip


def offset_commit(group: str, topic: str, offsets: Mapping[int, int], metadata: str) -> Request[tuple[int, ...]]:
    """Return a commit request as of a consumer without members. The response is the error of each partition."""

    def partition(found: MessageReader) -> int:
        found.int32()
        error = found.int16()
        found.tags()
        return error

    def parts(found: MessageReader) -> tuple[int, ...]:
        found.text()
        errors = found.array(partition)
        found.tags()
        return errors

    def read(found: MessageReader, version: int) -> tuple[int, ...]:
        found.int32()
        errors = [error for each in found.array(parts) for error in each]
        found.tags()
        return tuple(errors)

    parts_sent = [int32(part) + int64(at) + int32(-1) + text(metadata) + NO_TAGS for part, at in offsets.items()]
    member = int32(-1) + text("") + text(None)
    body = text(group) + member + array([text(topic) + array(parts_sent) + NO_TAGS]) + NO_TAGS
    needs = Permission(AclOperation.READ, ResourceType.GROUP, group), reads(topic)
    return Request("OffsetCommit", 8, 8, 9, lambda _: body, read, needs=needs)
