"""``PostgresSink``: rows in a table, each exactly once.

Rule: a guarantee that the table or the server cannot keep is refused in ``check``, before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import psycopg
from psycopg import sql

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.services import RejectRow
from kafka_eos.codecs.type_inspection import known_type
from kafka_eos.connectors._shared.key_columns import expect_key_columns
from kafka_eos.connectors._shared.row_errors import encode_or_reject
from kafka_eos.connectors._shared.table_audit import NoProvenance
from kafka_eos.connectors._shared.value_types import StreamTypedSink
from kafka_eos.connectors._staged_tables.stage_names import WRITER, Incarnation, Strategy, TargetTable
from kafka_eos.connectors._staged_tables.table_writer import RowStaging, TableWriter
from kafka_eos.connectors.postgres.columns import ModelColumn, columns_of
from kafka_eos.connectors.postgres.connection import (
    LOGIN_HINT,
    Connection,
    PostgresDatabase,
    WriterConnection,
    fetch_row,
    map_errors,
)
from kafka_eos.connectors.postgres.sink import audit_rows as telling
from kafka_eos.connectors.postgres.sink import column_compatibility as fitting
from kafka_eos.connectors.postgres.sink import statements
from kafka_eos.connectors.postgres.sink import target_table as tables
from kafka_eos.connectors.postgres.sink import write_strategy as strategies
from kafka_eos.connectors.postgres.sink.committer import PostgresCommitter
from kafka_eos.connectors.postgres.sink.direct_insert import PostgresTransactionStaging
from kafka_eos.connectors.postgres.sink.row_encoder import RowEncoder
from kafka_eos.connectors.postgres.sink.staging_catalog import PostgresStagingCatalog
from kafka_eos.connectors.postgres.sink.staging_tables import PostgresTableStaging
from kafka_eos.connectors.postgres.sink.target_table import TableInfo
from kafka_eos.connectors.postgres.table_names import qualified
from kafka_eos.core.errors import ConfigError, EnvironmentFailed, Retryable
from kafka_eos.core.ids import ensure_name
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch, Headers

T = TypeVar("T")


class PostgresSink(NoProvenance, StreamTypedSink[T]):
    """A sink that writes a stream of ``T`` into ``table``, each value exactly once.

    - ``conninfo``: the address of the database in libpq's format: "host=db dbname=shop user=app" or "postgresql://…".
      Leave out the password: libpq finds it in PGPASSWORD, ``~/.pgpass`` or a service file.
    - ``table``: "table", "schema.table" or a pair of both; names are case-sensitive and not folded.
    - ``value``: the type of the values, a pydantic model, msgspec Struct or dataclass: its fields are the columns.
      Without ``columns``, the default is the type of the stream.
    - ``columns``: the fields to write; without ``value``, the keys of a stream of dicts.
    - ``key``: columns that identify a row: a value replaces the row of its key. Without a key every value is a new row.
    - ``delete``: a function; a value for which it returns true deletes the row of its key.
    - ``create``: create the table at the start if it does not exist; otherwise that is an error.
    - ``control_schema``: the schema of the sink's staging tables and ledger; created at the start if it does not exist.
    - ``strategy``: where rows wait for their commit: "stage", in a staging table, or "prepare", in a prepared
      transaction that has written them to the table itself. The default is "prepare" if the server and the table allow
      it, else "stage"; see docs/postgres.md.
    """

    def __init__(
        self,
        conninfo: str,
        table: str | tuple[str, str],
        *,
        value: type[T] | None = None,
        columns: Sequence[str] | None = None,
        key: Sequence[str] = (),
        delete: Callable[[T], bool] | None = None,
        create: bool = False,
        control_schema: str = "kafka_eos",
        strategy: Literal["stage", "prepare"] | None = None,
    ) -> None:
        self._database, self._ledger = PostgresDatabase(conninfo), PostgresStagingCatalog(control_schema)
        self._schema, self._table = qualified(table)
        self._value, self._given_columns = value, columns
        self._key = (key,) if isinstance(key, str) else tuple(key)
        if value is not None or columns:
            self._columns  # noqa: B018 - raises if they do not fit
        self._delete = delete
        self._create = create
        self._asked = _asked(strategy)
        self._teller: telling.AuditEncoder | None = None
        if delete is not None and not self._key:
            raise ConfigError("delete=… needs key=(…): the columns that identify the row to delete")

    @cached_property
    def _columns(self) -> tuple[ModelColumn, ...]:
        """The columns of the rows. Raises ConfigError if they do not fit, or the type of the values is unknown."""
        columns = columns_of(self._value, self._given_columns)
        expect_key_columns(self._key, [column.name for column in columns])
        return columns

    def _take_type(self, tp: Any) -> None:
        if not self._given_columns:
            self._value = known_type(tp)
            self._columns  # noqa: B018 - raises if they do not fit

    @property
    def default_name(self) -> str:
        """Return the table's name, marked as a table: a topic in the same plan may have the same name."""
        return f"{self._table}-table"

    def trade_offs(self) -> Sequence[str]:
        """Return the trade-offs of this sink."""
        return strategies.trade_offs(self._asked, bool(self._key))

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "postgres",
            "table": self._name,
            **self._database.shown(),
            "mode": "insert" if not self._key else "upsert" if self._delete is None else "upsert and delete",
            "key": [*self._key],
            "commit": f"{self._committed_by()}; ledger in schema {self._ledger.schema}",
        }

    def __repr__(self) -> str:
        return f"PostgresSink({self._database.shown()}, {self._name!r})"

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the table."""
        return [self._database.name_dataset(self._name)]

    def scope(self, ctx: JobContext) -> str:
        return f"postgres:{self._database.name}/{self._ledger.schema}"

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at a start; see ``Sink.check``.

        Raise Retryable if the server cannot be reached, and LoginRefused if it rejects the login.
        """
        ensure_name(ctx.job, "the job's name")
        what = f"look at {self._name} in {self.scope(ctx)}"
        with (
            map_errors(Retryable, what),
            self._database.connect_or_explain("kafka_eos check", what) as connection,
        ):
            self._database.ensure_sessions(connection)
            if self._create and self.scope(ctx) in ctx.written_scopes and not self._ledger.is_there(connection):
                self._expect_not_emptied(connection, ctx)
            self._ledger.create_tables(connection)
            if self._create:
                self._make(connection)
            table, target = self._found(connection)
            if wrong := [*fitting.find_type_mismatches(connection, table, self._columns)]:
                raise ConfigError(f"PostgresSink cannot write to {target}: {'; '.join(wrong)}")
            return [*self._notices(connection, table, target), *self._strategy_notices(connection, ctx, table, target)]

    def advice(self, ctx: JobContext) -> str:
        """Return advice for a server that does not respond."""
        return (
            "Check that PostgreSQL runs and accepts this job's login: the sink's conninfo sets "
            f"its address; {LOGIN_HINT}"
        )

    def get_committable_target(self, ctx: JobContext) -> str:
        """Return the table as a commit needs it. Its schema is looked up if the sink was given none."""
        columns = tuple(column.name for column in self._columns)
        return TargetTable(self._schema or self._find_schema(), self._table, columns, self._key).describe()

    def _find_schema(self) -> str:
        what = f"look for {self._name} in {self._database.name}"
        with map_errors(Retryable, what), self._database.connect("kafka_eos check") as connection:
            table = tables.find(connection, None, self._table)
        if table is None:
            raise ConfigError(
                f"table {self._name} does not exist in {self._database.name}, but rows are prepared for it"
            )
        return table.schema

    def writer(self, ctx: TaskContext) -> TableWriter:
        connect = partial(self._database.connect, Incarnation(ctx.job.job, ctx.job.identity).application(WRITER))
        with map_errors(EnvironmentFailed, f"open a writer of {self._name}"):
            connection = connect()
            try:
                table, target = self._found(connection)
                holder = self._holder(connection, connect, ctx.job, table, target)
            except BaseException:
                connection.close()
                raise
        return TableWriter(ctx, self.scope(ctx.job), holder, target, self._rows(table).encode)

    def _holder(
        self,
        connection: Connection,
        connect: Callable[[], Connection],
        ctx: JobContext,
        table: TableInfo,
        target: TargetTable,
    ) -> RowStaging:
        if strategies.choose_strategy(self._asked, self._facts(connection, ctx, table)) is Strategy.STAGE:
            return PostgresTableStaging(WriterConnection(connection), self._ledger, table)
        return PostgresTransactionStaging(connection, connect, self._ledger, table, target)

    def _facts(self, connection: Connection, ctx: JobContext, table: TableInfo) -> strategies.StrategyFacts:
        slots, free = self._ledger.free_transactions(connection, ctx.job)
        writers, interval = ctx.settings.get("parallelism"), ctx.settings.get("checkpoint_interval")
        return strategies.StrategyFacts(
            keyed=bool(self._key),
            ties=table.lock_hazards,
            slots=slots,
            free=free,
            writers=writers if isinstance(writers, int) else 1,
            interval=interval if isinstance(interval, int | float) else None,
        )

    def committer(self, ctx: JobContext) -> PostgresCommitter:
        return PostgresCommitter(self._database, self._ledger, self.scope(ctx), ctx.job)

    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """Return the table, and whether it has one row per key. For the audit."""
        return f"{self._name} in {self._database.name}", bool(self._key)

    def audit_obstacle(self) -> str | None:
        """Return why the table's rows cannot be compared; None if they can. Raise as ``check``. For the audit."""
        with self._judging("look at") as connection:
            return telling.find_audit_obstacle(connection, self._found(connection)[1])

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield key and value of each present row, encoded as ``audit_rows`` does. For the audit."""
        with self._judging("read") as connection:
            yield from telling.rows(connection, self._found(connection)[1])

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """Return the rows that the writer stages, and each row's content as the table would store it. For the audit."""
        with map_errors(Retryable, f"determine how {self._name} changes values"):
            if self._teller is None:
                connection = self._database.connect("kafka_eos audit")
                table, target = self._found(connection)
                self._teller = telling.AuditEncoder(connection, table, target, self._rows(table).encode)
            try:
                kept, encoded = encode_or_reject(
                    lambda rows: self._encode_for_audit(rows.values), batch, operator, reject
                )
            except psycopg.Error:
                self._teller = None
                raise
        return kept, [(key, content, (), -1) for key, content in encoded]

    def _encode_for_audit(self, values: Sequence[Any]) -> list[telling.AuditRow]:
        assert self._teller is not None
        return self._teller.encode(values)

    @contextmanager
    def _judging(self, what: str) -> Iterator[Connection]:
        with (
            map_errors(Retryable, f"{what} {self._name} in {self._database.name}"),
            self._database.connect("kafka_eos audit") as connection,
        ):
            yield connection

    def _rows(self, table: TableInfo) -> RowEncoder:
        return RowEncoder(self._columns, self._value, self._key, self._delete, table.types)

    @property
    def _name(self) -> str:
        return self._table if self._schema is None else f"{self._schema}.{self._table}"

    def _expect_not_emptied(self, connection: Connection, ctx: JobContext) -> None:
        """Raise ConfigError if the job has written to the database, and neither table nor schema exists."""
        if tables.find(connection, self._schema, self._table) is None:
            raise ConfigError(
                f"neither table {self._name} nor schema {self._ledger.schema} exists in "
                f"{self._database.name}, but job {ctx.job!r} has written there: a new empty table "
                "would hide that its rows are lost. Restore the database, or connect to the one that "
                "has them. To continue without them, create the table yourself and start from a "
                "savepoint in another directory"
            )

    def _make(self, connection: Connection) -> None:
        """Create the user's table unless it exists.

        Raises ConfigError if a column has no certain type, or if the table existed at an earlier start: an empty table
        in its place would hide that its rows are lost.
        """
        if (found := tables.find(connection, self._schema, self._table)) is not None:
            self._ledger.record_target(connection, f"{found.schema}.{found.name}")
            return
        (schema,) = fetch_row(connection.execute("SELECT coalesce(%s, current_schema())", (self._schema,)))
        target = f"{schema}.{self._table}"
        if self._ledger.has_seen(connection, target):
            raise ConfigError(
                f"table {target} existed at an earlier start and does not exist any more: restore it. To start with an "  # noqa: S608 - a statement for people, which nothing runs
                f"empty one: DELETE FROM {self._ledger.schema}.made WHERE target = '{target}'"
            )
        if untyped := [column.name for column in self._columns if not column.type]:
            raise ConfigError(
                f"create=True: the types of the columns {', '.join(untyped)} are unknown; create "
                f"table {self._name} yourself"
            )
        with connection.transaction():
            self._ledger.record_target(connection, target)
            name = sql.Identifier(schema, self._table)
            connection.execute(statements.create_table(name, self._columns, self._key))

    def _found(self, connection: Connection) -> tuple[TableInfo, TargetTable]:
        """Return the user's table as it is now. Raise ConfigError if it does not exist, or the guarantee cannot be
        kept."""
        table = tables.find(connection, self._schema, self._table)
        if table is None:
            raise ConfigError(
                f"table {self._name} does not exist: create it, or pass create=True. (Names are "
                "case-sensitive: Totals is not totals.)"
            )
        target = TargetTable(table.schema, table.name, tuple(column.name for column in self._columns), self._key)
        if wrong := [*tables.problems(table, target, self._delete is not None)]:
            raise ConfigError(f"PostgresSink cannot write to {target}: {'; '.join(wrong)}")
        return table, target

    def _notices(self, connection: Connection, table: TableInfo, target: TargetTable) -> list[str]:
        notices = []
        if connection.execute("SHOW fsync").fetchone() == ("off",):
            notices.append(f"the server of {target} runs with fsync=off: a crash may lose what it has committed")
        if table.constrained and not target.key:
            notices.append(
                f"{target} has unique, exclusion or foreign keys, which only a commit can check: a row that breaks one "
                "stops the job until the table is repaired"
            )
        return notices

    def _strategy_notices(
        self, connection: Connection, ctx: JobContext, table: TableInfo, target: TargetTable
    ) -> Iterator[str]:
        """Yield the chosen strategy and its trade-off. Raise ConfigError if the requested one is not possible."""
        facts = self._facts(connection, ctx, table)
        if strategies.choose_strategy(self._asked, facts) is Strategy.STAGE:
            why = "; ".join(strategies.reasons_to_stage(self._asked, facts))
            yield f"rows for {target} are staged in tables, so each is written twice: {why}"
            return
        wrong = [*strategies.obstacles(facts)]
        if facts.slots and facts.free < facts.writers:
            wrong.append(strategies.too_few(facts))
        if wrong:
            raise ConfigError(f'strategy="prepare" is not possible for {target}: {"; ".join(wrong)}. Or omit strategy')
        yield (
            f"rows for {target} are staged in prepared transactions. After a kill of the job, "
            "such a transaction keeps its lock on the table (no ALTER TABLE, no TRUNCATE) and "
            "holds back vacuum in the database until the job restarts, or until kafka-eos doctor "
            '--resolve. strategy="stage" never does'
        )

    def _committed_by(self) -> str:
        if self._key or self._asked is Strategy.STAGE:
            return "staging table, one transaction"
        if self._asked is Strategy.PREPARE:
            return "prepared transaction"
        return (
            "prepared transaction if the server and the table allow it (reported at startup), otherwise staging table"
        )


def _asked(given: str | None) -> Strategy | None:
    if given is None:
        return None
    try:
        return Strategy(given)
    except ValueError:
        raise ConfigError(f'strategy={given!r}: use "stage" or "prepare", or omit it') from None
