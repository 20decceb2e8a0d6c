"""The books of the sink, in two tables beside the user's.

    kafka_eos_lives    one row a life of a job's name: its newest term, and whether its mark was taken away
    kafka_eos_stages   one row a staging table, and what became of it

    open ──▶ prepared ──▶ committed
      └────────┴────────▶ aborted

A state is changed by one statement that names the state of before, so of two who try one does it. The transaction that
says "committed" moves the rows. Staging tables are dropped afterwards, since many databases cannot make or drop one
within a transaction; so what a table holds counts for nothing once its row here says that it has ended.

Rule: a row with "committed" or "aborted" says what became of a promise; without a row nobody can tell.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Final

from kafka_eos.abc.committer import Standing
from kafka_eos.connectors._staged_tables.incarnation_markers import Mark
from kafka_eos.connectors._staged_tables.stage_names import Life, Promise
from kafka_eos.connectors.dbapi.database import Connection, Database, P, Session
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term

LIVES: Final = "kafka_eos_lives"
STAGES: Final = "kafka_eos_stages"
OPEN, PREPARED, COMMITTED, ABORTED = "open", "prepared", "committed", "aborted"
_STANDING: Final = {
    OPEN: Standing.LOST,  # who prepared it was answered; this database is one of before
    PREPARED: Standing.PREPARED,
    COMMITTED: Standing.COMMITTED,
    ABORTED: Standing.LOST,
}
_NOBODY: Final = -1
"""``needed_by`` of what nobody was promised."""


def stage(of: uuid.UUID) -> str:
    """The name of a staging table."""
    return f"kafka_eos_stage_{of.hex}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A staging table that has not ended."""

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
        """Its state, for people."""
        return f"{f'{self.rows} rows, prepared' if self.state == PREPARED else 'being written'}, for {self.target}"


