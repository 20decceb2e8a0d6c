"""The records of a job (identity, manifest, receipt, claim, base) and their durable form.

One header line, then JSON:  ``kafka-eos <format> <version> <length of the body> <sha256>``. The checksum
covers the header up to itself and the body. ``schemas/*.avsc`` describe the bodies.
Rule: a record is believed only if header, checksum, job and name agree; anything else names the object. Whose life
a record is of (``identity``) is for its reader to compare: see ``expect_life``.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import msgspec

from kafka_eos.abc.committer import Committable, Outcome, Spread
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.storage import object_names as paths

_HEADER = re.compile(rb"(kafka-eos ([a-z]{1,20}) ([0-9]{1,9}) ([0-9]{1,18}) )([0-9a-f]{64})")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all durable records share. ``name`` is where the record belongs."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    job: str

    @property
    def name(self) -> str:
        raise NotImplementedError(type(self).__name__)


class Identity(Record, frozen=True, kw_only=True):
    """Which life of its name the job of this directory is; made at its first start that is not refused."""

    FORMAT: ClassVar[str] = "identity"

    identity: str
    at: int
    """Milliseconds since the Unix epoch."""

    @property
    def name(self) -> str:
        return paths.IDENTITY

    @property
    def id(self) -> JobIdentity:
        return JobIdentity(self.identity)


class Manifest(Record, frozen=True, kw_only=True):
    """One decided epoch: what was read up to where, the state then, and the output that is promised."""

    FORMAT: ClassVar[str] = "manifest"

    epoch: int
    term: int
    created_at: int
    """Milliseconds since the Unix epoch."""
    plan: str
    """Fingerprint of the plan that made it."""
    max_key_groups: int
    parallelism: int
    sources: dict[str, Positions]
    """Start positions for the next epoch, by source operator."""
    states: tuple[StateHandle, ...]
    committables: tuple[Committable, ...]
    in_flight: tuple[InFlight, ...] = ()
    """Rows between subtasks that belong to the snapshot; they are processed before anything that is read."""
    identity: str
    """Which life of the job's name decided it."""
    known_in: tuple[str, ...] = ()
    """Scopes of the sinks that knew this life when it decided the epoch."""
    remembered: tuple[Committable, ...] = ()
    """Committed output of epochs before: of each sink that tells for good whether it has it, and that has none of this
    epoch, what the newest epoch has there that had some. A recovery asks for it."""

    @property
    def id(self) -> EpochId:
        return EpochId(Epoch(self.epoch), Term(self.term))

    @property
    def name(self) -> str:
        return paths.manifest_name(self.id)

    @property
    def files(self) -> frozenset[str]:
        """SHA-256 of every file that the epoch needs."""
        return frozenset(named_files(self.states, self.in_flight))


def named_files(states: Iterable[StateHandle], in_flight: Iterable[InFlight]) -> dict[str, FileRef]:
    """Each file of state and of rows under way once, by its SHA-256."""
    parts: Iterable[StateHandle | InFlight] = itertools.chain(states, in_flight)
    return {file.sha256: file for part in parts for file in part.files}


class Receipt(Record, frozen=True, kw_only=True):
    """Everything of the epoch is committed; ``outcomes`` in the order of the manifest's committables."""

    FORMAT: ClassVar[str] = "receipt"

    epoch: int
    term: int
    created_at: int
    """Milliseconds since the Unix epoch. ``term`` is the manifest's, also if a later term finished it."""
    outcomes: tuple[Outcome, ...]

    @property
    def id(self) -> EpochId:
        return EpochId(Epoch(self.epoch), Term(self.term))

    @property
    def name(self) -> str:
        return paths.receipt_name(self.id)


class Claim(Record, frozen=True, kw_only=True):
    """A supervisor took a term. ``at`` is in milliseconds since the Unix epoch."""

    FORMAT: ClassVar[str] = "claim"

    term: int
    host: str
    pid: int
    at: int
    identity: str | None = None

    @property
    def name(self) -> str:
        return paths.claim_name(Term(self.term))


class Base(Record, frozen=True, kw_only=True):
    """Which manifest a term resumed from: ``(epoch, term)`` of it, or None for a job that starts fresh."""

    FORMAT: ClassVar[str] = "base"

    term: int
    resumed: tuple[int, int] | None
    reason: str
    at: int
    """Milliseconds since the Unix epoch."""

    @property
    def resumed_id(self) -> EpochId | None:
        return None if self.resumed is None else EpochId(Epoch(self.resumed[0]), Term(self.resumed[1]))

    @property
    def name(self) -> str:
        return paths.base_name(Term(self.term))


R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    body = msgspec.json.encode(record)
    head = f"kafka-eos {record.FORMAT} {record.VERSION} {len(body)} ".encode()
    return head + hashlib.sha256(head + body).hexdigest().encode() + b"\n" + body


