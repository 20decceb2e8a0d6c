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
from dataclasses import dataclass
from typing import Final

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.connectors._staged_tables.incarnation_markers import Registration
from kafka_eos.connectors._staged_tables.stage_names import Incarnation, TableCommittable
from kafka_eos.connectors.dbapi.database import Connection, Database, DbTransaction, P
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term

LIVES: Final = "kafka_eos_lives"
STAGES: Final = "kafka_eos_stages"
OPEN, PREPARED, COMMITTED, ABORTED = "open", "prepared", "committed", "aborted"
_STANDING: Final = {
    OPEN: CommitStatus.LOST,  # its writer received a confirmation, so this database is an older copy
    PREPARED: CommitStatus.PREPARED,
    COMMITTED: CommitStatus.COMMITTED,
    ABORTED: CommitStatus.LOST,
}
_NOBODY: Final = -1
"""``needed_by`` of a stage that no committable names."""


def stage(of: uuid.UUID) -> str:
    """Return the name of a staging table."""
    return f"kafka_eos_stage_{of.hex}"


@dataclass(frozen=True, slots=True)
class DbApiStagingEntry:
    """A staging table that is open or prepared."""

    id: uuid.UUID
    identity: JobIdentity | None
    term: Term
    epoch: int
    target: str
    state: str
    rows: int
    age: float

    @property
    def detail(self) -> str:
        """Return its state, for messages."""
        return f"{f'{self.rows} rows, prepared' if self.state == PREPARED else 'being written'}, for {self.target}"


