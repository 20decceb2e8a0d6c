"""The job's own records: where it started, how far it got, which epochs it committed, its events.

The epoch ledger has an entry for each commit with what the job knew. A job that is older than the ledger has its stored
manifests and its history instead, which contain less.

Rule: lines of the ledger, receipts, term records and the history's ``committed`` lines are evidence of a commit; a
published manifest alone is not. Unknown events of the history are ignored.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain
from pathlib import Path
from typing import Any

from kafka_eos.audit.facts.epoch_intervals import Interval, Offsets, first_ends, intervals, offsets, starts, stream_of
from kafka_eos.audit.facts.partitioning_history import Regime, regimes
from kafka_eos.audit.facts.process_deaths import deaths
from kafka_eos.coordination import job_history as history
from kafka_eos.coordination.terms import list_records
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.protocol.lineage import lineage
from kafka_eos.storage import epoch_ledger as epochs
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.epoch_ledger import LedgerEntries, LedgerEntry, ProvenanceRef, describe_difference, entry_of
from kafka_eos.storage.job_records import IdentityRecord, Manifest
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.savepoint_files import SavepointOrigin
from kafka_eos.storage.storage_factory import find_storage

_NEVER = EpochId(Epoch(0), Term(0))


@dataclass(frozen=True, slots=True)
class RecordedCounts:
    """The number of outputs that a commit recorded."""

    by_sink: Mapping[str, int]
    untold: int = 0
    """The number of outputs whose sink is unknown."""

    @property
    def total(self) -> int:
        return sum(self.by_sink.values()) + self.untold


@dataclass(frozen=True, slots=True)
class NamedProvenance:
    """A file of provenance, and the job and epoch whose entry names it."""

    job: str
    epoch: Epoch
    file: ProvenanceRef


@dataclass(frozen=True)
class Ledger:
    """The durable facts of one job."""

    jobs: frozenset[str]
    """The names under which the job has written: several, if it was renamed at the start from a savepoint."""
    newest: EpochId | None
    """The newest committed epoch that is still stored."""
    unfinished: EpochId | None
    """A decided epoch without evidence of its commit, newer than ``newest``."""
    positions: Offsets
    """The positions at which ``newest`` stopped reading."""
    start: Offsets | None
    """The positions of the job's first start; None if they are no longer known."""
    committed: frozenset[EpochId]
    records: Mapping[EpochId, RecordedCounts]
    """Counts of the epochs in the ledger or the history. The history does not distinguish sinks."""
    entries: Mapping[EpochId, LedgerEntry] = field(repr=False, default_factory=LedgerEntries)
    """The facts recorded at each commit, in the order of epochs. For epochs before the ledger: only what is stored."""
    written: frozenset[EpochId] = frozenset()
    """Epochs with a line in the ledger."""
    altered: Mapping[EpochId, str] = field(default_factory=dict)
    """Stored checkpoints that say something else than the ledger, in words."""
    origin: SavepointOrigin | None = None
    """The savepoint that the job began with, if with one."""
    carried: Mapping[EpochId, EpochId] = field(default_factory=dict)
    """Epochs that were given up, and the committed ones that their output went into."""
    parallelism: int = 1
    """The most that an epoch had."""
    events: Sequence[Mapping[str, Any]] = field(repr=False, default=())
    provenance: Mapping[str, Sequence[NamedProvenance]] = field(repr=False, default_factory=dict)
    """Files that say where outputs came from, by the address of the checkpoints that they belong to."""

    @property
    def has_history(self) -> bool:
        return bool(self.written) or any(event.get("event") == "committed" for event in self.events)

    @property
    def intervals(self) -> Iterator[Interval]:
        """Return the input that each epoch has processed, as far as ``entries`` contain it."""
        return intervals(self.entries.values(), self.origin is not None)

    @cached_property
    def dated(self) -> frozenset[EpochId]:
        """Return the epochs whose processed input is known."""
        return frozenset(each.epoch for each in self.intervals)

    @cached_property
    def regimes(self) -> Mapping[str, tuple[Regime, ...]]:
        """Return how outputs were partitioned, by sink, as far as ``entries`` contain it."""
        return regimes(self.entries.values())

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Return the id of the topic that each stream has read last, if known."""
        ids: dict[str, set[Json]] = {}
        for source, splits in self._newest_positions.items():
            for split, at in splits.items():
                ids.setdefault(stream_of(source, split), set()).add(at.get("topic_id"))
        return {stream: str(*found) for stream, found in ids.items() if len(found) == 1 and None not in found}

    @property
    def splits(self) -> Mapping[str, Collection[SplitId]]:
        """Return the splits that each source has read, according to the newest epoch."""
        return {source: splits.keys() for source, splits in self._newest_positions.items()}

    @property
    def _newest_positions(self) -> Mapping[str, Positions]:
        newest = None if self.newest is None else self.entries.get(self.newest)
        return {} if newest is None else newest.sources

    @property
    def first_ends(self) -> Offsets:
        """Return the end offsets up to which tables were read before streams; see ``intervals``."""
        return first_ends(self._newest_positions)

    def count(self, *words: str) -> int:
        """Return the number of events that have one of ``words`` in their name."""
        return sum(any(word in str(event.get("event", "")) for word in words) for event in self.events)

    @property
    def kills(self) -> int:
        """Return the number of deaths of workers and supervisors in the history."""
        return len(deaths(self.events))

    @property
    def restarts(self) -> int:
        """Return the number of attempts after the first: each recovery takes a new term."""
        return max(0, self.count("recovered") - 1)


def read_ledger(storage: JobStorage, job: str, place: Path | str) -> Ledger:
    """Open the job's durable records, which are at ``place``. CorruptCheckpoint if one is damaged."""
    facts, events = list_records(storage, job), history.read_events(storage)
    written = epochs.read(storage)
    committed_events = {
        _epoch(event): event for event in events if event.get("event") == "committed" and _is_epoch(event)
    }
    bases = (base for base in facts.bases.values() if base is not None)
    committed = frozenset({*written, *facts.receipts, *committed_events, *bases})
    valid = lineage(facts.manifests, facts.bases)[::-1]
    stored = {epoch: _manifest(storage, job, epoch) for epoch in valid}
    newest = next((epoch for epoch in valid if epoch in committed), None)
    # A manifest is evidence of what it says where no line of the ledger is there yet, or none any more.
    only = [entry_of(manifest) for epoch, manifest in stored.items() if epoch in committed and epoch not in written]
    entries, origin = LedgerEntries((*only, *written.values())), _origin(storage, job)
    # Also of epochs that do not count: an output of one that is visible all the same has to be named.
    others = (entry_of(_manifest(storage, job, epoch)) for epoch in facts.manifests - entries.keys())
    return Ledger(
        jobs=frozenset({job}),
        newest=newest,
        unfinished=valid[0] if valid and valid[0] != newest else None,
        positions={} if newest is None else offsets(stored[newest].sources),
        start=_start(entries, origin, events),
        committed=committed,
        records={
            epoch: RecordedCounts({}, _total(event["records"]))
            for epoch, event in committed_events.items()
            if "records" in event
        }
        | {epoch: RecordedCounts(entry.outputs, entry.unattributed) for epoch, entry in written.items()},
        entries=entries,
        written=frozenset(written),
        altered={
            e: text
            for e, m in stored.items()
            if e in written and (text := describe_difference(written[e], entry_of(m)))
        },
        origin=origin,
        carried=_carried(events, committed),
        parallelism=max((entry.parallelism for entry in entries.values()), default=1),
        events=events,
        provenance=_kept(place, job, chain(entries.values(), others)),
    )


