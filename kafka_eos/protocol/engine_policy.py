"""What an engine and its settings say of every attempt to run a job.

Rule: a policy holds for a whole attempt; what changes meanwhile is a fact (see ``facts``).
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos.protocol.checkpoint_schedule import Cadence


@dataclass(frozen=True, slots=True)
class Policy:
    """Times are seconds.

    ``tolerated``  failed checkpoints in a row that the attempt bears
    ``batches``  an epoch reads up to given positions and leaves nothing under way: it begins when there is something
        to read, also while the one before it is committed, and no last one is needed. Otherwise epochs are barriers in
        a stream.
    ``halts``  every epoch finds the whole job at a halt: a benchmark compares barriers with that
    ``halts_at_end``  the last epoch of bounded input does: rows may go round in a loop
    ``may_leave``  a stop before the subtasks are ready ends the attempt without an epoch
    ``search_every``  between two searches for splits, or for something to read
    ``silence``  after so long without a sign of life a process stands still, and without a step a late subtask does
    ``patience``  after so long without a step a subtask that processes rows is replaced
    """

    subtasks: frozenset[int]
    cadence: Cadence
    tolerated: int
    search_every: float
    batches: bool = False
    halts: bool = False
    halts_at_end: bool = False
    may_leave: bool = False
    silence: float = 5.0
    patience: float = float("inf")
