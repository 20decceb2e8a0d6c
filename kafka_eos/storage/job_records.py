"""The records of a job (identity, manifest, receipt, claim, base) and their durable format.

A record is one header line, then JSON: ``kafka-eos <format> <version> <length of the body> <sha256> [<hmac>]``.
Checksum and signature (``record_signatures``) cover the header up to the checksum, and the body. ``schemas/*.avsc``
describe the bodies.
Rule: a record is accepted only if header, checksum, job and name agree; every error names the object. The reader of a
record compares its incarnation (``identity``): see ``ensure_same_incarnation``.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import msgspec

from kafka_eos.abc.committer import CommitOutcome, Committable, Spread
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import record_signatures as signatures

_HEADER = re.compile(rb"(kafka-eos ([a-z]{1,20}) ([0-9]{1,9}) ([0-9]{1,18}) )([0-9a-f]{64})(?: ([0-9a-f]{64}))?")


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all durable records. ``name`` is the object name under which the record is stored."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    job: str

    @property
    def name(self) -> str:
        raise NotImplementedError(type(self).__name__)


class IdentityRecord(StoredRecord, frozen=True, kw_only=True):
    """The incarnation that this job directory belongs to."""

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


class Manifest(StoredRecord, frozen=True, kw_only=True):
    """The record of one decided epoch: source positions, state and prepared output."""

    FORMAT: ClassVar[str] = "manifest"

    epoch: int
    term: int
    created_at: int
    """Milliseconds since the Unix epoch."""
    plan: str
    """Fingerprint of the plan that ran in the epoch."""
    max_key_groups: int
    parallelism: int
    sources: dict[str, Positions]
    """Start positions for the next epoch, by source operator."""
    states: tuple[StateHandle, ...]
    committables: tuple[Committable, ...]
    in_flight: tuple[InFlightRows, ...] = ()
    """Rows between subtasks that belong to the snapshot; they are processed before anything that is read."""
    identity: str
    """The incarnation that decided the epoch."""
    registered_in: tuple[str, ...] = ()
    """Scopes of sinks where the incarnation was registered."""
    carried_over: tuple[Committable, ...] = ()
    """Committables of older epochs that recovery still checks."""

    @property
    def id(self) -> EpochId:
        return EpochId(Epoch(self.epoch), Term(self.term))

    @property
    def name(self) -> str:
        return paths.manifest_name(self.id)

    @property
    def files(self) -> frozenset[str]:
        """Return the SHA-256 of every stored object that the epoch needs."""
        return frozenset(index_files(self.states, self.in_flight))


def index_files(states: Iterable[StateHandle], in_flight: Iterable[InFlightRows]) -> dict[str, FileRef]:
    """Return the stored objects that have the files of state and in-flight rows, by SHA-256."""
    parts: Iterable[StateHandle | InFlightRows] = itertools.chain(states, in_flight)
    return {file.object.sha256: file.object for part in parts for file in part.files}


class Receipt(StoredRecord, frozen=True, kw_only=True):
    """The record that an epoch is fully committed; ``outcomes`` are in the order of the manifest's committables."""

    FORMAT: ClassVar[str] = "receipt"

    epoch: int
    term: int
    created_at: int
    """Milliseconds since the Unix epoch. ``term`` is the manifest's term, even if a later term finished the epoch."""
    outcomes: tuple[CommitOutcome, ...]

    @property
    def id(self) -> EpochId:
        return EpochId(Epoch(self.epoch), Term(self.term))

    @property
    def name(self) -> str:
        return paths.receipt_name(self.id)


class TermClaim(StoredRecord, frozen=True, kw_only=True):
    """The record that a supervisor claimed a term. ``at`` is in milliseconds since the Unix epoch."""

    FORMAT: ClassVar[str] = "claim"

    term: int
    host: str
    pid: int
    at: int
    identity: str | None = None

    @property
    def name(self) -> str:
        return paths.claim_name(Term(self.term))


class TermBase(StoredRecord, frozen=True, kw_only=True):
    """The record of the manifest that a term continued from."""

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


R = TypeVar("R", bound=StoredRecord)


def encode(record: StoredRecord) -> bytes:
    body = msgspec.json.encode(record)
    head = f"kafka-eos {record.FORMAT} {record.VERSION} {len(body)} ".encode()
    signature = signatures.sign(head + body)
    checks = hashlib.sha256(head + body).hexdigest().encode() + (b"" if signature is None else b" " + signature)
    return head + checks + b"\n" + body


def decode(kind: type[R], name: str, data: bytes, job: str | None = None) -> R:
    """Decode the record ``name`` of ``job``, or of any job if that is None.

    Raises CorruptCheckpoint, naming the object, if the record is torn, altered or belongs to another job or name.
    Raises ConfigError if a newer version of this package wrote it.
    """
    body = _body(kind, name, data)
    try:
        record = _convert(kind, body)
    except (msgspec.DecodeError, CorruptCheckpoint) as error:
        raise CorruptCheckpoint(f"{name}: not a valid {kind.FORMAT}: {error}") from error
    if (record.job, record.name) != (record.job if job is None else job, name):
        raise CorruptCheckpoint(f"{name} of job {job!r} contains {record.name} of job {record.job!r}")
    return record


