"""Named places where a test may kill, stop or fail the process, and a durable record that it happened.

Armed by environment, so that real processes can be hit:

    KAFKA_EOS_FAILPOINTS     ``name=action[@k]`` joined by ``;``: act at the k-th hit (default 1) in one process.
                             Actions: ``kill`` (SIGKILL self), ``stop`` (SIGSTOP self), ``error`` (OSError EIO),
                             ``enospc`` (OSError ENOSPC).
    KAFKA_EOS_FAILPOINT_LOG  file that records each armed action *before* it acts (append, fsync). An entry
                             of the list acts once in the life of that file, however often processes restart.

Rule: every name is declared here once; ``hit`` with an unknown name is a Bug. Unarmed, a hit costs one test.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from dataclasses import dataclass

from kafka_eos.errors import Bug, ConfigError

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
    "sink.flush.before",
    "sink.flush.after",
    "sink.prepare.before",
    "sink.prepare.after",
    "worker.ack.before",
    "worker.ack.after",
    # decision
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
    "receipt.before",
    "receipt.after",
    "retention.before",
    "retention.between",
    "worker.complete",
    # recovery
    "recovery.claimed",
    "recovery.resolved",
    "recovery.verified",
    "recovery.probed",
    "recovery.committed",
    "recovery.based",
    "recovery.aborted",
    "recovery.restored",
    "recovery.opened",
)

_ACTIONS = ("kill", "stop", "error", "enospc")


@dataclass(frozen=True, slots=True)
class Armed:
    """One entry of the list; ``index`` tells equal entries apart."""

    index: int
    name: str
    action: str
    at: int


def parse(text: str) -> tuple[Armed, ...]:
    """Read the value of ``KAFKA_EOS_FAILPOINTS``; ConfigError names a wrong entry."""
    armed = []
    for index, entry in enumerate(filter(None, (part.strip() for part in text.split(";")))):
        name, _, rest = entry.partition("=")
        action, _, at = rest.partition("@")
        if name not in POINTS or action not in _ACTIONS or not (at or "1").isdigit():
            raise ConfigError(f"KAFKA_EOS_FAILPOINTS: {entry!r} is not 'name=action[@k]' with a known name and action")
        armed.append(Armed(index, name, action, int(at or 1)))
    return tuple(armed)


class _Failpoints:
    """The armed points of this process."""

    def __init__(self, armed: tuple[Armed, ...], log: str | None) -> None:
        if armed and not log:
            raise ConfigError("KAFKA_EOS_FAILPOINTS needs KAFKA_EOS_FAILPOINT_LOG: an unrecorded fault proves nothing")
        self._armed, self._log = armed, log or ""
        self._hits: Counter[str] = Counter()

    def hit(self, name: str) -> None:
        self._hits[name] += 1
        for entry in self._armed:
            if entry.name == name and entry.at == self._hits[name] and not self._fired(entry):
                self._record(entry)
                self._act(entry)

    def _fired(self, entry: Armed) -> bool:
        if not os.path.exists(self._log):
            return False
        with open(self._log, encoding="utf-8") as log:
            return any(line.split(" ", 1)[0] == str(entry.index) for line in log)

    def _record(self, entry: Armed) -> None:
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{entry.index} {entry.name} {entry.action} pid={os.getpid()}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    @staticmethod
    def _act(entry: Armed) -> None:
        match entry.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "error":
                raise OSError(errno.EIO, f"failpoint {entry.name}")
            case "enospc":
                raise OSError(errno.ENOSPC, f"failpoint {entry.name}")


def _from_environment() -> _Failpoints | None:
    armed = parse(os.environ.get("KAFKA_EOS_FAILPOINTS", ""))
    return _Failpoints(armed, os.environ.get("KAFKA_EOS_FAILPOINT_LOG")) if armed else None


_active = _from_environment()


def hit(name: str) -> None:
    """Pass a named point. Does nothing unless armed."""
    if _active is None:
        return
    if name not in POINTS:
        raise Bug(f"failpoint {name!r} is not declared in failpoints.POINTS")
    _active.hit(name)
