"""A worker's session over a real plan, without a supervisor."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kafka_eos import Pipeline
from kafka_eos.checkpoints.storage import MemoryStorage
from kafka_eos.embedded.control import Begin, Drop, Start
from kafka_eos.embedded.open_plan import OpenPlan
from kafka_eos.embedded.session import Mouth, run_session
from kafka_eos.embedded.task import Captured
from kafka_eos.interfaces import TaskContext
from kafka_eos.settings import Settings
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.sinks import MemoryWriter
from tests.waiting import PATIENCE


class Attentive(MemorySink):
    """Its writers wait to be attended to."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = threading.Semaphore(0)

    def writer(self, ctx: TaskContext) -> MemoryWriter:
        return AttentiveWriter(self, ctx)


class AttentiveWriter(MemoryWriter):
    _sink: Attentive

    def attend(self) -> None:
        self._sink.turns.release()


def test_a_writer_is_attended_to_again_and_again_while_there_is_nothing_to_write(tmp_path: Path) -> None:
    sink, pipeline = Attentive(), Pipeline("quiet")
    pipeline.source(ListSource([]), name="in").sink(sink, name="out")
    storage, told = MemoryStorage(), lambda restored: None
    start = Start(
        session=1,
        identity="0123456789ab",
        term=1,
        first_epoch=1,
        parallelism=1,
        peers=(),
        positions={},
        states=(),
        in_flight=(),
        ends=None,
    )

    def opened(done: Callable[[int, Sequence[Captured]], None]) -> OpenPlan:
        return OpenPlan(pipeline.plan(), Settings(), storage, start, [tmp_path / "1"], 0, {}, done, told)

    ours, theirs = socket.socketpair()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    inbox.put((Begin(session=1), []))
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        session = thread.submit(run_session, opened, 10, storage, start, Mouth(ours), [tmp_path], inbox)
        found = [sink.turns.acquire(timeout=PATIENCE) for _ in range(2)]
        inbox.put((Drop(session=1), []))
        session.result(PATIENCE)

    assert found == [True, True]
