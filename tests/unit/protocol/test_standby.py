"""Whose turn it is to lead, by what a standby sees."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kafka_eos.protocol.standby import LeadershipView, LeaderSighting, StandbyMove, decide_move

LEASE = 10.0
NEVER = float("inf")
ALIVE, HUNG = (
    LeaderSighting(1, on_this_lock=True, holds_lock=True),
    LeaderSighting(10, on_this_lock=True, holds_lock=True),
)
HUNG_AT_ITS_END = LeaderSighting(10, on_this_lock=True, holds_lock=True, ended="left")
NEAR, FAR, SILENT = (
    LeaderSighting(1, on_this_lock=True),
    LeaderSighting(1, on_this_lock=False),
    LeaderSighting(10, on_this_lock=False),
)
LEFT, STOPPED = (
    LeaderSighting(1, on_this_lock=False, ended="left"),
    LeaderSighting(1, on_this_lock=False, ended="stopped"),
)
STOPPED_BEFORE = LeaderSighting(1, on_this_lock=False, ended="stopped", ended_before=True)


@pytest.mark.parametrize(
    ("locked", "leaders", "quiet", "move"),
    [
        pytest.param(False, [], NEVER, StandbyMove.LEAD, id="nobody ever led"),
        pytest.param(False, [], 1, StandbyMove.WAIT, id="one without heartbeats may lead elsewhere"),
        pytest.param(False, [], 10, StandbyMove.LEAD, id="one without heartbeats writes nothing any more"),
        pytest.param(True, [], NEVER, StandbyMove.WAIT, id="one without heartbeats leads here"),
        pytest.param(True, [ALIVE], NEVER, StandbyMove.WAIT, id="one leads here"),
        pytest.param(True, [HUNG], NEVER, StandbyMove.KILL_HOLDER, id="one hangs here"),
        pytest.param(
            True,
            [LeaderSighting(10, on_this_lock=True)],
            NEVER,
            StandbyMove.WAIT,
            id="another process holds the lock of a dead one",
        ),
        pytest.param(
            True, [HUNG_AT_ITS_END], NEVER, StandbyMove.WAIT, id="one has left, its process takes long to end"
        ),
        pytest.param(True, [SILENT], NEVER, StandbyMove.WAIT, id="one is gone elsewhere, another leads here"),
        pytest.param(False, [NEAR], 1, StandbyMove.LEAD, id="one of this machine is dead: its lock is free"),
        pytest.param(False, [FAR], NEVER, StandbyMove.WAIT, id="one leads elsewhere"),
        pytest.param(False, [SILENT], 1, StandbyMove.LEAD, id="one elsewhere is silent"),
        pytest.param(False, [LEFT], 1, StandbyMove.LEAD, id="one has left"),
        pytest.param(False, [LEFT, FAR], NEVER, StandbyMove.WAIT, id="one has left, another leads"),
        pytest.param(False, [STOPPED], 1, StandbyMove.STAND_DOWN, id="the job was stopped meanwhile"),
        pytest.param(True, [STOPPED], 1, StandbyMove.STAND_DOWN, id="the job was stopped, its process still ends"),
        pytest.param(False, [STOPPED_BEFORE], 1, StandbyMove.LEAD, id="the job was stopped before this one began"),
    ],
)
def test_whose_turn_it_is(locked: bool, leaders: Sequence[LeaderSighting], quiet: float, move: StandbyMove) -> None:
    assert decide_move(LeadershipView(locked, leaders, quiet), LEASE) is move
