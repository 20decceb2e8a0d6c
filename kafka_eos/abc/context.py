"""Who runs: what coordinator and worker hand to a connector.

Rule: a connector learns of its surroundings from here alone, so that it works the same under every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_eos.abc.services import Services
from kafka_eos.core.ids import Epoch, JobIdentity, Term
from kafka_eos.core.json_values import Json


@dataclass(frozen=True, slots=True)
class JobContext:
    """What the coordinator hands to a connector: who runs, and under which fencing token."""

    job: str
    term: Term
    settings: Mapping[str, Json]
    """What a connector may need to know of the job's settings, if the engine says it.

    ``bootstrap_servers``, ``kafka_config``  for connectors that were not given their own
    ``bootstrap_servers_origin``             where the first of them was set, for people
    ``checkpoint_interval``                  seconds
    ``parallelism``                          subtasks
    ``kafka_share``                          in a worker: bytes that a Kafka source may hold, and half a producer's
    ``commit_margin``                        in ``Sink.check``: seconds that must be left to output when it is committed
    """
    identity: JobIdentity | None = None
    """Which life of the job's name this is; the name of all output holds it, unless it is None."""
    known_in: frozenset[str] = frozenset()
    """In ``Sink.check``: scopes whose sinks knew this job when it decided its newest epoch.

    What a sink makes where it is missing it must not make there again: an empty one would hide that rows are lost.
    """

    def owns(self, identity: JobIdentity | None) -> bool:
        """Whether output of the job's name that carries ``identity`` (None: that carries none) is this life's."""
        return identity == self.identity


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a worker hands to a connector, on top of the job's context."""

    job: JobContext
    subtask: int
    parallelism: int
    operator: str
    """Name of the plan node that the reader or writer serves."""
    services: Services = field(default_factory=Services)
    """What the engine does for the operator, and what operators of the session share."""
    first_epoch: Epoch = field(default_factory=lambda: Epoch(1))
    """The epoch of the first rows of this session; the next one is always one more."""
    attempt: int | None = None
    """Number of this attempt, unique in the term; None where a subtask has one attempt a term."""

    @property
    def owner(self) -> int:
        """What tells output of this attempt from that of any other in the same term."""
        return self.subtask if self.attempt is None else self.attempt
