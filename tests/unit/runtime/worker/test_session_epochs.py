"""A worker's session over several epochs: what each answer names, and what the next session goes on from."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import Pipeline, ProcessContext, ProcessFunction
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import DeadLetters, PreCommit
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Plan
from kafka_eos.runtime.worker.chain_snapshot import ChainSnapshot
from kafka_eos.runtime.worker.control_messages import (
    AcknowledgeCheckpoint,
    AssignSplits,
    BeginProcessing,
    ConfirmAbort,
    ControlMessage,
    DeclineCheckpoint,
    EndSession,
    NotifyCheckpointAborted,
    NotifyCheckpointCommitted,
    SessionFailed,
    StartSession,
    TriggerCheckpoint,
    receive_as_supervisor,
)
from kafka_eos.runtime.worker.session import run_session
from kafka_eos.runtime.worker.worker_connections import UnixConnections
from kafka_eos.runtime.worker.worker_runtime import SessionRuntime
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.memory_sink import MemoryWriter
from tests.examples import examples
from tests.waiting import PATIENCE

M = TypeVar("M", bound=ControlMessage)


class SessionThread:
    """A session on its thread, and the supervisor's end of its socket. It is dropped with ``closing``."""

    def __init__(
        self, plan: Plan, start: StartSession, storage: MemoryStorage, place: Path, closing: ExitStack
    ) -> None:
        self._start, self._inbox = start, queue.SimpleQueue[Any]()
        settings = Settings(batch_size=2, checkpoint_mode="unaligned", aligned_timeout=0.0)

        def opened(done: Callable[[int, Sequence[ChainSnapshot]], None]) -> SessionRuntime:
            return SessionRuntime(
                plan, settings, storage, start, [place / str(start.term)], {}, done, lambda restored: None
            )

        ours, theirs = socket.socketpair()
        closing.enter_context(ours)
        closing.enter_context(theirs)
        thread = closing.enter_context(ThreadPoolExecutor(1))
        self._messages = receive_as_supervisor(theirs)
        self._session: Future[None] = thread.submit(
            run_session, opened, 2, storage, start, UnixConnections(ours).send, [place], self._inbox
        )
        closing.callback(self.drop)
        self.send(BeginProcessing(session=start.session))

    def send(self, message: ControlMessage) -> None:
        self._inbox.put(message)

    def trigger(self, number: int, *, aligned: bool = False, last: bool = False) -> None:
        self.send(TriggerCheckpoint(session=self._start.session, epoch=self.name(number), last=last, aligned=aligned))

    def name(self, number: int) -> EpochId:
        return EpochId(Epoch(number), Term(self._start.term))

    def hear(self, kind: type[M]) -> M:
        """The next answer, which is of this kind."""
        answer = next(
            message
            for message in self._messages
            if isinstance(message, AcknowledgeCheckpoint | DeclineCheckpoint | ConfirmAbort | SessionFailed)
        )
        assert isinstance(answer, kind), answer
        return answer

    def drop(self) -> None:
        self.send(EndSession(session=self._start.session))
        self._session.result(PATIENCE)


def _start(
    positions: Mapping[str, Positions], epoch: int = 1, term: int = 1, base: AcknowledgeCheckpoint | None = None
) -> StartSession:
    return StartSession(
        session=term,
        identity="0123456789ab",
        term=term,
        first_epoch=epoch,
        subtask=0,
        parallelism=1,
        peers=(),
        positions=dict(positions),
        states=base.states if base else (),
        in_flight=base.in_flight if base else (),
        ends=None,
        waiting_sources=frozenset(),
        excluded_sources=frozenset(),
    )


# ---------------------------------------------------------------- what an answer names


class NumberSink(MemorySink):
    """Each epoch of its writer is one committable; it keeps of which it was told that they are committed."""

    def __init__(self) -> None:
        super().__init__()
        self.notices: list[int] = []

    def writer(self, ctx: TaskContext) -> MemoryWriter:
        return _NumberWriter(self, ctx)


class _NumberWriter(MemoryWriter):
    _sink: NumberSink

    def seal(self, epoch: EpochId) -> PreCommit:
        return lambda: (Committable(self._ctx.operator, {"epoch": epoch.epoch.n}, 1),)

    def notify_committed(self, epoch: EpochId) -> None:
        self._sink.notices.append(epoch.epoch.n)


