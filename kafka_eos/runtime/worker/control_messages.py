"""What supervisor and worker say to each other, and the socket they say it on.

Messages are msgspec structs with a tag, framed by a four-byte length; nothing is pickled. ``session`` numbers
the attempts of one worker process: an answer that belongs to an older session is ignored by the receiver.
Rule: the worker ends when the socket does, so that no worker outlives its supervisor.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.core.ids import Epoch, EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Tally
from kafka_eos.runtime.epoch_reports import Span
from kafka_eos.runtime.program import Code
from kafka_eos.runtime.state.restore_progress import Restored
from kafka_eos.runtime.worker.task_stats import Figures

_LENGTH = struct.Struct(">I")
_MOST_SOCKETS = 253
"""What one message can carry (SCM_MAX_FD)."""


class Message(msgspec.Struct, frozen=True, tag=True):
    session: int


class Given(msgspec.Struct, frozen=True):
    """What a worker is given with its command, in a file in memory: what it has in common with its supervisor."""

    settings: str
    """``Settings.as_json`` as text."""
    code: Code


# supervisor → worker


class Start(Message, frozen=True):
    """Drop what you were doing and begin a session from a decided epoch."""

    identity: str
    """Of the job; see ``ids.JobIdentity``."""
    term: int
    first_epoch: int
    parallelism: int
    peers: tuple[int, ...]
    """Subtasks whose sockets come along with this message, in this order."""
    positions: dict[str, Positions]
    states: tuple[StateHandle, ...]
    in_flight: tuple[InFlight, ...]
    ends: dict[str, Positions] | None
    """For a bounded run: where each source may stop."""
    waiting: frozenset[str]
    """Sources that are not read yet; see ``protocol.source_dependencies``."""
    silent: frozenset[str]
    """Those of them that event time does not wait for."""


class Begin(Message, frozen=True):
    """All workers are ready: process. The first message after Start, unless it is Drop."""


class Trigger(Message, frozen=True):
    """The barrier: snapshot, seal, acknowledge. ``last`` stops reading afterwards.

    ``aligned``: nothing may be left under way, whatever the job's mode (for a last epoch, for a savepoint).
    """

    epoch: EpochId
    last: bool
    aligned: bool


class Notify(Message, frozen=True):
    """The epoch's receipt is written."""

    epoch: EpochId


class Abort(Message, frozen=True):
    """The epoch is given up: seal what is not sealed of it, name that output in the next answer, and confirm."""

    epoch: EpochId


class Assign(Message, frozen=True):
    """New splits of a source."""

    source: str
    positions: Positions


class Drop(Message, frozen=True):
    """End the session, undo nothing, answer Dropped: recovery must not run beside it."""


class Halt(Message, frozen=True):
    """Read nothing from the sources until told to go on; process what is under way."""


class GoOn(Message, frozen=True):
    """Read again."""


class Waiting(Message, frozen=True):
    """These sources still wait for others, and no more; ``silent``: those of them that event time does not wait for."""

    sources: frozenset[str]
    silent: frozenset[str]


class SlowestElsewhere(Message, frozen=True):
    """How far the slowest splits of all other workers are in event time, by group; see
    ``protocol.watermark_alignment``.
    """

    slowest: dict[str, int]


class Count(Message, frozen=True):
    """Answer with ``Counted``; see ``protocol.quiescence``."""

    round: int


# worker → supervisor


class Counted(Message, frozen=True):
    """What has been sent to other workers, and processed of theirs, and whether nothing waits."""

    round: int
    idle: bool
    sent: int
    processed: int


class Restoring(Message, frozen=True):
    """More of the restore is done. Nothing is said while nothing is."""

    restored: Restored


class Ready(Message, frozen=True):
    """State restored, readers and writers open."""


class Sealed(msgspec.Struct, frozen=True):
    """Output that is prepared: of the epoch, or of one before it that was given up."""

    epoch: Epoch
    committables: tuple[Committable, ...]


