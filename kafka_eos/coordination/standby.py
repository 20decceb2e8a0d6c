"""Stands by while another supervisor leads the job, until it is this one's turn.

Rule: whoever leads holds the lock of its machine and gives heartbeats; both are for liveness alone. What must not
happen twice is kept apart by terms (``coordination.terms``), also if two believe that they lead.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from kafka_eos.coordination import heartbeats
from kafka_eos.coordination.heartbeats import Heartbeat, Pulse
from kafka_eos.coordination.job_lock import end_holder, holder, is_held, job_lock
from kafka_eos.core.errors import JobLocked
from kafka_eos.protocol.standby import Leader, Move, Seen, decide
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage, LocalFiles

_LATE: Final = 0.5
"""The part of a lease after which an answer of the store is too old to tell that a leader is silent."""
_NAP: Final = 0.1
"""Seconds between two looks at the lock, which cost nothing."""


class _Since:
    """For how long something has been as it is, by this process's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[Hashable, float]] = {}

    def unchanged(self, what: Hashable, value: Hashable) -> float:
        """Seconds since ``what`` was first seen to be ``value``."""
        now = self._clock()
        if what not in self._seen or self._seen[what][0] != value:
            self._seen[what] = value, now
        return now - self._seen[what][1]

    def forget(self) -> None:
        """Nobody could look: what was seen before says nothing of the time between."""
        self._seen.clear()


class Standby:
    """One supervisor of several. ``lease``: seconds without a heartbeat after which a leader is taken for gone."""

    def __init__(
        self,
        storage: JobStorage,
        lock: Path,
        job: str,
        lease: float,
        observe: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._lock, self._job, self._lease, self._observe = storage, lock, job, lease, observe
        self._clock, self._since = clock, _Since(clock)
        self._ended_before: frozenset[str] | None = None
        """Writers whose last heartbeat was there at the first look."""
        self._said = ""
        self._damaged: set[str] = set()
        """Heartbeats that cannot be read, and are told."""

    @contextmanager
    def leading(self, stopping: threading.Event) -> Iterator[Pulse | None]:
        """Wait for the lead, then hold the job's lock and give heartbeats.

        None, without the lock, if there is nothing to lead: the job was stopped, or ``stopping`` was set.
        """
        with ExitStack() as held:
            if not self._locked(held, stopping):
                yield None
                return
            pulse = Pulse(self._storage, self._lock, self._lease)
            pulse.begin()
            yield pulse

    def _locked(self, held: ExitStack, stopping: threading.Event) -> bool:
        """Wait for this one's turn and take the lock; False if there is nothing to lead."""
        while self._turn(stopping):
            with suppress(JobLocked):  # another one of this machine was faster
                held.enter_context(job_lock(self._lock, self._job))
                return True
        return False

    def _turn(self, stopping: threading.Event) -> bool:
        """Wait; whether it is this one's turn to lead."""
        looked, locked = -math.inf, False
        while not stopping.wait(_NAP):
            now_locked = is_held(self._lock)
            if now_locked == locked and self._clock() - looked < heartbeats.interval(self._lease):
                continue
            locked, looked = now_locked, self._clock()
            match self._look(locked):
                case Move.LEAD:
                    return True
                case Move.END:
                    self._observe("stood-down", text="the job was stopped; this standby never led it")
                    return False
        self._observe("stood-down", text="stopped while it stood by; the job is led by another supervisor, or by none")
        return False

    def _look(self, locked: bool) -> Move:
        began = self._clock()
        try:
            beats, quiet = heartbeats.read(self._storage, self._pass_over), self._quiet()
        except OSError as error:
            self._since.forget()
            self._say(f"the checkpoint store cannot be read: {error}. This standby waits until it can be")
            return Move.WAIT
        if self._clock() - began > self._lease * _LATE:
            # Meanwhile the leader may have shown itself; or it was this process that stood still.
            self._since.forget()
            self._say(
                f"the checkpoint store took longer than {self._lease * _LATE:g} s to answer, half of standby_lease: "
                "that tells nothing of the leader"
            )
            return Move.WAIT
        if self._ended_before is None:
            self._ended_before = frozenset(writer for writer, (_, beat) in beats.items() if beat.ended)
        pid = holder(self._lock) if locked else None
        leaders = {writer: self._leader(writer, count, beat, pid) for writer, (count, beat) in beats.items()}
        move = decide(Seen(locked, tuple(leaders.values()), quiet), self._lease)
        alive = [beats[writer][1] for writer, leader in leaders.items() if leader.ended is None]
        match move:
            case Move.WAIT:
                self._say(_waits_for(alive, pid))
            case Move.UNSEAT:
                self._unseat(next(beats[writer][1] for writer, leader in leaders.items() if leader.holds))
                return Move.WAIT  # until the kernel has let go of its lock
            case Move.LEAD if alive:
                self._say(f"{alive[0].process} is gone: this supervisor takes over")
            case _:
                pass
        return move

    def _pass_over(self, name: str) -> None:
        if name not in self._damaged:
            self._damaged.add(name)
            self._observe("notice", text=f"{name} is no heartbeat: it is passed over, and the next leader deletes it")

    def _leader(self, writer: str, count: int, beat: Heartbeat, holds: int | None) -> Leader:
        here = self._lock.exists() and beat.lock == heartbeats.lock_id(self._lock)
        mine = here and beat.pid == holds
        return Leader(
            silent=self._since.unchanged(writer, (count, heartbeats.touched(self._lock) if mine else 0)),
            here=here,
            holds=mine,
            ended=beat.ended,
            known=writer in (self._ended_before or ()),
        )

    def _quiet(self) -> float:
        """As ``Seen.quiet``. A lock in the store is that of all leaders."""
        if isinstance(self._storage, LocalFiles) and self._lock.is_relative_to(self._storage.root):
            return math.inf
        records = tuple(name for kind in (paths.TERMS, paths.MANIFESTS) for name in self._storage.list(kind))
        return self._since.unchanged("records", records) if records else math.inf

    def _unseat(self, beat: Heartbeat) -> None:
        silent = f"{beat.process} holds the job's lock and has given no heartbeat for {self._lease:g} s"
        try:
            killed = end_holder(self._lock, beat.pid)
        except PermissionError:
            killed = False
        told = "it is killed, and this supervisor takes over"
        self._say(f"{silent}: {told if killed else 'end it by kill -9; this supervisor may not, or does not see it'}")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._observe("standing-by", text=text)


def _waits_for(alive: Sequence[Heartbeat], pid: int | None) -> str:
    if alive:
        return f"stands by for {' and '.join(beat.process for beat in alive)}"
    if pid is not None:
        return f"stands by for process {pid} of this machine, which runs without --standby: it gives no heartbeat"
    return "stands by until it is clear that nobody runs the job: it was last run without --standby"
