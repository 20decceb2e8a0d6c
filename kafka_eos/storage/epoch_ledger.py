"""The epoch ledger: one line per commit with the job's facts at that time, kept as long as the job's directory.

A manifest contains the same facts and more, but retention deletes it. The audit relies on the ledger: from it follow
the input that an epoch processed, the number of workers, and how many outputs of each sink it committed.

A line is written once its epoch is committed, without a sync. Before a manifest is deleted, its line is made durable.
So a power cut loses only lines whose manifests still exist. An epoch may have several lines with the same content, one
per term that has finished it. Positions are written as changes since the previous line of the same writer, whose lines
are numbered. The first line of a writer is complete, and so is the line after one that could not be written.
Rule: nothing that the job does depends on the ledger. A torn line, or one that follows a missing line, is skipped. An
altered line raises CorruptCheckpoint.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.abc.committer import Spread
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage

_SUM = ',"sum":"'
_DIGITS = 16
"""Hex digits of a SHA-256 that are kept: enough, because no adversary chooses both texts."""


class StateDigest(msgspec.Struct, frozen=True, array_like=True):
    """The digests of one operator's state files in some key groups."""

    first: int
    last: int
    files: str
    codecs: str


class ProvenanceRef(msgspec.Struct, frozen=True, array_like=True):
    """A reference to a provenance file: its name, digest and size."""

    name: str
    sha256: str
    size: int

    @property
    def ref(self) -> FileRef:
        return FileRef(self.name, self.sha256, self.size)


class LedgerEntry(Struct, frozen=True):
    """The facts recorded about one committed epoch."""

    id: EpochId
    at: int
    """The time of the decision, in milliseconds since the Unix epoch."""
    plan: str
    """Fingerprint of the plan."""
    parallelism: int
    in_flight: bool
    """True if rows were in flight between operators; a later epoch has processed them then."""
    sources: Mapping[str, Positions]
    """The next position of each split, by source."""
    outputs: Mapping[str, int]
    """Committed outputs by sink."""
    unattributed: int
    """Committed outputs whose sink is not known."""
    spread: Mapping[str, Spread]
    """The distribution of outputs over the partitions of each sink that has some, as far as it is known."""
    states: Mapping[str, tuple[StateDigest, ...]]
    """Digests of the state files, by operator."""
    provenance: tuple[ProvenanceRef, ...] = ()
    """Files with the origins of outputs that do not contain their origin themselves."""


class LedgerEntries(Mapping[EpochId, LedgerEntry]):
    """The ledger entries by epoch, kept compressed in memory.

    A job of several years has millions of entries. Each is kept packed in a few hundred bytes, and is decoded on each
    access.
    """

    def __init__(self, entries: Iterable[LedgerEntry] = ()) -> None:
        self._packed: dict[EpochId, tuple[bytes, _SharedFields]] = {}
        self._alike: dict[bytes, _SharedFields] = {}
        for entry in entries:
            self._packed[entry.id] = self._pack(entry)
        self._sort()

    @classmethod
    def from_lines(cls, entries: Iterable[tuple[int, LedgerEntry]]) -> LedgerEntries:
        """Build the entries from numbered lines. Raise CorruptCheckpoint if two lines of an epoch differ."""
        found = cls()
        for number, entry in entries:
            packed = found._pack(entry)
            if found._packed.setdefault(entry.id, packed) != packed and found[entry.id] != entry:
                raise CorruptCheckpoint(f"{paths.LEDGER}: line {number} contradicts another one of epoch {entry.id}")
        found._sort()
        return found

    def __getitem__(self, epoch: EpochId) -> LedgerEntry:
        own, alike = self._packed[epoch]
        return LedgerEntry(id=epoch, **dict(zip(_OWN, _unpacked(zlib.decompress(own)), strict=True)), **alike)

    def __iter__(self) -> Iterator[EpochId]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def _pack(self, entry: LedgerEntry) -> tuple[bytes, _SharedFields]:
        alike = {field: getattr(entry, field) for field in _ALIKE}
        own = zlib.compress(_packed([getattr(entry, field) for field in _OWN]), _QUICKLY)
        return own, self._alike.setdefault(_packed(alike), alike)

    def _sort(self) -> None:
        self._packed = dict(sorted(self._packed.items(), key=itemgetter(0)))