steps = st.lists(st.sampled_from(["commit", "abort"]) | st.integers(1, 6), max_size=9)
"""An epoch that is answered, one that is aborted, or the notice that this one is committed, be it late or once more."""


@examples(20)
@given(steps)
def test_an_answer_names_all_output_up_to_it_that_is_not_known_to_be_committed(script: list[str | int]) -> None:
    """A notice frees its epoch and those before it, and nothing of later ones. Every writer hears of it."""
    one, other, pipeline = NumberSink(), NumberSink(), Pipeline("numbers")
    stream = pipeline.source(ListSource([]), name="in")
    stream.sink(one, name="one")
    stream.sink(other, name="other")
    undecided, epoch, notices = list[int](), 0, list[int]()
    with ExitStack() as closing:
        place = Path(closing.enter_context(TemporaryDirectory()))
        session = SessionThread(pipeline.plan(), _start({}), MemoryStorage(), place, closing)
        for step in [*script, "commit", "commit"]:
            if isinstance(step, int):
                if step <= epoch:
                    session.send(NotifyCheckpointCommitted(session=1, epoch=session.name(step)))
                    notices.append(step)
                    undecided = [number for number in undecided if number > step]
                continue
            epoch += 1
            undecided.append(epoch)
            session.trigger(epoch)
            answer = session.hear(AcknowledgeCheckpoint)
            if step == "abort":
                session.send(NotifyCheckpointAborted(session=1, epoch=session.name(epoch)))
                assert session.hear(ConfirmAbort).epoch == session.name(epoch)
            assert [sealed.epoch.n for sealed in answer.sealed] == undecided
            for sealed in answer.sealed:
                named = sorted((each.scope, each.payload["epoch"]) for each in sealed.committables)
                assert named == [("one", sealed.epoch.n), ("other", sealed.epoch.n)]
    assert (one.notices, other.notices) == (notices, notices)


class Refusing(ProcessFunction[int, int, int]):
    """Refuses one value, and has a timer for each key."""

    def __init__(self, refused: int) -> None:
        self.refused = refused

    def open(self, ctx: ProcessContext) -> None:
        self.timers = ctx.processing_timers()

    def process(self, key: int, value: int) -> Iterator[int]:
        if value == self.refused:
            raise ValueError("refused")
        self.timers.register(2**42)
        yield value

    def on_processing_timer(self, key: int, time: int) -> Iterator[int]:
        yield from ()


def test_an_answer_counts_what_each_chain_has_read_and_refused_and_waits_for(tmp_path: Path) -> None:
    async def ask(value: int) -> int:
        return value

    pipeline, refused = Pipeline("counts"), DeadLetters(MemorySink())
    read = pipeline.source(ListSource(range(8)), name="in", on_error=refused)
    first = read.key_by(_digit, name="by", values=int).process(Refusing(3), name="first")
    asked = first.async_map(ask, name="ask", values=int)
    asked.key_by(_digit, name="again", values=int).process(Refusing(5), name="second").sink(MemorySink(), name="out")
    pipeline.source(ListSource(range(3), name="other"), name="other").sink(MemorySink(), name="aside")
    positions: dict[str, Positions] = {
        "in": {SplitId("list/0"): {"index": 0}}, "other": {SplitId("other/0"): {"index": 0}}
    }  # fmt: skip
    with ExitStack() as closing:
        session = SessionThread(pipeline.plan(), _start(positions), MemoryStorage(), tmp_path, closing)
        for epoch in range(1, 300):
            session.trigger(epoch)
            answer = session.hear(AcknowledgeCheckpoint)
            if answer.timers == {"first": 7, "second": 6}:
                break

    assert answer.timers == {"first": 7, "second": 6}
    assert answer.tally.read == {"in": 8, "other": 3}
    assert answer.tally.refused == {"in": {"first": 1, "second": 1}}
    assert answer.positions == {
        "in": {SplitId("list/0"): {"index": 8}}, "other": {SplitId("other/0"): {"index": 3}}
    }  # fmt: skip


# ---------------------------------------------------------------- what the next session goes on from


class OrderCheck(ProcessFunction[int, Any, Any]):
    """Fails unless the values of a key come one after the other."""

    def open(self, ctx: ProcessContext) -> None:
        self.next = ctx.value_state("next", int, 0)

    def process(self, key: int, value: Any) -> Iterator[Any]:
        number = value // 10
        assert number == self.next.get(), f"{value} comes where {self.next.get()} is due"
        self.next.put(number + 1)
        yield value


