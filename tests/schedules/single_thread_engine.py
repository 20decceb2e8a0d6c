"""The workers of the embedded engine in one thread, with all of its parts but processes and the clock.

Whose turn it is, when a barrier comes to whom, which epoch is aborted, and when all of them die, is chance; one of them
may be slow. The monotonic clock goes on with each look at it, so that a schedule does not depend on the machine.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import combinations, count

import pytest

from kafka_eos.abc.committer import Committable
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.protocol.split_assignment import select_positions
from kafka_eos.runtime.worker.chain_snapshot import ChainSnapshot
from kafka_eos.runtime.worker.control_messages import StartSession
from kafka_eos.runtime.worker.worker_runtime import SessionRuntime
from kafka_eos.storage.upload_batch import UploadBatch
from tests.schedules.job import IDENTITY, Job

_MOST = 60_000
"""Turns after which nothing goes on any more."""


def run(job: Job, workers: int, *, to_the_end: bool) -> None:
    """From a restore until all are dead, or, ``to_the_end``, until all is read and committed."""
    with ExitStack() as closing:
        looks = count()
        closing.enter_context(pytest.MonkeyPatch.context()).setattr(time, "monotonic", lambda: next(looks) / 100_000)
        _EngineRun(job, workers, closing).run(to_the_end=to_the_end)


class _EngineRun:
    """``parallelism`` workers. They are closed with ``closing``."""

    def __init__(self, job: Job, parallelism: int, closing: ExitStack) -> None:
        self._job, self._parallelism, self._chance = job, parallelism, job.chance
        self._term, self._held = Term(job.begin()), job.held
        self._slow = job.chance.choice([None, *range(parallelism)])
        self._pending: tuple[EpochId, bool] | None = None
        """The epoch that is on its way, and whether it leaves nothing under way."""
        self._untold: list[int] = []
        """Who has not heard of it."""
        self._captured: dict[int, Sequence[ChainSnapshot]] = {}
        self._newest = job.decided.epoch
        """The number of the epoch that began last."""
        self._aborted: list[Committable] = []
        """Output of epochs that were aborted: the next one takes it over."""
        self._dies = False
        peers: list[dict[int, socket.socket]] = [{} for _ in range(parallelism)]
        for one, other in combinations(range(parallelism), 2):
            peers[one][other], peers[other][one] = socket.socketpair()
        self._workers = [self._worker(subtask, peers[subtask], closing) for subtask in range(parallelism)]

    def _worker(self, subtask: int, peers: Mapping[int, socket.socket], closing: ExitStack) -> SessionRuntime:
        job, decided = self._job, self._job.decided
        start = StartSession(
            session=self._term.n,
            identity=IDENTITY,
            term=self._term.n,
            first_epoch=decided.epoch + 1,
            subtask=subtask,
            parallelism=self._parallelism,
            peers=tuple(peers),
            positions=select_positions(decided.positions, subtask, self._parallelism),
            states=decided.states,
            in_flight=decided.in_flight,
            ends=None,
            waiting_sources=self._held.waiting_sources,
            excluded_sources=self._held.ignored_by_watermarks,
        )
        place, done = job.directory / f"{self._term}-{subtask}", partial(self._done, subtask)
        closing.callback(shutil.rmtree, place, ignore_errors=True)
        worker = SessionRuntime(job.plan, job.settings, job.storage, start, [place], peers, done, lambda restored: None)
        closing.callback(worker.close)
        return worker

    # ------------------------------------------------------------ turns

    def run(self, *, to_the_end: bool) -> None:
        for worker in self._workers:
            worker.resume()
        turns = _MOST if to_the_end else round(10 ** self._chance.uniform(0.7, self._job.longest_run))
        for turn in range(turns):
            if turn == _MOST // 4:
                self._slow = None  # with tiny limits it would never come to the end of the barriers of its peers
            self._turn()
            if self._dies and not to_the_end:
                return
            if to_the_end and self._all_is_read and not self._pending and self._nothing_goes_round:
                self._end()
                return
        assert not to_the_end, f"after {turns} turns the job has not come to its end"

    def _turn(self) -> None:
        subtask = self._chance.randrange(self._parallelism)
        if subtask == self._slow and self._chance.random() < 0.9:
            return
        if self._untold and self._chance.random() < 0.5:
            self._tell(self._untold.pop(self._chance.randrange(len(self._untold))))
        elif not self._pending and self._chance.random() < 0.05:
            self._begin(aligned=bool(self._held.waiting_sources) or self._chance.random() < 0.2)
        elif self._pending and self._chance.random() < 0.03:
            self._abort()
        worker = self._workers[subtask]
        self._job.counts["barriers amid what is due"] += worker.has_due_work and bool(self._pending)
        worker.step(self._job.settings.batch_size, 0.0)
        self._decide()

    def _end(self) -> None:
        """The last epoch: nothing is read any more."""
        self._begin(aligned=True)
        while self._untold:
            self._tell(self._untold.pop())
        for _ in range(_MOST):
            if not self._pending:
                return
            self._chance.choice(self._workers).drain(0.0)
            self._decide()
        raise AssertionError("the last epoch does not come to its end")

    @property
    def _all_is_read(self) -> bool:
        ends = [select_positions(self._job.ends, subtask, self._parallelism) for subtask in range(self._parallelism)]
        return not self._held.waiting_sources and all(
            worker.has_reached(mine) for worker, mine in zip(self._workers, ends, strict=True)
        )

    @property
    def _nothing_goes_round(self) -> bool:
        """As the supervisor of a bounded run finds out."""
        if not self._job.plan.feedbacks:
            return True
        exchanges = [worker.exchanges for worker in self._workers]
        quiet = sum(each.frames_sent for each in exchanges) == sum(each.frames_processed for each in exchanges)
        return quiet and all(worker.idle for worker in self._workers)

    # ------------------------------------------------------------ epochs

    def _begin(self, *, aligned: bool) -> None:
        self._newest += 1
        self._pending = EpochId(Epoch(self._newest), self._term), aligned
        self._untold = list(range(self._parallelism))

    def _tell(self, subtask: int) -> None:
        assert self._pending is not None
        self._workers[subtask].trigger(*self._pending)

    def _abort(self) -> None:
        """Nobody hears of it before the epoch itself; all have confirmed it before the next one begins."""
        assert self._pending is not None
        while self._untold:
            self._tell(self._untold.pop())
        (epoch, _), self._pending = self._pending, None
        parts = [part for captured in self._captured.values() for part in captured]
        left = [prepare for part in parts for prepare in part.precommits]
        for worker in self._workers:
            left += worker.abort(epoch)
        self._aborted += [committable for prepare in left for committable in prepare()]
        self._captured = {}
        for part in parts:
            part.drop()
        self._job.counts["epochs aborted"] += 1

    def _done(self, subtask: int, epoch: int, captured: Sequence[ChainSnapshot]) -> None:
        self._captured[subtask] = captured

    def _decide(self) -> None:
        """Commit the epoch if all have answered."""
        if self._pending is None or len(self._captured) < self._parallelism:
            return
        epoch, aligned = self._pending
        answers, self._captured, self._pending = self._captured, {}, None
        parts = [(self._workers[subtask], part) for subtask, captured in answers.items() for part in captured]
        batch = UploadBatch(self._job.storage)
        added = [upload.add_to(batch) for _, part in parts for upload in part.uploads]
        logs = [get_rows for worker, part in parts for get_rows in worker.add_in_flight(batch, part)]
        batch.store()
        states, in_flight = tuple(get_handle() for get_handle in added), tuple(get_rows() for get_rows in logs)
        loops = {node.name for node in self._job.plan.feedbacks}
        left = {rows.exchange for rows in in_flight} - loops
        assert not (aligned and left), "an epoch that leaves nothing under way has left something"
        committables, self._aborted = self._aborted, []
        committables += [each for _, part in parts for prepare in part.precommits for each in prepare()]
        read: dict[str, dict[str, object]] = {}
        for _, part in parts:
            part.drop()
            for source, splits in part.positions.items():
                read.setdefault(source, {}).update(splits)
        positions: Mapping[str, Positions] = read  # type: ignore[assignment]
        self._job.decide(epoch.epoch.n, positions, states, committables, in_flight)
        self._dies = bool(in_flight) and self._chance.random() < 0.3
        for worker in self._workers:
            worker.completed(epoch)
        self._held = self._held.after_epoch(self._job.plan.prerequisites, self._job.decided.positions)
        for worker in self._workers:
            worker.waiting_sources, worker.excluded_sources = (
                self._held.waiting_sources,
                self._held.ignored_by_watermarks,
            )