_SharedFields: TypeAlias = Mapping[str, Any]
_ALIKE = ("plan", "spread")
"""Fields that most entries share with others."""
_HINTS = dict(zip(LedgerEntry.__struct_fields__, get_type_hints(LedgerEntry).values(), strict=True))
_OWN = tuple(name for name in _HINTS if name not in ("id", *_ALIKE))
_Json: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Positions as they are read; their own type is recursive, which the decoder cannot take."""
_QUICKLY = 1
_packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder(tuple[tuple(_Json if n == "sources" else _HINTS[n] for n in _OWN)]).decode  # type: ignore[misc]


def entry_of(manifest: Manifest) -> LedgerEntry:
    """Return the ledger entry of a decided epoch, to be written once it is committed."""
    outputs: dict[str, int] = {}
    spread: dict[str, Spread | None] = {}
    for committable in manifest.committables:
        for sink, count in committable.by_sink.items():
            outputs[sink] = outputs.get(sink, 0) + count
            found = committable.spread.get(sink)
            spread[sink] = _both(spread[sink], found) if sink in spread else found
    states: dict[str, tuple[StateDigest, ...]] = {}
    for handle in manifest.states:
        states[handle.operator] = (*states.get(handle.operator, ()), _stored(handle))
    return LedgerEntry(
        id=manifest.id,
        at=manifest.created_at,
        plan=manifest.plan,
        parallelism=manifest.parallelism,
        in_flight=bool(manifest.in_flight),
        sources=manifest.sources,
        outputs=outputs,
        unattributed=sum(committable.records for committable in manifest.committables) - sum(outputs.values()),
        states=states,
        spread={sink: known for sink, known in spread.items() if known is not None},
        provenance=tuple(ProvenanceRef(c.provenance.name, c.provenance.sha256, c.provenance.size)
                         for c in manifest.committables if c.provenance is not None),
    )  # fmt: skip


def _both(one: Spread | None, other: Spread | None) -> Spread | None:
    """Return the combined spread of two subtasks; None if either is unknown."""
    return None if one is None or other is None else one.joined(other)


def describe_difference(recorded: LedgerEntry, stored: LedgerEntry) -> str | None:
    """Return a description of how a stored checkpoint differs from its ledger entry; None if it does not."""
    if recorded == stored:
        return None
    if recorded.states != stored.states:
        names = {*recorded.states, *stored.states}
        wrong = sorted(name for name in names if recorded.states.get(name) != stored.states.get(name))
        return f"the state of {', '.join(wrong)} is not the one that was committed"
    return "its positions are not those that were committed" if recorded.sources != stored.sources else "it was altered"


def _stored(handle: StateHandle) -> StateDigest:
    files = "".join(f"{file.name} {file.sha256}\n" for file in sorted(handle.files, key=lambda file: file.name))
    codecs = json.dumps(sorted(handle.states, key=lambda state: str(state.get("name"))), sort_keys=True)
    return StateDigest(*handle.key_groups, _digest(files), _digest(codecs))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


# ---------------------------------------------------------------- writing


class EpochLedger:
    """The writer of the ledger, for one coordinator. It calls ``notice`` with a message if a line cannot be written."""

    def __init__(self, storage: JobStorage, job: str, notice: Callable[[str], None]) -> None:
        self._storage = storage
        self._job = job
        self._notice = notice
        self._writer, self._lines = secrets.token_hex(4), 0
        self._before: _LineContext | None = None
        """The context that the next line continues from; None if that line must be complete."""
        self._written: set[EpochId] = set()
        """Epochs with a line of this writer that may not be durable yet."""

    def write_epoch(self, manifest: Manifest) -> None:
        """Write the line of a committed epoch. Raise nothing if that fails: ``make_durable`` writes it later."""
        try:
            self._write(entry_of(manifest))
        except OSError as error:
            self._notice(
                f"{paths.LEDGER} cannot be written: {error}. The job continues; the line of epoch "
                f"{manifest.epoch} is written before its manifest is deleted"
            )

    def make_durable(self, epochs: Collection[EpochId]) -> None:
        """Make the lines of these epochs durable before their manifests are deleted. Raises OSError.

        Epochs with a line of another writer get a second line, because finding the first would mean reading the whole
        ledger.
        """
        for epoch in sorted(set(epochs) - self._written):
            self._write(entry_of(records.load(self._storage, Manifest, paths.manifest_name(epoch), self._job)))
        self._storage.sync_log(paths.LEDGER)
        self._written.difference_update(epochs)

    def _write(self, entry: LedgerEntry) -> None:
        before, self._before = self._before, None
        if before is not None and before.plan != entry.plan:
            before = None  # only a complete line contains the plan
        changed = None if before is None else _changed(before.sources, entry.sources)
        known = _NOTHING if before is None or changed is None else before
        self._lines += 1
        self._storage.append(paths.LEDGER, _encoded(entry, self._writer, self._lines, known, changed))
        self._before = known.with_entry(entry)
        self._written.add(entry.id)


class _LineContext(Struct, frozen=True):
    """The content of a writer's earlier lines, which later lines may omit."""

    plan: str
    sources: Mapping[str, Positions]
    spread: Mapping[str, Spread | None]
    """The last written spread of each sink; None if it was unknown."""

    def with_entry(self, entry: LedgerEntry) -> _LineContext:
        """Return the context after one more line."""
        spread_of_outputs = {sink: entry.spread.get(sink) for sink in entry.outputs}
        return _LineContext(entry.plan, entry.sources, {**self.spread, **spread_of_outputs})

    def changes(self, entry: LedgerEntry) -> dict[str, Spread | None]:
        """Return the entries of the partition spread that changed since the previous line."""
        now = {sink: entry.spread.get(sink) for sink in entry.outputs}
        return {sink: spread for sink, spread in now.items() if spread != self.spread.get(sink)}


