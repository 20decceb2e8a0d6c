"""What a checkpoint tells of windows that were over and not closed: each key once, and none that has its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kafka_eos import tumbling
from kafka_eos.abc.state import StateDescriptor, StateHandle
from kafka_eos.audit.tables.windows.pending_timers import _unfired
from kafka_eos.codecs import MsgpackCodec, StrCodec
from kafka_eos.core.ids import Epoch
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.timers import TimeCodec, create_timer_descriptor
from kafka_eos.storage.job_storage import LocalStorage

KEYS = ["a", "b", "c", "d"]


def test_timers_that_an_earlier_version_has_set_say_nothing_of_windows_of_one_pane(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    backend = open_backend("memory", "sums", tmp_path / "state", range(128), (), storage)
    held: MsgpackCodec[int] = MsgpackCodec(int)
    panes = backend.panes(StateDescriptor("windows", StrCodec(), held, "pane", entry=TimeCodec()))
    waiting = backend.timers(create_timer_descriptor(EVENT_STATE, StrCodec()))
    panes.views({0: KEYS})[0].update(dict.fromkeys(KEYS, 1))
    for key in KEYS:
        waiting.add(key, 9)
    due = waiting.pop_due(9)
    next(iter(due))  # the pane is closed when all of them have come

    before = backend.snapshot(Epoch(1))(storage)
    closed = [key for taken in panes.take_pane(0) for key in taken.keys]
    after = backend.snapshot(Epoch(2))(storage)

    assert sorted(told(before, storage)) == [(key.encode(), 9) for key in KEYS]
    assert sorted(closed) == KEYS and told(after, storage) == []


def told(handle: StateHandle, storage: LocalStorage) -> list[tuple[Any, Any]]:
    batches = _unfired(handle, storage, tumbling(seconds=0.010))
    return [(row["grp"], row["unfired"]) for batch in batches for row in batch.to_pylist()]
