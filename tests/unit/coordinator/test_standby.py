"""Whether a supervisor that stands by should lead, and what it makes of heartbeats in a store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import LocalStorage, MemoryStorage
from kafka_eos.coordinator import heartbeats
from kafka_eos.coordinator.heartbeats import Heartbeat
from kafka_eos.coordinator.lock import is_held
from kafka_eos.coordinator.standby import Standby
from kafka_eos.errors import CorruptCheckpoint, JobLocked
from kafka_eos.protocol.standby import Leader, Move, Seen, decide

LEASE = 10.0
NEVER = float("inf")
ALIVE, HUNG = Leader(1, here=True, holds=True), Leader(10, here=True, holds=True)
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


ONE, OTHER = "0" * 16, "1" * 16


def put(storage: MemoryStorage, writer: str, count: int, content: bytes) -> None:
    storage.publish(paths.heartbeat_name(writer, count), content)


def test_the_newest_heartbeat_of_each_writer_counts() -> None:
    storage = MemoryStorage()
    put(storage, ONE, 9, b'{"host":"a","pid":1,"lock":"l"}')
    put(storage, ONE, 10, b'{"host":"a","pid":1,"lock":"l","ended":"left"}')
    put(storage, OTHER, 2, b'{"host":"b","pid":2,"lock":"m"}')

    assert heartbeats.read(storage) == {
        ONE: (10, Heartbeat("a", 1, "l", "left")),
        OTHER: (2, Heartbeat("b", 2, "m")),
    }


def test_what_is_no_heartbeat_is_named() -> None:
    storage = MemoryStorage()
    put(storage, ONE, 1, b"torn")

    with pytest.raises(CorruptCheckpoint, match=f"heartbeats/{ONE}-0000000001.json is no heartbeat"):
        heartbeats.read(storage)


def test_what_ends_a_leader_ends_it_also_if_it_is_a_lock(tmp_path: Path) -> None:
    """Of its local state, for example: the job's own lock was taken, and is free again afterwards."""
    lock = tmp_path / "job" / paths.LOCK
    standby = Standby(LocalStorage(tmp_path / "job"), lock, "job", LEASE, lambda event, **facts: None)

    def lead() -> None:
        with standby.leading(threading.Event()) as pulse:
            assert pulse is not None
            assert is_held(lock)
            pulse.end("left")
            raise JobLocked("local state")

    with pytest.raises(JobLocked, match="local state"):
        lead()
    assert not is_held(lock)


def test_a_store_without_heartbeats_has_none() -> None:
    assert heartbeats.read(MemoryStorage()) == {}
