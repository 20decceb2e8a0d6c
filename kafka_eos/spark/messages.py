"""What the driver tells the tasks of an epoch, and what each of them reports.

Rule: plain data in MessagePack. No function and no object of ours is pickled; tasks load the user's file themselves.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Tally, Watermark
from kafka_eos.runtime.epoch_reports import Span
from kafka_eos.runtime.program import Code


class Quota(msgspec.Struct, frozen=True):
    """Most that one task reads in an epoch. ``size``: bytes of keys and values; None: as many as they are."""

    records: int
    size: int | None


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One level of one epoch, for every task of its stage."""

    app: str
    pipeline: str | None
    shipped: bool
    """The file was sent with the job (``sc.addFile``); else its path holds on every machine."""
    settings: str
    """``Settings.as_json`` as text."""
    code: Code
    """What the driver has loaded."""
    identity: str
    """Of the job; see ``ids.JobIdentity``."""
    term: int
    claim: bytes
    """The term's claim as the driver reads it: a task that reads another, or none, looks at another place."""
    epoch: int
    finished: int
    """The newest epoch that is finished for good; -1 if there is none in this term."""
    generation: int
    """Counts how often the term's producers were fenced: those of an older generation are of no use."""
    parallelism: int
    level: int
    last: bool
    positions: dict[str, Positions]
    ends: dict[str, Positions]
    """Where each source may stop in this epoch; a task may stop anywhere before or after."""
    quota: Quota
    states: tuple[StateHandle, ...]
    in_flight: tuple[InFlight, ...] = ()
    """Rows that the restored snapshot holds on their way; read at the first level."""


class Failure(msgspec.Struct, frozen=True):
    """What Spark's own retry of the task, at once, would not change; see ``kafka_eos.core.errors``."""

    kind: Literal["user", "fatal", "environment"]
    error: str
    """Class name of the exception."""
    reason: str
    details: str
    """Traceback."""
    operator: str = ""
    where: str = ""
    """At which record, if it was at one; see ``PoisonRecord``."""


class Did(msgspec.Struct, frozen=True, array_like=True):
    """What one operator has done in one task: rows that came and left, and seconds of its own."""

    came: int
    left: int
    busy: float
    loads: int
    entries: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt of one task did. It counts only if all who read its rows have read this attempt's."""

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
    tally: Tally = msgspec.field(default_factory=Tally)
    records_in: dict[str, int] = {}
    records_out: dict[str, int] = {}
    lag: int | None = 0
    watermarks: dict[str, dict[str, int]] = {}
    """How far each split has come in event time, by the operator that makes its watermarks."""
    timers: dict[str, int] = {}
    """How many are pending, by operator."""
    wake: int | None = None
    """When the clock shows that, timers may be due; None if none is pending."""
    seconds: dict[str, float] = {}
    """Where the time went: open, work, prepare."""
    operators: dict[str, Did] = {}
    counted: dict[str, dict[str, int]] = {}
    """By functions of the user's: operator and name."""
    spans: tuple[Span, ...] = ()
    """When each phase was."""
    failure: Failure | None = None


class End(msgspec.Struct, frozen=True, array_like=True):
    """The last row that a task sends to each task of the next level."""

    subtask: int
    attempt: int
    rows: int
    """How many rows it has sent there before this one."""


encode = msgspec.msgpack.Encoder().encode
decode_spec = msgspec.msgpack.Decoder(Spec).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
decode_end = msgspec.msgpack.Decoder(End).decode
decode_watermark = msgspec.msgpack.Decoder(Watermark).decode
