"""The contracts that connectors, codecs and state backends implement.

Each docstring names the trap. ``kafka_eos.testing`` ships the contract tests (``check_sink`` …): run them
against your implementation before you trust it.

Rule: data and positions that are stored are JSON or bytes with a declared codec, never pickled objects.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from kafka_eos.ids import Epoch, EpochId, JobIdentity, SplitId, Term
from kafka_eos.records import Batch

T = TypeVar("T")

if TYPE_CHECKING:
    from kafka_eos.errors import Retryable

    Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
else:
    Json = Any  # decoders read annotations at run time, and a recursive one has no end for them
Position: TypeAlias = dict[str, Json]
"""Where to read next in one split. Only its connector knows the meaning."""
Positions: TypeAlias = dict[SplitId, Position]


class Guarantee(enum.Enum):
    """What a source or sink can promise; a path has the weakest of its ends."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


# ---------------------------------------------------------------- codecs


class Codec(Protocol[T]):
    """Turns values into bytes and back. Lists in, lists out: one call a batch, not a record."""

    @property
    def name(self) -> str:
        """Format name that is stored next to the data, e.g. ``json`` or ``avro``."""

    @property
    def schema(self) -> Json:
        """The writer's schema, stored next to the data; None where the format has none."""

    def encode(self, value: T) -> bytes: ...

    def decode(self, data: bytes) -> T:
        """Raise ValueError (or a subclass) with a readable reason if ``data`` is not a valid value."""


class ListCodec(Protocol[T]):
    """A codec of many values at once, for rows that change subtasks."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Json: ...

    def encode(self, values: Sequence[T]) -> bytes:
        """Raise ValueError if a value is not of the declared type, or would come back as another one."""

    def decode(self, data: bytes) -> list[T]: ...


# ---------------------------------------------------------------- contexts


@dataclass(frozen=True, slots=True)
class JobContext:
    """What the coordinator hands to a connector: who runs, and under which fencing token."""

    job: str
    term: Term
    settings: Mapping[str, Json]
    """What a connector may need to know of the job's settings, if the engine says it.

    ``bootstrap_servers``, ``kafka_config``  for connectors that were not given their own
    ``checkpoint_interval``                  seconds
    ``parallelism``                          subtasks
    ``kafka_share``                          in a worker: bytes that a Kafka source may hold, and half a producer's
    ``commit_margin``                        in ``Sink.check``: seconds that must be left to output when it is committed
    """
    identity: JobIdentity | None = None
    """Which life of the job's name this is; the name of all output holds it, unless it is None."""
    owns_nameless: bool = False
    """Output without an identity in its name is this job's too: its directory is older than identities."""

    def owns(self, identity: JobIdentity | None) -> bool:
        """Whether output of the job's name that carries ``identity`` (None: that carries none) is this life's."""
        return identity == self.identity or (identity is None and self.owns_nameless)


class Lasting(Protocol):
    """A resource that outlives the session that made it, in the same process and term."""

    def committed(self, epoch: Epoch) -> None:
        """All epochs up to this one are finished for good. Called before each session, from its thread."""

    def close(self) -> None:
        """Let go, undo nothing."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a worker hands to a connector, on top of the job's context."""

    job: JobContext
    subtask: int
    parallelism: int
    operator: str
    """Name of the plan node that the reader or writer serves."""
    shared: MutableMapping[str, Any] = field(default_factory=dict)
    """One mapping a worker session: resources that several operators share, by a key of the connector."""
    first_epoch: Epoch = field(default_factory=lambda: Epoch(1))
    """The epoch of the first rows of this session; the next one is always one more."""
    attempt: int | None = None
    """Number of this attempt, unique in the term; None where a subtask has one attempt a term."""
    lasting: MutableMapping[str, Lasting] | None = None
    """What may serve later sessions of the term in this process, by a key of the connector; None: nothing may."""

    @property
    def owner(self) -> int:
        """What tells output of this attempt from that of any other in the same term."""
        return self.subtask if self.attempt is None else self.attempt


# ---------------------------------------------------------------- sources


class Source(Protocol[T]):
    """An input that can be read again from any position it has given out."""

    @property
    def guarantee(self) -> Guarantee: ...

    def describe(self) -> Mapping[str, Json]:
        """For ``explain``: what is read, with secrets masked."""

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """Start positions of every split that exists now.

        ``known`` is None only on the very first start of the job: then the user's start rule applies
        (earliest, latest …). Otherwise every known split is verified and returned unchanged, and a split
        that is not in ``known`` starts at its beginning. Raises InputLost if a known position cannot be
        read any more, ConfigError if the input does not exist.
        """

    def ends(self, ctx: JobContext) -> Positions:
        """Positions just after the last record that is readable now (for ``--until-caught-up``)."""

    def reader(self, ctx: TaskContext, positions: Positions) -> Reader[T]: ...

    def completed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Told after an epoch's receipt; for lag tools only. What it raises becomes a notice: nothing depends on it."""


