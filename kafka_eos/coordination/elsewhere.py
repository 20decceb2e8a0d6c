"""How a job stands that another machine leads, by what its checkpoint store has of it.

Rule: the store says what is committed, and who led last. Whether that one lives is seen only by a sign of life that
comes while somebody looks: no clock of another machine is believed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kafka_eos.coordination import heartbeats
from kafka_eos.coordination.job_status import How, Standing
from kafka_eos.core.ids import Term
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Claim, Manifest, Receipt
from kafka_eos.storage.job_storage import JobStorage

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
