"""A standby supervisor: it waits while another supervisor leads the job, until it may lead itself.

Rule: a leader holds the lock of its machine and writes heartbeats; both are for liveness alone. Terms
(``coordination.terms``) prevent duplicate output, even if two supervisors believe that they lead.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from kafka_eos.coordination import heartbeats
from kafka_eos.coordination.disk_space import ensure_disk_space, is_disk_full
from kafka_eos.coordination.heartbeats import HeartbeatWriter, LeaderHeartbeat
from kafka_eos.coordination.job_lock import find_holder, is_held, job_lock, kill_holder
from kafka_eos.core.errors import JobLocked, Retryable
from kafka_eos.protocol.standby import LeadershipView, LeaderSighting, StandbyMove, decide_move
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage, LocalFiles

_LATE: Final = 0.5
"""The fraction of a lease after which a slow listing is too old to show that a leader is unresponsive."""
_NAP: Final = 0.1
"""Seconds between two checks of the lock, which are cheap."""


class _ChangeTimer:
    """The time for which values have been unchanged, by this process's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[Hashable, float]] = {}

    def unchanged(self, what: Hashable, value: Hashable) -> float:
        """Return the seconds since ``what`` was first seen to be ``value``."""
        now = self._clock()
        if what not in self._seen or self._seen[what][0] != value:
            self._seen[what] = value, now
        return now - self._seen[what][1]

    def forget(self) -> None:
        """Forget all values: the store could not be read, so they may have changed meanwhile."""
        self._seen.clear()


