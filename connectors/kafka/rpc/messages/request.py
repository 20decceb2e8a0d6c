"""Kafka's message definitions, written by hand, for the APIs that are used: requests, and the parts of responses that
are read.

Pure. A version of a message never changes once it is released, so these definitions do not change either. Each request
names the versions with the layout that is defined here; the newest of them that a broker supports is sent.
Rule: use only versions that a 3.0 broker supports, or whose absence the caller handles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import Permission
from kafka_eos.connectors.kafka.rpc.messages.wire_format import MessageReader

A = TypeVar("A")


class Request(Struct, Generic[A], frozen=True):
    """One request, and the parser of its response; both receive the version."""

    name: str
    key: int
    lowest: int
    highest: int
    body: Callable[[int], bytes]
    answer: Callable[[MessageReader, int], A]
    flexible: bool = True
    needs: tuple[Permission, ...] = ()
    """The permissions that the request needs."""