_NOTHING = _LineContext("", {}, {})


def _encoded(
    entry: LedgerEntry, writer: str, number: int, known: _LineContext, changed: Mapping[str, Positions] | None
) -> str:
    """Return the text of a line. ``changed``: the changed positions; None if the line must be complete."""
    line = _Line(
        epoch=entry.id.epoch.n,
        term=entry.id.term.n,
        writer=writer,
        n=number,
        full=changed is None,
        at=entry.at,
        plan=entry.plan if changed is None else "",
        parallelism=entry.parallelism,
        in_flight=entry.in_flight,
        sources=entry.sources if changed is None else changed,
        outputs=entry.outputs,
        unattributed=entry.unattributed,
        spread=known.changes(entry),
        states=entry.states,
        provenance=entry.provenance,
    )
    body = msgspec.json.encode(line).decode()
    return f'{body[:-1]}{_SUM}{_digest(body)}"}}'


def _changed(before: Mapping[str, Positions], now: Mapping[str, Positions]) -> dict[str, Positions] | None:
    """Return the changed positions; None if an entry was removed, which a change cannot express."""
    if before.keys() != now.keys():
        return None
    changed: dict[str, Positions] = {}
    for source, splits in now.items():
        known = before[source]
        if known.keys() - splits.keys() or any(known[split].keys() - splits[split].keys() for split in known):
            return None
        for split, at in splits.items():
            was = known.get(split, {})
            if news := {field: value for field, value in at.items() if field not in was or was[field] != value}:
                changed.setdefault(source, {})[split] = news
    return changed


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ledger line without its checksum."""

    epoch: int
    term: int
    writer: str
    n: int
    """Number of the line among those of its writer."""
    full: bool = False
    at: int
    plan: str = ""
    """The plan's fingerprint, on complete lines only; it also applies to the lines that follow."""
    parallelism: int
    in_flight: bool = False
    sources: Any
    """The changed positions; all positions on a complete line."""
    outputs: Mapping[str, int] = {}
    unattributed: int = 0
    spread: Mapping[str, Spread | None] = {}
    """The changed spread of sinks with outputs; the whole spread on a complete line."""
    states: Mapping[str, tuple[StateDigest, ...]] = {}
    provenance: tuple[ProvenanceRef, ...] = ()


# ---------------------------------------------------------------- reading


def read(storage: JobStorage) -> LedgerEntries:
    """Return all entries. Raise CorruptCheckpoint, naming the line, if one was altered or contradicts another."""
    return LedgerEntries.from_lines(_read(storage.lines(paths.LEDGER)))


def _read(texts: Sequence[str]) -> Iterator[tuple[int, LedgerEntry]]:
    """Yield the entries with their line numbers."""
    last: dict[str, tuple[int, _LineContext]] = {}
    for number, line in _lines(texts):
        before = last.pop(line.writer, None)
        if line.full:
            known = replace(_NOTHING, plan=line.plan)
        elif before is not None and before[0] + 1 == line.n:
            known = before[1]
        else:
            continue
        entry = _entry(line, known)
        last[line.writer] = line.n, known.with_entry(entry)
        yield number, entry


def _lines(texts: Sequence[str]) -> Iterator[tuple[int, _Line]]:
    """Yield the readable lines with their numbers. Raise CorruptCheckpoint if an untorn line was altered."""
    for number, text in enumerate(texts, start=1):
        body, _, found = text.rpartition(_SUM)
        if not body or not found.endswith('"}'):
            continue  # torn by a crash
        body += "}"
        if found != f'{_digest(body)}"}}':
            raise CorruptCheckpoint(f"{paths.LEDGER}: line {number} was altered: its checksum does not match")
        yield number, msgspec.json.decode(body, type=_Line)


def _merged(known: Mapping[str, Positions], changed: Mapping[str, Mapping[str, Position]]) -> dict[str, Positions]:
    merged = {source: dict(splits) for source, splits in known.items()}
    for source, splits in changed.items():
        into = merged.setdefault(source, {})
        for name, news in splits.items():
            split = SplitId(name)
            into[split] = {**into.get(split, {}), **news}
    return merged


def _entry(line: _Line, known: _LineContext) -> LedgerEntry:
    spread = {**known.spread, **line.spread}
    return LedgerEntry(
        id=EpochId(Epoch(line.epoch), Term(line.term)),
        at=line.at,
        plan=known.plan,
        parallelism=line.parallelism,
        in_flight=line.in_flight,
        sources=_merged(known.sources, line.sources),
        outputs=line.outputs,
        unattributed=line.unattributed,
        spread={sink: found for sink in line.outputs if (found := spread.get(sink)) is not None},
        states=line.states,
        provenance=line.provenance,
    )
