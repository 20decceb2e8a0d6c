"""Checks that a job has what it needs, from facts of its machine, its settings and its checkpoint store.

Pure. Rule: a warning and a bad result have a remedy. A fact that cannot be determined is reported as unknown, never as
ok.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from kafka_eos.plan.worker_memory import PROCESS_BYTES, WorkerMemory

Severity: TypeAlias = Literal["ok", "warning", "bad", "unknown"]
"""`ok`, `warning` (may fail one day), `bad` (will fail) or `unknown`."""

_SPARE_DISK: Final = 1 << 30
"""Less free space than this is a warning even if there is no state yet."""
_LEAST_DISK: Final = 100 << 20
_STATES: Final = 2
"""Files that compaction rewrites may all exist twice for a moment."""
_OPEN_FILES: Final = 512
"""Open files of a worker besides its sockets: Kafka clients and state files."""
_SKEW_WARNING, _SKEW_BAD = 2.0, 60.0
_SLOW_STORE: Final = 0.5
"""Part of the checkpoint interval that one small write may take."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: its severity, a sentence with the figures, and a remedy."""

    check: str
    verdict: Severity
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """A file system that holds files of the job.

    ``state``: bytes of the newest checkpoint that are, or will be, stored there.
    """

    holds: str
    path: Path
    total: int
    free: int
    state: int


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory that the job may use when its buffers are full, against the limit.

    ``limit``: of the machine, or of the cgroup if that is less; None if it is unknown.
    """

    workers: int
    each: WorkerMemory
    limit: int | None

    @property
    def needed(self) -> int:
        """Return the memory of all workers and the supervisor if every bounded buffer is full."""
        return self.workers * self.each.needed + PROCESS_BYTES

    @property
    def least(self) -> int:
        """Return the memory of all workers and the supervisor that is certain to be used."""
        return self.workers * self.each.least + PROCESS_BYTES


@dataclass(frozen=True, slots=True)
class StoreGuarantees:
    """The guarantees that a checkpoint store showed, and its slowest write."""

    where: str
    creates_exclusively: bool
    lists_own_writes: bool
    reads_own_writes: bool
    forgets_deleted: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset of another system's clock from this machine's, and the uncertainty."""

    whose: str
    ahead: float
    uncertainty: float


def check_disk(seen: DiskUsage) -> CheckResult:
    name = f"disk of {seen.holds}"
    what = f"{_size(seen.free)} of {_size(seen.total)} free at {seen.path}; the state takes {_size(seen.state)}"
    remedy = f"free some space there, or move {seen.holds} to a larger disk (docs/capacity.md)"
    if seen.free < max(_LEAST_DISK, seen.state):
        return CheckResult(name, "bad", what, remedy)
    if seen.free < max(_SPARE_DISK, _STATES * seen.state):
        return CheckResult(name, "warning", what, remedy)
    return CheckResult(name, "ok", what)


def check_open_files(workers: int, hard: int | None) -> CheckResult:
    """Check the hard limit of open files. A start raises the soft limit to it."""
    sockets = workers * (workers - 1)
    needed = sockets + _OPEN_FILES
    allowed = "any number" if hard is None else f"{hard:,}"
    what = f"{workers} worker{'s' if workers > 1 else ''} may need {needed:,} open files; {allowed} are allowed"
    if hard is not None and hard < needed:
        remedy = f"raise the limit to {needed:,} (ulimit -Hn, LimitNOFILE=), or lower parallelism"
        return CheckResult("open files", "bad", what, remedy)
    return CheckResult("open files", "ok", what)


def check_memory(seen: MemoryBudget) -> CheckResult:
    each = seen.each
    parts = f"{seen.workers} × (state_memory {_size(each.state)} + kafka_memory {_size(each.kafka)} + "
    parts += f"exchange_memory {_size(each.exchange)} + {_size(PROCESS_BYTES)})"
    what = f"up to {_size(seen.needed)}: {parts}"
    if seen.limit is None:
        return CheckResult("memory", "unknown", f"{what}. The available memory is unknown")
    what += f"; available: {_size(seen.limit)}"
    remedy = "lower state_memory, kafka_memory or parallelism: a process that exceeds its memory is killed"
    if seen.least > seen.limit:
        return CheckResult("memory", "bad", what, remedy)
    if seen.needed > 0.8 * seen.limit:  # decoded state, batches and objects of user functions come on top
        return CheckResult("memory", "warning", what, remedy)
    return CheckResult("memory", "ok", what)


def check_store(seen: StoreGuarantees, interval: float) -> CheckResult:
    """Check the guarantees and the speed of the checkpoint store."""
    wrong = [
        text
        for holds, text in (
            (seen.creates_exclusively, "it overwrites existing objects"),
            (seen.reads_own_writes, "it does not return what was written"),
            (seen.lists_own_writes, "it does not list new objects at once"),
            (seen.forgets_deleted, "it still lists or returns deleted objects"),
        )
        if not holds
    ]
    if wrong:
        what = f"{seen.where}: {'; '.join(wrong)}"
        return CheckResult("checkpoint store", "bad", what, "keep checkpoints in another store (docs/storage.md)")
    what = f"{seen.where} never overwrites, lists new objects at once, and takes {seen.seconds * 1000:.0f} ms per write"
    if seen.seconds > _SLOW_STORE * interval:
        remedy = "lengthen checkpoint_interval, or keep checkpoints nearer: each checkpoint waits for several writes"
        return CheckResult("checkpoint store", "warning", what, remedy)
    return CheckResult("checkpoint store", "ok", what)


def check_clock(seen: ClockOffset) -> CheckResult:
    what = f"the clock of {seen.whose} is {abs(seen.ahead):.1f} s {'ahead' if seen.ahead >= 0 else 'behind'}"
    what += f" (±{seen.uncertainty:.1f} s)"
    beyond = abs(seen.ahead) - seen.uncertainty
    if beyond < _SKEW_WARNING:
        return CheckResult("clock", "ok", what)
    remedy = (
        "synchronize both with a time server (chrony, systemd-timesyncd): transaction ages, start positions by "
        "timestamp and retention depend on both clocks. Exactly-once does not"
    )
    return CheckResult("clock", "bad" if beyond > _SKEW_BAD else "warning", what, remedy)


def check_clients(clients: Sequence[str]) -> Iterator[CheckResult]:
    """Return which clients read and write the records; each of them is good."""
    for line in clients:
        yield CheckResult("clients", "ok", line)


def check_connectors(notices: Sequence[str], refused: str | None) -> Iterator[CheckResult]:
    """Turn the refusals and notices of sources and sinks into check results."""
    for line in () if refused is None else refused.splitlines():
        yield CheckResult("sources and sinks", "bad", line, "see the message")
    for notice in notices:
        yield CheckResult("sources and sinks", "warning", notice, "see the notice; ignore it if this is intended")
    if not notices and refused is None:
        yield CheckResult("sources and sinks", "ok", "all sources and sinks exist and keep their guarantees")


def _size(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20)):
        if count >= size:
            return f"{count / size:,.1f} {unit}" if unit == "GB" else f"{count / size:,.0f} {unit}"
    return f"{count / 1024:,.0f} KB" if count else "0 bytes"
