"""The workers of one attempt, as one: a session in each, and what is said to all of them.

Rule: a session has sockets of its own, so that what an old one sends reaches nobody.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Collection, Sequence

from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.worker_process import WorkerDied, WorkerProcess
from kafka_eos.protocol.split_assignment import share
from kafka_eos.runtime.worker.control_messages import Assign, Message, Start


class Crew:
    """One worker a subtask, in order."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.workers = workers

    @property
    def subtasks(self) -> frozenset[int]:
        return frozenset(worker.subtask for worker in self.workers)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    def subtask_of(self, pid: int) -> int | None:
        """Which subtask the process is; None if it is of no worker of this attempt."""
        return next((worker.subtask for worker in self.workers if worker.pid == pid), None)

    def start(self, start_of: Callable[[int, tuple[int, ...]], Start]) -> None:
        """Begin a session in every worker; ``start_of`` gets a subtask and those it has sockets to."""
        between = {pair: socket.socketpair() for pair in itertools.combinations(range(len(self.workers)), 2)}
        try:
            for worker in self.workers:
                mine = worker.subtask
                ends = {pair[1 - pair.index(mine)]: s[pair.index(mine)] for pair, s in between.items() if mine in pair}
                worker.tell(start_of(mine, tuple(ends)), tuple(ends.values()))
        finally:
            for pair in between.values():
                for end in pair:
                    end.close()

    def tell(self, message: Message) -> None:
        """Say something to all."""
        for worker in self.workers:
            worker.tell(message)

    def assign(self, session: int, source: str, splits: Positions) -> None:
        """Give new splits to those who are to read them."""
        for worker in self.workers:
            if own := share({source: splits}, worker.subtask, len(self.workers))[source]:
                worker.tell(Assign(session=session, source=source, positions=own))

    def worker(self, subtask: int) -> WorkerProcess:
        """The process of a subtask."""
        return next(worker for worker in self.workers if worker.subtask == subtask)

    def lost(self, what: str, suspects: Collection[int]) -> WorkerDied:
        """The error that ends an attempt of which these subtasks are gone, or will never answer."""
        pids = [worker.pid for worker in self.workers if worker.subtask in suspects]
        return WorkerDied(what, pids)

    def named(self, subtasks: Collection[int]) -> str:
        """Subtasks with their processes, in words."""
        return ", ".join(f"worker {w.subtask} (process {w.pid})" for w in self.workers if w.subtask in subtasks)
