"""One attempt of a job whose workers are in memory: the real runner and coordinator, without processes or waiting.

The clock is the test's: it only goes on while nothing happens. Whatever a worker is sent is kept, and answered at once
as a worker answers, unless the test leaves the answer out.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.request_queue import RequestHandler
from kafka_eos.coordination.savepoint_writer import SavepointWriter
from kafka_eos.core.ids import Epoch, EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RecordCounts
from kafka_eos.embedded.attempt_runner import AttemptRunner
from kafka_eos.embedded.supervisor_events import StopRequested, SupervisorEvent, WorkerMessage
from kafka_eos.embedded.worker_pool import MakeStart, WorkerDied, WorkerHandle, WorkerPool
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.protocol.engine_policy import AttemptPolicy
from kafka_eos.runtime.worker import control_messages as control
from kafka_eos.runtime.worker.control_messages import ControlMessage, ToSupervisor
from tests.unit.coordination.noted_job import NotedJob

FIRST = 10
"""The number of the first worker: numbers of a pool are not those of subtasks."""
_ARRIVES_WITHIN = 0.003
_MOST_WAITS = 2000
Step = Callable[[], object]


class Clock:
    """Stands in for the module ``time`` of the runner."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Events(queue.SimpleQueue[SupervisorEvent]):
    """The clock goes on by as much as is waited for in vain. Then ``idle`` is called."""

    def __init__(self, clock: Clock, idle: Step) -> None:
        self._clock, self._idle, self._asked = clock, idle, 0

    def get(self, block: bool = True, timeout: float | None = None) -> SupervisorEvent:
        self._asked += 1
        assert self._asked < 5 * _MOST_WAITS, "events follow each other without end"
        try:
            return super().get(timeout=_ARRIVES_WITHIN)
        except queue.Empty:
            self._clock.now += timeout or 0.0
            self._idle()
            raise


