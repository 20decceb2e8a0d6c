"""The epoch ledger: for each commit a line that says what the job knew, kept for as long as the job's directory.

A manifest says the same, and more, but retention drops it. The audit believes the ledger: from it follows which input
an epoch processed, with how many workers, and how many outputs of each sink it committed.

A line is written once its epoch is committed, unsynced; before a manifest is dropped its line is made durable. So a
power cut takes no line but those whose manifests are still there. An epoch may have several lines, one of each term
that has finished it; they say the same. Positions are written as what has changed since the line before of the same
writer, whose lines are numbered: the first has everything, and so has the one after a line that could not be written.

Rule: nothing that the job does depends on it. A line that is torn, or that follows one which is missing, is left out; a
line that was altered is CorruptCheckpoint.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, TypeAlias, get_type_hints

import msgspec

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
"""Hex digits of a SHA-256 that are kept: enough for whoever does not choose both texts."""


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The state of one operator in some key groups: digests of its files, and of how its values are encoded."""

    first: int
    last: int
    files: str
    codecs: str


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A file of provenance: its writer's name for it, its digest, its bytes."""

    name: str
    sha256: str
    size: int

    @property
    def ref(self) -> FileRef:
        return FileRef(self.name, self.sha256, self.size)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a job knew when it committed an epoch."""

    id: EpochId
    at: int
    """When the epoch was decided, in milliseconds since the Unix epoch."""
    plan: str
    """Fingerprint of the plan."""
    parallelism: int
    in_flight: bool
    """Were rows under way between operators? A later epoch has processed them then."""
    sources: Mapping[str, Positions]
    """Where each split is read next, by source."""
    outputs: Mapping[str, int]
    """Committed outputs by sink."""
    untold: int
    """Committed outputs of which nobody knows the sink."""
    spread: Mapping[str, Spread]
    """How outputs of sinks with partitions were divided, as far as that is known."""
    states: Mapping[str, tuple[Stored, ...]]
    """By operator."""
    provenance: tuple[Kept, ...] = ()
    """Files that say where outputs came from which do not say it themselves."""


class Entries(Mapping[EpochId, Entry]):
    """Entries by epoch, in their order.

    A job of years has millions. They are kept packed, in some hundred bytes each, and an entry is made anew whenever it
    is asked for.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._packed: dict[EpochId, tuple[bytes, _Alike]] = {}
        self._alike: dict[bytes, _Alike] = {}
        for entry in entries:
            self._packed[entry.id] = self._pack(entry)
        self._sort()

    @classmethod
    def told(cls, entries: Iterable[tuple[int, Entry]]) -> Entries:
        """Those of a ledger, with the numbers of their lines. CorruptCheckpoint if two of an epoch differ."""
        found = cls()
        for number, entry in entries:
            packed = found._pack(entry)
            if found._packed.setdefault(entry.id, packed) != packed and found[entry.id] != entry:
                raise CorruptCheckpoint(f"{paths.LEDGER}: line {number} contradicts another one of epoch {entry.id}")
        found._sort()
        return found

    def __getitem__(self, epoch: EpochId) -> Entry:
        own, alike = self._packed[epoch]
        return Entry(id=epoch, **dict(zip(_OWN, _unpacked(zlib.decompress(own)), strict=True)), **alike)

    def __iter__(self) -> Iterator[EpochId]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def _pack(self, entry: Entry) -> tuple[bytes, _Alike]:
        alike = {field: getattr(entry, field) for field in _ALIKE}
        own = zlib.compress(_packed([getattr(entry, field) for field in _OWN]), _QUICKLY)
        return own, self._alike.setdefault(_packed(alike), alike)

    def _sort(self) -> None:
        self._packed = dict(sorted(self._packed.items(), key=itemgetter(0)))


