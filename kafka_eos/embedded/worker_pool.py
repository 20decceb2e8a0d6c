"""The pool of an engine's workers as the supervisor sees it, and the workers of one attempt as a group.

An engine implements ``WorkerPool`` and ``WorkerHandle``: where workers run, and how they are connected.
Rule: a worker has a number in its pool, which no later worker gets. A process id may return.
"""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from kafka_eos.core.errors import Bug, ProcessLost
from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.supervisor_events import SupervisorEvent
from kafka_eos.protocol.split_assignment import select_positions
from kafka_eos.runtime.epoch_reports import RestorePoint
from kafka_eos.runtime.worker.control_messages import AssignSplits, ControlMessage, StartSession

MakeStart: TypeAlias = Callable[[int, tuple[int, ...]], StartSession]
"""Returns the first message of a session for a subtask and the subtasks that it is connected to."""


class WorkerDied(ProcessLost):
    """A worker ended by itself, was killed, or does not respond. ``workers``: their numbers."""

    def __init__(self, reason: str, workers: Collection[int]) -> None:
        super().__init__(reason)
        self.workers = frozenset(workers)


class WorkerHandle(ABC):
    """One worker of a pool. ``number`` identifies it there, whatever process it runs in."""

    def __init__(self, number: int, subtask: int) -> None:
        self.number = number
        self.subtask = subtask

    @property
    @abstractmethod
    def pid(self) -> int:
        """Return the id of its process, for people."""

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Return whether it can be sent messages. A worker that connects later is an event."""

    @property
    def is_placed(self) -> bool:
        """Return whether the worker has a core. If so, it connects soon; if not, at an unknown time."""
        return True

    @property
    @abstractmethod
    def io_bytes(self) -> int:
        """Return the bytes that its process has read and written; 0 if unknown."""

    @abstractmethod
    def send(self, message: ControlMessage) -> None:
        """Send a message. Raises WorkerDied if the worker is gone."""

    @abstractmethod
    def stacks(self) -> str:
        """Return the Python stacks of its threads, or the reason why there are none."""

    @abstractmethod
    def kill(self) -> None:
        """End the worker at once. Nothing that it still sends is received."""


class WorkerPool(ABC):
    """The workers of one run of a job, one per subtask. Their messages and ends arrive in ``events``."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[SupervisorEvent] = queue.SimpleQueue()

    @property
    @abstractmethod
    def workers(self) -> Sequence[WorkerHandle]:
        """Return the started workers, in order of their subtasks."""

    @property
    def is_remote(self) -> bool:
        """Return whether workers may run on other machines.

        Then each verifies the state that it opens, and one that was given up may still run.
        """
        return False

    @abstractmethod
    def start_workers(self) -> None:
        """Start the workers that are missing. Those that are alive keep their interpreters."""

    def leave_out_missing(self) -> None:
        """Leave out workers that are not connected, until ``start_workers`` is called again."""
        raise Bug("every worker of this pool has a place to run")

    def replace_left_out(self) -> None:
        """Start workers again that were left out and have ended since. Default: nothing."""
        return

    def expect_restore(self, resumed: RestorePoint) -> None:
        """Take note of the state that the attempt restores, while workers start. Default: nothing."""
        return

    def assign_subtasks(self) -> None:
        """Give workers that have not run yet the subtasks whose state is where they run. Default: nothing."""
        return

    def find_change(self) -> str:
        """Return why the next attempt would run with other workers than this one; "" if it would not."""
        return ""

    @abstractmethod
    def start_sessions(self, make_start: MakeStart) -> None:
        """Begin a session in every worker, with new connections between them. Raises WorkerDied if one is gone."""

    @abstractmethod
    def drop_local_state(self) -> None:
        """Delete the local state of ended sessions, which may fill the disk that the job waits for."""

    def kill_all(self) -> None:
        """End all workers at once."""
        for worker in self.workers:
            worker.kill()

    def close(self) -> None:
        """End all workers, and release what the pool has opened."""
        self.kill_all()


class WorkerGroup:
    """The workers of one attempt, one per subtask, in order."""

    def __init__(self, workers: Sequence[WorkerHandle]) -> None:
        self.workers = workers

    @property
    def subtasks(self) -> frozenset[int]:
        return frozenset(worker.subtask for worker in self.workers)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    def find(self, number: int) -> WorkerHandle | None:
        """Return a worker by its number; None if it is not a worker of this attempt."""
        return next((worker for worker in self.workers if worker.number == number), None)

    def broadcast(self, message: ControlMessage) -> None:
        """Send a message to all workers."""
        for worker in self.workers:
            worker.send(message)

    def assign(self, session: int, source: str, splits: Positions) -> None:
        """Assign new splits to the workers that read them."""
        for worker in self.workers:
            if own := select_positions({source: splits}, worker.subtask, len(self.workers))[source]:
                worker.send(AssignSplits(session=session, source=source, positions=own))

    def worker(self, subtask: int) -> WorkerHandle:
        """Return the worker of a subtask."""
        return next(worker for worker in self.workers if worker.subtask == subtask)

    def make_death_error(self, what: str, suspects: Collection[int]) -> WorkerDied:
        """Return the WorkerDied error for these subtasks."""
        return WorkerDied(what, [worker.number for worker in self.workers if worker.subtask in suspects])

    def named(self, subtasks: Collection[int]) -> str:
        """Return the subtasks with their processes, as text."""
        return ", ".join(f"worker {w.subtask} (process {w.pid})" for w in self.workers if w.subtask in subtasks)
