"""A worker's session over a real plan, without a supervisor."""

from __future__ import annotations

import errno
import hashlib
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.committer import UnstoredCommittable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import PreCommit
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import InputLost, LossCause
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.runtime.worker.chain_snapshot import ChainSnapshot
from kafka_eos.runtime.worker.control_messages import (
    AcknowledgeCheckpoint,
    BeginProcessing,
    DeclineCheckpoint,
    EndSession,
    PauseReading,
    SessionFailed,
    StartSession,
    TriggerCheckpoint,
    receive_as_supervisor,
)
from kafka_eos.runtime.worker.session import failure, run_session
from kafka_eos.runtime.worker.worker_connections import UnixConnections
from kafka_eos.runtime.worker.worker_runtime import SessionRuntime
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.storage.provenance_files import ProvenanceReader
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.memory_sink import MemoryWriter
from tests.unit.runtime.operators.test_due_work import SLICES, amid
from tests.waiting import PATIENCE, eventually


class Attentive(MemorySink):
    """Its writers wait to be attended to."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = threading.Semaphore(0)

    def writer(self, ctx: TaskContext) -> MemoryWriter:
        return AttentiveWriter(self, ctx)


class AttentiveWriter(MemoryWriter):
    _sink: Attentive

    def poll(self) -> None:
        self._sink.turns.release()


def _start(states: tuple[StateHandle, ...] = ()) -> StartSession:
    return StartSession(
        session=1,
        identity="0123456789ab",
        term=1,
        first_epoch=1,
        subtask=0,
        parallelism=1,
        peers=(),
        positions={},
        states=states,
        in_flight=(),
        ends=None,
        waiting_sources=frozenset(),
        excluded_sources=frozenset(),
    )


def test_a_writer_is_attended_to_again_and_again_while_there_is_nothing_to_write(tmp_path: Path) -> None:
    sink, pipeline = Attentive(), Pipeline("quiet")
    pipeline.source(ListSource([]), name="in").sink(sink, name="out")
    storage, told = MemoryStorage(), lambda restored: None
    start = _start()

    def opened(done: Callable[[int, Sequence[ChainSnapshot]], None]) -> SessionRuntime:
        return SessionRuntime(pipeline.plan(), Settings(), storage, start, [tmp_path / "1"], {}, done, told)

    ours, theirs = socket.socketpair()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    inbox.put(BeginProcessing(session=1))
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        session = thread.submit(run_session, opened, 10, storage, start, UnixConnections(ours).send, [tmp_path], inbox)
        found = [sink.turns.acquire(timeout=PATIENCE) for _ in range(2)]
        inbox.put(EndSession(session=1))
        session.result(PATIENCE)

    assert found == [True, True]


class Telling(MemorySink):
    """Each epoch of its writers prepares a committable with a file of provenance, whether or not it has rows."""

    def writer(self, ctx: TaskContext) -> MemoryWriter:
        return TellingWriter(self, ctx)


class TellingWriter(MemoryWriter):
    def seal(self, epoch: EpochId) -> PreCommit:
        content = b"of %d" % epoch.epoch.n
        ref = FileRef(f"4-{epoch.epoch}", hashlib.sha256(content).hexdigest(), len(content))
        return lambda: (UnstoredCommittable("memory", {}, 1, {"out": 1}, {}, ref, content),)


class FullOnce(MemoryStorage):
    """Has no room for the first file of provenance."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def publish(self, name: str, data: bytes) -> None:
        if name.startswith(paths.PROVENANCE) and not self.refused:
            self.refused += 1
            raise OSError(errno.ENOSPC, "no room", name)
        super().publish(name, data)


