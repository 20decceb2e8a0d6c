"""What a committable says about the rows of one writer and epoch, and the names that the sink gives.

Rows wait in a staging table, ``stage_<uuid>`` among the tables of the sink, or in a prepared transaction,
``kafka_eos_<uuid>``. Rule: reading a payload proves that the name in it is one that this module forms; a committable
from elsewhere ends nobody's table or transaction.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kafka_eos.abc.committer import Standing
from kafka_eos.connectors._staged_tables.incarnation_markers import Mark
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

VERSION: Final = 1
WRITER: Final = "writer"
COMMITTER: Final = "committer"
"""Roles of connections. A committer is there before anybody knows which life its job is."""


class Strategy(enum.Enum):
    """Where rows wait for their commit."""

    STAGE = "stage"
    """In a staging table, which one transaction empties into the target."""
    PREPARE = "prepare"
    """In the target itself, in a prepared transaction."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a job's name, as the sink's tables spell it."""

    job: str
    identity: JobIdentity | None

    @property
    def text(self) -> str:
        """The column ``identity``; empty for a job without one."""
        return "" if self.identity is None else str(self.identity)

    def application(self, role: str) -> str:
        """How its connections call themselves."""
        return application(role, f"{self.text or 'nameless'} {self.job}")


@dataclass(frozen=True, slots=True)
class Target:
    """A user's table: where rows go, and how. Without a key they are inserted, with one the last row of a key wins.

    ``schema`` is empty where ``table`` says it, or the database has none.
    """

    schema: str
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table


@dataclass(frozen=True, slots=True)
class Promise:
    """What a committable's payload says.

    ``after``  earlier staging tables of the same writer that may not be committed, the oldest first: their epochs were
               given up, or are under way. They go into the target before this one
    """

    id: uuid.UUID
    life: Life
    epoch: EpochId
    target: Target
    after: tuple[uuid.UUID, ...] = ()
    strategy: Strategy = Strategy.STAGE

    @property
    def stage(self) -> str:
        return stage(self.id)

    def payload(self) -> dict[str, Json]:
        return {
            "version": VERSION,
            "id": self.id.hex,
            "job": self.life.job,
            "identity": self.life.text,
            "term": self.epoch.term.n,
            "epoch": self.epoch.epoch.n,
            "schema": self.target.schema,
            "table": self.target.table,
            "columns": [*self.target.columns],
            "key": [*self.target.key],
            "after": [of.hex for of in self.after],
            "strategy": self.strategy.value,
        }

    @staticmethod
    def read(payload: Mapping[str, Json]) -> Promise:
        """CorruptCheckpoint if it is not a payload of this package."""
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
                life = Life(job, JobIdentity(identity) if identity else None)
                target = Target(schema, table, tuple(map(str, columns)), tuple(map(str, key)))
                return Promise(
                    uuid.UUID(hexed),
                    life,
                    EpochId(Epoch(epoch), Term(term)),
                    target,
                    tuple(uuid.UUID(str(of)) for of in after),
                    Strategy(strategy),
                )
        raise CorruptCheckpoint(f"not a committable of a table: {dict(payload)!r}")


def _is_id(given: Json) -> bool:
    return isinstance(given, str) and len(given) == 32 and set(given) <= set("0123456789abcdef")


def application(role: str, whose: str) -> str:
    """The name of a connection, as short as the server's names are: of a longer one it keeps 63 bytes."""
    return f"kafka_eos {role} {whose}"[:63]


def stage(of: uuid.UUID) -> str:
    """The name of a staging table."""
    return f"stage_{of.hex}"


def transaction(of: uuid.UUID) -> str:
    """The name of a prepared transaction, and of the connection that writes it."""
    return f"kafka_eos_{of.hex}"


# ---------------------------------------------------------------- what a database lacks of a life
#
# What a database lacks of what a life of a job has committed there. Pure; see ``abc.Remembers``.


def lacking(
    scope: str, mark: Mark | None, newest: EpochId, standings: Collection[Standing], last: Epoch | None
) -> str | None:
    """For people; None if nothing is missing.

    ``mark``       that of the life; None if the database has none
    ``newest``     the newest epoch that the life has finished
    ``standings``  of the newest rows that the life has committed there up to then, as they are now
    ``last``       the newest epoch that the database tells of; None if it tells of none
    """
    if mark is None:
        return f"{scope} has nothing of this job" if standings else None
    if mark.over:  # the job is told so when it looks for its mark
        return None
    if mark.term < newest.term:
        return f"{scope} has term {mark.term} of this job at most"
    if last is not None and last > newest.epoch:
        return f"{scope} has epoch {last} of this job already"
    if {*standings} <= {Standing.COMMITTED}:
        return None
    return f"{scope} has not all that is committed up to epoch {newest}"
