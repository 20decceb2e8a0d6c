"""``DbApiSink``: rows in a table of any database that SQLAlchemy supports, each exactly once.

Rule: a guarantee that the table cannot keep is refused in ``check``, before anything is read.
"""

from __future__ import annotations

import decimal
import enum
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Select, Table, select
from sqlalchemy.exc import DBAPIError

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.services import RejectRow
from kafka_eos.abc.sink import Sink
from kafka_eos.codecs.type_inspection import attributes
from kafka_eos.connectors._shared.key_columns import expect_key_columns
from kafka_eos.connectors._shared.row_errors import BadRows, encode_or_reject, map_rows
from kafka_eos.connectors._shared.table_audit import NoProvenance
from kafka_eos.connectors._staged_tables.stage_names import Incarnation, TargetTable
from kafka_eos.connectors._staged_tables.table_writer import TableWriter
from kafka_eos.connectors.dbapi import statements
from kafka_eos.connectors.dbapi.committer import DbApiCommitter
from kafka_eos.connectors.dbapi.database import ROW_ERRORS, Database, format_error
from kafka_eos.connectors.dbapi.mysql_cells import find_change
from kafka_eos.connectors.dbapi.staging_catalog import INCARNATIONS, STAGES, DbApiStagingCatalog
from kafka_eos.connectors.dbapi.stored_cells import find_difference, read_column_types
from kafka_eos.connectors.dbapi.table_keys import find_key_problem
from kafka_eos.connectors.dbapi.table_staging import DbApiTableStaging, insert_unchanged, refused, roll_back_after
from kafka_eos.core.errors import ConfigError, EnvironmentFailed, Retryable
from kafka_eos.core.ids import JobIdentity, Term, ensure_name
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch, Headers

T = TypeVar("T")

_AUDIT_TABLE = "kafka_eos_told"


