"""The workers of one attempt as a group: a session in each, and messages to all of them.

Rule: a session has its own sockets, so that rows of an old session reach no worker.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Collection, Sequence

from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.worker_process import WorkerDied, WorkerProcess
from kafka_eos.protocol.split_assignment import select_positions
from kafka_eos.runtime.worker.control_messages import AssignSplits, ControlMessage, StartSession


class WorkerGroup:
    """The workers of one attempt, one per subtask, in order."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.workers = workers

    @property
    def subtasks(self) -> frozenset[int]:
        return frozenset(worker.subtask for worker in self.workers)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    def subtask_of(self, pid: int) -> int | None:
        """Return the subtask of a process; None if it is not a worker of this attempt."""
        return next((worker.subtask for worker in self.workers if worker.pid == pid), None)

    def start(self, start_of: Callable[[int, tuple[int, ...]], StartSession]) -> None:
        """Begin a session in every worker; ``start_of`` receives a subtask and the subtasks it is connected to."""
        between = {pair: socket.socketpair() for pair in itertools.combinations(range(len(self.workers)), 2)}
        try:
            for worker in self.workers:
                mine = worker.subtask
                ends = {pair[1 - pair.index(mine)]: s[pair.index(mine)] for pair, s in between.items() if mine in pair}
                worker.send(start_of(mine, tuple(ends)), tuple(ends.values()))
        finally:
            for pair in between.values():
                for end in pair:
                    end.close()

    def broadcast(self, message: ControlMessage) -> None:
        """Send a message to all workers."""
        for worker in self.workers:
            worker.send(message)

    def assign(self, session: int, source: str, splits: Positions) -> None:
        """Assign new splits to the workers that read them."""
        for worker in self.workers:
            if own := select_positions({source: splits}, worker.subtask, len(self.workers))[source]:
                worker.send(AssignSplits(session=session, source=source, positions=own))

    def worker(self, subtask: int) -> WorkerProcess:
        """Return the process of a subtask."""
        return next(worker for worker in self.workers if worker.subtask == subtask)

    def make_death_error(self, what: str, suspects: Collection[int]) -> WorkerDied:
        """Return the WorkerDied error for these subtasks."""
        pids = [worker.pid for worker in self.workers if worker.subtask in suspects]
        return WorkerDied(what, pids)

    def named(self, subtasks: Collection[int]) -> str:
        """Return the subtasks with their processes, as text."""
        return ", ".join(f"worker {w.subtask} (process {w.pid})" for w in self.workers if w.subtask in subtasks)
