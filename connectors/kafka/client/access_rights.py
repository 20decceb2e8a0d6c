"""Kafka's permissions: those that a request needs, so that an error can name the missing one.

Pure. Kafka's documentation lists the permissions of each request ("Operations and Resources on Protocols"). The cluster
reports what a user may do with a topic (KIP-430).
Rule: an error names the permission, the resource and the user, and the command that grants it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import IntEnum, StrEnum
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.client.cluster import Cluster


class AclOperation(IntEnum):
    """ACL operations, numbered as in the Kafka protocol. Read and Write imply Describe."""

    READ = 3
    WRITE = 4
    DESCRIBE = 8

    def __str__(self) -> str:
        return self.name.capitalize()


class ResourceType(StrEnum):
    """Resource types, named as kafka-acls.sh names them."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


_REFUSED: Final = {29: ResourceType.TOPIC, 30: ResourceType.GROUP, 53: ResourceType.TRANSACTIONAL_ID}
"""Resource types that the user may not use, by error code."""
_NOT_TOLD: Final = -(1 << 31)
_OF_A_LIFE: Final = re.compile(r"([^.]+\.)[0-9a-f]{12}(\..*)?|([^.]+\.)[0-9]+\.[0-9]+\.[0-9]+")
"""Names that a job generates in large numbers: it needs one permission for their common prefix."""


class Permission(Struct, frozen=True):
    """An operation on a resource that an ACL must allow."""

    operation: AclOperation
    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name!r}"


def reads(topic: str) -> Permission:
    return Permission(AclOperation.READ, ResourceType.TOPIC, topic)


def writes(topic: str) -> Permission:
    return Permission(AclOperation.WRITE, ResourceType.TOPIC, topic)


def parse_operations(bits: int) -> frozenset[AclOperation] | None:
    """Return the allowed operations of a bit field; None if the broker does not report them."""
    return None if bits == _NOT_TOLD else frozenset(each for each in AclOperation if bits >> each & 1)


def describe_missing(where: Cluster, needed: Collection[Permission], code: int | None = None) -> str:
    """Return which permissions are missing and how to grant them."""
    about = [right for right in needed if code is None or right.kind is _REFUSED.get(code)]
    if not about:
        return f"{where.principal} lacks a permission"
    grants = " ; ".join(_granted(where, right) for right in about)
    return f"{where.principal} lacks permission to {' and '.join(map(str, about))}. To grant it: {grants}"


def _granted(where: Cluster, right: Permission) -> str:
    many = _OF_A_LIFE.fullmatch(right.name) if right.kind is not ResourceType.TOPIC else None
    name = f"{many[1] or many[3]} --resource-pattern-type prefixed" if many else right.name
    return (
        f"kafka-acls.sh --bootstrap-server {where.bootstrap} --add --allow-principal '{where.named}' "
        f"--operation {right.operation} --{right.kind} {name}"
    )