class DbApiSink(NoProvenance, Sink[T]):
    """A sink that writes a stream of ``T`` into a table, each value exactly once.

    - ``url``: the database, as SQLAlchemy names it: "sqlite:////data/shop.db", "mysql+pymysql://app@db/shop". Its
      driver must be installed. Leave out the password if the driver finds it elsewhere.
    - ``table``: "table" or "schema.table"; names are taken as they are; it must exist.
    - ``columns``: the columns to write, with what CREATE TABLE says of each: the type and the rules for one row, such
      as "INTEGER NOT NULL CHECK (total >= 0)". Staging tables have the same columns, so a row that the table would
      reject is rejected while its input record is known.
    - ``key``: columns that identify a row: a value updates the row of its key, and the last value of an epoch wins.
      Without a key every value is a new row.
    - ``connect_args``: more arguments for the driver, such as certificates.

    A subclass may override ``row`` to define the cells of a value.
    """

    def __init__(
        self,
        url: str | URL,
        table: str,
        columns: Mapping[str, str],
        *,
        key: str | Sequence[str] = (),
        connect_args: Mapping[str, Any] | None = None,
    ) -> None:
        self._database = Database(url, connect_args or {})
        self._catalog = DbApiStagingCatalog(self._database)
        self._columns = dict(columns)
        self._target = TargetTable("", table, tuple(columns), (key,) if isinstance(key, str) else tuple(key))
        _expect_fit(self._target)
        self._key_cells = [self._target.columns.index(name) for name in self._target.key]
        self._taken = attributes(self._target.columns)

    def row(self, value: T) -> Sequence[Any]:
        """Return the cells of a value, as the driver takes them, in the order of ``columns``.

        An error raised here rejects the value: it stops the job with its input record, or becomes a dead letter.
        """
        if isinstance(value, Mapping):
            cells: Sequence[Any] = [value[name] for name in self._columns]
        else:
            cells = self._taken(value)
        if any(isinstance(cell, float | decimal.Decimal) and math.isnan(cell) for cell in cells):
            raise ValueError("NaN is NULL in SQLite, and an error elsewhere: map it to None, or override row()")
        return [cell.value if isinstance(cell, enum.Enum) else cell for cell in cells]

    @property
    def default_name(self) -> str:
        """Return the table's name, marked as a table: a topic in the same plan may have the same name."""
        return f"{self._target.table.rpartition('.')[2]}-table"

    def trade_offs(self) -> Sequence[str]:
        """Return the trade-offs of this sink."""
        return (
            "each row is written twice: first to a staging table, and at the commit to the table",
            "a commit holds the locks of its rows until it ends, even while its process is frozen",
        )

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "dbapi",
            "database": self._database.name,
            "table": self._target.table,
            "mode": "upsert" if self._target.key else "insert",
            "key": [*self._target.key],
            "commit": f"staging table, one transaction, recorded in {STAGES}",
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database.name!r}, {self._target.table!r})"

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the table."""
        server, _, database = self._database.name.rpartition("/")
        return [Dataset(server.replace(":", "://", 1).rstrip(":"), f"{database}.{self._target.table}")]

    def scope(self, ctx: JobContext) -> str:
        return f"dbapi:{self._database.name}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at a start; see ``Sink.check``. Raise Retryable if the database cannot be reached."""
        ensure_name(ctx.job, "the job's name")
        database, what = self._database, f"look at {self._target} in {self._database.name}"
        with database.mapped(Retryable, what), database.connected() as connection:
            with database.mapped(Retryable, f"create {STAGES} and {INCARNATIONS}"):
                self._catalog.create_tables(connection)
            self._expect_transactions(connection)
            try:
                with roll_back_after(connection):
                    connection.execute(self._select_rows().limit(0))
            except DBAPIError as error:
                with roll_back_after(connection):
                    self._catalog.list_open(connection, ctx.job)  # the server responds, so the table is the cause
                raise ConfigError(
                    f"{database.name} has no table {self._target} with columns {', '.join(self._columns)} "
                    f"({format_error(error)}): create it. (Names are case-sensitive: Totals may differ "
                    "from totals.)"
                ) from error
            with roll_back_after(connection):
                if (engine := database.find_engine_without_transactions(connection, self._target)) is not None:
                    raise ConfigError(
                        f"the table {self._target} uses the engine {engine}, which has no transactions: an "
                        f"epoch could become visible in part, or twice. Run ALTER TABLE {self._target} ENGINE "
                        "= InnoDB"
                    )
                if self._target.key and (problem := find_key_problem(database, connection, self._target)):
                    raise ConfigError(f"DbApiSink cannot replace rows of {self._target} by key: {problem}")
            with roll_back_after(connection):
                stage = self._make_temporary(connection)
                self._expect_accepted(connection)
                if (difference := find_difference(connection, self._target, stage.name)) is not None:
                    raise ConfigError(f"columns= of DbApiSink does not describe {self._target}: {difference}")
        return []

    def _expect_accepted(self, connection: Connection) -> None:
        """Raise ConfigError if the database refuses the statement of a commit, here from a table without rows."""
        try:
            connection.execute(statements.apply(self._database, _AUDIT_TABLE, self._target))
        except DBAPIError as error:
            if self._database.is_retryable(error):
                raise
            what = f"replace rows of {self._target} by key" if self._target.key else f"insert rows into {self._target}"
            raise ConfigError(f"DbApiSink cannot {what}: {format_error(error)}") from error

    def advice(self, ctx: JobContext) -> str:
        """Return advice for a database that does not respond."""
        return "Check that the database runs and accepts this job's login: the sink's url has its address and the user"

    def _expect_transactions(self, connection: Connection) -> None:
        """Raise ConfigError if the changes of a transaction survive its rollback."""
        trial = Incarnation("", JobIdentity.new())
        with roll_back_after(connection):
            self._catalog.insert_registration(connection, trial, Term(0))
        with connection.begin():
            if self._catalog.read_registration(connection, trial) is None:
                return
            self._catalog.delete_registration(connection, trial)
        raise ConfigError(
            f"connections of {self._database.name} commit each statement by itself, so part of an epoch could become "
            "visible: use transactions (autocommit off, in MySQL the engine InnoDB)"
        )

    def get_committable_target(self, ctx: JobContext) -> str:
        return self._target.describe()

    def writer(self, ctx: TaskContext) -> TableWriter:
        incarnation = Incarnation(ctx.job.job, ctx.job.identity)
        with self._database.mapped(EnvironmentFailed, f"open a writer of {self._target}"):
            connection = self._database.engine.connect()
            try:
                self._catalog.create_tables(connection)
                self._catalog.ensure_registered(connection, incarnation, ctx.job.term)
                with connection.begin():
                    types = read_column_types(connection, self._target)
            except BaseException:
                connection.close()
                raise
        holder = DbApiTableStaging(self._database, self._catalog, connection, self._columns, types)
        return TableWriter(ctx, self.scope(ctx.job), holder, self._target, self._cells)

    def committer(self, ctx: JobContext) -> DbApiCommitter:
        return DbApiCommitter(self._database, self.scope(ctx))

    def _cells(self, value: T) -> tuple[Any, ...]:
        cells = tuple(self.row(value))
        if len(cells) != len(self._columns):
            raise ValueError(f"{self._target} has {len(self._columns)} columns, but row() returned {len(cells)} cells")
        if self._database.is_mysql:
            for name, cell in zip(self._columns, cells, strict=True):
                if (problem := find_change(cell)) is not None:
                    raise ValueError(f"{self._target}, column {name!r}: {problem}")
        for index in self._key_cells:
            if cells[index] is None:  # NULL equals nothing, so such rows would multiply
                name = self._target.columns[index]
                raise ValueError(f"{self._target}, column {name!r}: it is part of the key, and must not be null")
        return cells

    # ------------------------------------------------------------ for the audit

    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """Return the table, and whether it has one row per key. For the audit."""
        return f"{self._target} in {self._database.name}", bool(self._target.key)

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield key and value of each present row, encoded as ``audit_rows`` does. For the audit."""
        with self._database.mapped(Retryable, f"read {self._target}"), self._database.connected() as connection:
            found = connection.execution_options(yield_per=LIMITS.rows_per_fetch).execute(self._select_rows())
            yield from map(self._encoded_row, found)

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """Return the rows that the writer stages, and each row's content as the database stores it. For the audit.

        The rows pass through a temporary table with the columns of a staging table. So the database changes or rejects
        them as it did for the job. A key is written as the table has it, if it is one of other case, for example.
        """
        with self._database.mapped(Retryable, f"determine how {self._target} changes values"):
            kept, encoded = encode_or_reject(lambda rows: self._encode_for_audit(rows.values), batch, operator, reject)
        return kept, [(key, content, (), -1) for key, content in encoded]

    def _encode_for_audit(self, values: Sequence[Any]) -> list[tuple[bytes | None, bytes]]:
        rows = [(n, *row) for n, row in enumerate(map_rows(self._cells, values))]
        with self._database.connected() as connection:
            with connection.begin():
                table = self._make_temporary(connection)
                types = read_column_types(connection, self._target)
            try:
                with connection.begin():
                    insert_unchanged(connection, table, types, self._target, rows)
                    columns = [table.c[name] for name in (statements.ORDER, *self._columns)]
                    found = connection.execute(select(*columns).order_by(columns[0])).all()
                    stored = statements.select_stored_keys(connection, table, self._target) if self._target.key else {}
            except ROW_ERRORS as error:
                raise BadRows(refused(self._database, connection, table, types, self._target, rows, error)) from None
        return [self._encoded_row(cells, stored.get(number, {})) for number, *cells in found]

    def _make_temporary(self, connection: Connection) -> Table:
        table = statements.make_stage_table(self._database, _AUDIT_TABLE, self._columns, temporary=True)
        table.create(connection, checkfirst=False)
        return table

    def _encoded_row(
        self, row: Sequence[Any], stored_key: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[bytes | None, bytes]:
        cells = {**dict(zip(self._columns, row, strict=True)), **stored_key}
        key = {name: cells[name] for name in self._target.key}
        return _plain(key) if key else None, _plain(cells)

    def _select_rows(self) -> Select[Any]:
        table = statements.make_target_table(self._target)
        return select(*(table.c[name] for name in self._columns))


def _plain(cells: Mapping[str, Any]) -> bytes:
    return json.dumps(cells, default=lambda cell: f"{type(cell).__name__} {cell!r}", ensure_ascii=False).encode()


def _expect_fit(target: TargetTable) -> None:
    if not target.columns:
        raise ConfigError(
            "DbApiSink: columns must not be empty; pass each column with its definition: "
            'columns={"account": "TEXT NOT NULL", …}'
        )
    if statements.ORDER in target.columns:
        raise ConfigError(f"the column name {statements.ORDER} is reserved for the sink")
    expect_key_columns(target.key, target.columns)
