"""Kafka's message definitions, by hand, for the APIs that are used: what is asked, and what of the answer is read.

Pure. A version of a message never changes once it is released, so neither does what stands in this package. Each
request says which versions have the layout that is written here; the newest of them that a broker has is sent.

Rule: only versions that a broker of 3.0 has, or whose absence the caller knows what to do about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kafka_eos.connectors.kafka.client.access_rights import Right
from kafka_eos.connectors.kafka.rpc.messages.wire_format import Reader

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Request(Generic[A]):
    """One question, and how its answer is read; both are told the version."""

    name: str
    key: int
    lowest: int
    highest: int
    body: Callable[[int], bytes]
    answer: Callable[[Reader, int], A]
    flexible: bool = True
    needs: tuple[Right, ...] = ()
    """Without which the answer is that it is not allowed."""