class Books:
    """Reads and writes both tables; every method but ``make`` takes the transaction that it is part of."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def make(self, connection: Connection) -> None:
        """Make both tables unless they are there."""
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
                    if not self._is_there(connection, name):  # else somebody else has just made it
                        raise

    def _is_there(self, connection: Connection, name: str) -> bool:
        try:
            with self._database.transaction(connection) as session:
                session.rows(f"SELECT * FROM {name} WHERE 1 = 0")
        except self._database.driver.Error:
            return False
        return True

    # ------------------------------------------------------------ lives

    def expect_newest(self, session: Session, life: Life, term: Term) -> None:
        """Raise Fenced if a newer term is there, or another life took over; else neither comes before this commits.

        ``touched`` always changes, as some databases count only rows that do.
        """
        done = session.run(
            f"UPDATE {LIVES} SET touched = touched + 1 WHERE job = {P} AND life = {P} AND taken = 0 AND term <= {P}",
            *(life.job, life.text, term.n),
        )
        if done == 1:
            return
        mark = self.mark(session, life)
        if mark is None or mark.over:
            raise Fenced(f"the mark of life {life.text or 'without identity'} of job {life.job!r} was taken away")
        raise Fenced(f"term {mark.term} of job {life.job!r} writes here; this is term {term}")

    def mark(self, session: Session, life: Life) -> Mark | None:
        found = session.rows(f"SELECT term, taken FROM {LIVES} WHERE job = {P} AND life = {P}", *(life.job, life.text))
        return Mark(life.identity, Term(int(found[0][0])), bool(found[0][1])) if found else None

    def marks(self, session: Session, job: str) -> list[Mark]:
        found = session.rows(f"SELECT life, term, taken FROM {LIVES} WHERE job = {P} ORDER BY life", job)
        return [Mark(_identity(life), Term(int(term)), bool(over)) for life, term, over in found]

    def expect_mark(self, connection: Connection, life: Life, term: Term) -> None:
        """Leave the mark of a life if there is none. A transaction of its own."""
        database = self._database
        with database.transaction(connection) as session:
            if self.mark(session, life) is not None:
                return
        try:
            with database.transaction(connection) as session:
                self.leave_mark(session, life, term)
        except database.driver.IntegrityError:
            with database.transaction(connection) as session:
                if self.mark(session, life) is None:  # else somebody else has just left it
                    raise

    def leave_mark(self, session: Session, life: Life, term: Term) -> None:
        """Raises the driver's IntegrityError if there is one."""
        session.run(
            f"INSERT INTO {LIVES} (job, life, term, taken, touched) VALUES ({P}, {P}, {P}, 0, 0)",
            *(life.job, life.text, term.n),
        )

    def remove_mark(self, session: Session, life: Life) -> None:
        session.run(f"DELETE FROM {LIVES} WHERE job = {P} AND life = {P}", *(life.job, life.text))

    def raise_term(self, session: Session, life: Life, term: Term) -> None:
        """Note that a term of a life is there, unless a newer one is or its mark was taken away."""
        session.run(
            f"UPDATE {LIVES} SET term = {P}, touched = touched + 1"
            f" WHERE job = {P} AND life = {P} AND taken = 0 AND term <= {P}",
            *(term.n, life.job, life.text, term.n),
        )

    def take_mark(self, session: Session, life: Life) -> None:
        session.run(
            f"UPDATE {LIVES} SET taken = 1, touched = touched + 1 WHERE job = {P} AND life = {P}",
            *(life.job, life.text),
        )

    # ------------------------------------------------------------ stages

    def open(self, session: Session, promise: Promise, subtask: int, operator: str) -> None:
        """Note a staging table. Raises Fenced if its writer's time is over."""
        self.expect_newest(session, promise.life, promise.epoch.term)
        session.run(
            f"INSERT INTO {STAGES} (id, job, life, operator_name, target, state, term, epoch, subtask, row_total,"
            f" needed_by, dropped, since) VALUES ({', '.join([P] * 13)})",
            *(promise.id.hex, promise.life.job, promise.life.text, operator, str(promise.target), OPEN),
            *(promise.epoch.term.n, promise.epoch.epoch.n, subtask, 0, _NOBODY, 0, int(time.time())),
        )

    def expect_open(self, session: Session, promise: Promise) -> None:
        """Raise Fenced if somebody has ended a staging table that is being written."""
        if self.state(session, promise.id) != OPEN:
            raise Fenced(f"{stage(promise.id)} is gone: a newer term of job {promise.life.job!r} ended it")

    def prepare(self, session: Session, promise: Promise, rows: int) -> None:
        """What is staged is whole. Raises Fenced if somebody has ended it, or its writer's time is over."""
        self.expect_newest(session, promise.life, promise.epoch.term)
        done = session.run(
            f"UPDATE {STAGES} SET state = {P}, row_total = {P}, epoch = {P} WHERE id = {P} AND state = {P}",
            *(PREPARED, rows, promise.epoch.epoch.n, promise.id.hex, OPEN),
        )
        if done != 1:
            self.expect_open(session, promise)

    def take(self, session: Session, of: uuid.UUID, permit: EpochId) -> bool:
        """Say that what is prepared is committed, in the transaction that moves its rows; False if it is not."""
        return 1 == session.run(
            f"UPDATE {STAGES} SET state = {P}, needed_by = {P} WHERE id = {P} AND state = {P}",
            *(COMMITTED, permit.epoch.n, of.hex, PREPARED),
        )

    def abort(self, session: Session, of: uuid.UUID) -> bool:
        """Whether there was something to end. Of what is open nobody was promised anything."""
        return 1 == session.run(
            f"UPDATE {STAGES} SET state = {P} WHERE id = {P} AND state = {P}", *(ABORTED, of.hex, OPEN)
        ) or 1 == session.run(
            f"UPDATE {STAGES} SET state = {P}, needed_by = epoch WHERE id = {P} AND state = {P}",
            *(ABORTED, of.hex, PREPARED),
        )

    def state(self, session: Session, of: uuid.UUID) -> str | None:
        found = session.rows(f"SELECT state FROM {STAGES} WHERE id = {P}", of.hex)
        return str(found[0][0]) if found else None

    def standing(self, session: Session, promise: Promise) -> Standing:
        state = self.state(session, promise.id)
        return Standing.UNKNOWN if state is None else _STANDING[state]

    def newest(self, session: Session, life: Life) -> Epoch | None:
        """The newest epoch of which something is committed; None if nothing tells of one."""
        found = session.rows(
            f"SELECT MAX(needed_by) FROM {STAGES} WHERE job = {P} AND life = {P} AND state = {P}",
            *(life.job, life.text, COMMITTED),
        )
        return None if found[0][0] is None else Epoch(int(found[0][0]))

    def staged(self, session: Session, job: str) -> list[Entry]:
        """Everything that any life of a job's name has open or prepared, the oldest first."""
        found = session.rows(
            f"SELECT id, life, term, epoch, target, state, row_total, since FROM {STAGES}"
            f" WHERE job = {P} AND state IN ({P}, {P}) ORDER BY since, id",
            *(job, OPEN, PREPARED),
        )
        return [
            Entry(
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

    def undropped(self, session: Session, life: Life) -> list[uuid.UUID]:
        """Staging tables of a life that have ended and may still be there."""
        found = session.rows(
            f"SELECT id FROM {STAGES} WHERE job = {P} AND life = {P} AND state IN ({P}, {P}) AND dropped = 0",
            *(life.job, life.text, COMMITTED, ABORTED),
        )
        return [uuid.UUID(of) for (of,) in found]

    def drop(self, session: Session, of: uuid.UUID) -> None:
        """Drop a staging table that has ended, and its row if nobody can ask for it."""
        session.run(self._database.drop_table(self._database.quoted(stage(of))))
        session.run(f"UPDATE {STAGES} SET dropped = 1 WHERE id = {P}", of.hex)
        session.run(
            f"DELETE FROM {STAGES} WHERE id = {P} AND state = {P} AND needed_by = {P}", of.hex, ABORTED, _NOBODY
        )

    def forget(self, session: Session, life: Life, permit: EpochId) -> None:
        """Remove traces that nobody can ask for: a permit for a later epoch proves the receipt of theirs."""
        session.run(
            f"DELETE FROM {STAGES} WHERE job = {P} AND life = {P} AND state IN ({P}, {P}) AND dropped = 1"
            f" AND needed_by < {P}",
            *(life.job, life.text, COMMITTED, ABORTED, permit.epoch.n),
        )


def _identity(text: object) -> JobIdentity | None:
    return JobIdentity(str(text)) if text else None
