"""The nodes of broadcast state: one merges the two streams, another runs the function.

Rule: broadcast state belongs to ``BroadcastConnectNode``, keyed state to the node behind it; so each is stored under
its own name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from kafka_eos.core.json_values import Json
from kafka_eos.plan.keyed_nodes import ProcessNode
from kafka_eos.plan.nodes import ConnectNode, Node


class BroadcastConnectNode(ConnectNode, frozen=True, kw_only=True):
    """Merges a stream and a broadcast stream; owns the broadcast state.

    ``table``: the table whose rows the second stream carries, if any.
    """

    kind: ClassVar[str] = "broadcast-connect"
    stateful: ClassVar[bool] = True
    timed_by_first: ClassVar[bool] = True

    table: str | None = None

    @property
    def definition(self) -> Json:
        return None if self.table is None else {"table": self.table}


class BroadcastProcessNode(Node, frozen=True, kw_only=True):
    """Runs a process function of a stream and a broadcast stream. Its input is a ``BroadcastConnectNode``."""

    kind: ClassVar[str] = "broadcast-process"

    factory: Callable[[], Any]


class KeyedBroadcastNode(ProcessNode, frozen=True, kw_only=True):
    """Runs a process function of a keyed stream and a broadcast stream."""

    kind: ClassVar[str] = "keyed-broadcast-process"
    methods: ClassVar[tuple[str, ...]] = ("process", "process_broadcast")


AnyBroadcastNode: TypeAlias = BroadcastProcessNode | KeyedBroadcastNode
"""Any node that runs a broadcast process function."""
