"""The staging catalog of the sink: two tables next to the user's.

    kafka_eos_lives     one row per incarnation of a job's name: its newest term, and whether it was taken over
    kafka_eos_stages    one row per staging table, with its state

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
from kafka_eos.connectors._staged_tables.incarnation_markers import Registration
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

LIVES: Final = "kafka_eos_lives"
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
_LIVES: Final = Table(
    LIVES,
    _TABLES,
    *(Column(name, _TEXT, primary_key=True) for name in ("job", "life")),
    *(Column(name, BigInteger, nullable=False) for name in ("term", "taken", "touched")),
    **INNODB,
)
_STAGES: Final = Table(
    STAGES,
    _TABLES,
    Column("id", _TEXT, primary_key=True),
    *(Column(name, _TEXT, nullable=False) for name in ("job", "life", "operator_name", "target", "state")),
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

    def ensure_current_term(self, connection: Connection, life: Incarnation, term: Term) -> None:
        """Raise Fenced if the term is outdated; block newer terms until this transaction commits."""
        self._touch(connection, life)
        ensure_current(life, self.read_registration(connection, life), term)

    def _touch(
        self, connection: Connection, life: Incarnation, *conditions: ColumnElement[bool], **values: int
    ) -> None:
        """Change a registration, which locks it. ``touched`` always changes, because some databases lock only rows that
        really change."""
        statement = update(_LIVES).where(_of(_LIVES, life), *conditions)
        connection.execute(statement.values(touched=_LIVES.c.touched + 1, **values))

    def read_registration(self, connection: Connection, life: Incarnation) -> Registration | None:
        marks = self.list_registrations(connection, life.job)
        return next((mark for mark in marks if mark.identity == life.identity), None)

    def list_registrations(self, connection: Connection, job: str) -> list[Registration]:
        query = select(_LIVES.c.life, _LIVES.c.term, _LIVES.c.taken).where(_LIVES.c.job == job).order_by(_LIVES.c.life)
        return [
            Registration(parse_identity(life), Term(int(term)), bool(over))
            for life, term, over in connection.execute(query)
        ]

    def ensure_registered(self, connection: Connection, life: Incarnation, term: Term) -> None:
        """Register an incarnation unless it is registered, in a transaction of its own."""
        try:
            with connection.begin():
                if self.read_registration(connection, life) is None:
                    self.insert_registration(connection, life, term)
        except IntegrityError:
            with connection.begin():
                if self.read_registration(connection, life) is None:  # otherwise another process has just inserted it
                    raise

    def insert_registration(self, connection: Connection, life: Incarnation, term: Term) -> None:
        """Insert a registration. Raise IntegrityError if it exists."""
        values = {"job": life.job, "life": life.identity_text, "term": term.n, "taken": 0, "touched": 0}
        connection.execute(insert(_LIVES).values(values))

    def delete_registration(self, connection: Connection, life: Incarnation) -> None:
        connection.execute(delete(_LIVES).where(_of(_LIVES, life)))

    def register(self, connection: Connection, life: Incarnation, term: Term) -> Registration:
        """Record a newer term of a registered incarnation, unless it was taken over or has a newer term."""
        self._touch(connection, life, _LIVES.c.taken == 0, _LIVES.c.term <= term.n, term=term.n)
        mark = self.read_registration(connection, life)
        if mark is None:
            raise Retryable(f"another process has just removed the registration of job {life.job!r}")
        return mark

    def set_taken_over(self, connection: Connection, life: Incarnation) -> None:
        self._touch(connection, life, taken=1)

    # ------------------------------------------------------------ stages

    def open(self, connection: Connection, promise: TableCommittable, subtask: int, operator: str) -> None:
        """Record a new staging table. Raise Fenced if its writer's term is outdated."""
        self.ensure_current_term(connection, promise.life, promise.epoch.term)
        connection.execute(
            insert(_STAGES).values(
                id=promise.id.hex,
                job=promise.life.job,
                life=promise.life.identity_text,
                operator_name=operator,
                target=str(promise.target),
                state=OPEN,
                term=promise.epoch.term.n,
                epoch=promise.epoch.epoch.n,
                subtask=subtask,
                row_total=0,
                needed_by=_NOBODY,
                dropped=0,
                since=int(time.time()),
            )
        )

    def expect_open(self, connection: Connection, promise: TableCommittable) -> None:
        """Raise Fenced if another process has ended a staging table that is being written."""
        if self.read_state(connection, promise.id, promise.life) != OPEN:
            raise Fenced(f"{name_stage(promise.id)} does not exist: a newer term of job {promise.life.job!r} ended it")

    def prepare(self, connection: Connection, promise: TableCommittable, rows: int) -> None:
        """Record that a staging table is complete. Raise Fenced if it was ended, or its writer's term is outdated."""
        self.ensure_current_term(connection, promise.life, promise.epoch.term)
        changes = {"row_total": rows, "epoch": promise.epoch.epoch.n}
        if not self._change(connection, promise.id, OPEN, PREPARED, **changes):
            self.expect_open(connection, promise)

    def mark_committed(self, connection: Connection, of: uuid.UUID, life: Incarnation, permit: EpochId) -> bool:
        """Set prepared to committed, in the transaction that copies the rows.

        Return False if the incarnation has not prepared it.
        """
        own = _of(_STAGES, life)
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

    def read_state(self, connection: Connection, of: uuid.UUID, life: Incarnation) -> str | None:
        """Return the state of an incarnation's stage; None if it has none of this id."""
        query = select(_STAGES.c.state).where(_STAGES.c.id == of.hex, _of(_STAGES, life))
        return connection.execute(query).scalar()

    def read_status(self, connection: Connection, promise: TableCommittable) -> CommitStatus:
        state = self.read_state(connection, promise.id, promise.life)
        return CommitStatus.UNKNOWN if state is None else _STATUS[state]

    def find_newest_epoch(self, connection: Connection, life: Incarnation) -> Epoch | None:
        query = select(func.max(_STAGES.c.needed_by)).where(_of(_STAGES, life), _STAGES.c.state == COMMITTED)
        newest = connection.execute(query).scalar()
        return None if newest is None else Epoch(int(newest))

    def list_open(self, connection: Connection, job: str) -> list[StagingEntry]:
        columns = ("id", "life", "term", "target", "state", "row_total", "since")
        query = select(*(_STAGES.c[name] for name in columns)).where(
            _STAGES.c.job == job, _STAGES.c.state.in_((OPEN, PREPARED))
        )
        return [
            StagingEntry(
                uuid.UUID(of),
                parse_identity(life),
                Term(int(term)),
                f"{f'{rows} rows, prepared' if state == PREPARED else 'being written'}, for {target}",
                max(0.0, time.time() - int(since)),
            )
            for of, life, term, target, state, rows, since in connection.execute(
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

    def prune_markers(self, connection: Connection, life: Incarnation, permit: EpochId) -> None:
        """Delete markers that no recovery needs any more."""
        connection.execute(
            delete(_STAGES).where(
                _of(_STAGES, life),
                _STAGES.c.state.in_(_ENDED),
                _STAGES.c.dropped == 1,
                _STAGES.c.needed_by < permit.epoch.n,
            )
        )


def _of(table: Table, life: Incarnation) -> ColumnElement[bool]:
    return and_(table.c.job == life.job, table.c.life == life.identity_text)