def test_provenance_that_cannot_be_stored_lets_the_checkpoint_fail_and_goes_with_the_next(tmp_path: Path) -> None:
    pipeline, storage, start = Pipeline("told"), FullOnce(), _start()
    pipeline.source(ListSource([]), name="in").sink(Telling(), name="out")

    def opened(done: Callable[[int, Sequence[ChainSnapshot]], None]) -> SessionRuntime:
        return SessionRuntime(
            pipeline.plan(), Settings(), storage, start, [tmp_path / "1"], {}, done, lambda restored: None
        )

    ours, theirs = socket.socketpair()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    inbox.put(BeginProcessing(session=1))
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        session = thread.submit(run_session, opened, 10, storage, start, UnixConnections(ours).send, [tmp_path], inbox)
        answers = (
            said
            for said in receive_as_supervisor(theirs)
            if isinstance(said, AcknowledgeCheckpoint | DeclineCheckpoint | SessionFailed)
        )
        inbox.put(TriggerCheckpoint(session=1, epoch=_epoch(1), last=False, aligned=True))
        declined = next(answers)
        inbox.put(TriggerCheckpoint(session=1, epoch=_epoch(2), last=False, aligned=True))
        taken = next(answers)
        inbox.put(EndSession(session=1))
        session.result(PATIENCE)

    assert isinstance(declined, DeclineCheckpoint), declined
    assert "no room" in declined.reason
    assert isinstance(taken, AcknowledgeCheckpoint), taken
    refs = [each.provenance for sealed in taken.sealed for each in sealed.committables]
    assert [ref.name for ref in refs if ref] == ["4-1", "4-2"]
    assert [ProvenanceReader(storage).load(ref, Epoch(2)) for ref in refs if ref] == [b"of 1", b"of 2"]


def _epoch(number: int) -> EpochId:
    return EpochId(Epoch(number), Term(1))


def test_what_a_snapshot_has_left_of_a_time_is_done_when_the_session_begins(tmp_path: Path) -> None:
    """No watermark and no row comes here that would do it."""
    storage = MemoryStorage()
    with ExitStack() as closing:
        plan, handles = amid("timers", tmp_path / "before", closing, storage)
    start = _start(tuple(handles))

    def opened(done: Callable[[int, Sequence[ChainSnapshot]], None]) -> SessionRuntime:
        return SessionRuntime(plan, Settings(), storage, start, [tmp_path / "1"], {}, done, lambda restored: None)

    ours, theirs = socket.socketpair()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    inbox.put(BeginProcessing(session=1))
    inbox.put(TriggerCheckpoint(session=1, epoch=_epoch(1), last=False, aligned=True))
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        session = thread.submit(
            run_session, opened, 10, storage, start, UnixConnections(ours).send, [tmp_path / "local"], inbox
        )
        taken = next(
            said
            for said in receive_as_supervisor(theirs)
            if isinstance(said, AcknowledgeCheckpoint | DeclineCheckpoint | SessionFailed)
        )
        inbox.put(EndSession(session=1))
        session.result(PATIENCE)

    assert isinstance(taken, AcknowledgeCheckpoint), taken
    assert taken.timers["first"] == 1, "all but that of a later time"


class Noting(queue.SimpleQueue[Any]):
    """Notes of each look for a message whether it waits for one."""

    def __init__(self) -> None:
        self.waits: list[bool] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.waits.append(block)
        return super().get(block, timeout)


@pytest.mark.limits(firings_per_slice=500)
def test_a_session_that_reads_nothing_waits_for_messages_only_when_no_work_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_eos.runtime.worker.worker_runtime.PERIODIC", SLICES)
    storage, inbox = MemoryStorage(), Noting()
    with ExitStack() as closing:
        plan, handles = amid("timers", tmp_path / "before", closing, storage)
    start = _start(tuple(handles))

    def opened(done: Callable[[int, Sequence[ChainSnapshot]], None]) -> SessionRuntime:
        return SessionRuntime(plan, Settings(), storage, start, [tmp_path / "1"], {}, done, lambda restored: None)

    ours, theirs = socket.socketpair()
    inbox.put(BeginProcessing(session=1))
    inbox.put(PauseReading(session=1))
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        session = thread.submit(
            run_session, opened, 10, storage, start, UnixConnections(ours).send, [tmp_path / "local"], inbox
        )
        eventually(lambda: inbox.waits.count(True) > 1, "it waits")
        inbox.put(EndSession(session=1))
        session.result(PATIENCE)

    first, *waits = inbox.waits
    assert first, "for the other workers"
    assert waits.index(True) > 3, "work was due"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (LossCause.EXPIRED, "restart"),
        (LossCause.MISSING, "restart"),
        (LossCause.REPLACED, "restart"),
        (LossCause.ALTERED, "user"),
    ],
)
def test_a_reader_without_its_input_ends_the_job_only_if_a_restart_could_hide_that(cause: LossCause, kind: str) -> None:
    assert failure(3, InputLost("gone", cause)).kind == kind