class Standby:
    """One of several supervisors. ``lease``: seconds without a heartbeat after which a leader counts as gone."""

    def __init__(
        self,
        storage: JobStorage,
        lock: Path,
        job: str,
        lease: float,
        observe: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._lock = lock
        self._job = job
        self._lease = lease
        self._observe = observe
        self._clock, self._since = clock, _ChangeTimer(clock)
        self._ended_before: frozenset[str] | None = None
        """Writers whose last heartbeat existed at the first check."""
        self._last_report = ""
        self._damaged: set[str] = set()
        """Damaged heartbeats that were reported."""

    @contextmanager
    def lead(self, stopping: threading.Event) -> Iterator[HeartbeatWriter | None]:
        """Wait until this standby may lead, then hold the lock and write heartbeats.

        Yields None, without the lock, if there is nothing to lead: the job was stopped, or ``stopping`` was set.
        """
        with ExitStack() as held:
            if not self._acquire(held, stopping):
                yield None
                return
            pulse = HeartbeatWriter(self._storage, self._lock, self._lease)
            pulse.start()
            yield pulse

    def _acquire(self, held: ExitStack, stopping: threading.Event) -> bool:
        """Wait until this standby may lead, and take the lock. Return False if there is nothing to lead."""
        while self._wait_for_turn(stopping):
            try:
                ensure_disk_space([self._lock.parent])
                held.enter_context(job_lock(self._lock, self._job))
                return True
            except JobLocked:
                pass  # another standby on this machine took the lock first
            except (Retryable, OSError) as error:
                if not is_disk_full(error):
                    raise
                self._report(f"this standby cannot lead the job yet: {error}")
                stopping.wait(heartbeats.interval(self._lease))
        return False

    def _wait_for_turn(self, stopping: threading.Event) -> bool:
        """Wait until this standby may lead; return False if there is nothing to lead."""
        looked, locked = -math.inf, False
        while not stopping.wait(_NAP):
            now_locked = is_held(self._lock)
            if now_locked == locked and self._clock() - looked < heartbeats.interval(self._lease):
                continue
            locked, looked = now_locked, self._clock()
            match self._decide(locked):
                case StandbyMove.LEAD:
                    return True
                case StandbyMove.STAND_DOWN:
                    self._observe("standby-ended", text="the job was stopped; this standby never led it")
                    return False
        self._observe("standby-ended", text="this standby was stopped without ever leading the job")
        return False

    def _decide(self, locked: bool) -> StandbyMove:
        began = self._clock()
        try:
            beats, quiet = heartbeats.read_heartbeats(self._storage, self._pass_over), self._quiet()
        except OSError as error:
            self._since.forget()
            self._report(f"the checkpoint store cannot be read: {error}. This standby waits until it can be read")
            return StandbyMove.WAIT
        if self._clock() - began > self._lease * _LATE:
            # The leader may have written a heartbeat meanwhile; or this process itself was frozen.
            self._since.forget()
            self._report(
                f"the checkpoint store took longer than {self._lease * _LATE:g} s to respond, half of standby_lease: "
                "this proves nothing about the leader"
            )
            return StandbyMove.WAIT
        if self._ended_before is None:
            self._ended_before = frozenset(writer for writer, (_, beat) in beats.items() if beat.ended)
        pid = find_holder(self._lock) if locked else None
        leaders = {writer: self._leader(writer, count, beat, pid) for writer, (count, beat) in beats.items()}
        move = decide_move(LeadershipView(locked, tuple(leaders.values()), quiet), self._lease)
        alive = [beats[writer][1] for writer, leader in leaders.items() if leader.ended is None]
        match move:
            case StandbyMove.WAIT:
                self._report(_waits_for(alive, pid))
            case StandbyMove.KILL_HOLDER:
                self._kill_holder(next(beats[writer][1] for writer, leader in leaders.items() if leader.holds_lock))
                return StandbyMove.WAIT  # until the kernel has released its lock
            case StandbyMove.LEAD if alive:
                self._report(f"{alive[0].process} has ended: this supervisor takes over")
            case _:
                pass
        return move

    def _pass_over(self, name: str) -> None:
        if name not in self._damaged:
            self._damaged.add(name)
            self._observe(
                "notice", text=(f"{name} is not a valid heartbeat: it is ignored, and the next leader deletes it")
            )

    def _leader(self, writer: str, count: int, beat: LeaderHeartbeat, holds: int | None) -> LeaderSighting:
        here = self._lock.exists() and beat.lock == heartbeats.lock_id(self._lock)
        mine = here and beat.pid == holds
        return LeaderSighting(
            silent_for=self._since.unchanged(writer, (count, heartbeats.read_touch_time(self._lock) if mine else 0)),
            on_this_lock=here,
            holds_lock=mine,
            ended=beat.ended,
            ended_before=writer in (self._ended_before or ()),
        )

    def _quiet(self) -> float:
        """Return ``LeadershipView.records_unchanged_for``. It is infinite if the lock is stored in the checkpoint
        store."""
        if isinstance(self._storage, LocalFiles) and self._lock.is_relative_to(self._storage.root):
            return math.inf
        records = tuple(name for kind in (paths.TERMS, paths.MANIFESTS) for name in self._storage.list(kind))
        return self._since.unchanged("records", records) if records else math.inf

    def _kill_holder(self, beat: LeaderHeartbeat) -> None:
        silent = f"{beat.process} holds the job's lock but has sent no heartbeat for {self._lease:g} s"
        try:
            killed = kill_holder(self._lock, beat.pid)
        except PermissionError:
            killed = False
        outcome = "it was killed, and this supervisor takes over"
        self._report(
            f"{silent}: "
            f"{outcome if killed else 'end it with kill -9: this supervisor may not, or cannot see its process'}"
        )

    def _report(self, text: str) -> None:
        if text != self._last_report:
            self._last_report = text
            self._observe("standby", text=text)


def _waits_for(alive: Sequence[LeaderHeartbeat], pid: int | None) -> str:
    if alive:
        return f"standby for {' and '.join(beat.process for beat in alive)}"
    if pid is not None:
        return f"standby for process {pid} of this machine, which runs without --standby and sends no heartbeats"
    return "standby: waiting to see whether the job runs, because it was last run without --standby"
