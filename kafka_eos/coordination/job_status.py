"""The status of a job, from its status file and its lock.

Pure. Rule: the status file may be outdated; only the lock shows whether the job runs now.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct, field, to_builtins

from kafka_eos.coordination import heartbeats
from kafka_eos.coordination.dependencies import Outage
from kafka_eos.core.ids import Term
from kafka_eos.core.json_values import Json
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest, Receipt, TermClaim
from kafka_eos.storage.job_storage import JobStorage

JobState = Literal["starting", "running", "recovering", "stopped", "failed", "killed", "unresponsive"]
_AT_WORK: Mapping[str, JobState] = {"running": "running", "restarting": "recovering"}
"""The state that follows from each event."""


class JobStatus(Struct, frozen=True):
    """The status of a job: state, newest epoch, lag, counts."""

    job: str
    state: JobState
    pid: int | None = None
    host: str | None = None
    """The machine that leads or led the job, if not this one. Facts that only its directory contains are None then."""
    reason: str | None = None
    """The reason for which the job failed or restarts."""
    epoch: int | None = None
    """The newest committed epoch of this run."""
    seconds_since_commit: float | None = None
    lag: int | None = None
    records_in: int | None = None
    records_out: int | None = None
    """Records read and written since the session began."""
    workers: int | None = None
    restarts: int = 0
    dead_letters: int = 0
    set_aside: int = 0
    """Rows that receivers refused."""
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of state, by operator."""
    failpoints: str | None = None
    """The failpoints that are armed in the job: it kills itself there."""
    outages: Mapping[str, Outage] = field(default_factory=dict)
    """Systems that the running job needs and that do not answer, by name."""

    @property
    def silence(self) -> str | None:
        """Return which systems do not answer, for how long and why; None if all answer."""
        return "; ".join(outage.describe(name) for name, outage in self.outages.items()) or None

    @property
    def is_fault(self) -> bool:
        """Return whether the job ended without committing everything, or its state is unknown."""
        return self.state in ("failed", "killed", "unresponsive")

    def find_problem(self, within: float) -> str | None:
        """Return what is wrong with a job that should run and commit; None if nothing is."""
        if self.state != "running":
            return f"is {self.state}"
        if self.seconds_since_commit is None or self.seconds_since_commit > within:
            ago = "never" if self.seconds_since_commit is None else f"{self.seconds_since_commit:,.0f} s ago"
            return f"committed {ago}, but should every {within:g} s"
        for name, outage in self.outages.items():
            if outage.seconds > within:
                return outage.describe(name)
        return None

    def as_json(self) -> dict[str, Json]:
        status: dict[str, Json] = to_builtins(self)
        return status


def job_status(job: str, status: Mapping[str, Any], held: bool, now: int) -> JobStatus:
    """Return the status of a job, from its status file and its lock.

    ``held``: whether a supervisor holds the lock. ``now``: ms since the epoch.
    """
    last, when, counts = status["last"], status.get("when", {}), status["counts"]
    how = _at_work(when) if held else _ended(last)
    progress, committed = last.get("progress", {}), when.get("committed", when.get("running"))
    letters = last.get("dead-letters", {}).get("total", {})
    return JobStatus(
        job,
        how,
        pid=status["pid"] if held else None,
        reason=_why(how, last, when),
        epoch=last.get("committed", {}).get("epoch"),
        seconds_since_commit=None if committed is None else max(0.0, (now - committed) / 1000),
        lag=progress.get("lag"),
        records_in=progress.get("records_in"),
        records_out=progress.get("records_out"),
        workers=last.get("running", {}).get("parallelism"),
        restarts=counts.get("restarting", 0),
        dead_letters=sum(sum(by.values()) for by in letters.values()),
        set_aside=sum(last.get("set-aside", {}).get("total", {}).values()),
        state_bytes=last.get("decided", {}).get("state_bytes_by_operator", {}),
        failpoints=last.get("started", {}).get("failpoints"),
        outages=_outages(last.get("dependencies", {}), now) if held else {},
    )


def _outages(dependencies: Mapping[str, Any], now: int) -> dict[str, Outage]:
    silent = dependencies.get("silent", {})
    return {name: Outage(max(0.0, (now - of["since"]) / 1000), of["reason"]) for name, of in silent.items()}


def _at_work(when: Mapping[str, int]) -> JobState:
    """Return the state of a running job. Events are in order; their times may be equal, and a clock may go back."""
    states: list[JobState] = [_AT_WORK[event] for event in when if event in _AT_WORK]
    return states[-1] if states else "starting"


def _ended(last: Mapping[str, object]) -> JobState:
    """Return the state of a job that does not run. A killed process could not write a final event."""
    return "stopped" if "stopped" in last else "failed" if "failed" in last else "killed"


def _why(how: JobState, last: Mapping[str, Any], when: Mapping[str, int]) -> str | None:
    """Return the reason for the state. A notice is the reason for a waiting start only if no later event exists."""
    match how:
        case "failed":
            return f"{last['failed']['error']}: {last['failed']['reason']}"
        case "killed":
            return "the process was killed; no data is lost, the next start resumes from the last checkpoint"
        case "recovering":
            return f"{last['restarting']['what']}: {last['restarting']['reason']}"
        case "starting" if [*when][-1:] == ["notice"]:
            return str(last["notice"]["text"])
        case _:
            return None


