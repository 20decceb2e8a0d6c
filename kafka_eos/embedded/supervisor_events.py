"""All events that can reach the supervisor, as values in one queue.

Rule: the sender of an event decides nothing. The queue outlives attempts, so events of background work carry the term
of their attempt, and a later attempt ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kafka_eos.core.json_values import Positions
from kafka_eos.protocol.events import AttemptEvent
from kafka_eos.runtime.worker.control_messages import ToSupervisor


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A worker's message, with the worker's number."""

    message: ToSupervisor
    worker: int


@dataclass(frozen=True, slots=True)
class WorkerConnected:
    """A worker that was started can be sent messages now."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker has ended. ``how`` describes its end."""

    worker: int
    how: str


@dataclass(frozen=True, slots=True)
class PoolFailed:
    """The place where workers run is gone, or has ended them on request. ``error`` ends the attempt."""

    error: Exception


@dataclass(frozen=True, slots=True)
class BackgroundDone:
    """Background work has produced an event for the attempt's state machine."""

    term: int
    fact: AttemptEvent


@dataclass(frozen=True, slots=True)
class SplitsDiscovered:
    """A split discovery has found new splits, with start positions, or none."""

    term: int
    found: Mapping[str, Positions]


@dataclass(frozen=True, slots=True)
class BackgroundFailed:
    """Background work has raised an exception."""

    term: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A signal requested a clean stop."""


@dataclass(frozen=True, slots=True)
class StopTimedOut:
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
