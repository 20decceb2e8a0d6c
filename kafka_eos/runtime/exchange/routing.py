"""Which subtask gets which row of a batch: at an exchange, and after a restart if a checkpoint held it on its way.

Rule: a row with a key goes to the owner of the key's group, whoever asks and whatever the route was before. Where an
order holds between rows, it holds between those that are restored and those that are read after them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.core.errors import PlanError
from kafka_eos.core.ids import KeyGroup, SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch
from kafka_eos.plan import Feedback, Forward, KeyBy, Node, Partitioning, Plan, Source, Union, union_lane
from kafka_eos.protocol.split_assignment import is_numbered, subtask_of_split
from kafka_eos.runtime.state.key_groups import group_of, subtask_of

Parts = Iterator[tuple[int, Batch[Any]]]
"""Target subtask and its rows, in the order of the batch."""
Router = Callable[[Batch[Any]], Parts]
Restorer = Callable[[int, Batch[Any]], Parts]
"""Takes the number of a frame among all that a checkpoint holds, and its rows."""


def router(node: Node, subtask: int, parallelism: int) -> Router:
    """What splits the output of an exchange node, for one sending subtask."""
    match node:
        case KeyBy(key_codec=codec):
            return _by_key(_Owners(codec, parallelism))
        case Feedback() | Forward():
            return lambda batch: iter([(subtask, batch)])
        case _ if node.partitioning is Partitioning.BROADCAST:
            return lambda batch: ((target, _copy(batch, target)) for target in range(parallelism))
        case _:
            return _in_turn(subtask, parallelism)


def restorer(plan: Plan, node: Node, parallelism: int, positions: Mapping[str, Positions]) -> Restorer:
    """What splits the rows that a checkpoint holds on their way through ``node``, at whatever parallelism it was made.

    Raises PlanError for rows that should go where their split is read, if no number at its end tells which split
    that is; ``positions`` are those that are known, by source.
    """
    match node:
        case KeyBy():
            by_key = router(node, 0, parallelism)
            return lambda _, batch: by_key(batch)
        case Forward():
            return _to_those_who_had_them(plan, node, parallelism, positions)
        case _ if node.name in plan.copying:
            return partial(_not_for_all, node)
        case _:
            return lambda number, batch: iter([(number % parallelism, batch)])


def _not_for_all(node: Node, number: int, batch: Batch[Any]) -> Parts:
    """No checkpoint has such rows, unless no broadcast state was made of them when it was taken."""
    raise PlanError(
        f"the checkpoint holds rows on their way through {node.kind} {node.name!r}, of which broadcast state is made "
        "now, and they would not come to all workers. Run the old pipeline until it has stopped: its last checkpoint "
        "holds no such rows."
    )


def _to_those_who_had_them(plan: Plan, forward: Node, parallelism: int, positions: Mapping[str, Positions]) -> Restorer:
    """Rows that have stayed in their subtask go to the one that later rows of the same split, or key, will be in."""
    dealt = {(source, lane): by for source, lane, by in _ways(plan, forward)}
    by_key = {by.name: router(by, 0, parallelism) for by in dealt.values() if isinstance(by, KeyBy)}
    # What reads these rows has state of their keys, so they go there whatever way an older plan had brought them.
    keyed = next((router(by, 0, parallelism) for by in plan.key_bys(forward.name) if not by.local), None)

    def split(number: int, batch: Batch[Any]) -> Parts:
        if keyed is not None and batch.keys is not None:
            return keyed(batch)
        match dealt.get((batch.origin.source, batch.lane)):
            case KeyBy(name=name) if batch.keys is not None:
                return by_key[name](batch)
            case Source(name=name):
                _check_numbered(forward, positions.get(name, {}))
                return _by_split(batch, parallelism)
            case Node(sets_timers=True):
                return _by_group(batch, parallelism)
            case _:  # spread, copied, or come back in a loop: no order holds between them
                return iter([(number % parallelism, batch)])

    return split


def _ways(plan: Plan, node: Node) -> Iterator[tuple[str, int, Node]]:
    """Source and lane of every way to the output of ``node``, and who dealt out the rows on it to subtasks last.

    What an operator's timers make begins there: in the subtask that owns the key.
    """
    if isinstance(node, Source) or node.sets_timers:
        yield node.name, 0, node
    for index, above in enumerate(node.inputs):
        for source, lane, by in _ways(plan, plan.node(above)):
            after = union_lane(lane, len(node.inputs), index) if isinstance(node, Union) else lane
            yield source, after, by if node.partitioning in (None, Partitioning.FORWARD) else node


def _check_numbered(forward: Node, splits: Positions) -> None:
    for split in splits:
        if not is_numbered(split):
            raise PlanError(
                f"the checkpoint holds rows on their way through {forward.kind} {forward.name!r}, and they should go "
                f"where their split is read; the name of {split!r} does not end in the number of its partition. Run "
                "the job with parallelism=1 until it has stopped: its last checkpoint holds no such rows."
            )


def _by_split(batch: Batch[Any], parallelism: int) -> Parts:
    topic, partitions = batch.origin.topic, batch.origin.partitions
    return _parts(batch, [subtask_of_split(SplitId(f"{topic}/{partitions[row]}"), parallelism) for row in batch.rows])


def _by_group(batch: Batch[Any], parallelism: int) -> Parts:
    """Of firings, whose key group stands where a partition would.

    Behind ``key_by(local=True)`` nothing tells who had the key; rows of a key stay together, and in order.
    """
    groups = batch.origin.partitions
    return _parts(batch, [subtask_of(KeyGroup(groups[row]), parallelism) for row in batch.rows])


class _Owners(dict[Any, int]):
    """Owner of a key, computed on first use."""

    def __init__(self, codec: Codec[Any], parallelism: int) -> None:
        super().__init__()
        self._encode, self._parallelism = codec.encode, parallelism

    def __missing__(self, key: Any) -> int:
        if len(self) >= LIMITS.remembered_routes:
            self.clear()
        owner = self[key] = subtask_of(group_of(self._encode(key)), self._parallelism)
        return owner


def _by_key(owners: _Owners) -> Router:
    def split(batch: Batch[Any]) -> Parts:
        return _parts(batch, list(map(owners.__getitem__, batch.keys or ())))

    return split


def _parts(batch: Batch[Any], targets: Sequence[int]) -> Parts:
    """``targets``: the subtask of each row."""
    for target in sorted(set(targets)):
        rows = [index for index, owner in enumerate(targets) if owner == target]
        yield target, batch if len(rows) == len(targets) else batch.take(rows)


def _in_turn(subtask: int, parallelism: int) -> Router:
    turn = subtask

    def split(batch: Batch[Any]) -> Parts:
        nonlocal turn
        size = -(-len(batch) // parallelism)
        for start in range(0, len(batch), size):
            yield turn % parallelism, batch.take(range(start, min(start + size, len(batch))))
            turn += 1

    return split


def _copy(batch: Batch[Any], target: int) -> Batch[Any]:
    """The copy for one subtask: its branch says whose, so that copies are not taken for duplicates."""
    return replace(batch, branch=[f"{branch}{target}-" for branch in batch.branch or [""] * len(batch)])