def publish(storage: CheckpointStorage, record: StoredRecord) -> None:
    """Create the record's object. Raise FileExistsError if it exists; see ``CheckpointStorage.publish``."""
    storage.publish(record.name, encode(record))


def load(storage: CheckpointStorage, kind: type[R], name: str, job: str) -> R:
    """Read and decode the record stored under ``name``. Raise FileNotFoundError if it is absent."""
    return decode(kind, name, storage.read(name), job)


def ensure_usable(handle: StateHandle) -> StateHandle:
    """Return a stored handle whose names are names, else raise CorruptCheckpoint: engines build paths from them."""
    for name in (handle.operator, *(state.get("name") for state in handle.states)):
        paths.ensure_token(name)
    ensure_names(handle.files)
    return handle


def ensure_names(files: Iterable[FileRef]) -> None:
    """Raise CorruptCheckpoint unless the names and checksums of all files are such, and no paths.

    Also raise it for a file that is not inside its pack.
    """
    for file in files:
        paths.ensure_plain_name(file.name)
        paths.shared_name(file.sha256)
        paths.shared_name(file.object.sha256)
        if not 0 <= file.start <= file.object.size - file.size:
            raise CorruptCheckpoint(f"{file.name!r} is not inside its pack")


def ensure_same_incarnation(manifest: Manifest, identity: IdentityRecord) -> Manifest:
    """Return the manifest if this incarnation decided it, else raise CorruptCheckpoint."""
    if manifest.identity == identity.identity:
        return manifest
    raise CorruptCheckpoint(
        f"{manifest.name} was decided by incarnation {manifest.identity} of job {manifest.job!r}, but this directory "
        f"belongs to incarnation {identity.identity} ({paths.IDENTITY}): directories of two jobs were mixed. Restore "
        "this directory from a backup."
    )


def _body(kind: type[StoredRecord], name: str, data: bytes) -> bytes:
    """Check header, checksum and signature, and return the body."""
    line, newline, body = data.partition(b"\n")
    header = _HEADER.fullmatch(line)
    if header is None or not newline:
        raise CorruptCheckpoint(f"{name}: the header line is torn or altered ({len(data)} bytes)")
    head, form, version, length, checksum, signature = header.groups()
    if int(length) != len(body):
        raise CorruptCheckpoint(f"{name}: {len(body)} bytes after the header where {int(length)} were written")
    if hashlib.sha256(head + body).hexdigest().encode() != checksum:
        raise CorruptCheckpoint(f"{name}: the checksum does not match: the object was altered after it was written")
    signatures.expect_signed(name, head + body, signature)
    if form.decode() != kind.FORMAT:
        raise CorruptCheckpoint(f"{name}: contains a {form.decode()}, not a {kind.FORMAT}")
    if int(version) > kind.VERSION:
        raise ConfigError(
            f"{name} has format version {int(version)}; this kafka-eos reads up to {kind.VERSION}. Upgrade kafka-eos."
        )
    return body


# ---------------------------------------------------------------- reading a manifest
# The public types contain free-form JSON as a recursive alias, which the decoder does not support; these types do not.


class _StateHandle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    operator: str
    backend: str
    key_groups: tuple[int, int]
    files: tuple[FileRef, ...]
    states: tuple[dict[str, Any], ...]

    def handle(self) -> StateHandle:
        return ensure_usable(StateHandle(self.operator, self.backend, self.key_groups, self.files, self.states))


class _Committable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scope: str
    payload: dict[str, Any]
    records: int
    by_sink: dict[str, int]
    spread: dict[str, Spread]
    provenance: FileRef | None

    def committable(self) -> Committable:
        if self.provenance is not None:
            ensure_names([self.provenance])
        return Committable(self.scope, self.payload, self.records, self.by_sink, self.spread, self.provenance)


class _InFlight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exchange: str
    codec: dict[str, Any]
    files: tuple[FileRef, ...]
    overtaken: bool

    def rows(self) -> InFlightRows:
        ensure_names(self.files)
        return InFlightRows(self.exchange, self.codec, self.files, self.overtaken)


class _Manifest(Manifest, frozen=True, kw_only=True):
    sources: dict[str, dict[str, dict[str, Any]]]  # type: ignore[assignment]
    states: tuple[_StateHandle, ...]  # type: ignore[assignment]
    committables: tuple[_Committable, ...]  # type: ignore[assignment]
    carried_over: tuple[_Committable, ...]  # type: ignore[assignment]
    in_flight: tuple[_InFlight, ...]  # type: ignore[assignment]

    def manifest(self) -> Manifest:
        values = {field: getattr(self, field) for field in self.__struct_fields__}
        values["states"] = tuple(state.handle() for state in self.states)
        values["in_flight"] = tuple(part.rows() for part in self.in_flight)
        values["committables"] = tuple(each.committable() for each in self.committables)
        values["carried_over"] = tuple(each.committable() for each in self.carried_over)
        return Manifest(**values)


def _convert(kind: type[R], body: bytes) -> R:
    if kind is Manifest:
        return msgspec.json.decode(body, type=_Manifest).manifest()  # type: ignore[return-value]
    return msgspec.json.decode(body, type=kind)
