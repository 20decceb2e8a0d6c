"""The contracts that connectors, codecs and state backends implement.

Each docstring names the trap. ``kafka_eos.testing`` ships the contract tests (``check_sink`` …): run them
against your implementation before you trust it.

Rule: data and positions that are stored are JSON or bytes with a declared codec, never pickled objects.
"""

from kafka_eos.interfaces.assigners import (
    Days,
    Early,
    Interval,
    Paned,
    RowCount,
    Session,
    Sliding,
    Tumbling,
    days,
    defined,
    global_,
    interval,
    rows,
    session,
    sliding,
    tumbling,
)
from kafka_eos.interfaces.codecs import Checked, Codec, Described, ListCodec, Part, TopicFormat
from kafka_eos.interfaces.commits import (
    Announces,
    CommitPermit,
    Committable,
    Committer,
    Outcome,
    Probe,
    Spread,
    Staged,
    Standing,
    Unstored,
)
from kafka_eos.interfaces.contexts import JobContext, TaskContext
from kafka_eos.interfaces.event_time import Alignment, Generator, WatermarkStrategy, bounded, generated, monotonic
from kafka_eos.interfaces.guarantees import Guarantee
from kafka_eos.interfaces.lives import HoldsLife, Life, LifeState, TellsLives
from kafka_eos.interfaces.patterns import Pattern
from kafka_eos.interfaces.requests import Breaker, Retries, breaker, request_rules, retries
from kafka_eos.interfaces.services import Lasting, RejectRecord, RejectRow, Resources, Services
from kafka_eos.interfaces.sinks import Attended, DeadLetters, PreCommit, Sink, Writer
from kafka_eos.interfaces.sources import Answer, AskedTogether, LagOfEach, Reader, Source, total_lag
from kafka_eos.interfaces.state import (
    InFlight,
    StateBackend,
    StateDescriptor,
    StateHandle,
    StateKind,
    Timers,
    Ttl,
    Upload,
    ValueState,
)
from kafka_eos.interfaces.storage import CheckpointStorage, FileRef, StoredFiles, unheard
from kafka_eos.interfaces.triggers import OnClock, OnCount, Trigger, on_clock, on_count
from kafka_eos.interfaces.values import Json, Position, Positions
from kafka_eos.interfaces.windows import Contents, Window, Windowed

__all__ = [
    "Alignment",
    "Announces",
    "Answer",
    "AskedTogether",
    "Attended",
    "Breaker",
    "CheckpointStorage",
    "Checked",
    "Codec",
    "CommitPermit",
    "Committable",
    "Committer",
    "Contents",
    "Days",
    "DeadLetters",
    "Described",
    "Early",
    "FileRef",
    "Generator",
    "Guarantee",
    "HoldsLife",
    "InFlight",
    "Interval",
    "JobContext",
    "Json",
    "Lasting",
    "Life",
    "LifeState",
    "ListCodec",
    "Part",
    "TopicFormat",
    "OnClock",
    "OnCount",
    "Outcome",
    "Paned",
    "Pattern",
    "Position",
    "Positions",
    "PreCommit",
    "Probe",
    "Reader",
    "RejectRecord",
    "RejectRow",
    "Resources",
    "Retries",
    "RowCount",
    "Services",
    "Session",
    "Sink",
    "Sliding",
    "Source",
    "Spread",
    "Staged",
    "Standing",
    "StateBackend",
    "StateDescriptor",
    "StateHandle",
    "StateKind",
    "StoredFiles",
    "TaskContext",
    "TellsLives",
    "Timers",
    "Trigger",
    "Ttl",
    "Tumbling",
    "Unstored",
    "Upload",
    "ValueState",
    "WatermarkStrategy",
    "Window",
    "Windowed",
    "Writer",
    "bounded",
    "breaker",
    "days",
    "defined",
    "generated",
    "global_",
    "interval",
    "monotonic",
    "on_clock",
    "on_count",
    "request_rules",
    "retries",
    "rows",
    "session",
    "sliding",
    "total_lag",
    "LagOfEach",
    "tumbling",
    "unheard",
]