def decode(kind: type[R], name: str, data: bytes, job: str | None = None) -> R:
    """Read the record ``name`` of ``job``, or of whatever job it names itself.

    Raises CorruptCheckpoint, naming the object, if it is torn, altered or belongs elsewhere; ConfigError
    if a newer version of this package wrote it.
    """
    body = _body(kind, name, data)
    try:
        record = _convert(kind, body)
    except (msgspec.DecodeError, CorruptCheckpoint) as error:
        raise CorruptCheckpoint(f"{name}: not a valid {kind.FORMAT}: {error}") from error
    if (record.job, record.name) != (record.job if job is None else job, name):
        raise CorruptCheckpoint(f"{name} of job {job!r} holds {record.name} of job {record.job!r}")
    return record


def publish(storage: CheckpointStorage, record: Record) -> None:
    """Create the record's object. FileExistsError if it exists; see ``CheckpointStorage.publish``."""
    storage.publish(record.name, encode(record))


def load(storage: CheckpointStorage, kind: type[R], name: str, job: str) -> R:
    """``decode`` what is stored under ``name``. FileNotFoundError if absent."""
    return decode(kind, name, storage.read(name), job)


def expect_life(manifest: Manifest, identity: Identity) -> Manifest:
    """Return ``manifest`` if this life of the job's name decided it; else CorruptCheckpoint."""
    if manifest.identity == identity.identity:
        return manifest
    raise CorruptCheckpoint(
        f"{manifest.name} was decided by life {manifest.identity} of job {manifest.job!r}, but this directory is that "
        f"of life {identity.identity} ({paths.IDENTITY}): directories of two jobs were mixed. Restore this one from a "
        "copy."
    )


def _body(kind: type[Record], name: str, data: bytes) -> bytes:
    """Check all that can be checked without understanding the body, and return the body."""
    line, newline, body = data.partition(b"\n")
    header = _HEADER.fullmatch(line)
    if header is None or not newline:
        raise CorruptCheckpoint(f"{name}: the header line is torn or altered ({len(data)} bytes)")
    head, form, version, length, checksum = header.groups()
    if int(length) != len(body):
        raise CorruptCheckpoint(f"{name}: {len(body)} bytes after the header where {int(length)} were written")
    if hashlib.sha256(head + body).hexdigest().encode() != checksum:
        raise CorruptCheckpoint(f"{name}: the checksum does not match: the object was altered after it was written")
    if form.decode() != kind.FORMAT:
        raise CorruptCheckpoint(f"{name}: holds a {form.decode()}, not a {kind.FORMAT}")
    if int(version) > kind.VERSION:
        raise ConfigError(
            f"{name} has format version {int(version)}; this kafka-eos reads up to {kind.VERSION}. Upgrade kafka-eos."
        )
    return body


# ---------------------------------------------------------------- reading a manifest
# The public types hold free-form JSON by a recursive alias, which the decoder cannot take; these can be read.


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    operator: str
    backend: str
    key_groups: tuple[int, int]
    files: tuple[FileRef, ...]
    states: tuple[dict[str, Any], ...]

    def handle(self) -> StateHandle:
        for file in self.files:
            paths.plain_file_name(file.name)
            paths.shared_name(file.sha256)
        return StateHandle(self.operator, self.backend, self.key_groups, self.files, self.states)


class _Committable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scope: str
    payload: dict[str, Any]
    records: int
    by_sink: dict[str, int]
    spread: dict[str, Spread]
    provenance: FileRef | None

    def committable(self) -> Committable:
        if self.provenance is not None:
            paths.plain_file_name(self.provenance.name)
            paths.shared_name(self.provenance.sha256)
        return Committable(self.scope, self.payload, self.records, self.by_sink, self.spread, self.provenance)


class _InFlight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exchange: str
    codec: dict[str, Any]
    files: tuple[FileRef, ...]
    overtaken: bool

    def rows(self) -> InFlight:
        for file in self.files:
            paths.plain_file_name(file.name)
            paths.shared_name(file.sha256)
        return InFlight(self.exchange, self.codec, self.files, self.overtaken)


class _Manifest(Manifest, frozen=True, kw_only=True):
    sources: dict[str, dict[str, dict[str, Any]]]  # type: ignore[assignment]
    states: tuple[_State, ...]  # type: ignore[assignment]
    committables: tuple[_Committable, ...]  # type: ignore[assignment]
    remembered: tuple[_Committable, ...]  # type: ignore[assignment]
    in_flight: tuple[_InFlight, ...]  # type: ignore[assignment]

    def manifest(self) -> Manifest:
        values = {field: getattr(self, field) for field in self.__struct_fields__}
        values["states"] = tuple(state.handle() for state in self.states)
        values["in_flight"] = tuple(part.rows() for part in self.in_flight)
        values["committables"] = tuple(each.committable() for each in self.committables)
        values["remembered"] = tuple(each.committable() for each in self.remembered)
        return Manifest(**values)


def _convert(kind: type[R], body: bytes) -> R:
    if kind is Manifest:
        return msgspec.json.decode(body, type=_Manifest).manifest()  # type: ignore[return-value]
    return msgspec.json.decode(body, type=kind)