Answer: TypeAlias = "Positions | Retryable"
"""What a source says when several are asked at once; Retryable if it cannot be told now, of this source alone."""


@runtime_checkable
class AskedTogether(Protocol):
    """A source whose server answers for many sources with one request: the engine asks them all through one of them."""

    def scope(self, ctx: JobContext) -> str:
        """Sources of one class with the same scope are asked together."""

    def discover_all(self, ctx: JobContext, asked: Sequence[tuple[Source[Any], Positions | None]]) -> Sequence[Answer]:
        """As ``Source.discover`` of each, with its known positions, in this order."""

    def ends_all(self, ctx: JobContext, asked: Sequence[Source[Any]]) -> Sequence[Answer]:
        """As ``Source.ends`` of each, in this order."""


class Reader(Protocol[T]):
    """Reads the splits assigned to one subtask."""

    def poll(self, max_records: int, timeout: float) -> Batch[T] | None:
        """Next rows, decoded, or None if there are none within ``timeout`` seconds."""

    def positions(self) -> Positions:
        """Where to read next, for all that ``poll`` has returned. This is the barrier of the source."""

    def assign(self, positions: Positions) -> None:
        """Add splits while running."""

    def lag(self) -> int | None:
        """Records that are readable and not yet returned; None while no answer of the server has told.

        It never asks: it is called between batches.
        """

    def reached(self, ends: Positions) -> bool:
        """True once every split of ``ends`` is read up to there."""

    def close(self) -> None: ...


def total_lag(lags: Iterable[int | None]) -> int | None:
    """The sum, or None if one is unknown: what is not known must not look like nothing."""
    known = list(lags)
    return None if None in known else sum(lag for lag in known if lag is not None)


# ---------------------------------------------------------------- sinks


@dataclass(frozen=True, slots=True)
class Committable:
    """A promise: output of one epoch that is durable, invisible, and can be made visible by anyone.

    ``scope`` names the committer (one a cluster, directory, database); ``payload`` is the committer's own
    record, stored in the manifest; ``records`` is how many records it makes visible, for the books.
    """

    scope: str
    payload: Mapping[str, Json]
    records: int


class Standing(enum.Enum):
    """What a probe saw. A probe that has no answer *yet* raises Retryable instead of guessing.

    The trap: absence proves nothing. What is gone may have been committed and then taken by its readers. LOST needs
    a fact that only an abort leaves (or damage to what is there); without one, and without a trace of a commit, the
    answer is UNKNOWN. UNKNOWN is final: asking again does not help, and the job stops for a person.
    """

    PREPARED = "prepared"
    COMMITTED = "committed"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Probe:
    standing: Standing
    detail: str
    expires_in: float = float("inf")
    """Seconds until the server may undo a prepared committable by itself."""


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Proof that the manifest of ``epoch`` is published and that this term may finish it.

    It comes from ``protocol.commit.authorize``; committers ask for it and never build one.
    """

    epoch: EpochId


class Outcome(enum.Enum):
    """What a commit did, as far as the server tells. LOST and UNKNOWN are no outcomes: CommittableLost is raised."""

    COMMITTED = "committed"
    ALREADY = "already"


PreCommit: TypeAlias = Callable[[], Sequence[Committable]]


class Writer(Protocol[T]):
    """Writes one subtask's output of a sink. Called from one thread, except what ``seal`` returns."""

    def write(self, batch: Batch[T]) -> None:
        """Stage rows for the current epoch. Invisible to readers until committed.

        Raises PoisonRecord for a row that cannot be encoded, RestartFromCheckpoint if staging failed.
        """

    def seal(self, epoch: EpochId) -> PreCommit:
        """The barrier. Everything written so far belongs to ``epoch``; what comes next to a later one.

        Returns the part that may block (flush, fsync …). It is called once, on another thread, while
        ``write`` may already be called for the next epoch. When it returns, each committable must be
        committable from any other process, any number of times. It returns nothing for an empty epoch.
        The trap: order. Rows of the next epoch must not overtake the rows of this one.
        """

    def committed(self, epoch: EpochId) -> None:
        """Told after the epoch's receipt: what ``seal`` kept for it may be reused."""

    def discard(self) -> None:
        """Let go of everything, undo nothing: recovery decides about what is already prepared."""


@runtime_checkable
class Attended(Protocol):
    """A writer whose client must be heard although nothing is written: it keeps what it has to say until then."""

    def attend(self) -> None:
        """Called now and then from the thread that writes. Raises RestartFromCheckpoint if staging has failed."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Output of a life of a job that is neither visible nor gone. ``age`` in seconds.

    ``identity`` is None where the output's name has none.
    """

    term: Term
    name: str
    detail: str
    age: float
    identity: JobIdentity | None = None


