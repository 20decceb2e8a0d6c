"""Whether a job has what it needs, by facts of its machine, its settings and its checkpoint store.

Pure. Rule: a finding that is not good says what to do. What cannot be found out is said to be so, never taken for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Verdict: TypeAlias = Literal["good", "look", "bad", "unknown"]
"""``bad``: the job will fail, or its promise does not hold. ``look``: it may, one day."""

WORKER_BYTES: Final = 150 << 20
"""Python, the libraries and a batch at work, of one process; docs/capacity.md says how it was measured."""
_SPARE_DISK: Final = 1 << 30
"""Less free space than this is looked at even if there is no state yet."""
_LEAST_DISK: Final = 100 << 20
_STATES: Final = 2
"""Files that compaction writes anew may all be there twice for a moment."""
_OPEN_FILES: Final = 512
"""What a worker likes to have beside its sockets: clients of Kafka, files of state."""
_SKEW_LOOK, _SKEW_BAD = 2.0, 60.0
_SLOW_STORE: Final = 0.5
"""Part of the checkpoint interval that one small write may take."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``what`` is one sentence with the figures, ``remedy`` what to do; empty where nothing is to be done."""

    check: str
    verdict: Verdict
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system with files of the job. ``state``: bytes of the newest checkpoint that lie, or will lie, there."""

    holds: str
    path: Path
    total: int
    free: int
    state: int


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes, ``state``, ``exchange`` and ``kafka`` of one worker when they are full.

    ``limit``: of the machine, or of the cgroup if that is less; None if the system does not tell.
    """

    workers: int
    state: int
    exchange: int
    kafka: int
    limit: int | None

    @property
    def needed(self) -> int:
        """All workers and the supervisor, when everything that is bounded is full."""
        return self.least + self.workers * (self.exchange + self.kafka)

    @property
    def least(self) -> int:
        """What fills up on any day: state is kept in memory as long as there is room."""
        return self.workers * (self.state + WORKER_BYTES) + WORKER_BYTES


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """What a trial of the checkpoint store showed. ``seconds``: of its slowest write."""

    where: str
    exclusive: bool
    listed: bool
    same: bool
    gone: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class ClockSeen:
    """``ahead``: seconds by which the clock of ``whose`` is ahead of this machine's, give or take ``unsure``."""

    whose: str
    ahead: float
    unsure: float


def disk(seen: Disk) -> Finding:
    name = f"disk of {seen.holds}"
    what = f"{_size(seen.free)} of {_size(seen.total)} are free at {seen.path}; the state takes {_size(seen.state)}"
    remedy = f"free some space there, or put {seen.holds} on a larger disk (docs/capacity.md)"
    if seen.free < max(_LEAST_DISK, seen.state):
        return Finding(name, "bad", what, remedy)
    if seen.free < max(_SPARE_DISK, _STATES * seen.state):
        return Finding(name, "look", what, remedy)
    return Finding(name, "good", what)


def handles(workers: int, hard: int | None) -> Finding:
    """``hard``: limit of open files of a process; None for none. The soft one is raised to it at a start."""
    sockets = workers * (workers - 1)
    needed = sockets + _OPEN_FILES
    allowed = "any number" if hard is None else f"{hard:,}"
    what = f"{workers} worker{'s' if workers > 1 else ''} may take {needed:,} open files, and {allowed} are allowed"
    if hard is not None and hard < needed:
        remedy = f"raise the limit to {needed:,} (ulimit -Hn, LimitNOFILE=), or lower parallelism"
        return Finding("open files", "bad", what, remedy)
    return Finding("open files", "good", what)


def memory(seen: Memory) -> Finding:
    parts = f"{seen.workers} × (state_memory {_size(seen.state)} + kafka_memory {_size(seen.kafka)} + "
    parts += f"exchange_memory {_size(seen.exchange)} + {_size(WORKER_BYTES)})"
    what = f"up to {_size(seen.needed)}: {parts}"
    if seen.limit is None:
        return Finding("memory", "unknown", f"{what}. The system does not tell how much there is")
    what += f"; there are {_size(seen.limit)}"
    remedy = "lower state_memory, kafka_memory or parallelism: beyond its memory a process is killed"
    if seen.least > seen.limit:
        return Finding("memory", "bad", what, remedy)
    if seen.needed > 0.8 * seen.limit:  # decoded state, batches and what functions make come on top
        return Finding("memory", "look", what, remedy)
    return Finding("memory", "good", what)


def store(seen: StoreSeen, interval: float) -> Finding:
    """``interval``: seconds between two checkpoints, each of which writes several small objects."""
    wrong = [
        text
        for holds, text in (
            (seen.exclusive, "it replaces an object that is there"),
            (seen.same, "what is read is not what was written"),
            (seen.listed, "it does not list what was written just before"),
            (seen.gone, "it lists, or reads, what was deleted just before"),
        )
        if not holds
    ]
    if wrong:
        what = f"{seen.where}: {'; '.join(wrong)}"
        return Finding("checkpoint store", "bad", what, "keep checkpoints in another store (docs/storage.md)")
    what = f"{seen.where} makes an object once, lists it at once, and takes {seen.seconds * 1000:.0f} ms for one"
    if seen.seconds > _SLOW_STORE * interval:
        remedy = "lengthen checkpoint_interval, or keep checkpoints nearer: each checkpoint waits for several writes"
        return Finding("checkpoint store", "look", what, remedy)
    return Finding("checkpoint store", "good", what)


def clock(seen: ClockSeen) -> Finding:
    what = f"that of {seen.whose} is {abs(seen.ahead):.1f} s {'ahead' if seen.ahead >= 0 else 'behind'}"
    what += f", give or take {seen.unsure:.1f} s"
    beyond = abs(seen.ahead) - seen.unsure
    if beyond < _SKEW_LOOK:
        return Finding("clock", "good", what)
    remedy = (
        "let both follow a time server (chrony, systemd-timesyncd): ages of transactions, records that are read from a "
        "time on, and retention are judged by both clocks. Exactly-once does not depend on them"
    )
    return Finding("clock", "bad" if beyond > _SKEW_BAD else "look", what, remedy)


def promises(notices: Sequence[str], refused: str | None) -> Iterator[Finding]:
    """What sources and sinks say at a start: ``notices``, or why they would refuse it."""
    for line in () if refused is None else refused.splitlines():
        yield Finding("sources and sinks", "bad", line, "as it says")
    for notice in notices:
        yield Finding("sources and sinks", "look", notice, "as it says, if that is not what you want")
    if not notices and refused is None:
        yield Finding("sources and sinks", "good", "all that the plan names is there, and keeps what is promised")


def _size(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20)):
        if count >= size:
            return f"{count / size:,.1f} {unit}" if unit == "GB" else f"{count / size:,.0f} {unit}"
    return f"{count / 1024:,.0f} KB" if count else "0 bytes"
