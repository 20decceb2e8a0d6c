"""The books of the sink, in a schema of its own beside the user's tables: what is staged, and how it ended.

    lives    one row a life of a job's name: its newest term, and whether its mark was taken away
    staged   one row a staging table or transaction, open or prepared; it goes in the transaction that ends it.
             ``prepared``: somebody may have been promised its rows; of a transaction that cannot be said later, so it
             is said from the beginning
    made     tables of the user that a sink has made, or would have: one that is gone is not made again
    ledger   how a prepared one ended: the row is written by the transaction that made its rows visible, or dropped them

Rule: a staging table, its row here and the rows of the user's table change in one transaction. So a row in ``staged``
proves that nobody has committed it, a row in ``ledger`` says what became of it, and without either nobody can tell.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from kafka_eos.abc.committer import Standing
from kafka_eos.connectors._staged_tables.incarnation_markers import Mark
from kafka_eos.connectors._staged_tables.stage_names import Life, Promise, Strategy, stage, transaction
from kafka_eos.connectors.postgres.connection import Connection
from kafka_eos.connectors.postgres.sink import prepared_transactions as transactions
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term

_MAKE: Final = """
    CREATE TABLE IF NOT EXISTS {schema}.lives (
        job text, identity text, term bigint NOT NULL DEFAULT 0, over boolean NOT NULL DEFAULT false,
        PRIMARY KEY (job, identity));
    CREATE TABLE IF NOT EXISTS {schema}.made (target text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE IF NOT EXISTS {schema}.staged (
        id uuid PRIMARY KEY, job text NOT NULL, identity text NOT NULL, term bigint NOT NULL, epoch bigint NOT NULL,
        subtask bigint NOT NULL, operator text NOT NULL, target text NOT NULL, prepared boolean NOT NULL DEFAULT false,
        rows bigint NOT NULL DEFAULT 0, since timestamptz NOT NULL DEFAULT now());
    CREATE TABLE IF NOT EXISTS {schema}.ledger (
        id uuid PRIMARY KEY, job text NOT NULL, identity text NOT NULL, term bigint NOT NULL, epoch bigint NOT NULL,
        subtask bigint NOT NULL, operator text NOT NULL, committed boolean NOT NULL, needed_by bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now());
"""
_LOCK: Final = 4_702_394_921_427_289_928
"""Of those who make the schema: CREATE … IF NOT EXISTS fails if two do it at once."""
_NOT_PERMITTED: Final = 2**63 - 1
"""``needed_by`` of what was committed and whose commit has not said yet for which epoch it was permitted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of ``staged``."""

    id: uuid.UUID
    identity: JobIdentity | None
    term: Term
    target: str
    prepared: bool
    rows: int
    age: float
    strategy: Strategy
    in_doubt: bool
    """It is a transaction, and prepared."""

    @property
    def detail(self) -> str:
        """Its state, for people."""
        if self.strategy is Strategy.PREPARE:
            state = "prepared, holds its locks" if self.in_doubt else "being written"
        else:
            state = f"{self.rows} rows, prepared" if self.prepared else "being written"
        return f"{state}, for {self.target}"


class Ledger:
    """SQL about the sink's own schema; every method takes the connection on which it runs."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def is_there(self, connection: Connection) -> bool:
        row = connection.execute("SELECT to_regclass(format('%%I.%%I', %s::text, 'ledger'))", (self.schema,)).fetchone()
        return row is not None and row[0] is not None

    def make(self, connection: Connection) -> None:
        """Make what is not there. No right is needed for what is: somebody else may have made the schema."""
        if self.is_there(connection):
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            if connection.execute("SELECT to_regnamespace(quote_ident(%s))", (self.schema,)).fetchone() == (None,):
                connection.execute(self._sql("CREATE SCHEMA {schema}"))
            for statement in filter(str.strip, _MAKE.split(";\n")):
                connection.execute(self._sql(statement))

    # ------------------------------------------------------------ tables of the user

    def has_seen(self, connection: Connection, target: str) -> bool:
        query = self._sql("SELECT FROM {schema}.made WHERE target = %s")
        return connection.execute(query, (target,)).fetchone() is not None

    def seen(self, connection: Connection, target: str) -> None:
        """Note that a table is there which a sink would make; if it makes it, in the transaction that does."""
        insert = self._sql("INSERT INTO {schema}.made (target) VALUES (%s) ON CONFLICT DO NOTHING")
        connection.execute(insert, (target,))

    # ------------------------------------------------------------ writers

    def open(self, connection: Connection, promise: Promise, subtask: int, operator: str) -> None:
        """Note a staging table, in the transaction that makes it. Raises Fenced if its writer's time is over."""
        self.expect_newest(connection, promise.life, promise.epoch.term)
        connection.execute(
            self._sql(
                "INSERT INTO {schema}.staged (id, job, identity, term, epoch, subtask, operator, target, prepared)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
            ),
            (
                *(promise.id, *_of(promise.life), *_numbers(promise.epoch), subtask, operator, str(promise.target)),
                promise.strategy is Strategy.PREPARE,
            ),
        )

    def prepare(self, connection: Connection, promise: Promise, rows: int) -> None:
        """What is staged is whole. Raises Fenced if somebody has ended it."""
        self.expect_newest(connection, promise.life, promise.epoch.term)
        done = connection.execute(
            self._sql("UPDATE {schema}.staged SET prepared = true, rows = %s, epoch = %s WHERE id = %s"),
            (rows, promise.epoch.epoch.n, promise.id),
        )
        if done.rowcount != 1:
            raise self._gone(promise)

    def foretell(self, connection: Connection, promise: Promise) -> None:
        """What this transaction leaves if it is committed; for one that is prepared next.

        It has no lock on ``lives``: each recovery writes there before it ends what is prepared. Who ends this one takes
        its row first, or waits for it. Raises Fenced if somebody has ended it.
        """
        taken = self.take(connection, promise.id)
        if taken is None:
            raise self._gone(promise)
        self._trace(connection, taken[:-1], committed=True, needed_by=_NOT_PERMITTED)

    def expect_staged(self, connection: Connection, promise: Promise) -> None:
        """Raise Fenced if a writer's time is over, or somebody has ended its staging table."""
        self.expect_newest(connection, promise.life, promise.epoch.term)
        query = self._sql("SELECT FROM {schema}.staged WHERE id = %s")
        if connection.execute(query, (promise.id,)).fetchone() is None:
            raise self._gone(promise)

    def _gone(self, promise: Promise) -> Fenced:
        name = self.name(promise.id, promise.strategy)
        return Fenced(f"{name} is gone: a newer term of job {promise.life.job!r} removed it")

    def name(self, of: uuid.UUID, strategy: Strategy) -> str:
        """For people."""
        return f"{self.schema}.{stage(of)}" if strategy is Strategy.STAGE else f"transaction {transaction(of)}"

    def expect_newest(self, connection: Connection, life: Life, term: Term) -> None:
        """Raise Fenced if a newer term is there, or another life took over; else neither comes before this commits."""
        connection.execute(
            self._sql("INSERT INTO {schema}.lives (job, identity, term) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"),
            (*_of(life), term.n),
        )
        row = connection.execute(
            self._sql("SELECT term, over FROM {schema}.lives WHERE job = %s AND identity = %s FOR SHARE"), _of(life)
        ).fetchone()
        if row is None or row[1]:
            raise Fenced(f"the mark of life {life.text or 'without identity'} of job {life.job!r} was taken away")
        if row[0] > term.n:
            raise Fenced(f"term {row[0]} of job {life.job!r} writes here; this is term {term}")

    # ------------------------------------------------------------ committers

    def standing(self, connection: Connection, promise: Promise) -> Standing | None:
        """What became of a promise, as one look shows it; None from a server that only follows another."""
        # First: it shows what is there now, the books what was there when a statement began. So one that ends between
        # the two looks has its row.
        in_doubt = promise.strategy is Strategy.PREPARE and transactions.is_there(connection, promise.id)
        row = connection.execute(
            self._sql(
                "SELECT pg_is_in_recovery(),"
                " (SELECT prepared FROM {schema}.staged WHERE id = %s),"
                # Not to_regclass: it sees what was committed after the statement began, which the others do not.
                " EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = %s AND c.relname = %s),"
                " (SELECT committed FROM {schema}.ledger WHERE id = %s)"
            ),
            (promise.id, self.schema, promise.stage, promise.id),
        ).fetchone()
        assert row is not None
        follows, prepared, staged, committed = row
        held = staged if promise.strategy is Strategy.STAGE else in_doubt
        return None if follows else judged(prepared, held, committed)

    def newest(self, connection: Connection, life: Life) -> Epoch | None:
        """The newest epoch of which something is committed; None if nothing tells of one."""
        query = self._sql(
            "SELECT max(CASE needed_by WHEN %s THEN epoch ELSE needed_by END) FROM {schema}.ledger"
            " WHERE job = %s AND identity = %s AND committed"
        )
        (number,) = connection.execute(query, (_NOT_PERMITTED, *_of(life))).fetchone() or (None,)
        return None if number is None else Epoch(number)

    def take(self, connection: Connection, of: uuid.UUID) -> tuple[Any, ...] | None:
        """Remove the row of a staging table, in the transaction that ends it; None if it has ended."""
        return connection.execute(
            self._sql(
                "DELETE FROM {schema}.staged WHERE id = %s"
                " RETURNING id, job, identity, term, epoch, subtask, operator, prepared"
            ),
            (of,),
        ).fetchone()

    def ended(self, connection: Connection, taken: tuple[Any, ...], committed: bool, needed_by: int) -> None:
        """Drop the staging table and leave the trace of how it ended, if anybody may have been promised something."""
        *row, prepared = taken
        connection.execute(self._sql("DROP TABLE IF EXISTS {schema}.{stage}", stage=stage(row[0])))
        if prepared:
            self._trace(connection, row, committed, needed_by)

    def _trace(self, connection: Connection, row: Sequence[Any], committed: bool, needed_by: int) -> None:
        connection.execute(
            self._sql("INSERT INTO {schema}.ledger VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"),
            (*row, committed, needed_by),
        )

    def permitted(self, connection: Connection, promise: Promise, permit: EpochId) -> None:
        """Say how long the trace of a committed transaction is needed, which it could not know when it was prepared."""
        connection.execute(
            self._sql("UPDATE {schema}.ledger SET needed_by = %s WHERE id = %s AND needed_by = %s"),
            (permit.epoch.n, promise.id, _NOT_PERMITTED),
        )

    def drop(self, connection: Connection, promise: Promise) -> None:
        """End what holds no rows, of which nobody was promised anything."""
        taken = self.take(connection, promise.id)
        if taken is not None:
            self.ended(connection, (*taken[:-1], False), committed=False, needed_by=0)

    def forget(self, connection: Connection, life: Life, permit: EpochId) -> None:
        """Remove traces that nobody can ask for any more.

        One is needed until the receipt of the epoch that its commit was permitted for. An epoch is decided only after
        the receipt of the one before it, and no number is used twice: so a permit for a later one proves that receipt.
        """
        connection.execute(
            self._sql(
                "DELETE FROM {schema}.ledger WHERE id IN (SELECT id FROM {schema}.ledger"
                " WHERE job = %s AND identity = %s AND needed_by < %s FOR UPDATE SKIP LOCKED)"
            ),
            (*_of(life), permit.epoch.n),
        )

    def staged(self, connection: Connection, job: str) -> Sequence[Entry]:
        """Everything that any life of a job's name has open or prepared."""
        rows = connection.execute(
            self._sql(
                "SELECT id, identity, term, target, prepared, rows, extract(epoch FROM now() - since)::float,"
                " EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = %s AND c.relname = 'stage_' || replace(s.id::text, '-', ''))"
                " FROM {schema}.staged s WHERE job = %s ORDER BY since, id"
            ),
            (self.schema, job),
        ).fetchall()
        in_doubt = transactions.there(connection)
        return [
            Entry(
                id=of,
                identity=_identity(identity),
                term=Term(term),
                target=target,
                prepared=prepared,
                rows=count,
                age=age,
                strategy=Strategy.STAGE if has_table else Strategy.PREPARE,
                in_doubt=transaction(of) in in_doubt,
            )
            for of, identity, term, target, prepared, count, age, has_table in rows
        ]

    def free_transactions(self, connection: Connection, job: str) -> tuple[int, int]:
        """How many transactions the server lets be prepared, and how many more if this job's were ended."""
        (most,) = connection.execute("SELECT current_setting('max_prepared_transactions')::int").fetchone() or (0,)
        if not most:
            return 0, 0
        own = {transaction(entry.id) for entry in self.staged(connection, job)}
        return most, most - len(transactions.there(connection, everywhere=True) - own)

    # ------------------------------------------------------------ lives

    def marks(self, connection: Connection, job: str) -> Sequence[Mark]:
        rows = connection.execute(
            self._sql("SELECT identity, term, over FROM {schema}.lives WHERE job = %s ORDER BY identity"), (job,)
        )
        return [Mark(_identity(row[0]), Term(row[1]), row[2]) for row in rows]

    def hold(self, connection: Connection, life: Life, term: Term) -> Mark:
        """Note that a term of a life is there, unless a newer one is or its mark was taken away; what stands then."""
        row = connection.execute(
            self._sql(
                "INSERT INTO {schema}.lives AS l (job, identity, term) VALUES (%s, %s, %s)"
                " ON CONFLICT (job, identity) DO UPDATE SET term = greatest(l.term, excluded.term)"
                " RETURNING term, over"
            ),
            (*_of(life), term.n),
        ).fetchone()
        assert row is not None
        return Mark(life.identity, Term(row[0]), row[1])

    def take_mark(self, connection: Connection, life: Life) -> None:
        connection.execute(
            self._sql(
                "INSERT INTO {schema}.lives (job, identity, over) VALUES (%s, %s, true)"
                " ON CONFLICT (job, identity) DO UPDATE SET over = true"
            ),
            _of(life),
        )

    def _sql(self, text: str, **names: str) -> sql.Composed:
        quoted = {name: sql.Identifier(value) for name, value in {"schema": self.schema, **names}.items()}
        return sql.SQL(text).format(**quoted)


def judged(prepared: bool | None, staged: bool, committed: bool | None) -> Standing:
    """The standing of a promise. Pure.

    ``prepared``   what its row in ``staged`` says; None if there is no such row
    ``staged``     whether its staging table is there
    ``committed``  what its row in ``ledger`` says; None if there is no such row
    """
    if committed is not None:
        return Standing.COMMITTED if committed else Standing.LOST
    if prepared is None:
        return Standing.UNKNOWN
    return Standing.PREPARED if prepared and staged else Standing.LOST


def _of(life: Life) -> tuple[str, str]:
    return life.job, life.text


def _numbers(epoch: EpochId) -> tuple[int, int]:
    return epoch.term.n, epoch.epoch.n


def _identity(text: str) -> JobIdentity | None:
    return JobIdentity(text) if text else None
