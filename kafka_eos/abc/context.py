"""The job and task contexts that the coordinator and workers pass to connectors.

Rule: a connector learns about its environment only from here, so that it works the same under every engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from kafka_eos.abc.services import Services
from kafka_eos.core.ids import Epoch, JobIdentity, Term
from kafka_eos.core.json_values import Json


class JobContext(Struct, frozen=True):
    """The identity and fencing token of the running job, as the coordinator passes them to a connector."""

    job: str
    term: Term
    settings: Mapping[str, Json]
    """The job's settings that a connector may need, if the engine provides them.

    ``bootstrap_servers``, ``kafka_config``  for connectors that were not given their own
    ``bootstrap_servers_origin``             where the first of them was set, for display
    ``checkpoint_interval``                  seconds
    ``parallelism``                          subtasks
    ``kafka_share``                          in a worker: bytes that a Kafka source may hold, and half a producer's
    ``commit_margin``                        in ``SinkNode.check``: seconds that must remain for the commit of output
    """
    identity: JobIdentity | None = None
    """The incarnation of the job, which the names of all its output contain. A running job always has one.

    None for a query of Structured Streaming, whose job name ends in random digits from its checkpoint instead, and
    before a start has read or generated the identity: commands, checks of a plan, the audit.
    """
    written_scopes: frozenset[str] = frozenset()
    """Scopes whose sinks this job had written to in its newest decided epoch.

    In these scopes a sink must not create a missing target again: an empty one would hide that rows are lost.
    """

    def owns(self, identity: JobIdentity | None) -> bool:
        """Return whether output with this identity in its name (None: without one) belongs to this incarnation."""
        return identity == self.identity


class TaskContext(Struct, frozen=True):
    """The subtask that a worker runs, passed to a connector together with the job's context."""

    job: JobContext
    subtask: int
    parallelism: int
    operator: str
    """Name of the plan node that the reader or writer serves."""
    services: Services = field(default_factory=Services)
    """The engine's services for the operator, and the resources that operators of the session share."""
    first_epoch: Epoch = field(default_factory=lambda: Epoch(1))
    """The epoch of the first rows of this session; the next one is always one more."""
