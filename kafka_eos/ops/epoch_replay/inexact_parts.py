"""Limits of a replay: the parts of an epoch that it cannot repeat exactly, by operator.

Pure. Rule: a difference that the plan makes possible is listed, whether or not it mattered in this epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kafka_eos.plan import (
    AsyncMapNode,
    MapBatchesNode,
    Node,
    PartialFoldNode,
    Plan,
    ProcessNode,
    TimestampsNode,
    WindowNode,
)
from kafka_eos.plan.triggers import ClockTrigger
from kafka_eos.savepoints import Snapshot


def list_inexact_parts(
    plan: Plan, splits: Mapping[str, Collection[str]], parallelism: int, state: Snapshot
) -> dict[str, list[str]]:
    """Return the reasons by operator.

    ``splits``: the splits of which the epoch read records, by source. ``parallelism``: the number of its workers.
    """
    count = sum(map(len, splits.values()))
    expiring = set(_list_expiring(state))
    return {
        node.name: reasons
        for node in plan.nodes
        if (reasons := list(_list_reasons(plan, node, count, parallelism, node.name in expiring)))
    }


def _list_reasons(plan: Plan, node: Node, splits: int, parallelism: int, expires: bool) -> Iterator[str]:
    if splits > 1 and node.stateful and not isinstance(node, TimestampsNode):
        yield (
            f"nothing records how the records of {splits} partitions met here: the replay takes them by their "
            "timestamps"
        )
    if isinstance(node, TimestampsNode):
        yield (
            "event time advances after each record; the job's advanced between batches, so other rows may have been "
            "late"
        )
    if isinstance(node, AsyncMapNode):
        yield "its service is asked again, and may answer something else today"
    if isinstance(node, MapBatchesNode):
        yield "its function gets one row at a time; the job's batches were larger"
    if isinstance(node, PartialFoldNode) and parallelism > 1:
        yield f"one worker adds up all rows; in the job each of {parallelism} workers added up its own"
    if expires:
        yield ("state expires by the clock, which stands at the beginning of the epoch until all records are processed")
    if _uses_clock(node):
        yield "timers of processing time fire after the last record; in the job they fired between records"


def _uses_clock(node: Node) -> bool:
    by_trigger = isinstance(node, WindowNode) and isinstance(node.trigger, ClockTrigger)
    return by_trigger or (isinstance(node, ProcessNode) and node.processing_timers)


def _list_expiring(state: Snapshot) -> Iterator[str]:
    """Yield the operators with a state that expires by processing time."""
    for operator in state.operators():
        ttls: Sequence[Any] = [info.description.get("ttl") for info in state.states(operator).values()]
        if any(ttl is not None and ttl.get("clock", "processing") == "processing" for ttl in ttls):
            yield operator
