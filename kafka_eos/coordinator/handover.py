"""What an engine and the coordinator hand to each other. Rule: plain values; neither knows how the other got them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_eos.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.interfaces import Committable, InFlight, Positions, StateHandle
from kafka_eos.records import Tally


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where an attempt starts: the job's identity, its term, the decided epoch it continues, all positions."""

    identity: JobIdentity
    term: Term
    base: EpochId
    first_epoch: Epoch
    states: tuple[StateHandle, ...]
    positions: Mapping[str, Positions]
    in_flight: tuple[InFlight, ...] = ()


@dataclass(frozen=True, slots=True)
class Acked:
    """What the subtasks acknowledged for one epoch, put together."""

    positions: Mapping[str, Positions]
    states: tuple[StateHandle, ...]
    committables: tuple[Committable, ...]
    in_flight: tuple[InFlight, ...] = ()
    parallelism: int = 1
    tally: Tally = field(default_factory=Tally)
    """What was read in this epoch, and what was refused."""
