"""The messages between supervisor and worker, and their socket.

Messages are msgspec structs with a tag, framed by a four-byte length; nothing is pickled. ``session`` numbers the
attempts of one worker process: the receiver ignores an answer of an older session. Rule: the worker exits when the
socket is closed, so that no worker outlives its supervisor.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef, Epoch, EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import RecordCounts
from kafka_eos.plan import Plan
from kafka_eos.runtime.epoch_reports import PhaseSpan
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.runtime.state.restore_progress import RestoreProgress
from kafka_eos.runtime.worker.task_stats import WorkerMetrics

_LENGTH = struct.Struct(">I")
_MOST_SOCKETS = 253
"""The maximum per message (SCM_MAX_FD)."""
_MOST_BYTES = 1 << 28
"""The longest frame that is accepted. A message names all files of a job's state at most."""


class ControlMessage(msgspec.Struct, frozen=True, tag=True):
    session: int


class WorkerConfig(msgspec.Struct, frozen=True):
    """The job's settings and the user's code, which a worker process receives at its start."""

    job: str
    settings: str
    """``Settings.as_json`` as text."""
    code: CodeFingerprint

    @classmethod
    def of(cls, plan: Plan, app: AppRef, settings: Settings) -> WorkerConfig:
        """Return what the workers of a run receive."""
        return cls(plan.name, json.dumps(settings.as_json()), CodeFingerprint.compute(app.path, plan))

    def resolve_settings(self) -> Settings:
        """Return the job's settings."""
        return Settings.from_json(self.settings)


# supervisor → worker


class StartSession(ControlMessage, frozen=True):
    """Drops the current session and starts a new one from a decided epoch."""

    identity: str
    """The job's identity; see ``ids.JobIdentity``."""
    term: int
    first_epoch: int
    subtask: int
    parallelism: int
    peers: tuple[int, ...]
    """The other subtasks. On Unix sockets their connections are sent with this message, in this order."""
    positions: dict[str, Positions]
    states: tuple[StateHandle, ...]
    in_flight: tuple[InFlightRows, ...]
    ends: dict[str, Positions] | None
    """The positions at which each source of a bounded run may stop."""
    waiting_sources: frozenset[str]
    """Sources that are not read yet; see ``protocol.source_dependencies``."""
    excluded_sources: frozenset[str]
    """The sources of ``waiting_sources`` that are excluded from the watermark."""
    addresses: tuple[tuple[str, int], ...] = ()
    """By TCP: the host and port at which each of ``peers`` listens."""
    secret: bytes = b""
    """By TCP: the secret of the connections between the workers of this session."""
    claim: bytes = b""
    """On other machines: the claim of the term, which the worker must find in its checkpoint storage."""


class BeginProcessing(ControlMessage, frozen=True):
    """All workers are ready: start processing. The first message after StartSession, unless it is EndSession."""


class TriggerCheckpoint(ControlMessage, frozen=True):
    """Starts a checkpoint: snapshot the state, seal the writers, acknowledge. ``last`` stops reading afterwards.

    ``aligned``: store no in-flight rows, whatever the job's mode (for a last epoch, for a savepoint).
    """

    epoch: EpochId
    last: bool
    aligned: bool


class NotifyCheckpointCommitted(ControlMessage, frozen=True):
    """The epoch is committed and has its receipt."""

    epoch: EpochId


class NotifyCheckpointAborted(ControlMessage, frozen=True):
    """The epoch is aborted: seal its output, which becomes part of the next acknowledged epoch."""

    epoch: EpochId


class AssignSplits(ControlMessage, frozen=True):
    """Adds new splits of a source."""

    source: str
    positions: Positions


class EndSession(ControlMessage, frozen=True):
    """Ends the session without undoing anything; answered with SessionEnded."""


class PauseReading(ControlMessage, frozen=True):
    """Stops reading the sources until ResumeReading; in-flight rows are still processed."""


class ResumeReading(ControlMessage, frozen=True):
    """Reads the sources again."""


class SetWaitingSources(ControlMessage, frozen=True):
    """Replaces the set of sources that are not read yet because they wait for others."""

    sources: frozenset[str]
    excluded_sources: frozenset[str]


class RemoteSlowest(ControlMessage, frozen=True):
    """Watermark of the slowest split of all other workers, by alignment group."""

    slowest: dict[str, int]


class CountFrames(ControlMessage, frozen=True):
    """Asks for FramesCounted; see protocol.quiescence."""

    round: int


class ReportStacks(ControlMessage, frozen=True):
    """Asks for StacksReported, which the worker sends even while its processing thread hangs."""


# worker → supervisor


class StacksReported(ControlMessage, frozen=True):
    """The Python stacks of the worker's threads, or the reason why there are none."""

    stacks: str


class FramesCounted(ControlMessage, frozen=True):
    """Frames sent to and processed from other workers, and whether this worker is idle."""

    round: int
    idle: bool
    sent: int
    processed: int


class RestoreReport(ControlMessage, frozen=True):
    """Progress of the restore; sent only when there is some."""

    restored: RestoreProgress


class SessionReady(ControlMessage, frozen=True):
    """State is restored; readers and writers are open."""


class SealedOutput(msgspec.Struct, frozen=True):
    """Pre-committed output of this epoch, or of an earlier one that was aborted."""

    epoch: Epoch
    committables: tuple[Committable, ...]


