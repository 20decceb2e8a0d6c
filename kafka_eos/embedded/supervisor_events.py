"""All events that can reach the supervisor, as values in one queue.

Rule: the sender of an event decides nothing. The queue outlives attempts, so events of background work carry the term
of their attempt, and a later attempt ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from kafka_eos.core.json_values import Positions
from kafka_eos.protocol.events import AttemptEvent
from kafka_eos.runtime.worker.control_messages import ToSupervisor


class WorkerMessage(Struct, frozen=True):
    """A worker's message, with the worker's number."""

    message: ToSupervisor
    worker: int


class WorkerConnected(Struct, frozen=True):
    """A worker that was started can be sent messages now."""

    worker: int


class WorkerExited(Struct, frozen=True):
    """A worker has ended. ``how`` describes its end."""

    worker: int
    how: str


class PoolFailed(Struct, frozen=True):
    """The place where workers run is gone, or has ended them on request. ``error`` ends the attempt."""

    error: Exception


class BackgroundDone(Struct, frozen=True):
    """Background work has produced an event for the attempt's state machine."""

    term: int
    fact: AttemptEvent


class SplitsDiscovered(Struct, frozen=True):
    """A split discovery has found new splits, with start positions, or none."""

    term: int
    found: Mapping[str, Positions]


class BackgroundFailed(Struct, frozen=True):
    """Background work has raised an exception."""

    term: int
    error: BaseException


class StopRequested(Struct, frozen=True):
    """A signal requested a clean stop."""


class StopTimedOut(Struct, frozen=True):
    """The time allowed for a clean stop is over."""


SupervisorEvent: TypeAlias = (
    WorkerMessage
    | WorkerConnected
    | WorkerExited
    | PoolFailed
    | BackgroundDone
    | SplitsDiscovered
    | BackgroundFailed
    | StopRequested
    | StopTimedOut
)
