"""Everything that can reach the supervisor, as values in one queue.

Rule: whoever sends an event decides nothing. The queue outlives attempts, so what an attempt started carries its
term, and a later one ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kafka_eos.core.errors import InputLost
from kafka_eos.core.json_values import Positions
from kafka_eos.protocol.events import Fact
from kafka_eos.runtime.worker.control_messages import ToSupervisor


@dataclass(frozen=True, slots=True)
class Heard:
    """A worker has said something."""

    message: ToSupervisor
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker process is gone; ``how`` in words."""

    pid: int
    how: str


@dataclass(frozen=True, slots=True)
class BackgroundDone:
    """What work beside the main thread has come to."""

    term: int
    fact: Fact


@dataclass(frozen=True, slots=True)
class SplitsDiscovered:
    """The search for splits beyond ``known``: those found and where to start them, or what is gone of ``known``."""

    term: int
    known: Mapping[str, Positions]
    found: Mapping[str, Positions] | InputLost


@dataclass(frozen=True, slots=True)
class Broken:
    """Work beside the main thread ended with an error, whatever a library or a sink of the user's raises."""

    term: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A signal asked for a clean end."""


@dataclass(frozen=True, slots=True)
class StopExpired:
    """The time for a clean end is over."""


Event: TypeAlias = Heard | WorkerEnded | BackgroundDone | SplitsDiscovered | Broken | StopRequested | StopExpired
