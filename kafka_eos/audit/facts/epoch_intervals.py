"""The input that each epoch has processed, from the epoch ledger.

Pure. An epoch reads a partition from where the previous one stopped, and processes the rows that were in flight when
that one ended. Rule: what the ledger does not contain is left out, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.provenance import encode_name
from kafka_eos.protocol.source_dependencies import first_end
from kafka_eos.storage.epoch_ledger import LedgerEntry

Offsets = dict[str, dict[int, int]]
"""Next offset by stream and partition. A stream is one topic of a source operator: ``orders/orders-eu``."""


Spans = dict[str, dict[int, list[int]]]
"""By stream and partition: the exclusive end of each span of input. Each partition has the same number of spans."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Offsets of one input partition, ``begin`` to ``end`` (exclusive), that outputs of an epoch may come from."""

    epoch: EpochId
    stream: str
    partition: int
    begin: int
    end: int


def intervals(entries: Iterable[LedgerEntry], successor: bool) -> Iterator[Interval]:
    """Return the input interval of every committed epoch whose start is known.

    ``entries``: in the order of epochs.
    ``successor``: the job began with a savepoint, so its partitions were read before its first epoch.
    """
    open_: dict[tuple[str, int], int] = {}
    """By stream and partition: the first offset of the rows that were in flight at the end of the last epoch."""
    before: LedgerEntry | None = None
    for entry in entries:
        known = _begun(entry, before, successor)
        if before is not None:
            for stream, parts in offsets(before.sources).items():
                known.setdefault(stream, {}).update(parts)
        under_way: dict[tuple[str, int], int] = {}
        for stream, parts in offsets(entry.sources).items():
            for partition, end in parts.items():
                if (start := known.get(stream, {}).get(partition)) is not None:
                    begin = under_way[stream, partition] = open_.get((stream, partition), start)
                    yield Interval(entry.id, stream, partition, begin, end)
        before, open_ = entry, under_way if entry.in_flight else {}


def first_ends(sources: Mapping[str, Positions]) -> Offsets:
    """Return the end offset up to which each partition of a table was read before all streams joined with it."""
    found: Offsets = {}
    for source, splits in sources.items():
        for split, at in splits.items():
            if (end := first_end(at)) is not None:
                for stream, parts in offsets({source: {split: end}}).items():
                    found.setdefault(stream, {}).update(parts)
    return found


def spans(entries: Iterable[LedgerEntry]) -> Spans:
    """Return the input, cut where an epoch ended without in-flight rows: each span was processed before the next one.

    An offset belongs to the first span that ends behind it, or to a further span behind the last end. ``entries`` are
    in the order of epochs. An end behind a later one is ignored: the job has rolled back, for example to a savepoint.
    """
    ends: list[dict[tuple[str, int], int]] = []
    known: dict[tuple[str, int], int] = {}
    for entry in entries:
        read = offsets(entry.sources).items()
        known = known | {(source, partition): end for source, parts in read for partition, end in parts.items()}
        if not entry.in_flight:
            ends.append(known)
    every = sorted(known)
    kept: list[dict[tuple[str, int], int]] = []
    limit: dict[tuple[str, int], int] = {}
    for end in reversed(ends):
        # A partition that is not known yet has not been read.
        at = {place: end.get(place, 0) for place in every}
        if all(at[place] <= limit.get(place, at[place]) for place in every):
            kept.append(at)
            limit = at
    found: Spans = {}
    for source, partition in every:
        found.setdefault(source, {})[partition] = [at[source, partition] for at in reversed(kept)]
    return found


def starts(entries: Iterable[LedgerEntry], successor: bool) -> Offsets | None:
    """Return where the job began to read each partition in the ledger; None if its first epochs are missing."""
    found: Offsets = {}
    before: LedgerEntry | None = None
    for entry in entries:
        if before is None and not _is_first(entry, successor):
            return None
        for source, parts in _begun(entry, before, successor).items():
            for partition, start in parts.items():
                found.setdefault(source, {}).setdefault(partition, start)
        before = entry
    return found or None


def _begun(entry: LedgerEntry, before: LedgerEntry | None, successor: bool) -> Offsets:
    """Return where partitions begin that this epoch is the first to record."""
    if before is None and _is_first(entry, successor):
        return offsets(entry.sources)
    known = {} if before is None else before.sources
    found: Offsets = {}
    for source, splits in entry.sources.items():
        for split, at in splits.items():
            if split not in known.get(source, {}) and isinstance(begin := at.get("begin"), int):
                found.setdefault(stream_of(source, split), {})[partition_of(split)] = begin
    return found


def _is_first(entry: LedgerEntry, successor: bool) -> bool:
    """Return whether nothing was read before ``entry``, the first known epoch. A successor's first reads nothing."""
    return successor or entry.id.epoch.n == 0


def offsets(sources: Mapping[str, Positions]) -> Offsets:
    """Return the next offsets in stored positions. Other positions, such as a row of a table, are omitted."""
    found: Offsets = {}
    for source, splits in sources.items():
        for split, position in splits.items():
            if isinstance(offset := position.get("offset"), int):
                found.setdefault(stream_of(source, split), {})[partition_of(split)] = offset
    return found


def stream_of(source: str, split: str) -> str:
    """Return the stream of a split that is named ``topic/partition``."""
    return stream(source, split.rpartition("/")[0])


def stream(source: str, topic: str) -> str:
    """Return the name of one topic of a source, as in provenance: no encoded name contains a slash."""
    return f"{source}/{encode_name(topic)}"


def partition_of(split: str) -> int:
    return int(split.rpartition("/")[2])
