"""Which subtask gets which row of a batch.

Rule: a row with a key goes to the owner of the key's group, whoever asks and whatever the route was before; both
engines and the restore of rows under way use this one function of key and parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kafka_eos.interfaces import Codec
from kafka_eos.operators.base import take
from kafka_eos.plan import Feedback, KeyBy, Node, Partitioning
from kafka_eos.records import Batch
from kafka_eos.state.keygroups import MAX_KEY_GROUPS, key_group, subtask_of

Parts = Iterator[tuple[int, Batch[Any]]]
"""Target subtask and its rows, in the order of the batch."""
Router = Callable[[Batch[Any]], Parts]

_REMEMBERED = 1_000_000
"""Keys whose owner is remembered, an exchange."""


def router(node: Node, subtask: int, parallelism: int, max_key_groups: int = MAX_KEY_GROUPS) -> Router:
    """What splits the output of an exchange node, for one sending subtask."""
    match node:
        case KeyBy(key_codec=codec):
            return _by_key(_Owners(codec, parallelism, max_key_groups))
        case Feedback():
            return lambda batch: iter([(subtask, batch)])
        case _ if node.partitioning is Partitioning.BROADCAST:
            return lambda batch: ((target, _copy(batch, target)) for target in range(parallelism))
        case _:
            return _in_turn(subtask, parallelism)


class _Owners(dict[Any, int]):
    """Owner of a key, computed on first use."""

    def __init__(self, codec: Codec[Any], parallelism: int, max_key_groups: int) -> None:
        super().__init__()
        self._encode, self._parallelism, self._groups = codec.encode, parallelism, max_key_groups

    def __missing__(self, key: Any) -> int:
        if len(self) >= _REMEMBERED:
            self.clear()
        owner = self[key] = subtask_of(key_group(self._encode(key), self._groups), self._parallelism, self._groups)
        return owner


def _by_key(owners: _Owners) -> Router:
    def split(batch: Batch[Any]) -> Parts:
        found = list(map(owners.__getitem__, batch.keys or ()))
        for target in sorted(set(found)):
            rows = [index for index, owner in enumerate(found) if owner == target]
            yield target, batch if len(rows) == len(found) else take(batch, rows)

    return split


def _in_turn(subtask: int, parallelism: int) -> Router:
    turn = subtask

    def split(batch: Batch[Any]) -> Parts:
        nonlocal turn
        size = -(-len(batch) // parallelism)
        for start in range(0, len(batch), size):
            yield turn % parallelism, take(batch, list(range(start, min(start + size, len(batch)))))
            turn += 1

    return split


def _copy(batch: Batch[Any], target: int) -> Batch[Any]:
    """The copy for one subtask: its branch says whose, so that copies are not taken for duplicates."""
    return replace(batch, branch=[f"{branch}{target}-" for branch in batch.branch or [""] * len(batch)])