class LifeState(enum.Enum):
    """What a sign of a life says about it."""

    OPEN = "open"
    """Output of it is not ended: it may be running."""
    ENDED = "ended"
    """Nothing of it is open here; it may go on all the same."""
    OVER = "over"
    """Somebody ended it for good: its mark was taken away."""


@dataclass(frozen=True, slots=True)
class Life:
    """A sign that a life of a job's name has worked with a sink or a source.

    ``identity``  None if what was found has no identity in its name: a version before identities wrote it
    ``place``     where it was found, such as ``kafka:host:9092``
    ``detail``    what was found, for people
    ``term``      the newest term that shows, if one does
    ``age``       seconds since the newest sign, if that shows
    """

    identity: JobIdentity | None
    place: str
    detail: str
    term: Term | None = None
    state: LifeState = LifeState.ENDED
    age: float | None = None


class Committer(Protocol):
    """Ends what writers prepared. Lives with the coordinator; everything in it may be repeated.

    ``probe`` and ``commit`` are called from several threads at once, each time for another committable.
    """

    def probe(self, committable: Committable) -> Probe: ...

    def commit(self, permit: CommitPermit, committable: Committable) -> Outcome:
        """Make it visible. Idempotent.

        Raises Retryable if there is no answer yet, CommittableLost if it is gone or nobody can tell (UNKNOWN).
        """

    def staged(self, ctx: JobContext) -> Sequence[Staged]:
        """All that any life of the job's name has staged or prepared and not ended; ``ctx.owns`` tells whose it is."""

    def abort_orphans(self, ctx: JobContext) -> Sequence[str]:
        """Undo and fence all that earlier terms (``< ctx.term``) of this life staged and that is not committed.

        The trap: another life of the same name (``ctx.owns`` is False of its identity) keeps all that it has.
        Called in recovery after everything that must be committed is. Returns names, for the log.
        """

    def close(self) -> None: ...


@runtime_checkable
class TellsLives(Protocol):
    """A committer or a source that knows which lives of a job's name worked with the same outside system."""

    def lives(self, ctx: JobContext) -> Sequence[Life]:
        """Every sign of any life of ``ctx.job``, this one's included. Raises Retryable if nobody can tell now."""