def read_directory(place: Path | str) -> Ledger:
    """Return the ledger of the one job whose checkpoints are at ``place``, whatever its name.

    Raise ConfigError if there is none, CorruptCheckpoint if a record is damaged.
    """
    storage = find_storage(place)
    if storage is None:
        raise ConfigError(f"{place} is not a job's checkpoint directory: name the one that contains its {paths.LEDGER}")
    return read_ledger(storage, records.decode(IdentityRecord, paths.IDENTITY, storage.read(paths.IDENTITY)).job, place)


def _kept(place: Path | str, job: str, entries: Iterable[LedgerEntry]) -> dict[str, Sequence[NamedProvenance]]:
    kept = {NamedProvenance(job, entry.id.epoch, file) for entry in entries for file in entry.provenance}
    address = place if isinstance(place, str) and "://" in place else str(Path(place).absolute())
    return {address: sorted(kept, key=lambda named: (named.file.name, named.epoch))} if kept else {}


def joined(ledger: Ledger, earlier: Sequence[Ledger]) -> Ledger:
    """Combine the ledgers of a job that moved between checkpoint directories, each time by a savepoint, maybe with
    another name.
    """
    lives = [*sorted(earlier, key=lambda life: max(life.committed, default=_NEVER)), ledger]
    first = lives[0]
    starts = [life.start for life in reversed(lives)]
    return replace(
        ledger,
        jobs=frozenset().union(*(life.jobs for life in lives)),
        # The earliest life that knows a source tells where it began.
        start=None if first.start is None else reduce(operator.or_, (start or {} for start in starts)),
        committed=frozenset().union(*(life.committed for life in lives)),
        records=reduce(operator.or_, (dict(life.records) for life in lives)),
        entries=LedgerEntries(entry for life in lives for entry in life.entries.values()),
        written=frozenset().union(*(life.written for life in lives)),
        altered=reduce(operator.or_, (dict(life.altered) for life in lives)),
        origin=first.origin,
        carried=reduce(operator.or_, (dict(life.carried) for life in lives)),
        parallelism=max(life.parallelism for life in lives),
        events=[event for life in lives for event in life.events],
        provenance=reduce(operator.or_, (dict(life.provenance) for life in lives)),
    )