_Alike: TypeAlias = Mapping[str, Any]
_ALIKE = ("plan", "spread")
"""What most entries have in common with others."""
_HINTS = {field.name: hint for field, hint in zip(fields(Entry), get_type_hints(Entry).values(), strict=True)}
_OWN = tuple(name for name in _HINTS if name not in ("id", *_ALIKE))
_Json: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Positions as they are read; their own type is recursive, which the decoder cannot take."""
_QUICKLY = 1
_packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder(tuple[tuple(_Json if n == "sources" else _HINTS[n] for n in _OWN)]).decode  # type: ignore[misc]


def entry_of(manifest: Manifest) -> Entry:
    """What the ledger says of a decided epoch, once it is committed."""
    outputs: dict[str, int] = {}
    spread: dict[str, Spread | None] = {}
    for committable in manifest.committables:
        for sink, count in committable.by_sink.items():
            outputs[sink] = outputs.get(sink, 0) + count
            found = committable.spread.get(sink)
            spread[sink] = _both(spread[sink], found) if sink in spread else found
    states: dict[str, tuple[Stored, ...]] = {}
    for handle in manifest.states:
        states[handle.operator] = (*states.get(handle.operator, ()), _stored(handle))
    return Entry(
        id=manifest.id,
        at=manifest.created_at,
        plan=manifest.plan,
        parallelism=manifest.parallelism,
        in_flight=bool(manifest.in_flight),
        sources=manifest.sources,
        outputs=outputs,
        untold=sum(committable.records for committable in manifest.committables) - sum(outputs.values()),
        states=states,
        spread={sink: known for sink, known in spread.items() if known is not None},
        provenance=tuple(Kept(c.provenance.name, c.provenance.sha256, c.provenance.size)
                         for c in manifest.committables if c.provenance is not None),
    )  # fmt: skip


def _both(one: Spread | None, other: Spread | None) -> Spread | None:
    """What is known of the records of two subtasks; None if of some nothing is."""
    return None if one is None or other is None else one.joined(other)


def difference(told: Entry, stored: Entry) -> str | None:
    """What a stored checkpoint says otherwise than the ledger of it, in words; None if nothing."""
    if told == stored:
        return None
    if told.states != stored.states:
        names = {*told.states, *stored.states}
        wrong = sorted(name for name in names if told.states.get(name) != stored.states.get(name))
        return f"the state of {', '.join(wrong)} is not the one that was committed"
    return "its positions are not those that were committed" if told.sources != stored.sources else "it was altered"


def _stored(handle: StateHandle) -> Stored:
    files = "".join(f"{file.name} {file.sha256}\n" for file in sorted(handle.files, key=lambda file: file.name))
    codecs = json.dumps(sorted(handle.states, key=lambda state: str(state.get("name"))), sort_keys=True)
    return Stored(*handle.key_groups, _digest(files), _digest(codecs))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


# ---------------------------------------------------------------- writing


class EpochLedger:
    """The ledger as one coordinator writes it. ``notice`` hears, in words, that a line could not be written."""

    def __init__(self, storage: JobStorage, job: str, notice: Callable[[str], None]) -> None:
        self._storage, self._job, self._notice = storage, job, notice
        self._writer, self._lines = secrets.token_hex(4), 0
        self._before: _Known | None = None
        """What the last line said, which the next one goes on from; None if that must be full."""
        self._written: set[EpochId] = set()
        """Epochs with a line of this writer that may not be durable yet."""

    def committed(self, manifest: Manifest) -> None:
        """Write the line of an epoch. Raises nothing if the storage cannot be written: ``keep`` writes it later."""
        try:
            self._write(entry_of(manifest))
        except OSError as error:
            self._notice(
                f"{paths.LEDGER} cannot be written: {error}. The job goes on; the line of epoch {manifest.epoch} is "
                "written before its manifest is dropped"
            )

    def keep(self, epochs: Collection[EpochId]) -> None:
        """Make the lines of committed epochs durable, before their manifests are dropped. Raises OSError.

        Those that another writer has written get another line: looking for theirs would mean to read the whole ledger.
        """
        for epoch in sorted(set(epochs) - self._written):
            self._write(entry_of(records.load(self._storage, Manifest, paths.manifest_name(epoch), self._job)))
        self._storage.settle(paths.LEDGER)
        self._written.difference_update(epochs)

    def _write(self, entry: Entry) -> None:
        before, self._before = self._before, None
        if before is not None and before.plan != entry.plan:
            before = None  # only a full line says its plan
        changed = None if before is None else _changed(before.sources, entry.sources)
        known = _NOTHING if before is None or changed is None else before
        self._lines += 1
        self._storage.append(paths.LEDGER, _encoded(entry, self._writer, self._lines, known, changed))
        self._before = known.after(entry)
        self._written.add(entry.id)


@dataclass(frozen=True, slots=True)
class _Known:
    """What lines of a writer have said, and later ones need not say again."""

    plan: str
    sources: Mapping[str, Positions]
    spread: Mapping[str, Spread | None]
    """Of each sink as it was last told; None if nothing was known."""

    def after(self, entry: Entry) -> _Known:
        """What is known when that was said, too."""
        told = {sink: entry.spread.get(sink) for sink in entry.outputs}
        return _Known(entry.plan, entry.sources, {**self.spread, **told})

    def news(self, entry: Entry) -> dict[str, Spread | None]:
        """What of the spread of an entry is other than it was."""
        now = {sink: entry.spread.get(sink) for sink in entry.outputs}
        return {sink: spread for sink, spread in now.items() if spread != self.spread.get(sink)}


_NOTHING = _Known("", {}, {})


def _encoded(entry: Entry, writer: str, number: int, known: _Known, changed: Mapping[str, Positions] | None) -> str:
    """``changed``: what of the positions is other than it was; None if the line must be full."""
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
        untold=entry.untold,
        spread=known.news(entry),
        states=entry.states,
        provenance=entry.provenance,
    )
    body = msgspec.json.encode(line).decode()
    return f'{body[:-1]}{_SUM}{_digest(body)}"}}'


def _changed(before: Mapping[str, Positions], now: Mapping[str, Positions]) -> dict[str, Positions] | None:
    """What is other than it was; None if something is gone, which no change can say."""
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
    """A line without its checksum."""

    epoch: int
    term: int
    writer: str
    n: int
    """Number of the line among those of its writer."""
    full: bool = False
    at: int
    plan: str = ""
    """Of a ``full`` line; the same of those that follow."""
    parallelism: int
    in_flight: bool = False
    sources: Any
    """What has changed of the positions; of a ``full`` line all."""
    outputs: Mapping[str, int] = {}
    untold: int = 0
    spread: Mapping[str, Spread | None] = {}
    """What has changed of it, for sinks with outputs; of a ``full`` line all."""
    states: Mapping[str, tuple[Stored, ...]] = {}
    provenance: tuple[Kept, ...] = ()


# ---------------------------------------------------------------- reading


def read(storage: JobStorage) -> Entries:
    """All entries. CorruptCheckpoint, naming the line, if one was altered or contradicts another."""
    return Entries.told(_read(storage.lines(paths.LEDGER)))


def _read(texts: Sequence[str]) -> Iterator[tuple[int, Entry]]:
    """What the lines say, with their numbers."""
    last: dict[str, tuple[int, _Known]] = {}
    for number, line in _lines(texts):
        before = last.pop(line.writer, None)
        if line.full:
            known = replace(_NOTHING, plan=line.plan)
        elif before is not None and before[0] + 1 == line.n:
            known = before[1]
        else:
            continue
        entry = _entry(line, known)
        last[line.writer] = line.n, known.after(entry)
        yield number, entry


def _lines(texts: Sequence[str]) -> Iterator[tuple[int, _Line]]:
    """What can be read, with the number of its line. CorruptCheckpoint if a whole line was altered."""
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


def _entry(line: _Line, known: _Known) -> Entry:
    spread = {**known.spread, **line.spread}
    return Entry(
        id=EpochId(Epoch(line.epoch), Term(line.term)),
        at=line.at,
        plan=known.plan,
        parallelism=line.parallelism,
        in_flight=line.in_flight,
        sources=_merged(known.sources, line.sources),
        outputs=line.outputs,
        untold=line.untold,
        spread={sink: found for sink in line.outputs if (found := spread.get(sink)) is not None},
        states=line.states,
        provenance=line.provenance,
    )
