"""How a job stands, by what its supervisor shows of itself and by whether one is there.

Pure. Rule: a file that is not rewritten says nothing of now; whether the job runs is said by its lock alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from kafka_eos.coordination import heartbeats
from kafka_eos.core.ids import Term
from kafka_eos.core.json_values import Json
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Claim, Manifest, Receipt
from kafka_eos.storage.job_storage import JobStorage

How = Literal["starting", "running", "recovering", "stopped", "failed", "killed", "silent"]
_AT_WORK: Mapping[str, How] = {"running": "running", "restarting": "recovering"}
"""By the event that says so."""


@dataclass(frozen=True, slots=True)
class Standing:
    """``committed``: seconds since the newest commit, or since the job began to process if there was none."""

    job: str
    how: How
    pid: int | None = None
    host: str | None = None
    """Of a job that another machine leads, or led last: that one. What only its own directory knows is None then."""
    why: str | None = None
    """Of a job that failed or goes back to a checkpoint: the reason."""
    epoch: int | None = None
    """The newest committed one of this run."""
    committed: float | None = None
    lag: int | None = None
    records_in: int | None = None
    records_out: int | None = None
    """Both since the session began."""
    workers: int | None = None
    restarts: int = 0
    dead_letters: int = 0
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """By operator."""

    @property
    def is_fault(self) -> bool:
        """Did it end without having committed everything, or can nobody tell?"""
        return self.how in ("failed", "killed", "silent")

    def late(self, within: float) -> str | None:
        """What is wrong with a job that should run, and commit every ``within`` seconds; None if nothing is."""
        if self.how != "running":
            return f"is {self.how}"
        if self.committed is None or self.committed > within:
            ago = "never" if self.committed is None else f"{self.committed:,.0f} s ago"
            return f"committed {ago}, and should every {within:g} s"
        return None

    def as_json(self) -> dict[str, Json]:
        return asdict(self)


def standing(job: str, status: Mapping[str, Any], held: bool, now: int) -> Standing:
    """``status``: as in ``status.json``. ``held``: does a supervisor hold the lock? ``now``: ms since the epoch."""
    last, when, counts = status["last"], status.get("when", {}), status["counts"]
    how = _at_work(when) if held else _ended(last)
    progress, committed = last.get("progress", {}), when.get("committed", when.get("running"))
    letters = last.get("dead-letters", {}).get("total", {})
    return Standing(
        job,
        how,
        pid=status["pid"] if held else None,
        why=_why(how, last, when),
        epoch=last.get("committed", {}).get("epoch"),
        committed=None if committed is None else max(0.0, (now - committed) / 1000),
        lag=progress.get("lag"),
        records_in=progress.get("records_in"),
        records_out=progress.get("records_out"),
        workers=last.get("running", {}).get("parallelism"),
        restarts=counts.get("restarting", 0),
        dead_letters=sum(sum(by.values()) for by in letters.values()),
        state_bytes=last.get("decided", {}).get("state_bytes_by_operator", {}),
    )


def _at_work(when: Mapping[str, int]) -> How:
    """The times are in the order of the events; two may have one, and a clock may go back."""
    told: list[How] = [_AT_WORK[event] for event in when if event in _AT_WORK]
    return told[-1] if told else "starting"


def _ended(last: Mapping[str, object]) -> How:
    """Whoever was killed had no time to say that it ended."""
    return "stopped" if "stopped" in last else "failed" if "failed" in last else "killed"


def _why(how: How, last: Mapping[str, Any], when: Mapping[str, int]) -> str | None:
    """A notice says what a start waits for only if nothing has happened since."""
    match how:
        case "failed":
            return f"{last['failed']['error']}: {last['failed']['reason']}"
        case "killed":
            return "it ended without a word; nothing is lost, and the next start goes on at the last checkpoint"
        case "recovering":
            return f"{last['restarting']['what']}: {last['restarting']['reason']}"
        case "starting" if [*when][-1:] == ["notice"]:
            return str(last["notice"]["text"])
        case _:
            return None


# ---------------------------------------------------------------- a job that another machine leads
#
# How a job stands that another machine leads, by what its checkpoint store has of it.
#
# Rule: the store says what is committed, and who led last. Whether that one lives is seen only by a sign of life that
# comes while somebody looks: no clock of another machine is believed.


_WITHOUT_BEATS: Final = 10.0
"""Seconds to look at one that gives no heartbeats: its terms and checkpoints are the signs of life then."""


_LATE: Final = 1.5
"""A heartbeat may take so much longer than it should."""


_NAP: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Leader:
    """Who led last. ``every``: seconds between its heartbeats; None if it gives none."""

    host: str
    pid: int
    every: float | None = None
    ended: str | None = None


def stands(
    storage: JobStorage,
    job: str,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Standing | None:
    """Looks as long as a sign of life may take: seconds. None if nobody ever led the job.

    OSError if the store cannot tell.
    """
    claim = _newest_claim(storage, job)
    if claim is None:
        return None
    how, why = _how(storage, claim, sleep, clock)
    leader = _leader(storage, _newest_claim(storage, job) or claim)  # the lead may have changed meanwhile
    return _standing(storage, job, how, why, leader)


def leads_here(storage: JobStorage, job: str, host: str, pid: int) -> bool:
    """Whether the newest term was taken by this process."""
    claim = _newest_claim(storage, job)
    return claim is not None and (claim.host, claim.pid) == (host, pid)


def _how(
    storage: JobStorage, claim: Claim, sleep: Callable[[float], None], clock: Callable[[], float]
) -> tuple[How, str | None]:
    leader = _leader(storage, claim)
    if leader.ended is not None:
        left = "its leader has ended, and no other supervisor has taken over yet"
        return "stopped", None if leader.ended == "stopped" else left
    within = _WITHOUT_BEATS if leader.every is None else leader.every * _LATE
    if _shows_life(storage, within, sleep, clock):
        return "running", None
    if leader.every is None:
        return "silent", f"nothing was written to its store for {within:g} s; it runs without --standby, if it runs"
    return "silent", f"it has given no heartbeat for {within:.1f} s, and should every {leader.every:g} s"


def _leader(storage: JobStorage, claim: Claim) -> _Leader:
    """By heartbeats, which those without ``--standby`` do not give; then the newest term says it."""
    beats = [beat for _, beat in heartbeats.read(storage).values()]
    if not beats:
        return _Leader(claim.host, claim.pid)
    newest = next((beat for beat in beats if beat.ended is None), beats[0])
    return _Leader(newest.host, newest.pid, newest.every, newest.ended)


def _shows_life(storage: JobStorage, within: float, sleep: Callable[[float], None], clock: Callable[[], float]) -> bool:
    before, until = _signs(storage), clock() + within
    while clock() < until:
        sleep(_NAP)
        if _signs(storage) != before:
            return True
    return False


def _signs(storage: JobStorage) -> frozenset[str]:
    """Names that whoever leads writes anew again and again."""
    kinds = (paths.HEARTBEATS, paths.TERMS, paths.MANIFESTS)
    return frozenset(name for kind in kinds for name in _listed(storage, kind))


def _listed(storage: JobStorage, kind: str) -> list[str]:
    try:
        return [name for name in storage.list(kind) if not name.startswith(f"{kind}/.")]
    except FileNotFoundError:
        return []  # made when the first one is stored


def _standing(storage: JobStorage, job: str, how: How, why: str | None, leader: _Leader) -> Standing:
    receipts = [paths.parse_receipt_name(name) for name in _listed(storage, paths.RECEIPTS)]
    receipt, manifest = None, None
    if receipts:
        newest = max(receipts)
        receipt = records.load(storage, Receipt, paths.receipt_name(newest), job)
        manifest = records.load(storage, Manifest, paths.manifest_name(newest), job)
    sizes: Counter[str] = Counter()
    for handle in () if manifest is None else manifest.states:
        sizes[handle.operator] += sum(file.size for file in handle.files)
    return Standing(
        job,
        how,
        pid=leader.pid,
        host=leader.host,
        why=why,
        epoch=None if receipt is None else receipt.epoch,
        committed=None if receipt is None else max(0.0, time.time() - receipt.created_at / 1000),
        workers=None if manifest is None else manifest.parallelism,
        state_bytes=dict(sorted(sizes.items())),
    )


def _newest_claim(storage: JobStorage, job: str) -> Claim | None:
    named = [paths.parse_term_name(name) for name in _listed(storage, paths.TERMS)]
    terms: list[Term] = [term for term, kind in named if kind == "claim"]
    return records.load(storage, Claim, paths.claim_name(max(terms)), job) if terms else None
