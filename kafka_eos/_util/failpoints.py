"""Named places where a test may kill, stop or fail the process, and a durable record that it happened.

Armed by environment, so that real processes can be hit:

    KAFKA_EOS_FAILPOINTS     a script: ``name=action[@k]`` joined by ``;``. Only the first entry that has not acted
                             yet is armed; it acts at its k-th hit (default 1) in one process since it was armed.
                             Actions: ``kill`` (SIGKILL self), ``stop`` (SIGSTOP self), ``error`` (OSError EIO),
                             ``enospc`` (OSError ENOSPC).
    KAFKA_EOS_FAILPOINT_LOG  file that records each action *before* it is done (append, fsync). It is shared by all
                             processes of a test and stores the position in the script across restarts.

Rule: every name is declared here once; ``hit`` with an unknown name is a Bug. Unarmed, a hit costs one comparison.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from kafka_eos.core.errors import Bug, ConfigError

POINTS: tuple[str, ...] = (
    # capture
    "source.capture.before",
    "source.capture.after",
    # snapshot
    "snapshot.flush",
    "snapshot.linked",
    "snapshot.upload",
    "snapshot.uploaded",
    # pre-commit
    "sink.seal",
    "align.barrier",
    "align.complete",
    # in-flight rows: overtaken by a barrier, or in a loop
    "in-flight.logged",
    "in-flight.stored",
    "in-flight.decided",
    "in-flight.replayed",
    # timers of a process function: some have fired, others are due
    "timers.fired",
    # a stream that waited for tables is resumed
    "bootstrap.done",
    # rows that wait for a service: some have a response that is not emitted yet
    "async-map.answered",
    # rejected records within an epoch
    "scratch.put",
    "scratch.taken",
    "sink.flush.before",
    "sink.flush.after",
    "sink.prepare.before",
    "sink.prepare.after",
    "worker.ack.before",
    "worker.ack.after",
    # decision
    "coordinator.ack",
    "coordinator.acked",
    "manifest.staged",
    "manifest.synced",
    "manifest.renamed",
    "manifest.published",
    # commit
    "commit.probe",
    "commit.before",
    "commit.between",
    "commit.after",
    # the commit to a lake table: the log was read; files were rewritten without the rows that an epoch replaces, and no
    # commit names them yet; the log has the commit, and its staging entries still exist
    "lake.commit.before",
    "lake.replaced",
    "lake.commit.after",
    # rows for a receiver: before the first one, after each request, when all are sent but no marker exists
    "outbox.before",
    "outbox.between",
    "outbox.after",
    "receipt.before",
    "receipt.after",
    "retention.recorded",
    "retention.before",
    "retention.between",
    "packing.published",
    "packing.deleted",
    "worker.complete",
    # recovery, first phase: commits what is decided
    "recovery.claimed",
    "recovery.resolved",
    "recovery.looked",
    "recovery.probed",
    "recovery.committed",
    "recovery.based",
    # recovery, second phase: prepares the next attempt
    "recovery.aborted",
    "recovery.verified",
    "recovery.restored",
    "recovery.opened",
    # savepoint
    "savepoint.pinned",
    "savepoint.staged",
    "savepoint.written",
    "savepoint.restored",
    # the sink for Structured Streaming queries: before Spark starts, in a task, in foreachBatch, in the batch committer
    "micro-batch.recovered",
    "micro-batch.prepared",
    "micro-batch.collected",
    "micro-batch.published",
    "micro-batch.returned",
    "micro-batch.decided",
)

_ACTIONS = ("kill", "stop", "error", "enospc")


class ScriptEntry(Struct, frozen=True):
    """One entry of the failpoint script."""

    name: str
    action: str
    at: int


def parse_script(text: str) -> tuple[ScriptEntry, ...]:
    """Parse the script of ``KAFKA_EOS_FAILPOINTS``."""
    armed = []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, _, rest = entry.partition("=")
        action, _, at = rest.partition("@")
        if name not in POINTS or action not in _ACTIONS or not (at or "1").isdigit():
            raise ConfigError(f"KAFKA_EOS_FAILPOINTS: {entry!r} is not 'name=action[@k]' with a known name and action")
        armed.append(ScriptEntry(name, action, int(at or 1)))
    return tuple(armed)


class _Failpoints:
    """The state of the script in this process."""

    def __init__(self, script: tuple[ScriptEntry, ...], log: str | None) -> None:
        if log is None:
            raise ConfigError("KAFKA_EOS_FAILPOINTS needs KAFKA_EOS_FAILPOINT_LOG: an unrecorded fault proves nothing")
        self._script, self._log = script, log
        self.script = "; ".join(f"{each.name}={each.action}@{each.at}" for each in script)
        """The script, for messages."""
        self._hits: Counter[int] = Counter()
        self._lock = threading.Lock()

    def hit(self, name: str) -> None:
        with self._lock, self._locked_log():
            acted = self._count_acted()
            if acted >= len(self._script) or self._script[acted].name != name:
                return
            self._hits[acted] += 1
            entry = self._script[acted]
            if self._hits[acted] < entry.at:
                return
            self._record(entry)
        self._act(entry)

    @contextmanager
    def _locked_log(self) -> Iterator[None]:
        """Hold the lock of the shared log."""
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _count_acted(self) -> int:
        if not os.path.exists(self._log):
            return 0
        with open(self._log, encoding="utf-8") as log:
            return sum(1 for _ in log)

    def _record(self, entry: ScriptEntry) -> None:
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{entry.name} {entry.action} pid={os.getpid()}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    @staticmethod
    def _act(entry: ScriptEntry) -> None:
        match entry.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                # Signal this thread: a signal to the process may be handled by another thread, while this one
                # continues.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "error":
                raise OSError(errno.EIO, f"failpoint {entry.name}")
            case "enospc":
                raise OSError(errno.ENOSPC, f"failpoint {entry.name}")


def _from_environment() -> _Failpoints | None:
    script = parse_script(os.environ.get("KAFKA_EOS_FAILPOINTS", ""))
    return _Failpoints(script, os.environ.get("KAFKA_EOS_FAILPOINT_LOG")) if script else None


_active = _from_environment()


ARMED: Final = (
    "FAILPOINTS ARE ARMED, so this job kills or breaks its own processes: {script}. They are for tests. In production, "
    "unset KAFKA_EOS_FAILPOINTS and start again"
)


def armed_script() -> str | None:
    """Return the script that is armed in this process, for a warning; None if there is none."""
    return None if _active is None else _active.script


def hit(name: str) -> None:
    """Pass a named point. Does nothing unless armed."""
    if _active is None:
        return
    if name not in POINTS:
        raise Bug(f"failpoint {name!r} is not declared in failpoints.POINTS")
    _active.hit(name)
