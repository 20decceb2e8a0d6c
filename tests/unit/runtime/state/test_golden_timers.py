"""Pending timers and times of splits that version 1 has stored: read, divided anew, and fired by today's code.

``tests/golden/timers`` holds the job directories, and the job that wrote them from sixty payments. Rule: as in
``test_golden``, they are never written again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from state_world import Kind

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import KeyCodec, state_codec
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.timers import create_timer_descriptor
from kafka_eos.savepoints import Snapshot

GOLDEN = Path(__file__).parents[3] / "golden" / "timers"
FAR = 10**15
WATERMARK = 1299
"""What it had come to: the first source had brought 1800 and 1900, and may be half a second out of order."""
PENDING = [(n * 100, f"a{n % 20}") for n in range(60) if n * 100 > WATERMARK]
CLOCK = [(FAR + n, f"a{n % 20}") for n in range(60)]


class Newest(msgspec.Struct):
    time: int


jobs = pytest.mark.parametrize("job", ["golden-memory", "golden-rocksdb"])


@jobs
@pytest.mark.parametrize(("kind", "parallelism"), [("rocksdb", 1), ("memory", 1), ("rocksdb", 3), ("memory", 3)])
def test_timers_fire_that_had_not_and_no_others(job: str, kind: Kind, parallelism: int, tmp_path: Path) -> None:
    snapshot = Snapshot.open(GOLDEN / job)
    events: list[tuple[int, Any]] = []
    clocks: list[tuple[int, Any]] = []
    for subtask in range(parallelism):
        groups, handles = key_group_range(subtask, parallelism), snapshot.handles_of("waits")
        backend = open_backend(kind, "waits", tmp_path / str(subtask), groups, handles, snapshot.storage)
        of_events = backend.timers(create_timer_descriptor("event-timers", KeyCodec()))
        of_clock = backend.timers(create_timer_descriptor("processing-timers", KeyCodec()))
        assert of_events.get_time("a1") == WATERMARK
        assert WATERMARK < of_clock.get_time("a1") < FAR
        events += [(time, key) for time, key, _ in of_events.pop_due(FAR)]
        clocks += [(time, key) for time, key, _ in of_clock.pop_due(2 * FAR)]
        backend.close()

    assert sorted(events) == PENDING
    assert sorted(clocks) == CLOCK


@jobs
@pytest.mark.parametrize(
    ("operator", "state", "tp", "found"),
    [
        ("bounded", "newest", int, {"list/0": 1800, "list/1": 1900}),
        ("own", "generated", Newest, {"list/0": Newest(4800), "list/1": Newest(4900)}),
    ],
)
def test_event_time_of_splits_goes_on(job: str, operator: str, state: str, tp: Any, found: Any, tmp_path: Path) -> None:
    snapshot = Snapshot.open(GOLDEN / job)
    handles = snapshot.handles_of(operator)
    backend = open_backend(
        "memory", operator, tmp_path / "state", key_group_range(1, 3), handles, snapshot.storage, by_split=True
    )

    assert dict(backend.value(StateDescriptor(state, KeyCodec(), state_codec(tp))).items()) == found
    backend.close()


@jobs
def test_they_are_read_without_the_job(job: str) -> None:
    snapshot = Snapshot.open(GOLDEN / job)

    assert dict(snapshot.read("waits", "event-timers")) == {(key, time): True for time, key in PENDING}
    assert dict(snapshot.read("waits", "processing-timers")) == {(key, time): True for time, key in CLOCK}
    assert dict(snapshot.read("own", "generated"))["list/1"] == {"time": 4900}
