"""The nodes of broadcast state: rows of a stream, and what all subtasks hold of another one.

Rule: what all subtasks hold belongs to ``BroadcastConnect``, what a key has to the function behind it; so each is
stored under a name of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from kafka_eos.core.json_values import Json
from kafka_eos.plan.keyed_nodes import Process
from kafka_eos.plan.nodes import Connect, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastConnect(Connect):
    """A stream, with keys or without, and then one whose rows have come to all subtasks, on their way into a function.

    The states that all subtasks hold are its own. ``table``: the table that the rows of the second are of, if they are.
    """

    kind: ClassVar[str] = "broadcast-connect"
    stateful: ClassVar[bool] = True
    timed_by_first: ClassVar[bool] = True

    table: str | None = None

    @property
    def definition(self) -> Json:
        return None if self.table is None else {"table": self.table}


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastProcess(Node):
    """The user's function of a stream without keys and a broadcast one. Its input is a ``BroadcastConnect``."""

    kind: ClassVar[str] = "broadcast-process"

    factory: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedBroadcastProcess(Process):
    """The same of a stream with keys: it has their state and timers, too."""

    kind: ClassVar[str] = "keyed-broadcast-process"
    methods: ClassVar[tuple[str, ...]] = ("process", "process_broadcast")


Broadcasting: TypeAlias = BroadcastProcess | KeyedBroadcastProcess
"""Whose function is told of what is broadcast."""
