"""What an engine and the coordinator hand to each other. Rule: plain values; neither knows how the other got them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import Committable, InFlight, Positions, StateHandle


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where an attempt starts: its term, the decided epoch it continues, and positions of all splits."""

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
