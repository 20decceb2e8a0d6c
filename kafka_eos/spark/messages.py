"""Messages from the driver to the tasks of an epoch, and the report of each task.

Rule: plain data in MessagePack. No function and no object of kafka_eos is pickled; tasks load the user's file
themselves.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RecordCounts, Watermark
from kafka_eos.runtime.epoch_reports import PhaseSpan
from kafka_eos.runtime.program import CodeFingerprint


class ReadLimit(msgspec.Struct, frozen=True):
    """The most that one task reads in an epoch: records and bytes.

    ``size``: bytes of keys and values; None: as many as they are.
    """

    records: int
    size: int | None


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions for all tasks of one stage of one epoch."""

    app: str
    pipeline: str | None
    shipped: bool
    """The file was sent with the job (``sc.addFile``); else its path holds on every machine."""
    settings: str
    """``Settings.as_json`` as text."""
    code: CodeFingerprint
    """What the driver has loaded."""
    identity: str
    """Of the job; see ``ids.JobIdentity``."""
    term: int
    claim: bytes
    """The term's claim as the driver reads it: a task that reads another, or none, looks at another place."""
    epoch: int
    finished: int
    """The newest epoch that is committed; -1 if this term has none."""
    generation: int
    """Counts how often the term's producers were fenced: those of an older generation are of no use."""
    parallelism: int
    level: int
    last: bool
    positions: dict[str, Positions]
    ends: dict[str, Positions]
    """Where each source may stop in this epoch; a task may stop anywhere before or after."""
    quota: ReadLimit
    states: tuple[StateHandle, ...]
    in_flight: tuple[InFlightRows, ...] = ()
    """Rows that the restored snapshot holds on their way; read at the first level."""


class TaskFailure(msgspec.Struct, frozen=True):
    """A task failure that an immediate retry by Spark would not fix."""

    kind: Literal["restart", "user", "fatal", "environment"]
    error: str
    """Class name of the exception."""
    reason: str
    details: str
    """Traceback."""
    operator: str = ""
    where: str = ""
    """At which record, if it was at one; see ``PoisonRecord``."""


class OperatorStats(msgspec.Struct, frozen=True, array_like=True):
    """Rows, time and state cache use of one operator in one task."""

    rows_in: int
    rows_out: int
    busy: float
    cache_misses: int
    entries: int


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one attempt of one task. It counts only if all readers of its rows read this attempt."""

    level: int
    subtask: int
    attempt: int
    """Spark's number of the attempt, unique in the application."""
    inputs: dict[int, int] = {}
    """The attempt whose rows were read, by subtask of the level before."""
    positions: dict[str, Positions] = {}
    unread: dict[str, list[SplitId]] = {}
    """By source read here, splits that have something left before the epoch's ends."""
    states: tuple[StateHandle, ...] = ()
    committables: tuple[Committable, ...] = ()
    tally: RecordCounts = msgspec.field(default_factory=RecordCounts)
    records_in: dict[str, int] = {}
    records_out: dict[str, int] = {}
    lag: int | None = 0
    watermarks: dict[str, dict[str, int]] = {}
    """How far each split has come in event time, by the operator that makes its watermarks."""
    timers: dict[str, int] = {}
    """How many are pending, by operator."""
    next_timer: int | None = None
    """When the earliest timer is due; None if none is pending."""
    seconds: dict[str, float] = {}
    """Where the time went: open, work, prepare."""
    operators: dict[str, OperatorStats] = {}
    counted: dict[str, dict[str, int]] = {}
    """By functions of the user's: operator and name."""
    spans: tuple[PhaseSpan, ...] = ()
    """When each phase was."""
    failure: TaskFailure | None = None


class EndOfPartition(msgspec.Struct, frozen=True, array_like=True):
    """The last row from one task to a task of the next stage, with the row count."""

    subtask: int
    attempt: int
    rows: int
    """How many rows it has sent there before this one."""


encode = msgspec.msgpack.Encoder().encode
decode_spec = msgspec.msgpack.Decoder(StageSpec).decode
decode_report = msgspec.msgpack.Decoder(TaskReport).decode
decode_end = msgspec.msgpack.Decoder(EndOfPartition).decode
decode_watermark = msgspec.msgpack.Decoder(Watermark).decode