class Ack(Message, frozen=True):
    """The epoch is durable on this subtask's side."""

    epoch: EpochId
    positions: dict[str, Positions]
    states: tuple[StateHandle, ...]
    sealed: tuple[Sealed, ...]
    """Everything that no epoch has taken yet, as far as this worker knows."""
    in_flight: tuple[InFlight, ...]
    tally: Tally
    """What the subtask has counted up to this barrier since the session began."""
    watermarks: dict[str, dict[str, int]]
    """How far each split that it reads has come in event time, by the operator that makes its watermarks."""
    blocked_ms: float
    """How long the barrier kept the worker from processing."""
    aligning_ms: float
    """From the first barrier at a segment to the last, the longest of the worker's segments."""
    timers: dict[str, int]
    """How many are pending, by operator."""
    unanswered: bool
    """A row waits for an answer that waited at the first barrier of the session."""
    spans: tuple[Span, ...]
    """When each phase was."""


class Decline(Message, frozen=True):
    """The epoch cannot be made durable on this subtask's side. Its output is prepared, and named by the next answer."""

    epoch: EpochId
    reason: str


class Progress(Message, frozen=True):
    """How far the worker is since the session began."""

    figures: Figures


class Pulse(Message, frozen=True):
    """The process lives; the thread that processes rows took its last step so many seconds ago. See ``pulse``."""

    standing: float
    at: str
    """The operator and the record that it is at; empty if it is at none."""


class SlowestHere(Message, frozen=True):
    """How far the slowest splits that are read here are in event time, by group. Said when it has changed."""

    slowest: dict[str, int]


class Reached(Message, frozen=True):
    """A bounded run has read up to its ends."""


class Failed(Message, frozen=True):
    """The session is over. ``kind`` says what the supervisor must do next."""

    kind: Literal["restart", "environment", "user", "fatal"]
    error: str
    """Class name of the exception."""
    reason: str
    details: str
    """Traceback, for the log."""
    operator: str = ""
    where: str = ""
    """At which record, if it was at one; see ``PoisonRecord``."""


class ConfirmAbort(Message, frozen=True):
    """Nothing of an aborted epoch is uploaded here any more, and its output is prepared."""

    epoch: EpochId


class Dropped(Message, frozen=True):
    """The session is over and nothing of it runs any more."""


ToWorker: TypeAlias = (
    Start | Begin | Trigger | Notify | Abort | Assign | Waiting | SlowestElsewhere | Halt | GoOn | Count | Drop
)
ToSupervisor: TypeAlias = (
    Restoring
    | Ready
    | Ack
    | Decline
    | ConfirmAbort
    | Progress
    | Pulse
    | SlowestHere
    | Reached
    | Counted
    | Failed
    | Dropped
)

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_supervisor = msgspec.msgpack.Decoder(ToSupervisor)


def send(sock: socket.socket, message: Message, sockets: Sequence[socket.socket] = ()) -> None:
    """Send one message whole, and with its first byte these sockets. Raises OSError if the peer is gone."""
    body = _encoder.encode(message)
    data = _LENGTH.pack(len(body)) + body
    if sockets:
        data = data[socket.send_fds(sock, [data], [s.fileno() for s in sockets]) :]
    sock.sendall(data)


def receive_as_worker(sock: socket.socket) -> Iterator[tuple[ToWorker, list[socket.socket]]]:
    """Messages from the supervisor until it is gone, each with the sockets that came with it."""
    fds: list[int] = []
    for body in _frames(sock, fds):
        came = [socket.socket(fileno=fd) for fd in fds]
        fds.clear()
        yield _to_worker.decode(body), came


def receive_as_supervisor(sock: socket.socket) -> Iterator[ToSupervisor]:
    """Messages from a worker until it is gone."""
    for body in _frames(sock, []):
        yield _to_supervisor.decode(body)


def _frames(sock: socket.socket, fds: list[int]) -> Iterator[bytes]:
    while (head := _read(sock, _LENGTH.size, fds)) is not None:
        body = _read(sock, _LENGTH.unpack(head)[0], fds)
        if body is None:
            return
        yield body


def _read(sock: socket.socket, size: int, fds: list[int]) -> bytes | None:
    """Exactly ``size`` bytes, or None if the peer is gone (a frame cut short by its death is no message)."""
    chunks = bytearray()
    while len(chunks) < size:
        try:
            chunk, came, _, _ = socket.recv_fds(sock, size - len(chunks), _MOST_SOCKETS)
        except ConnectionResetError:
            return None
        fds += came
        if not chunk:
            return None
        chunks += chunk
    return bytes(chunks)
