"""The rules of an engine and its settings that apply to every attempt to run a job.

Rule: a policy does not change during an attempt; anything that changes arrives as an event (see ``protocol.events``).
"""

from __future__ import annotations

from msgspec import Struct

from kafka_eos.protocol.checkpoint_schedule import Cadence


class AttemptPolicy(Struct, frozen=True):
    """The requirements that the engine and its settings place on every attempt.

    ``tolerated_failures``: failed checkpoints in a row that the attempt tolerates.
    ``pauses_sources``: every epoch waits until the whole job is quiescent. A benchmark compares barriers with that.
    ``pauses_at_end``: the final epoch of bounded input does so, because rows may circulate in a loop.
    ``verifies_input``: before an epoch is decided, the sources show that none of their input was replaced.
    ``can_stop_early``: a stop before the subtasks are ready ends the attempt without an epoch.
    ``discovery_interval``: seconds between two searches for splits.
    ``heartbeat_timeout``: seconds without a heartbeat after which a process is considered frozen. A subtask that is
    late with an acknowledgement is replaced if it has made no progress for this long.
    ``stall_timeout``: seconds without progress after which a subtask that processes rows is replaced.
    """

    subtasks: frozenset[int]
    cadence: Cadence
    tolerated_failures: int
    discovery_interval: float
    pauses_sources: bool = False
    pauses_at_end: bool = False
    verifies_input: bool = False
    can_stop_early: bool = False
    heartbeat_timeout: float = 5.0
    stall_timeout: float = float("inf")
