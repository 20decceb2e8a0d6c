"""Whose turn it is to lead, by what a standby sees."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kafka_eos.protocol.standby import Leader, Move, Seen, decide

LEASE = 10.0
NEVER = float("inf")
ALIVE, HUNG = Leader(1, here=True, holds=True), Leader(10, here=True, holds=True)
HUNG_AT_ITS_END = Leader(10, here=True, holds=True, ended="left")
NEAR, FAR, SILENT = Leader(1, here=True), Leader(1, here=False), Leader(10, here=False)
LEFT, STOPPED = Leader(1, here=False, ended="left"), Leader(1, here=False, ended="stopped")
STOPPED_BEFORE = Leader(1, here=False, ended="stopped", known=True)


@pytest.mark.parametrize(
    ("locked", "leaders", "quiet", "move"),
    [
        pytest.param(False, [], NEVER, Move.LEAD, id="nobody ever led"),
        pytest.param(False, [], 1, Move.WAIT, id="one without heartbeats may lead elsewhere"),
        pytest.param(False, [], 10, Move.LEAD, id="one without heartbeats writes nothing any more"),
        pytest.param(True, [], NEVER, Move.WAIT, id="one without heartbeats leads here"),
        pytest.param(True, [ALIVE], NEVER, Move.WAIT, id="one leads here"),
        pytest.param(True, [HUNG], NEVER, Move.UNSEAT, id="one hangs here"),
        pytest.param(
            True, [Leader(10, here=True)], NEVER, Move.WAIT, id="another process holds the lock of a dead one"
        ),
        pytest.param(True, [HUNG_AT_ITS_END], NEVER, Move.WAIT, id="one has left, its process takes long to end"),
        pytest.param(True, [SILENT], NEVER, Move.WAIT, id="one is gone elsewhere, another leads here"),
        pytest.param(False, [NEAR], 1, Move.LEAD, id="one of this machine is dead: its lock is free"),
        pytest.param(False, [FAR], NEVER, Move.WAIT, id="one leads elsewhere"),
        pytest.param(False, [SILENT], 1, Move.LEAD, id="one elsewhere is silent"),
        pytest.param(False, [LEFT], 1, Move.LEAD, id="one has left"),
        pytest.param(False, [LEFT, FAR], NEVER, Move.WAIT, id="one has left, another leads"),
        pytest.param(False, [STOPPED], 1, Move.END, id="the job was stopped meanwhile"),
        pytest.param(True, [STOPPED], 1, Move.END, id="the job was stopped, its process still ends"),
        pytest.param(False, [STOPPED_BEFORE], 1, Move.LEAD, id="the job was stopped before this one began"),
    ],
)
def test_whose_turn_it_is(locked: bool, leaders: Sequence[Leader], quiet: float, move: Move) -> None:
    assert decide(Seen(locked, leaders, quiet), LEASE) is move
