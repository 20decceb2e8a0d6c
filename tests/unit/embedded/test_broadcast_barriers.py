"""What is broadcast into a state is cut at one place in all workers: its reader waits for barriers, which overtake none
of it.
"""

from __future__ import annotations

import math
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos.config.settings import Settings
from kafka_eos.plan import Plan
from kafka_eos.protocol.barrier_alignment import CheckpointMode
from kafka_eos.runtime.exchange.channels import Exchanges
from kafka_eos.runtime.worker.worker_runtime import alignment_of
from tests.unit.runtime.operators.test_broadcasts import Over, Plain, flow, told
from tests.unit.runtime.operators.test_event_time import rows


@pytest.mark.parametrize("function", [Plain, Over])
@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("unaligned", (CheckpointMode.ALIGNED, math.inf)),
        ("aligned", (CheckpointMode.ALIGNED, math.inf)),
        ("at-least-once", (CheckpointMode.AT_LEAST_ONCE, math.inf)),
    ],
)
def test_only_the_segment_where_rows_meet_rules_waits(
    mode: Any, function: Any, found: tuple[CheckpointMode, float]
) -> None:
    plan = flow(function).plan()
    settings = Settings.resolve(code={"checkpoint_mode": mode})
    (behind,) = (each for each in plan.segments if "rules-broadcast" in each.heads)
    (before,) = (each for each in plan.segments if "rules" in each.heads)

    assert alignment_of(settings, behind, plan) == found
    assert alignment_of(settings, before, plan)[0] is (CheckpointMode.UNALIGNED if mode == "unaligned" else found[0])


def overtaken(plan: Plan, exchange: str, batch: Any, tmp_path: Path) -> list[bytes]:
    """The frames on their way to another worker that a barrier would go before."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ExitStack() as closing:
        exchanges = Exchanges(plan, Settings(), plan.exchanges, {1: ours}, 0, 2, tmp_path, closing)
        edge = exchanges.edges[exchange]
        exchanges.make_row_output(edge, lambda edge, batch: None)(batch)
        return list(exchanges.send_barrier(edge, 1, overtake=True, aligned=False))


def test_a_barrier_overtakes_rows_of_the_stream_and_nothing_that_is_broadcast(tmp_path: Path) -> None:
    plan = flow(Over).plan()
    keys = [f"k{n}" for n in range(20)]
    stream = replace(rows([(key, 1) for key in keys], [0] * 20, source="stream"), keys=keys)

    assert plan.replicating_exchanges == {"rules-broadcast"}
    assert overtaken(plan, "rules-broadcast", told(("a", 1)), tmp_path) == []
    assert len(overtaken(plan, "by-key", stream, tmp_path)) == 1