class AcknowledgeCheckpoint(ControlMessage, frozen=True):
    """This subtask's part of the epoch is durable."""

    epoch: EpochId
    positions: dict[str, Positions]
    states: tuple[StateHandle, ...]
    sealed: tuple[SealedOutput, ...]
    """All sealed output that no epoch has committed yet, as far as this worker knows."""
    in_flight: tuple[InFlightRows, ...]
    tally: RecordCounts
    """Counts of the subtask since the session began, up to this barrier."""
    watermarks: dict[str, dict[str, int]]
    """The event time of each split that it reads, by the operator that generates its watermarks."""
    blocked_ms: float
    """The time for which the barrier kept the worker from processing."""
    aligning_ms: float
    """The time from the first barrier at a chain to the last: the maximum of the worker's chains."""
    timers: dict[str, int]
    """Pending timers by operator."""
    has_overdue_request: bool
    """Whether a row's request has been pending since the session's first barrier."""
    spans: tuple[PhaseSpan, ...]
    """Start and end of each phase."""


class DeclineCheckpoint(ControlMessage, frozen=True):
    """This subtask's part of the epoch cannot be made durable; its output is pre-committed all the same.

    The next acknowledgement names this output.
    """

    epoch: EpochId
    reason: str


class WorkerProgress(ControlMessage, frozen=True):
    """The worker's metrics since its session began."""

    figures: WorkerMetrics


class WorkerHeartbeat(ControlMessage, frozen=True):
    """The process is alive. Says how long ago its processing thread made progress, and where it is.

    See ``liveness_pulse``.
    """

    seconds_since_step: float
    at: str
    """The current operator and record; empty if there is none."""


class LocalSlowest(ControlMessage, frozen=True):
    """Watermark of the slowest split of this worker, by alignment group; sent when it changes."""

    slowest: dict[str, int]


class SessionReachedEnds(ControlMessage, frozen=True):
    """A bounded run has read this worker's splits up to their ends."""


class SessionFailed(ControlMessage, frozen=True):
    """The session failed; ``kind`` says what the supervisor must do next."""

    kind: Literal["restart", "environment", "user", "fatal"]
    error: str
    """Class name of the exception."""
    reason: str
    details: str
    """Traceback, for the log."""
    operator: str = ""
    where: str = ""
    """The failing record, if there is one; see ``PoisonRecord``."""


class ConfirmAbort(ControlMessage, frozen=True):
    """No data of an aborted epoch is uploaded here any more, and its output is pre-committed."""

    epoch: EpochId


class SessionEnded(ControlMessage, frozen=True):
    """The session has ended; no thread of it runs any more."""


ToWorker: TypeAlias = (
    StartSession
    | BeginProcessing
    | TriggerCheckpoint
    | NotifyCheckpointCommitted
    | NotifyCheckpointAborted
    | AssignSplits
    | SetWaitingSources
    | RemoteSlowest
    | PauseReading
    | ResumeReading
    | CountFrames
    | ReportStacks
    | EndSession
)
ToSupervisor: TypeAlias = (
    RestoreReport
    | SessionReady
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | ConfirmAbort
    | WorkerProgress
    | WorkerHeartbeat
    | LocalSlowest
    | SessionReachedEnds
    | FramesCounted
    | StacksReported
    | SessionFailed
    | SessionEnded
)

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_supervisor = msgspec.msgpack.Decoder(ToSupervisor)


def encode_frame(message: ControlMessage) -> bytes:
    """Return a message with its length."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


decode_for_worker = _to_worker.decode
decode_for_supervisor = _to_supervisor.decode


def send(sock: socket.socket, message: ControlMessage, sockets: Sequence[socket.socket] = ()) -> None:
    """Send one complete message, and these sockets with its first byte. Raises OSError if the peer is gone."""
    data = encode_frame(message)
    if sockets:
        data = data[socket.send_fds(sock, [data], [s.fileno() for s in sockets]) :]
    sock.sendall(data)


def receive_as_worker(sock: socket.socket) -> Iterator[tuple[ToWorker, list[socket.socket]]]:
    """Yield messages from the supervisor until it is gone, each with the sockets that came with it."""
    fds: list[int] = []
    for body in read_frames(lambda size: _read(sock, size, fds)):
        sockets = [socket.socket(fileno=fd) for fd in fds]
        fds.clear()
        yield decode_for_worker(body), sockets


def receive_as_supervisor(sock: socket.socket) -> Iterator[ToSupervisor]:
    """Yield messages from a worker until it is gone."""
    return map(decode_for_supervisor, read_frames(lambda size: _read(sock, size, [])))


def read_frames(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the bodies of complete frames until ``read`` returns b"". An incomplete frame is not a message.

    ``read`` returns at most as many bytes as it is asked for. Raises ConnectionError for a frame that is too long.
    """
    while len(head := _read_exactly(read, _LENGTH.size)) == _LENGTH.size:
        size = _LENGTH.unpack(head)[0]
        if size > _MOST_BYTES:
            raise ConnectionError(f"a control message of {size} bytes: the other end does not send messages of a job")
        body = _read_exactly(read, size)
        if len(body) < size:
            return
        yield body


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size and (chunk := read(min(size - len(chunks), LIMITS.socket_read_bytes))):
        chunks += chunk
    return bytes(chunks)


def _read(sock: socket.socket, size: int, fds: list[int]) -> bytes:
    try:
        chunk, received, _, _ = socket.recv_fds(sock, size, _MOST_SOCKETS)
    except ConnectionResetError:
        return b""
    fds += received
    return chunk
