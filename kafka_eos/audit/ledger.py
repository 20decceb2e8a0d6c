"""What the job itself says: where it started, how far it got, which epochs it committed, what happened to it.

Rule: receipts, term records and the history's ``committed`` lines are evidence of a commit; a published manifest
alone is only a promise. Unknown events of the history are left alone.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from kafka_eos.audit.deaths import deaths
from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.checkpoints.savepoints import Origin
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.coordinator import history
from kafka_eos.coordinator.term import gather
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import Json, Positions
from kafka_eos.protocol.lineage import lineage

_NEVER = EpochId(Epoch(0), Term(0))
Offsets = dict[str, dict[int, int]]
"""Next offset by source operator and partition."""


@dataclass(frozen=True)
class Ledger:
    """The durable facts of one job."""

    job: str
    newest: EpochId | None
    """The newest committed epoch that is still stored."""
    unfinished: EpochId | None
    """A decided epoch without evidence of its commit, newer than ``newest``."""
    positions: Offsets
    """Where ``newest`` stopped reading."""
    start: Offsets | None
    """Where the job's first start began; None if nothing tells any more."""
    committed: frozenset[EpochId]
    records: Mapping[EpochId, int]
    """Outputs that each commit recorded, over all sinks; only epochs whose history line is there."""
    origin: Origin | None = None
    """The savepoint that the job began with, if with one."""
    carried: Mapping[EpochId, EpochId] = field(default_factory=dict)
    """Epochs that were given up, and the committed ones that their output went into."""
    parallelism: int = 1
    """The most that a stored epoch had."""
    events: Sequence[Mapping[str, Any]] = field(repr=False, default=())

    @property
    def has_history(self) -> bool:
        return any(event.get("event") == "committed" for event in self.events)

    def count(self, *words: str) -> int:
        """How many events have one of ``words`` in their name."""
        return sum(any(word in str(event.get("event", "")) for word in words) for event in self.events)

    @property
    def kills(self) -> int:
        """Deaths of workers and supervisors that the history tells."""
        return len(deaths(self.events))

    @property
    def restarts(self) -> int:
        """Attempts after the first: each recovery takes a term of its own."""
        return max(0, self.count("recovered") - 1)


def read_ledger(storage: JobStorage, job: str) -> Ledger:
    """Open the job's durable records. CorruptCheckpoint if one is damaged."""
    facts = gather(storage, job)
    events = history.read(storage)
    told = {_epoch(event): event for event in events if event.get("event") == "committed" and _is_epoch(event)}
    committed = frozenset({*facts.receipts, *told, *(base for base in facts.bases.values() if base is not None)})
    valid = lineage(facts.manifests, facts.bases)[::-1]
    newest = next((epoch for epoch in valid if epoch in committed), None)
    manifest = None if newest is None else _manifest(storage, job, newest)
    return Ledger(
        job=job,
        newest=newest,
        unfinished=valid[0] if valid and valid[0] != newest else None,
        positions={} if manifest is None else offsets(manifest.sources),
        start=_start(storage, job, valid, events),
        committed=committed,
        records={epoch: _total(event["records"]) for epoch, event in told.items() if "records" in event},
        origin=_origin(storage, job),
        carried=_carried(events, committed),
        parallelism=max((_manifest(storage, job, epoch).parallelism for epoch in valid), default=1),
        events=events,
    )


def joined(ledger: Ledger, earlier: Sequence[Ledger]) -> Ledger:
    """One ledger of a job that went from checkpoint directory to checkpoint directory, each begun with a savepoint."""
    lives = [*sorted(earlier, key=lambda life: max(life.committed, default=_NEVER)), ledger]
    first = lives[0]
    starts = [life.start for life in reversed(lives)]
    return replace(
        ledger,
        # The earliest life that knows a source tells where it began.
        start=None if first.start is None else reduce(operator.or_, (start or {} for start in starts)),
        committed=frozenset().union(*(life.committed for life in lives)),
        records=reduce(operator.or_, (dict(life.records) for life in lives)),
        origin=first.origin,
        carried=reduce(operator.or_, (dict(life.carried) for life in lives)),
        parallelism=max(life.parallelism for life in lives),
        events=[event for life in lives for event in life.events],
    )


def _carried(events: Sequence[Mapping[str, Any]], committed: Collection[EpochId]) -> dict[EpochId, EpochId]:
    """The output of an epoch that took too long goes into the next one of its term that is committed."""
    given_up = [_epoch(event) for event in events if event.get("event") == "given-up" and _is_epoch(event)]
    later = {g: [c for c in committed if c.term == g.term and c.epoch > g.epoch] for g in given_up}
    return {epoch: min(into) for epoch, into in later.items() if into}


def _origin(storage: JobStorage, job: str) -> Origin | None:
    try:
        return records.load(storage, Origin, paths.ORIGIN, job)
    except FileNotFoundError:
        return None


def _manifest(storage: JobStorage, job: str, epoch: EpochId) -> Manifest:
    return records.load(storage, Manifest, paths.manifest_name(epoch), job)


def _is_epoch(event: Mapping[str, Any]) -> bool:
    return isinstance(event.get("epoch"), int) and isinstance(event.get("term"), int)


def _epoch(event: Mapping[str, Any]) -> EpochId:
    return EpochId(Epoch(event["epoch"]), Term(event["term"]))


def _total(counts: Json) -> int:
    """The sum of ``{scope: count}``; a bare number is a sum already."""
    if isinstance(counts, dict):
        return sum(_total(count) for count in counts.values())
    return int(counts) if isinstance(counts, int | float) else 0


def _start(
    storage: JobStorage, job: str, valid: Sequence[EpochId], events: Sequence[Mapping[str, Any]]
) -> Offsets | None:
    if valid and valid[-1].epoch.n == 0:
        return offsets(_manifest(storage, job, valid[-1]).sources)
    # A first start that was killed before it decided epoch 0 begins anew: the last word counts.
    began = [event["positions"] for event in events if event.get("event") == "began" and "positions" in event]
    return offsets(began[-1]) if began else None


def offsets(sources: Mapping[str, Positions]) -> Offsets:
    """The next offsets in stored positions."""
    return {
        source: {int(split.rpartition("/")[2]): _offset(position) for split, position in splits.items()}
        for source, splits in sources.items()
    }


def _offset(position: Mapping[str, Json]) -> int:
    offset = position.get("offset")
    return offset if isinstance(offset, int) else 0
