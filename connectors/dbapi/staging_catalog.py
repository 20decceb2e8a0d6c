"""The staging catalog of the sink: two tables next to the user's.

    kafka_eos_incarnations  one row per incarnation of a job's name: its newest term, and whether it was taken over
    kafka_eos_stages        one row per staging table, with its state

    open ──▶ prepared ──▶ committed
      └────────┴────────▶ aborted

A statement that changes a state names the previous state, so only one of two concurrent transactions succeeds. The
transaction that sets "committed" also copies the rows. Staging tables are dropped afterwards, because many databases
cannot create or drop a table in a transaction. So the content of a staging table is irrelevant once its row here shows
that it has ended.
Rule: a row in state "committed" or "aborted" gives the outcome of a committable; without a row the outcome is unknown.
"""

from __future__ import annotations

import time
import uuid
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    String,
    Table,
    and_,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.schema import DropTable

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.connectors._staged_tables.committer import StagingEntry
from kafka_eos.connectors._staged_tables.registrations import Registration
from kafka_eos.connectors._staged_tables.stage_names import (
    Incarnation,
    Strategy,
    TableCommittable,
    ensure_current,
    parse_identity,
)
from kafka_eos.connectors.dbapi.database import INNODB, Database
from kafka_eos.core.errors import Fenced, Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term

INCARNATIONS: Final = "kafka_eos_incarnations"
STAGES: Final = "kafka_eos_stages"
OPEN, PREPARED, COMMITTED, ABORTED = "open", "prepared", "committed", "aborted"
_STATUS: Final = {
    OPEN: CommitStatus.LOST,  # its writer received a confirmation, so this database is an older copy
    PREPARED: CommitStatus.PREPARED,
    COMMITTED: CommitStatus.COMMITTED,
    ABORTED: CommitStatus.LOST,
}
_ENDED: Final = (COMMITTED, ABORTED)
_NOBODY: Final = -1
"""``needed_by`` of a stage that no committable names."""

