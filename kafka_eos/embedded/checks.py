"""What a session refuses before it begins: plans that cannot be cut, and rows under way that no way leads on.

Rule: a refusal says what to change in the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka_eos.errors import PlanError
from kafka_eos.exchange import in_flight
from kafka_eos.interfaces import InFlight, ListCodec
from kafka_eos.plan import Feedback, Plan, Segment
from kafka_eos.protocol.cycles import back_edges


def check_order(plan: Plan, segments: Sequence[Segment]) -> None:
    """Refuse a segment that waits for its own barrier: where a way with an exchange meets one without."""
    ways = {
        (one.index, other.index): name
        for one in segments
        for other in segments
        for name in one.tails
        if name in other.heads and not isinstance(plan.node(name), Feedback)
    }
    for way in back_edges((segment.index for segment in segments), ways):
        node = plan.node(ways[way])
        raise PlanError(
            f"what has passed {node.kind} {node.name!r} meets values that have not: with more than one worker, put "
            f".rebalance() on the other way, before the union.\n  {node.where}"
        )


def check_rows(part: InFlight, wires: Mapping[str, ListCodec[Any]]) -> None:
    """Refuse rows under way that the plan has no way for. PlanError, or ConfigError for another codec."""
    if part.exchange not in wires:
        raise PlanError(
            f"the checkpoint holds rows on their way through {part.exchange!r}, but the pipeline has no exchange of "
            "that name. Run the old version until it has stopped with a savepoint, which holds no such rows."
        )
    in_flight.check_codec(part, wires[part.exchange])
