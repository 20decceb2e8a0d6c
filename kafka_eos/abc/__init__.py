"""The contracts that connectors, codecs and state backends implement.

Docstrings point out pitfalls in a "Note:". ``kafka_eos.testing`` ships the contract tests (``check_sink`` …): run them
against your implementation before you use it.

Rule: data and positions that are stored are JSON or bytes with a declared codec, never pickled objects.
"""

from kafka_eos.abc.auditable import (
    AuditableFiles,
    AuditableSink,
    AuditableSource,
    AuditableTable,
    AuditableTopic,
    OutputRecord,
    SupportsLocalRun,
)
from kafka_eos.abc.codec import (
    Codec,
    ListCodec,
    RecordPart,
    SchemaChecks,
    SchemaComparison,
    SupportsHeaders,
    TopicFormat,
)
from kafka_eos.abc.committer import (
    AtomicCommitter,
    CommitOutcome,
    CommitPermit,
    CommitStatus,
    Committable,
    Committer,
    OutputOwner,
    Probe,
    Spread,
    StagedOutput,
    UnstoredCommittable,
)
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.incarnation import (
    IncarnationSign,
    IncarnationState,
    SupportsLossCheck,
    SupportsRegistration,
)
from kafka_eos.abc.services import RejectRecord, RejectRow, Resources, Services
from kafka_eos.abc.sink import DeadLetters, HasClock, PreCommit, Sink, Writer
from kafka_eos.abc.source import (
    PositionsOrRetry,
    Reader,
    Source,
    SupportsIdentityCheck,
    total_lag,
)
from kafka_eos.abc.state import (
    BackendState,
    CacheUse,
    InFlightRows,
    PaneContents,
    Panes,
    StateBackend,
    StateDescriptor,
    StateHandle,
    StateKind,
    StateUpload,
    TimerService,
    Ttl,
)
from kafka_eos.abc.storage import CheckpointStorage, FileBatch, FileRef, PackedAt, StoredFiles, ignore_progress
from kafka_eos.core.json_values import Json, Position, Positions

__all__ = [
    "AtomicCommitter",
    "PositionsOrRetry",
    "SupportsIdentityCheck",
    "AuditableFiles",
    "AuditableSink",
    "AuditableSource",
    "AuditableTable",
    "AuditableTopic",
    "SupportsLocalRun",
    "CheckpointStorage",
    "Codec",
    "CommitPermit",
    "Committable",
    "Committer",
    "SchemaChecks",
    "SchemaComparison",
    "DeadLetters",
    "SupportsHeaders",
    "FileBatch",
    "FileRef",
    "Guarantee",
    "HasClock",
    "SupportsRegistration",
    "InFlightRows",
    "Panes",
    "JobContext",
    "Json",
    "IncarnationSign",
    "IncarnationState",
    "ListCodec",
    "RecordPart",
    "TopicFormat",
    "CommitOutcome",
    "Position",
    "Positions",
    "PreCommit",
    "Probe",
    "Reader",
    "RejectRecord",
    "RejectRow",
    "SupportsLossCheck",
    "Resources",
    "Services",
    "Sink",
    "Source",
    "Spread",
    "StagedOutput",
    "CommitStatus",
    "StateBackend",
    "CacheUse",
    "StateDescriptor",
    "StateHandle",
    "StateKind",
    "StoredFiles",
    "TaskContext",
    "PackedAt",
    "PaneContents",
    "TimerService",
    "Ttl",
    "UnstoredCommittable",
    "StateUpload",
    "BackendState",
    "Writer",
    "OutputOwner",
    "OutputRecord",
    "total_lag",
    "ignore_progress",
]