# MySQL compares text without regard to case, unless a column says otherwise.
_TEXT: Final = String(200).with_variant(
    mysql.VARCHAR(200, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
_TABLES: Final = MetaData()
_INCARNATIONS: Final = Table(
    INCARNATIONS,
    _TABLES,
    *(Column(name, _TEXT, primary_key=True) for name in ("job", "incarnation")),
    *(Column(name, BigInteger, nullable=False) for name in ("term", "taken", "touched")),
    **INNODB,
)
_STAGES: Final = Table(
    STAGES,
    _TABLES,
    Column("id", _TEXT, primary_key=True),
    *(Column(name, _TEXT, nullable=False) for name in ("job", "incarnation", "operator_name", "target", "state")),
    *(
        Column(name, BigInteger, nullable=False)
        for name in ("term", "epoch", "subtask", "row_total", "needed_by", "dropped", "since")
    ),
    **INNODB,
)


def name_stage(of: uuid.UUID) -> str:
    """Return the name of a staging table."""
    return f"kafka_eos_stage_{of.hex}"


class DbApiStagingCatalog:
    """The sink's two tables. Each method runs in the caller's transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create_tables(self, connection: Connection) -> None:
        """Create both tables unless they exist."""
        for table in _TABLES.sorted_tables:
            try:
                with connection.begin():
                    table.create(connection, checkfirst=True)
            except DBAPIError:
                with connection.begin():
                    if not inspect(connection).has_table(table.name):  # otherwise another process has just created it
                        raise

    def is_there(self, connection: Connection) -> bool:
        return True  # each session creates missing tables

    def name(self, of: uuid.UUID, strategy: Strategy) -> str:
        return name_stage(of)

    # ------------------------------------------------------------ incarnations

    def ensure_current_term(self, connection: Connection, incarnation: Incarnation, term: Term) -> None:
        """Raise Fenced if the term is outdated; block newer terms until this transaction commits."""
        self._touch(connection, incarnation)
        ensure_current(incarnation, self.read_registration(connection, incarnation), term)

    def _touch(
        self, connection: Connection, incarnation: Incarnation, *conditions: ColumnElement[bool], **values: int
    ) -> None:
        """Change a registration, which locks it. ``touched`` always changes, because some databases lock only rows that
        really change."""
        statement = update(_INCARNATIONS).where(_of(_INCARNATIONS, incarnation), *conditions)
        connection.execute(statement.values(touched=_INCARNATIONS.c.touched + 1, **values))

    def read_registration(self, connection: Connection, incarnation: Incarnation) -> Registration | None:
        registrations = self.list_registrations(connection, incarnation.job)
        return next((each for each in registrations if each.identity == incarnation.identity), None)

    def list_registrations(self, connection: Connection, job: str) -> list[Registration]:
        of = _INCARNATIONS.c
        query = select(of.incarnation, of.term, of.taken).where(of.job == job).order_by(of.incarnation)
        return [
            Registration(parse_identity(incarnation), Term(int(term)), bool(over))
            for incarnation, term, over in connection.execute(query)
        ]

    def ensure_registered(self, connection: Connection, incarnation: Incarnation, term: Term) -> None:
        """Register an incarnation unless it is registered, in a transaction of its own."""
        try:
            with connection.begin():
                if self.read_registration(connection, incarnation) is None:
                    self.insert_registration(connection, incarnation, term)
        except IntegrityError:
            with connection.begin():
                if (
                    self.read_registration(connection, incarnation) is None
                ):  # otherwise another process has just inserted it
                    raise

    def insert_registration(self, connection: Connection, incarnation: Incarnation, term: Term) -> None:
        """Insert a registration. Raise IntegrityError if it exists."""
        values = {
            "job": incarnation.job,
            "incarnation": incarnation.identity_text,
            "term": term.n,
            "taken": 0,
            "touched": 0,
        }
        connection.execute(insert(_INCARNATIONS).values(values))

    def delete_registration(self, connection: Connection, incarnation: Incarnation) -> None:
        connection.execute(delete(_INCARNATIONS).where(_of(_INCARNATIONS, incarnation)))

    def register(self, connection: Connection, incarnation: Incarnation, term: Term) -> Registration:
        """Record a newer term of a registered incarnation, unless it was taken over or has a newer term."""
        self._touch(connection, incarnation, _INCARNATIONS.c.taken == 0, _INCARNATIONS.c.term <= term.n, term=term.n)
        registration = self.read_registration(connection, incarnation)
        if registration is None:
            raise Retryable(f"another process has just removed the registration of job {incarnation.job!r}")
        return registration

    def set_taken_over(self, connection: Connection, incarnation: Incarnation) -> None:
        self._touch(connection, incarnation, taken=1)

    # ------------------------------------------------------------ stages

    def open(self, connection: Connection, stage: TableCommittable, subtask: int, operator: str) -> None:
        """Record a new staging table. Raise Fenced if its writer's term is outdated."""
        self.ensure_current_term(connection, stage.incarnation, stage.epoch.term)
        connection.execute(
            insert(_STAGES).values(
                id=stage.id.hex,
                job=stage.incarnation.job,
                incarnation=stage.incarnation.identity_text,
                operator_name=operator,
                target=str(stage.target),
                state=OPEN,
                term=stage.epoch.term.n,
                epoch=stage.epoch.epoch.n,
                subtask=subtask,
                row_total=0,
                needed_by=_NOBODY,
                dropped=0,
                since=int(time.time()),
            )
        )

    def expect_open(self, connection: Connection, stage: TableCommittable) -> None:
        """Raise Fenced if another process has ended a staging table that is being written."""
        if self.read_state(connection, stage.id, stage.incarnation) != OPEN:
            raise Fenced(
                f"{name_stage(stage.id)} does not exist: a newer term of job {stage.incarnation.job!r} ended it"
            )

    def prepare(self, connection: Connection, stage: TableCommittable, rows: int) -> None:
        """Record that a staging table is complete. Raise Fenced if it was ended, or its writer's term is outdated."""
        self.ensure_current_term(connection, stage.incarnation, stage.epoch.term)
        changes = {"row_total": rows, "epoch": stage.epoch.epoch.n}
        if not self._change(connection, stage.id, OPEN, PREPARED, **changes):
            self.expect_open(connection, stage)

    def mark_committed(self, connection: Connection, of: uuid.UUID, incarnation: Incarnation, permit: EpochId) -> bool:
        """Set prepared to committed, in the transaction that copies the rows.

        Return False if the incarnation has not prepared it.
        """
        own = _of(_STAGES, incarnation)
        return self._change(connection, of, PREPARED, COMMITTED, own, needed_by=permit.epoch.n)

    def abort(self, connection: Connection, of: uuid.UUID) -> bool:
        """Abort a stage; return whether it was open or prepared. No committable names an open stage."""
        return self._change(connection, of, OPEN, ABORTED) or self._change(
            connection, of, PREPARED, ABORTED, needed_by=_STAGES.c.epoch
        )

    def _change(
        self,
        connection: Connection,
        of: uuid.UUID,
        before: str,
        after: str,
        *conditions: ColumnElement[bool],
        **values: int | Column[int],
    ) -> bool:
        statement = update(_STAGES).where(_STAGES.c.id == of.hex, _STAGES.c.state == before, *conditions)
        return connection.execute(statement.values(state=after, **values)).rowcount == 1

    def read_state(self, connection: Connection, of: uuid.UUID, incarnation: Incarnation) -> str | None:
        """Return the state of an incarnation's stage; None if it has none of this id."""
        query = select(_STAGES.c.state).where(_STAGES.c.id == of.hex, _of(_STAGES, incarnation))
        return connection.execute(query).scalar()

    def read_status(self, connection: Connection, stage: TableCommittable) -> CommitStatus:
        state = self.read_state(connection, stage.id, stage.incarnation)
        return CommitStatus.UNKNOWN if state is None else _STATUS[state]

    def find_newest_epoch(self, connection: Connection, incarnation: Incarnation) -> Epoch | None:
        query = select(func.max(_STAGES.c.needed_by)).where(_of(_STAGES, incarnation), _STAGES.c.state == COMMITTED)
        newest = connection.execute(query).scalar()
        return None if newest is None else Epoch(int(newest))

    def list_open(self, connection: Connection, job: str) -> list[StagingEntry]:
        columns = ("id", "incarnation", "term", "target", "state", "row_total", "since")
        query = select(*(_STAGES.c[name] for name in columns)).where(
            _STAGES.c.job == job, _STAGES.c.state.in_((OPEN, PREPARED))
        )
        return [
            StagingEntry(
                uuid.UUID(of),
                parse_identity(incarnation),
                Term(int(term)),
                f"{f'{rows} rows, prepared' if state == PREPARED else 'being written'}, for {target}",
                max(0.0, time.time() - int(since)),
            )
            for of, incarnation, term, target, state, rows, since in connection.execute(
                query.order_by(_STAGES.c.since, _STAGES.c.id)
            )
        ]

    def list_undropped(self, connection: Connection, job: str) -> list[uuid.UUID]:
        """Return staging tables of a job's name that have ended and may still exist."""
        query = select(_STAGES.c.id).where(_STAGES.c.job == job, _STAGES.c.state.in_(_ENDED), _STAGES.c.dropped == 0)
        return [uuid.UUID(of) for of in connection.execute(query).scalars()]

    def drop(self, connection: Connection, of: uuid.UUID) -> None:
        """Drop a staging table that has ended, and its row if no committable names it."""
        self.drop_table(connection, of)
        connection.execute(update(_STAGES).where(_STAGES.c.id == of.hex).values(dropped=1))
        unnamed = and_(_STAGES.c.state == ABORTED, _STAGES.c.needed_by == _NOBODY)
        connection.execute(delete(_STAGES).where(_STAGES.c.id == of.hex, unnamed))

    def drop_table(self, connection: Connection, of: uuid.UUID) -> None:
        connection.execute(DropTable(Table(name_stage(of), MetaData()), if_exists=True))

    def prune_markers(self, connection: Connection, incarnation: Incarnation, permit: EpochId) -> None:
        """Delete markers that no recovery needs any more."""
        connection.execute(
            delete(_STAGES).where(
                _of(_STAGES, incarnation),
                _STAGES.c.state.in_(_ENDED),
                _STAGES.c.dropped == 1,
                _STAGES.c.needed_by < permit.epoch.n,
            )
        )


def _of(table: Table, incarnation: Incarnation) -> ColumnElement[bool]:
    return and_(table.c.job == incarnation.job, table.c.incarnation == incarnation.identity_text)
