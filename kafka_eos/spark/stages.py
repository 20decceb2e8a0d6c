"""The plan as the stages of one Spark job: operator chains at the same depth behind the exchanges run in one stage.

Pure. A job is a chain of stages with one shuffle between two of them, so each stage runs exactly once for any shape of
the plan. Rows for a deeper stage pass through those before it.
Rule: an exchange leads to a deeper stage than the one it starts from. Edges that lead back cannot run in an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_eos.core.errors import PlanError
from kafka_eos.plan import ChainSpec, Plan, TimestampsNode


@dataclass(frozen=True, slots=True)
class SparkStage:
    """One stage of the Spark job: its operators, sources and exchanges read.

    ``heads``: exchanges whose rows are read here; ``sources``: read here.
    """

    index: int
    nodes: frozenset[str]
    heads: frozenset[str]
    sources: tuple[str, ...]


def split_into_stages(plan: Plan) -> tuple[SparkStage, ...]:
    """Return the stages of a plan in order. Raise PlanError for loops and for idleness detection."""
    if plan.feedbacks:
        raise PlanError(
            f"pipeline {plan.name!r} has a loop: an epoch on Spark is one job and cannot iterate. Run it on the "
            f"embedded engine, or loop through a topic.\n  {plan.feedbacks[0].code_line}"
        )
    for node in plan.nodes:
        if isinstance(node, TimestampsNode) and node.strategy.detects_idleness:
            raise PlanError(
                f"{node.kind} {node.name!r} needs idleness detection, which Spark cannot do between epochs: an epoch "
                "starts only when there is something to read. Leave .with_idleness(...) and .with_clock(...) out, or "
                f"run it on the embedded engine.\n  {node.code_line}"
            )
    depths = _depths(plan)
    return tuple(_level(plan, depth, depths) for depth in range(max(depths.values()) + 1))


def find_reading_stages(stages: tuple[SparkStage, ...]) -> Mapping[str, int]:
    """Return which stage reads each exchange."""
    return {head: level.index for level in stages for head in level.heads}


def _level(plan: Plan, depth: int, depths: Mapping[int, int]) -> SparkStage:
    here = [segment for segment in plan.segments if depths[segment.index] == depth]
    sources = {source.name for source in plan.sources}
    heads = [head for segment in here for head in segment.heads]
    return SparkStage(
        depth,
        frozenset(name for segment in here for name in segment.nodes),
        frozenset(head for head in heads if head not in sources),
        tuple(head for head in heads if head in sources),
    )


def _depths(plan: Plan) -> dict[int, int]:
    """Return the number of exchanges before each operator chain, by the chain's index."""
    from_segment = {tail: segment for segment in plan.segments for tail in segment.tails}
    depths: dict[int, int] = {}

    def depth(segment: ChainSpec) -> int:
        if segment.index not in depths:
            before = {from_segment[head].index: from_segment[head] for head in segment.heads if head in from_segment}
            depths[segment.index] = max((depth(each) + 1 for each in before.values()), default=0)
        return depths[segment.index]

    for segment in plan.segments:
        depth(segment)
    return depths