class StagingCatalog:
    """The sink's two tables. Each method runs in the caller's transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create_tables(self, connection: Connection) -> None:
        """Create both tables unless they exist."""
        database = self._database
        text, number = database.text, database.number
        tables = {
            LIVES: [
                *(f"{name} {text} NOT NULL" for name in ("job", "life")),
                *(f"{name} {number} NOT NULL" for name in ("term", "taken", "touched")),
                "PRIMARY KEY (job, life)",
            ],
            STAGES: [
                f"id {text} NOT NULL PRIMARY KEY",
                *(f"{name} {text} NOT NULL" for name in ("job", "life", "operator_name", "target", "state")),
                *(
                    f"{name} {number} NOT NULL"
                    for name in ("term", "epoch", "subtask", "row_total", "needed_by", "dropped", "since")
                ),
            ],
        }
        for name, columns in tables.items():
            if not self._is_there(connection, name):
                try:
                    with database.transaction(connection) as session:
                        session.run(database.create_table(name, columns))
                except database.driver.Error:
                    if not self._is_there(connection, name):  # otherwise another process has just created it
                        raise

    def _is_there(self, connection: Connection, name: str) -> bool:
        try:
            with self._database.transaction(connection) as session:
                session.rows(f"SELECT * FROM {name} WHERE 1 = 0")
        except self._database.driver.Error:
            return False
        return True

    # ------------------------------------------------------------ incarnations

    def ensure_current_term(self, session: DbTransaction, life: Incarnation, term: Term) -> None:
        """Raise Fenced if the term is outdated; block newer terms until this transaction commits.

        ``touched`` always changes, because some databases count only rows that are changed.
        """
        done = session.run(
            f"UPDATE {LIVES} SET touched = touched + 1 WHERE job = {P} AND life = {P} AND taken = 0 AND term <= {P}",
            *(life.job, life.identity_text, term.n),
        )
        if done == 1:
            return
        mark = self.read_registration(session, life)
        if mark is None or mark.taken_over:
            raise Fenced(
                f"the mark of life {life.identity_text or 'without identity'} of job {life.job!r} was taken away"
            )
        raise Fenced(f"term {mark.term} of job {life.job!r} writes here; this is term {term}")

    def read_registration(self, session: DbTransaction, life: Incarnation) -> Registration | None:
        found = session.rows(
            f"SELECT term, taken FROM {LIVES} WHERE job = {P} AND life = {P}", *(life.job, life.identity_text)
        )
        return Registration(life.identity, Term(int(found[0][0])), bool(found[0][1])) if found else None

    def marks(self, session: DbTransaction, job: str) -> list[Registration]:
        found = session.rows(f"SELECT life, term, taken FROM {LIVES} WHERE job = {P} ORDER BY life", job)
        return [Registration(_identity(life), Term(int(term)), bool(over)) for life, term, over in found]

    def ensure_registered(self, connection: Connection, life: Incarnation, term: Term) -> None:
        """Register an incarnation unless it is registered, in a transaction of its own."""
        database = self._database
        with database.transaction(connection) as session:
            if self.read_registration(session, life) is not None:
                return
        try:
            with database.transaction(connection) as session:
                self.leave_mark(session, life, term)
        except database.driver.IntegrityError:
            with database.transaction(connection) as session:
                if self.read_registration(session, life) is None:  # otherwise another process has just inserted it
                    raise

    def leave_mark(self, session: DbTransaction, life: Incarnation, term: Term) -> None:
        """Insert a registration. Raise the driver's IntegrityError if it exists."""
        session.run(
            f"INSERT INTO {LIVES} (job, life, term, taken, touched) VALUES ({P}, {P}, {P}, 0, 0)",
            *(life.job, life.identity_text, term.n),
        )

    def remove_mark(self, session: DbTransaction, life: Incarnation) -> None:
        session.run(f"DELETE FROM {LIVES} WHERE job = {P} AND life = {P}", *(life.job, life.identity_text))

    def raise_term(self, session: DbTransaction, life: Incarnation, term: Term) -> None:
        """Record a newer term of an incarnation, unless it was taken over or has a newer term."""
        session.run(
            f"UPDATE {LIVES} SET term = {P}, touched = touched + 1"
            f" WHERE job = {P} AND life = {P} AND taken = 0 AND term <= {P}",
            *(term.n, life.job, life.identity_text, term.n),
        )

    def set_taken_over(self, session: DbTransaction, life: Incarnation) -> None:
        session.run(
            f"UPDATE {LIVES} SET taken = 1, touched = touched + 1 WHERE job = {P} AND life = {P}",
            *(life.job, life.identity_text),
        )

    # ------------------------------------------------------------ stages

    def open(self, session: DbTransaction, promise: TableCommittable, subtask: int, operator: str) -> None:
        """Record a new staging table. Raise Fenced if its writer's term is outdated."""
        self.ensure_current_term(session, promise.life, promise.epoch.term)
        session.run(
            f"INSERT INTO {STAGES} (id, job, life, operator_name, target, state, term, epoch, subtask, row_total,"
            f" needed_by, dropped, since) VALUES ({', '.join([P] * 13)})",
            *(promise.id.hex, promise.life.job, promise.life.identity_text, operator, str(promise.target), OPEN),
            *(promise.epoch.term.n, promise.epoch.epoch.n, subtask, 0, _NOBODY, 0, int(time.time())),
        )

    def expect_open(self, session: DbTransaction, promise: TableCommittable) -> None:
        """Raise Fenced if another process has ended a staging table that is being written."""
        if self.state(session, promise.id) != OPEN:
            raise Fenced(f"{stage(promise.id)} is gone: a newer term of job {promise.life.job!r} ended it")

    def prepare(self, session: DbTransaction, promise: TableCommittable, rows: int) -> None:
        """Record that a staging table is complete. Raise Fenced if it was ended, or its writer's term is outdated."""
        self.ensure_current_term(session, promise.life, promise.epoch.term)
        done = session.run(
            f"UPDATE {STAGES} SET state = {P}, row_total = {P}, epoch = {P} WHERE id = {P} AND state = {P}",
            *(PREPARED, rows, promise.epoch.epoch.n, promise.id.hex, OPEN),
        )
        if done != 1:
            self.expect_open(session, promise)

    def mark_committed(self, session: DbTransaction, of: uuid.UUID, permit: EpochId) -> bool:
        """Set prepared to committed, in the transaction that copies the rows. Return False if it is not prepared."""
        return 1 == session.run(
            f"UPDATE {STAGES} SET state = {P}, needed_by = {P} WHERE id = {P} AND state = {P}",
            *(COMMITTED, permit.epoch.n, of.hex, PREPARED),
        )

    def abort(self, session: DbTransaction, of: uuid.UUID) -> bool:
        """Abort a stage; return whether it was open or prepared. No committable names an open stage."""
        return 1 == session.run(
            f"UPDATE {STAGES} SET state = {P} WHERE id = {P} AND state = {P}", *(ABORTED, of.hex, OPEN)
        ) or 1 == session.run(
            f"UPDATE {STAGES} SET state = {P}, needed_by = epoch WHERE id = {P} AND state = {P}",
            *(ABORTED, of.hex, PREPARED),
        )

    def state(self, session: DbTransaction, of: uuid.UUID) -> str | None:
        found = session.rows(f"SELECT state FROM {STAGES} WHERE id = {P}", of.hex)
        return str(found[0][0]) if found else None

    def read_status(self, session: DbTransaction, promise: TableCommittable) -> CommitStatus:
        state = self.state(session, promise.id)
        return CommitStatus.UNKNOWN if state is None else _STANDING[state]

    def newest(self, session: DbTransaction, life: Incarnation) -> Epoch | None:
        """Return the newest epoch with committed rows; None if none is recorded."""
        found = session.rows(
            f"SELECT MAX(needed_by) FROM {STAGES} WHERE job = {P} AND life = {P} AND state = {P}",
            *(life.job, life.identity_text, COMMITTED),
        )
        return None if found[0][0] is None else Epoch(int(found[0][0]))

    def staged(self, session: DbTransaction, job: str) -> list[DbApiStagingEntry]:
        """Return all open and prepared stages of every incarnation of a job's name, the oldest first."""
        found = session.rows(
            f"SELECT id, life, term, epoch, target, state, row_total, since FROM {STAGES}"
            f" WHERE job = {P} AND state IN ({P}, {P}) ORDER BY since, id",
            *(job, OPEN, PREPARED),
        )
        return [
            DbApiStagingEntry(
                id=uuid.UUID(of),
                identity=_identity(life),
                term=Term(int(term)),
                epoch=int(epoch),
                target=str(target),
                state=str(state),
                rows=int(rows),
                age=max(0.0, time.time() - int(since)),
            )
            for of, life, term, epoch, target, state, rows, since in found
        ]

    def undropped(self, session: DbTransaction, life: Incarnation) -> list[uuid.UUID]:
        """Return staging tables of an incarnation that have ended and may still exist."""
        found = session.rows(
            f"SELECT id FROM {STAGES} WHERE job = {P} AND life = {P} AND state IN ({P}, {P}) AND dropped = 0",
            *(life.job, life.identity_text, COMMITTED, ABORTED),
        )
        return [uuid.UUID(of) for (of,) in found]

    def drop(self, session: DbTransaction, of: uuid.UUID) -> None:
        """Drop a staging table that has ended, and its row if no committable names it."""
        session.run(self._database.drop_table(self._database.quoted(stage(of))))
        session.run(f"UPDATE {STAGES} SET dropped = 1 WHERE id = {P}", of.hex)
        session.run(
            f"DELETE FROM {STAGES} WHERE id = {P} AND state = {P} AND needed_by = {P}", of.hex, ABORTED, _NOBODY
        )

    def prune_markers(self, session: DbTransaction, life: Incarnation, permit: EpochId) -> None:
        """Delete markers that no recovery needs any more."""
        session.run(
            f"DELETE FROM {STAGES} WHERE job = {P} AND life = {P} AND state IN ({P}, {P}) AND dropped = 1"
            f" AND needed_by < {P}",
            *(life.job, life.identity_text, COMMITTED, ABORTED, permit.epoch.n),
        )


def _identity(text: object) -> JobIdentity | None:
    return JobIdentity(str(text)) if text else None
