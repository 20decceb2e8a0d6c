"""Routing of rows to subtasks: at an exchange, and of restored in-flight rows after a restart.

Rule: a row with a key always goes to the owner of the key's group. If rows are ordered, the order also holds between
restored rows and those that are read after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from kafka_eos.abc.codec import Codec
from kafka_eos.core.errors import PlanError
from kafka_eos.core.ids import KeyGroup, SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch
from kafka_eos.plan import (
    FeedbackNode,
    ForwardNode,
    KeyByNode,
    Node,
    Partitioning,
    Plan,
    SourceNode,
    UnionNode,
    union_lane,
)
from kafka_eos.protocol.split_assignment import is_numbered, subtask_of_split
from kafka_eos.runtime.state.key_groups import group_of, subtask_of

RoutedRows = Iterator[tuple[int, Batch[Any]]]
"""Pairs of target subtask and its rows, in the order of the batch."""
Router = Callable[[Batch[Any]], RoutedRows]
Restorer = Callable[[int, Batch[Any]], RoutedRows]
"""Routes the rows of a frame; the first argument is the frame's number in the checkpoint."""


def make_router(node: Node, subtask: int, parallelism: int) -> Router:
    """Return the function that splits an exchange node's output by target subtask."""
    match node:
        case KeyByNode(key_codec=codec):
            return _by_key(_Owners(codec, parallelism))
        case FeedbackNode() | ForwardNode():
            return lambda batch: iter([(subtask, batch)])
        case _ if node.partitioning is Partitioning.BROADCAST:
            return lambda batch: ((target, _copy(batch, target)) for target in range(parallelism))
        case _:
            return _route_round_robin(subtask, parallelism)


def make_restore_router(plan: Plan, node: Node, parallelism: int, positions: Mapping[str, Positions]) -> Restorer:
    """Return the function that routes restored in-flight rows, whatever the parallelism was.

    Raises PlanError for rows that must go to the reader of their split if their partition does not identify a known
    split; ``positions`` are the known splits, by source.
    """
    match node:
        case KeyByNode():
            by_key = make_router(node, 0, parallelism)
            return lambda _, batch: by_key(batch)
        case ForwardNode():
            return _restore_forward(plan, node, parallelism, positions)
        case _ if node.name in plan.replicating_exchanges:
            return partial(_refuse_broadcast, node)
        case _:
            return lambda number, batch: iter([(number % parallelism, batch)])


def _refuse_broadcast(node: Node, number: int, batch: Batch[Any]) -> RoutedRows:
    """Refuse restored rows of an exchange that has become a broadcast."""
    raise PlanError(
        f"the checkpoint contains in-flight rows of exchange {node.kind} {node.name!r}, which is now broadcast, so "
        "they would not reach all workers. Run the old pipeline until it has stopped: its last checkpoint contains "
        "no such rows."
    )


def _restore_forward(plan: Plan, forward: Node, parallelism: int, positions: Mapping[str, Positions]) -> Restorer:
    """Route restored rows of a forward exchange to the subtask of their split or key."""
    dealt = {(source, lane): by for source, lane, by in _ways(plan, forward)}
    by_key = {by.name: make_router(by, 0, parallelism) for by in dealt.values() if isinstance(by, KeyByNode)}
    # The next chain reads these rows with keyed state, so route them by key, whatever an older plan did.
    keyed = next((make_router(by, 0, parallelism) for by in plan.key_bys(forward.name) if not by.local), None)

    def split(number: int, batch: Batch[Any]) -> RoutedRows:
        if keyed is not None and batch.keys is not None:
            return keyed(batch)
        match dealt.get((batch.origin.source, batch.lane)):
            case KeyByNode(name=name) if batch.keys is not None:
                return by_key[name](batch)
            case SourceNode(name=name):
                _check_numbered(forward, positions.get(name, {}))
                return _by_split(batch, parallelism)
            case Node(sets_timers=True):
                return _by_group(batch, parallelism)
            case _:  # rebalanced, copied, or returned in a loop: these rows are not ordered
                return iter([(number % parallelism, batch)])

    return split


def _ways(plan: Plan, node: Node) -> Iterator[tuple[str, int, Node]]:
    """Yield source and lane of every path to the output of ``node``, and the last node that distributed its rows.

    Outputs of an operator's timers start there: in the subtask that owns the key.
    """
    if isinstance(node, SourceNode) or node.sets_timers:
        yield node.name, 0, node
    for index, above in enumerate(node.inputs):
        for source, lane, by in _ways(plan, plan.node(above)):
            after = union_lane(lane, len(node.inputs), index) if isinstance(node, UnionNode) else lane
            yield source, after, by if node.partitioning in (None, Partitioning.FORWARD) else node


def _check_numbered(forward: Node, splits: Positions) -> None:
    for split in splits:
        if not is_numbered(split):
            raise PlanError(
                f"the checkpoint contains in-flight rows of exchange {forward.kind} {forward.name!r}, which belong "
                f"to the worker that reads their split, but the name of {split!r} does not end in a partition "
                "number. Run the job with parallelism=1 until it has stopped: its last checkpoint contains no such "
                "rows."
            )


def _by_split(batch: Batch[Any], parallelism: int) -> RoutedRows:
    topic, partitions = batch.origin.topic, batch.origin.partitions
    return _parts(
        batch, [subtask_of_split(SplitId(f"{topic}/{partitions[row]}"), parallelism) for row in batch.origin_rows]
    )


def _by_group(batch: Batch[Any], parallelism: int) -> RoutedRows:
    """Route outputs of timers, whose partition is the key group.

    Behind ``key_by(local=True)`` the former owner of a key is unknown; rows of a key stay together, and in order.
    """
    groups = batch.origin.partitions
    return _parts(batch, [subtask_of(KeyGroup(groups[row]), parallelism) for row in batch.origin_rows])


class _Owners(dict[Any, int]):
    """Owners of keys; that of a short key is computed at its first use only."""

    def __init__(self, codec: Codec[Any], parallelism: int) -> None:
        super().__init__()
        self._encode, self._parallelism = codec.encode, parallelism

    def __missing__(self, key: Any) -> int:
        encoded = self._encode(key)
        owner = subtask_of(group_of(encoded), self._parallelism)
        if len(encoded) <= LIMITS.remembered_key_bytes:
            if len(self) >= LIMITS.remembered_routes:
                self.clear()
            self[key] = owner
        return owner


def _by_key(owners: _Owners) -> Router:
    def split(batch: Batch[Any]) -> RoutedRows:
        return _parts(batch, list(map(owners.__getitem__, batch.keys or ())))

    return split


def _parts(batch: Batch[Any], targets: Sequence[int]) -> RoutedRows:
    """Split a batch by subtask. ``targets``: the subtask of each row."""
    for target in sorted(set(targets)):
        rows = [index for index, owner in enumerate(targets) if owner == target]
        yield target, batch if len(rows) == len(targets) else batch.take(rows)


def _route_round_robin(subtask: int, parallelism: int) -> Router:
    turn = subtask

    def split(batch: Batch[Any]) -> RoutedRows:
        nonlocal turn
        size = -(-len(batch) // parallelism)
        for start in range(0, len(batch), size):
            yield turn % parallelism, batch.take(range(start, min(start + size, len(batch))))
            turn += 1

    return split


def _copy(batch: Batch[Any], target: int) -> Batch[Any]:
    """Return the copy for one subtask: its branch contains the subtask, so that copies are not taken for duplicates."""
    return replace(batch, branch=[f"{branch}{target}-" for branch in batch.branch or [""] * len(batch)])