# ---------------------------------------------------------------- a job that another machine leads
#
# The status of a job that another machine leads, from its checkpoint store.
#
# Rule: the store shows what is committed, and which process led last. Only a heartbeat that is written during the check
# shows that the leader is alive: no clock of another machine is trusted.


_WITHOUT_BEATS: Final = 10.0
"""Seconds to observe a leader without heartbeats, whose terms and checkpoints are the only sign of it."""


_LATE: Final = 1.5
"""The factor by which a heartbeat may be late."""


_NAP: Final = 0.2


class _Leader(Struct, frozen=True):
    """The last leader. ``every``: seconds between its heartbeats; None if it writes none."""

    host: str
    pid: int
    every: float | None = None
    ended: str | None = None


def read_remote_status(
    storage: JobStorage,
    job: str,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> JobStatus | None:
    """Return the status of a job that runs elsewhere; None if the job was never led.

    The call takes as long as a heartbeat may. Raises OSError if the store does not respond.
    """
    claim = _newest_claim(storage, job)
    if claim is None:
        return None
    how, why = _how(storage, claim, sleep, clock)
    leader = _leader(storage, _newest_claim(storage, job) or claim)  # the leader may have changed meanwhile
    return _build_status(storage, job, how, why, leader)


def is_leader(storage: JobStorage, job: str, host: str, pid: int) -> bool:
    """Return whether this process took the newest term."""
    claim = _newest_claim(storage, job)
    return claim is not None and (claim.host, claim.pid) == (host, pid)


def _how(
    storage: JobStorage, claim: TermClaim, sleep: Callable[[float], None], clock: Callable[[], float]
) -> tuple[JobState, str | None]:
    leader = _leader(storage, claim)
    if leader.ended is not None:
        left = "its leader has ended, and no other supervisor has taken over yet"
        return "stopped", None if leader.ended == "stopped" else left
    within = _WITHOUT_BEATS if leader.every is None else leader.every * _LATE
    if _sees_change(storage, within, sleep, clock):
        return "running", None
    if leader.every is None:
        return (
            "unresponsive",
            f"nothing was written to its checkpoint store for {within:g} s; if the job runs, it runs without --standby",
        )
    return "unresponsive", f"it has sent no heartbeat for {within:.1f} s, but should every {leader.every:g} s"


def _leader(storage: JobStorage, claim: TermClaim) -> _Leader:
    """Return the leader by its heartbeats, or by the newest term: supervisors without ``--standby`` write none."""
    beats = [beat for _, beat in heartbeats.read_heartbeats(storage).values()]
    if not beats:
        return _Leader(claim.host, claim.pid)
    newest = next((beat for beat in beats if beat.ended is None), beats[0])
    return _Leader(newest.host, newest.pid, newest.every, newest.ended)


def _sees_change(
    storage: JobStorage, within: float, sleep: Callable[[float], None], clock: Callable[[], float]
) -> bool:
    before, until = _signs(storage), clock() + within
    while clock() < until:
        sleep(_NAP)
        if _signs(storage) != before:
            return True
    return False


def _signs(storage: JobStorage) -> frozenset[str]:
    """Return the names of objects that a leader writes repeatedly."""
    kinds = (paths.HEARTBEATS, paths.TERMS, paths.MANIFESTS)
    return frozenset(name for kind in kinds for name in _listed(storage, kind))


def _listed(storage: JobStorage, kind: str) -> list[str]:
    try:
        return [name for name in storage.list(kind) if not name.startswith(f"{kind}/.")]
    except FileNotFoundError:
        return []  # created by the first write


def _build_status(storage: JobStorage, job: str, how: JobState, why: str | None, leader: _Leader) -> JobStatus:
    receipts = [paths.parse_receipt_name(name) for name in _listed(storage, paths.RECEIPTS)]
    receipt, manifest = None, None
    if receipts:
        newest = max(receipts)
        receipt = records.load(storage, Receipt, paths.receipt_name(newest), job)
        manifest = records.load(storage, Manifest, paths.manifest_name(newest), job)
    sizes: Counter[str] = Counter()
    for handle in () if manifest is None else manifest.states:
        sizes[handle.operator] += sum(file.size for file in handle.files)
    return JobStatus(
        job,
        how,
        pid=leader.pid,
        host=leader.host,
        reason=why,
        epoch=None if receipt is None else receipt.epoch,
        seconds_since_commit=None if receipt is None else max(0.0, time.time() - receipt.created_at / 1000),
        workers=None if manifest is None else manifest.parallelism,
        state_bytes=dict(sorted(sizes.items())),
    )


def _newest_claim(storage: JobStorage, job: str) -> TermClaim | None:
    named = [paths.parse_term_name(name) for name in _listed(storage, paths.TERMS)]
    terms: list[Term] = [term for term, kind in named if kind == "claim"]
    return records.load(storage, TermClaim, paths.claim_name(max(terms)), job) if terms else None