ROWS, KEYS = 12, 3


def _numbers(first: int = 0) -> list[int]:
    """``ROWS`` of each key, which is the last digit; the next ones are ten more."""
    return [n * 10 + key for n in range(ROWS) for key in range(first, first + KEYS)]


def _digit(value: int) -> int:
    return value % 10


def _asking(answer: threading.Semaphore) -> tuple[Plan, MemorySink, MemorySink]:
    """Each value is asked about between two operators that count along; so many are answered as are let through."""

    async def ask(value: int) -> int:
        while not answer.acquire(blocking=False):
            await asyncio.sleep(0.001)
        return value

    pipeline, before, after = Pipeline("asks"), MemorySink(), MemorySink()
    counted = pipeline.source(ListSource(_numbers()), name="in").key_by(_digit, name="by", values=int)
    first = counted.process(OrderCheck, name="first")
    first.sink(before, name="before")
    late = pipeline.source(ListSource(_numbers(5), name="late"), name="late")
    answered = first.async_map(ask, name="ask", values=int, capacity=5).union(late, name="both")
    answered.key_by(_digit, name="again", values=int).process(OrderCheck, name="second").sink(after, name="after")
    return pipeline.plan(), before, after


def _decide(ack: AcknowledgeCheckpoint, sinks: Sequence[MemorySink]) -> None:
    for committable in (each for sealed in ack.sealed for each in sealed.committables):
        (sink,) = [sink for sink in sinks if f"memory:{id(sink):x}" == committable.scope]
        sink.commit(str(committable.payload["name"]))


@pytest.mark.limits("tiny")
def test_rows_under_way_are_taken_up_once_whichever_of_many_epochs_a_session_goes_on_from(tmp_path: Path) -> None:
    """Three epochs in each session, of which rows that wait for their answers are a part; and none is aligned."""
    answer, storage = threading.Semaphore(0), MemoryStorage()
    plan, *sinks = _asking(answer)
    positions: dict[str, Positions] = {"in": {SplitId("list/0"): {"index": 0}}, "late": {}}
    ends: Mapping[str, Positions] = {
        name: {SplitId(split): {"index": ROWS * KEYS}} for name, split in (("in", "list/0"), ("late", "late/0"))
    }
    epoch, base, held = 0, None, list[int]()
    for term in range(1, 8):
        with ExitStack() as closing:
            start = _start(positions, epoch + 1, term, base)
            session = SessionThread(plan, start, storage, tmp_path / str(term), closing)
            if term == 2:
                late: Positions = {SplitId("late/0"): {"index": 0}}
                session.send(AssignSplits(session=term, source="late", positions=late))
            for _ in range(3):
                answer.release(3)
                epoch += 1
                session.trigger(epoch)
                base = session.hear(AcknowledgeCheckpoint)
                positions = {name: {**positions[name], **at} for name, at in base.positions.items()}
                held.append(sum(file.size for part in base.in_flight for file in part.files))
                _decide(base, sinks)
                session.send(NotifyCheckpointCommitted(session=term, epoch=session.name(epoch)))
            assert {handle.operator for handle in base.states} == {"first", "second"}
    with ExitStack() as closing:
        answer.release(100)
        session = SessionThread(plan, _start(positions, epoch + 1, 9, base), storage, tmp_path / "9", closing)
        while positions != ends:
            epoch += 1
            session.trigger(epoch)
            base = session.hear(AcknowledgeCheckpoint)
            positions = {name: {**positions[name], **at} for name, at in base.positions.items()}
            _decide(base, sinks)
            session.send(NotifyCheckpointCommitted(session=9, epoch=session.name(epoch)))
        session.trigger(epoch + 1, aligned=True, last=True)
        base = session.hear(AcknowledgeCheckpoint)
        _decide(base, sinks)

    assert sum(map(bool, held)) > 10
    assert not base.in_flight
    assert base.positions == ends
    for sink, numbers in zip(sinks, (_numbers(), [*_numbers(), *_numbers(5)]), strict=True):
        found, wanted = (
            {key: [n for n in each if n % 10 == key] for key in range(10)} for each in (sink.committed, numbers)
        )
        assert found == wanted