@runtime_checkable
class HoldsLife(TellsLives, Protocol):
    """A committer that keeps one mark for each life of a job's name; a life whose mark was taken away stops."""

    def hold(self, ctx: JobContext) -> None:
        """Leave the mark of this life, if there is none yet. Raises Fenced if another life took it away.

        Called at each recovery, and between each decision and its first commit: whoever takes a mark away looks for
        open output afterwards, so either that look finds what this life has prepared, or this life finds its mark gone.
        """

    def succeed(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        """Take the mark of a life away, *then* undo and fence all that it has open. Returns names.

        Of another life, or of this one if its start is refused before it has decided anything.
        """


class Sink(Protocol[T]):
    """An output with two-phase commit (writer prepares, committer finishes)."""

    @property
    def guarantee(self) -> Guarantee: ...

    def describe(self) -> Mapping[str, Json]: ...

    def scope(self, ctx: JobContext) -> str:
        """Sinks with the same scope share one committer, and may share one committable an epoch."""

    def check(self, ctx: JobContext) -> Sequence[str]:
        """At start: raise ConfigError if the guarantee cannot be kept; return notices worth showing."""

    def writer(self, ctx: TaskContext) -> Writer[T]: ...

    def committer(self, ctx: JobContext) -> Committer: ...


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What to do with a record that cannot be processed: write it aside, in the same epoch."""

    sink: Sink[Any]


# ---------------------------------------------------------------- state


@dataclass(frozen=True, slots=True)
class Ttl:
    """Time to live of what a state holds: of a value, of one entry of a map, of one element of a list.

    ``seconds`` after the last write it is gone; with ``refresh="read-write"`` reads count as well. The clock is the
    machine's (``processing``), or the highest record timestamp that the subtask's operator has seen (``event``);
    neither follows a leap (docs/state.md, "clocks that are wrong"). ValueError if ``seconds`` is not more than zero.
    """

    seconds: float
    clock: Literal["processing", "event"] = "processing"
    refresh: Literal["write", "read-write"] = "write"

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a time to live is more than 0 seconds, not {self.seconds}")


StateKind: TypeAlias = Literal["value", "list", "map", "reducing", "aggregating"]


@dataclass(frozen=True, slots=True)
class StateDescriptor(Generic[T]):
    """One named state of one operator: its codecs are stored with the data.

    ``namespace``  if set, a key has a value a namespace (a window, say), and places are ``(key, namespace)``
    ``entry``      maps and lists: codec of what tells the entries of one key apart, the last part of the place
    """

    name: str
    key: Codec[Any]
    value: Codec[T]
    kind: StateKind = "value"
    namespace: Codec[Any] | None = None
    entry: Codec[Any] | None = None
    ttl: Ttl | None = None


class ValueState(Protocol[T]):
    """One value a place. Reads see the job's own writes at once.

    A place is a key; or, where the descriptor has them, a tuple ``(key, namespace)``, ``(key, entry)`` or
    ``(key, namespace, entry)``.
    """

    def get(self, key: Any) -> T | None: ...

    def put(self, key: Any, value: T) -> None: ...

    def delete(self, key: Any) -> None: ...

    def view(self, keys: Iterable[Any]) -> MutableMapping[Any, T]:
        """A live mapping for the hot path: holds each of ``keys`` that has a value.

        The trap: every key of ``keys`` counts as written, and only those may be written, until the next call.
        """

    def written(self, keys: Sequence[Any]) -> Sequence[T]:
        """What was last written for each of ``keys``, expired or not. KeyError if one has nothing.

        Of keys that the last ``view`` was asked for.
        """

    def within(self, *parts: Any) -> Iterable[tuple[Any, T]]:
        """Places that begin with ``parts`` (the key, or key and namespace) and their values.

        In the order of their encoded bytes, which is the same in every run. Write nothing while you iterate. Bug if
        the state's places have one part only.
        """

    def places(self, *parts: Any) -> Iterable[Any]:
        """As ``within`` without the values, which a ``Ttl`` does not count as read."""

    def items(self) -> Iterable[tuple[Any, T]]:
        """All places and values, in no order; for audits and tests, not for the hot path."""

    def next_entry(self) -> int:
        """Lists: the number of a new element, higher than all before. Bug for any other kind."""

    def advance(self, timestamp: int) -> None:
        """A record of that time (ms since the epoch) is next. Moves the clock of an event-time ``Ttl``."""


@dataclass(frozen=True, slots=True)
class FileRef:
    """A content-addressed file: the same bytes are stored once, whoever refers to them."""

    name: str
    """The name the backend wants it back under."""
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class StateHandle:
    """Where the state of one operator and key-group range is after an epoch."""

    operator: str
    backend: str
    key_groups: tuple[int, int]
    """First and last key group, inclusive."""
    files: tuple[FileRef, ...]
    states: tuple[Mapping[str, Json], ...]
    """One a state: name, key and value codec with the writer's schema, and what else decides how rows are read.

    Absent is the default: ``kind`` value, no ``namespace``, ``entry`` or ``ttl``; see docs/state.md.
    """
    key_hash: str = "crc32"
    """The hash that the key groups of its rows were made by (``state.keygroups``). Absent: the oldest one."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rows that were under way through an exchange when a snapshot was taken, as one subtask saw them."""

    exchange: str
    codec: Mapping[str, Json]
    """Name and schema of the codec of the values."""
    files: tuple[FileRef, ...]
    overtaken: bool
    """They had not left their sender: to be processed after those that had reached their receivers."""


Upload: TypeAlias = Callable[["CheckpointStorage"], StateHandle]


class StateBackend(Protocol):
    """The keyed state of one operator in one subtask. Single-threaded, except what ``snapshot`` returns."""

    def value(self, descriptor: StateDescriptor[T]) -> ValueState[T]: ...

    def forget(self, name: str) -> None:
        """Drop a state that is stored and not opened. Absent is fine."""

    def snapshot(self, epoch: Epoch) -> Upload:
        """Freeze the state as it is now (short: it blocks the worker); the returned part uploads it."""

    def close(self) -> None: ...


# ---------------------------------------------------------------- checkpoint storage


def unheard(size: int) -> None:
    """Nobody hears how much has passed."""


class StoredFiles(Protocol):
    """State files by their content."""

    def fetch(self, ref: FileRef, target: Path) -> None:
        """Bring a file back after verifying length and checksum, else raise CorruptCheckpoint naming it."""


class CheckpointStorage(StoredFiles, Protocol):
    """Durable objects of one job. Names come from ``checkpoints.paths`` only."""

    def publish(self, name: str, data: bytes) -> None:
        """Create ``name`` with ``data``: all or nothing, durable on return. FileExistsError if it exists."""

    def read(self, name: str) -> bytes:
        """FileNotFoundError if absent."""

    def list(self, prefix: str) -> Sequence[str]:
        """Complete published names below ``prefix`` (a directory name), sorted."""

    def delete(self, name: str) -> None:
        """Absent is fine. Not durable: after a power cut the object may be back."""

    def upload(self, path: Path, name: str) -> FileRef:
        """Store a file under its content. Already stored: costs a look, no copy. Durable on return."""

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = unheard) -> None:
        """As ``StoredFiles``; ``passed`` hears the bytes of each piece as it goes, and what it raises ends the call."""
