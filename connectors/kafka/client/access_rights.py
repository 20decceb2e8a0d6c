"""Kafka's access rights: which one a request needs, so that an error can name the one that is missing.

Pure. What each request needs is in Kafka's documentation, "Operations and Resources on Protocols"; what a user may do
with a topic is told by the cluster when it is asked (KIP-430).

Rule: an error names the right, the resource and the user, and how to give the one to the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from kafka_eos.connectors.kafka.client.cluster import Cluster


class Operation(IntEnum):
    """Numbered as in Kafka's protocol. Who may read or write may describe too."""

    READ = 3
    WRITE = 4
    DESCRIBE = 8

    def __str__(self) -> str:
        return self.name.capitalize()


class Kind(StrEnum):
    """Of resource: as the tool for rights calls it."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


_REFUSED: Final = {29: Kind.TOPIC, 30: Kind.GROUP, 53: Kind.TRANSACTIONAL_ID}
"""By error code: what the user may not use."""
_NOT_TOLD: Final = -(1 << 31)
_OF_A_LIFE: Final = re.compile(r"([^.]+\.)[0-9a-f]{12}(\..*)?|([^.]+\.)[0-9]+\.[0-9]+\.[0-9]+")
"""Names that a job forms of its own, of which it has many: a right to all that begin alike is what it wants."""


@dataclass(frozen=True, slots=True)
class Right:
    """To do something with a resource."""

    operation: Operation
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name!r}"


def reads(topic: str) -> Right:
    return Right(Operation.READ, Kind.TOPIC, topic)


def writes(topic: str) -> Right:
    return Right(Operation.WRITE, Kind.TOPIC, topic)


def told(bits: int) -> frozenset[Operation] | None:
    """Operations of a bit field of KIP-430; None if the broker has not told them."""
    return None if bits == _NOT_TOLD else frozenset(each for each in Operation if bits >> each & 1)


def lacking(where: Cluster, needed: Collection[Right], code: int | None = None) -> str:
    """What to tell a user who has no such rights; with the error's ``code``, only of those that it is about."""
    about = [right for right in needed if code is None or right.kind is _REFUSED.get(code)]
    if not about:
        return f"{where.principal} lacks a right"
    grants = " ; ".join(_granted(where, right) for right in about)
    return f"{where.principal} lacks the right {' and '.join(map(str, about))}. To give it: {grants}"


def _granted(where: Cluster, right: Right) -> str:
    many = _OF_A_LIFE.fullmatch(right.name) if right.kind is not Kind.TOPIC else None
    name = f"{many[1] or many[3]} --resource-pattern-type prefixed" if many else right.name
    return (
        f"kafka-acls.sh --bootstrap-server {where.bootstrap} --add --allow-principal '{where.named}' "
        f"--operation {right.operation} --{right.kind} {name}"
    )