class MemoryWorker(WorkerHandle):
    """A worker that keeps what it is sent. ``answers``: says what a worker says to a message; None if nothing."""

    def __init__(self, number: int, subtask: int, events: queue.SimpleQueue[SupervisorEvent]) -> None:
        super().__init__(number, subtask)
        self.sent: list[ControlMessage] = []
        self.started: list[control.StartSession] = []
        self.lives, self.connected, self.placed, self.moved = True, True, True, 0
        self.sealed: tuple[control.SealedOutput, ...] = ()
        self.positions: dict[str, Positions] = {}
        self.mute: Collection[type[ControlMessage]] = ()
        """Messages that it does not answer."""
        self.ack: dict[str, Any] = {}
        """Fields of its acknowledgements."""
        self.frames = (0, 0)
        """Sent and processed."""
        self.dies_of: type[ControlMessage] | None = None
        self._events = events

    @property
    def pid(self) -> int:
        return 4000 + self.number

    @property
    def alive(self) -> bool:
        return self.lives

    @property
    def is_connected(self) -> bool:
        return self.connected

    @property
    def is_placed(self) -> bool:
        return self.placed

    @property
    def io_bytes(self) -> int:
        return self.moved

    @property
    def session(self) -> int:
        return self.started[-1].session if self.started else 0

    def send(self, message: ControlMessage) -> None:
        if not self.lives or type(message) is self.dies_of:
            raise WorkerDied(f"worker {self.subtask} is gone", [self.number])
        self.sent.append(message)
        if not isinstance(message, tuple(self.mute)):
            self.answer(message)

    def start(self, message: control.StartSession) -> None:
        self.started.append(message)
        self.positions = message.positions
        if control.StartSession not in self.mute:
            self.says(control.SessionReady(session=message.session))

    def answer(self, message: ControlMessage) -> None:
        match message:
            case control.TriggerCheckpoint(session=session, epoch=epoch):
                self.says(self.acknowledgement(session, epoch))
            case control.NotifyCheckpointAborted(session=session, epoch=epoch):
                self.says(control.ConfirmAbort(session=session, epoch=epoch))
            case control.CountFrames(session=session, round=number):
                sent, processed = self.frames
                self.says(
                    control.FramesCounted(session=session, round=number, idle=True, sent=sent, processed=processed)
                )
            case control.EndSession(session=session):
                self.says(control.SessionEnded(session=session))

    def acknowledgement(self, session: int, epoch: EpochId, **fields: Any) -> control.AcknowledgeCheckpoint:
        made = control.AcknowledgeCheckpoint(
            session=session,
            epoch=epoch,
            positions=self.positions,
            states=(),
            sealed=self.sealed,
            in_flight=(),
            tally=RecordCounts(),
            watermarks={},
            blocked_ms=0.0,
            aligning_ms=0.0,
            timers={},
            has_overdue_request=False,
            spans=(),
        )
        return replace(made, **{**self.ack, **fields})

    def says(self, message: ToSupervisor) -> None:
        self._events.put(WorkerMessage(message, self.number))

    def stacks(self) -> str:
        return f"stacks of {self.subtask}"

    def kill(self) -> None:
        self.lives = False

    def got(self, kind: type[ControlMessage]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


class MemoryPool(WorkerPool):
    """Workers that are there from the beginning; one that has ended is replaced."""

    def __init__(self, events: queue.SimpleQueue[SupervisorEvent], count: int) -> None:
        super().__init__()
        self.events = events
        self._numbers = itertools.count(FIRST)
        self._workers = [MemoryWorker(next(self._numbers), subtask, events) for subtask in range(count)]
        self._left_out: list[MemoryWorker] = []
        self.steps: list[str] = []
        """What was done to all of them."""

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def workers(self) -> Sequence[MemoryWorker]:
        return [*self._workers]

    def find_change(self) -> str:
        return "more workers have connected" if any(worker.connected for worker in self._left_out) else ""

    def leave_out_missing(self) -> None:
        """They must be the last ones."""
        self._left_out = [worker for worker in self._workers if not worker.connected]
        self._workers = [worker for worker in self._workers if worker.connected]

    def start_workers(self) -> None:
        self._workers, self._left_out = [*self._workers, *self._left_out], []
        for worker in self.workers:
            if not worker.lives:
                self._workers[worker.subtask] = MemoryWorker(next(self._numbers), worker.subtask, self.events)

    def start_sessions(self, make_start: MakeStart) -> None:
        self.steps.append("start")
        for worker in self._workers:
            peers = tuple(each.subtask for each in self._workers if each is not worker)
            worker.start(make_start(worker.subtask, peers))

    def drop_local_state(self) -> None:
        self.steps.append("drop state")

    def kill_all(self) -> None:
        self.steps.append("kill")
        super().kill_all()


class MemoryAttempt:
    """One attempt of ``job``. ``run`` runs it; it is stopped after the last of the given steps."""

    def __init__(self, directory: Path, workers: int = 3, **policy: Any) -> None:
        self.job = NotedJob(directory)
        self.clock, self.told = Clock(), list[tuple[str, Mapping[str, Any]]]()
        self.pool = MemoryPool(Events(self.clock, self._idle), workers)
        self.workers = self.pool.workers
        self.coordinator = self.job.coordinator()
        self.resumed = self.coordinator.recovery.restore()
        self.session = self.resumed.term.n
        self.requests = directory / "requests"
        self.requests.mkdir()
        self.tokens: list[str] = []
        self.ends: Mapping[str, Positions] | None = None
        self.meets: Mapping[str, Collection[str]] = {}
        self.following: Collection[str] = ()
        subtasks = frozenset(range(workers))
        given = {"cadence": Cadence(10.0, 0.0, 30.0), "tolerated_failures": 3, "discovery_interval": 1e9, **policy}
        self.policy = AttemptPolicy(subtasks=subtasks, stall_timeout=60.0, **given)
        self._steps: list[Step] = []
        self._waits = 0

    def epoch(self, after: int = 0) -> EpochId:
        """The first epoch of the attempt, or one after it."""
        return EpochId(Epoch(self.resumed.first_epoch.n + after), self.resumed.term)

    def run(self, *steps: Step) -> AttemptRunner:
        """Each step is taken when nothing goes on, and again until its answer is not False."""
        self._steps = [*steps, lambda: self.pool.events.put(StopRequested())]
        runner = self.runner()
        runner.run()
        return runner

    def runner(self) -> AttemptRunner:
        savepoints = SavepointWriter(self.requests, self.job.storage)
        return AttemptRunner(
            self.coordinator,
            self.resumed,
            self.pool,
            lambda event, **facts: self.told.append((event, facts)),
            self.ends,
            self.policy,
            self.meets,
            self.following,
            RequestHandler(self.requests, savepoints),
        )

    def start_from(self, positions: Mapping[str, Positions]) -> None:
        self.resumed = replace(self.resumed, positions=positions)

    def of(self, event: str) -> list[Mapping[str, Any]]:
        return [facts for told, facts in self.told if told == event]

    def got(self, kind: type[ControlMessage]) -> list[list[Any]]:
        """What each worker has got of a kind."""
        return [worker.got(kind) for worker in self.workers]

    def puts(self, event: SupervisorEvent) -> Step:
        return lambda: self.pool.events.put(event)

    def says(self, subtask: int, message: ToSupervisor) -> Step:
        return lambda: self.workers[subtask].says(message)

    def submits(self, request: requests.JobRequest) -> Step:
        def submit() -> None:
            self.tokens.append(requests.submit(self.requests, request))

        return submit

    def until(self, event: str, times: int = 1) -> Step:
        return lambda: len(self.of(event)) >= times

    def until_clock(self, seconds: float) -> Step:
        """Until so many seconds have passed since it began."""
        return lambda: self.clock.now >= 1000.0 + seconds

    def _idle(self) -> None:
        self._waits += 1
        assert self._waits < _MOST_WAITS, "the attempt waits for what never happens"
        if self._steps and self._steps[0]() is not False:
            del self._steps[0]