def _carried(events: Sequence[Mapping[str, Any]], committed: Collection[EpochId]) -> dict[EpochId, EpochId]:
    """Map each aborted epoch to the committed epoch of its term that includes its output."""
    given_up = [_epoch(event) for event in events if event.get("event") == "aborted" and _is_epoch(event)]
    later = {g: [c for c in committed if c.term == g.term and c.epoch > g.epoch] for g in given_up}
    return {epoch: min(into) for epoch, into in later.items() if into}


def _origin(storage: JobStorage, job: str) -> SavepointOrigin | None:
    try:
        return records.load(storage, SavepointOrigin, paths.ORIGIN, job)
    except FileNotFoundError:
        return None


def _manifest(storage: JobStorage, job: str, epoch: EpochId) -> Manifest:
    return records.load(storage, Manifest, paths.manifest_name(epoch), job)


def _is_epoch(event: Mapping[str, Any]) -> bool:
    return isinstance(event.get("epoch"), int) and isinstance(event.get("term"), int)


def _epoch(event: Mapping[str, Any]) -> EpochId:
    return EpochId(Epoch(event["epoch"]), Term(event["term"]))


def _total(counts: Json) -> int:
    """Return the sum of ``{scope: count}``; a bare number is already the sum."""
    if isinstance(counts, dict):
        return sum(_total(count) for count in counts.values())
    return int(counts) if isinstance(counts, int | float) else 0


def _start(
    entries: Mapping[EpochId, LedgerEntry], origin: SavepointOrigin | None, events: Sequence[Mapping[str, Any]]
) -> Offsets | None:
    """Return where the job began to read, from all records; the ledger takes precedence."""
    # A first start that was killed before it decided epoch 0 starts over: the last record counts.
    began = [event["positions"] for event in events if event.get("event") == "began" and "positions" in event]
    from_history = offsets(began[-1]) if began else None
    known = starts(entries.values(), origin is not None)
    if from_history is None or known is None:
        return known or from_history
    return {source: {**from_history.get(source, {}), **known.get(source, {})} for source in {*from_history, *known}}
