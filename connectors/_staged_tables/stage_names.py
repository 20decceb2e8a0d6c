"""The payload of a committable (the rows of one writer and epoch), and the names that the sink gives.

Rows wait in a staging table, ``stage_<uuid>`` among the tables of the sink, or in a prepared transaction,
``kafka_eos_<uuid>``. Rule: reading a payload proves that this module built the name in it. A foreign committable cannot
end another program's table or transaction.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.connectors._staged_tables.registrations import Registration
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Fenced
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

VERSION: Final = 1
WRITER: Final = "writer"
COMMITTER: Final = "committer"
"""Roles of connections. A committer exists before the job's incarnation is known."""


class Strategy(enum.Enum):
    """The location where rows wait for their commit."""

    STAGE = "stage"
    """Rows wait in a staging table, from which one transaction copies them into the target."""
    PREPARE = "prepare"
    """Rows wait in the target table, in a prepared transaction."""


class Incarnation(Struct, frozen=True):
    """One incarnation of a job."""

    job: str
    identity: JobIdentity | None

    @property
    def identity_text(self) -> str:
        """Return the identity as its column stores it; empty for a job without one."""
        return "" if self.identity is None else str(self.identity)

    def application(self, role: str) -> str:
        """Return the application name of its connections."""
        return application(role, f"{self.identity_text or 'nameless'} {self.job}")


class TargetTable(Struct, frozen=True):
    """The user's table, and the key for upserts.

    Without a key rows are inserted; with a key the last row of each key wins.
    ``schema`` is empty if ``table`` contains it, or if the database has no schemas.
    """

    schema: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    def describe(self) -> str:
        """Return all that a commit needs to know of the table, see ``OutputOwner.target``."""
        return f"table {self.schema!r}.{self.table!r}, columns {self.columns!r}, key {self.key!r}"


class TableCommittable(Struct, frozen=True):
    """The payload of a database committable: one writer's staged rows of one epoch.

    ``predecessors``: earlier staging tables of the same writer that may not be committed, the oldest first. Their
    epochs were aborted or are in flight. Their rows go into the target before this table's.
    """

    id: uuid.UUID
    incarnation: Incarnation
    epoch: EpochId
    target: TargetTable
    predecessors: tuple[uuid.UUID, ...] = ()
    strategy: Strategy = Strategy.STAGE

    @property
    def stage_name(self) -> str:
        return build_stage_name(self.id)

    def to_payload(self) -> dict[str, Json]:
        return {
            "version": VERSION,
            "id": self.id.hex,
            "job": self.incarnation.job,
            "identity": self.incarnation.identity_text,
            "term": self.epoch.term.n,
            "epoch": self.epoch.epoch.n,
            "schema": self.target.schema,
            "table": self.target.table,
            "columns": [*self.target.columns],
            "key": [*self.target.key],
            "after": [of.hex for of in self.predecessors],
            "strategy": self.strategy.value,
        }

    @staticmethod
    def from_payload(payload: Mapping[str, Json]) -> TableCommittable:
        """Parse a payload. Raises CorruptCheckpoint if it is not one of this connector."""
        match payload:
            case {
                "version": 1,
                "id": str(hexed),
                "job": str(job),
                "identity": str(identity),
                "term": int(term),
                "epoch": int(epoch),
                "schema": str(schema),
                "table": str(table),
                "columns": [*columns],
                "key": [*key],
                "after": [*after],
                "strategy": "stage" | "prepare" as strategy,
            } if all(map(_is_id, [hexed, *after])) and all(isinstance(name, str) for name in [*columns, *key]):
                with suppress(ConfigError):  # of a text that is no identity
                    incarnation = Incarnation(job, parse_identity(identity))
                    target = TargetTable(schema, table, tuple(map(str, columns)), tuple(map(str, key)))
                    return TableCommittable(
                        uuid.UUID(hexed),
                        incarnation,
                        EpochId(Epoch(epoch), Term(term)),
                        target,
                        tuple(uuid.UUID(str(of)) for of in after),
                        Strategy(strategy),
                    )
        raise CorruptCheckpoint(f"not a committable of a table: {dict(payload)!r}")


def _is_id(given: Json) -> bool:
    return isinstance(given, str) and len(given) == 32 and set(given) <= set("0123456789abcdef")


def parse_identity(text: str) -> JobIdentity | None:
    """Return the identity that a column stores."""
    return JobIdentity(text) if text else None


def ensure_current(incarnation: Incarnation, registration: Registration | None, term: Term) -> None:
    """Raise Fenced if a writer's incarnation was taken over, or its term is outdated."""
    if registration is None or registration.taken_over:
        shown = incarnation.identity_text or "without identity"
        raise Fenced(f"the registration of incarnation {shown} of job {incarnation.job!r} was removed")
    if registration.term > term:
        raise Fenced(f"term {registration.term} of job {incarnation.job!r} writes here; this is term {term}")


def application(role: str, whose: str) -> str:
    """Return the name of a connection, truncated to the 63 bytes that the server keeps."""
    return f"kafka_eos {role} {whose}"[:63]


def build_stage_name(of: uuid.UUID) -> str:
    """Return the name of a staging table."""
    return f"stage_{of.hex}"


def build_transaction_name(of: uuid.UUID) -> str:
    """Return the name of a prepared transaction."""
    return f"kafka_eos_{of.hex}"


# ---------------------------------------------------------------- missing output of an incarnation
#
# The committed output of an incarnation that a database lacks. Pure; see ``SupportsLossCheck``.


def describe_missing_commits(
    scope: str,
    registration: Registration | None,
    newest: EpochId,
    statuses: Collection[CommitStatus],
    last: Epoch | None,
) -> str | None:
    """Return what a restored database lacks of an incarnation; None if nothing.

    ``registration``: the incarnation's registration; None if the database has none.
    ``newest``: the newest epoch that the incarnation has finished.
    ``statuses``: the present status of the newest rows that the incarnation has committed there up to then.
    ``last``: the newest epoch recorded in the database; None if it records none.
    """
    if registration is None:
        return f"{scope} has no record of this job" if statuses else None
    if registration.taken_over:  # the check of the registration reports this
        return None
    if registration.term < newest.term:
        return f"{scope} has no term of this job after {registration.term}"
    if last is not None and last > newest.epoch:
        return f"{scope} already has epoch {last} of this job"
    if {*statuses} <= {CommitStatus.COMMITTED}:
        return None
    return f"{scope} lacks output that was committed up to epoch {newest}"
