"""A database: its engine, its settings for connections, its upsert, and which of its errors a row or an outage causes.

SQLAlchemy knows the driver, the quoting and the types of a database. Rule: an error of the driver is mapped here, once,
to what the caller must do. A code that this module does not know stops the job, because retrying a decided commit
forever would hide the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import URL, Connection, Engine, Insert, Select, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    NoSuchModuleError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.pool import NullPool

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.core.error_messages import shows_all_messages
from kafka_eos.core.errors import ConfigError, KafkaEosError

ROW_ERRORS: Final = (StatementError, ValueError, TypeError, OverflowError)
"""The errors that staging a row may raise: those of the database, and Python's for values that do not fit."""


class DatabaseTraits(Struct, frozen=True):
    """The differences between databases that SQLAlchemy does not cover.

    ``session``: statements that each new connection runs. They set a lock timeout of some seconds, durable commits, and
    refusal of values that a column would change.
    ``passing``: codes of temporary errors. Without any, the class of an error decides.
    ``updates_once``: whether an upsert may update a row only once. Where it may do so again, the table alone decides
    which keys are equal: a staging table may have another collation.
    ``of_row``: codes of errors that a row's values cause, besides the classes of PEP 249 for such errors.
    """

    connect_args: tuple[tuple[str, Any], ...] = ()
    session: tuple[str, ...] = ()
    port: int | None = None
    passing: tuple[str, ...] = ()
    of_row: tuple[str, ...] = ()
    upserts: bool = False
    updates_once: bool = False


_MYSQL: Final = DatabaseTraits(
    session=(
        "SET SESSION innodb_lock_wait_timeout = 5",
        "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    ),
    port=3306,
    # The server is away, stopping, busy, full or read-only; a connection or a statement was ended; locks are in
    # conflict.
    passing=(
        *("2002", "2003", "2006", "2013", "2055", "1040", "1042", "1043", "1053", "1077", "1079", "1158", "1159"),
        *("1160", "1161", "1203", "1927", "4031", "1021", "1114", "1205", "1213", "1290", "1836", "1317", "1969"),
    ),
    of_row=("3819", "4025", "1264", "1292", "1364", "1366", "1406"),
    upserts=True,
)
_TRAITS: Final[Mapping[str, DatabaseTraits]] = {
    "sqlite": DatabaseTraits(
        # IMMEDIATE: a transaction locks the file when it begins, so two that read first cannot deadlock. Several
        # threads use a connection, one at a time.
        connect_args=(("timeout", 10), ("isolation_level", "IMMEDIATE"), ("check_same_thread", False)),
        session=("PRAGMA synchronous = FULL",),
        passing=("5", "6", "8", "10", "13", "14"),  # busy, locked, read-only, input or output, full, cannot open
        upserts=True,
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "postgresql": DatabaseTraits(
        session=("SET lock_timeout = '5s'",),
        port=5432,
        passing=("", "08", "25006", "28", "40", "53", "55P03", "57", "58", "XX000"),
        of_row=("22", "23", "44", "54"),
        upserts=True,
        updates_once=True,
    ),
}

INNODB: Final[Mapping[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
"""The options of the sink's own tables: the default engine of a server may have no transactions."""
_ENGINE_WITHOUT_TRANSACTIONS: Final = text(
    "SELECT t.engine FROM information_schema.tables t LEFT JOIN information_schema.engines e ON e.engine = t.engine"
    " WHERE t.table_schema = COALESCE(:schema, DATABASE()) AND t.table_name = :name"
    " AND t.table_type = 'BASE TABLE' AND COALESCE(e.transactions, 'NO') <> 'YES'"
)


class Database:
    """One database, which a URL of SQLAlchemy names. Each connection is new, so none is shared by processes."""

    def __init__(self, url: str | URL, connect_args: Mapping[str, Any]) -> None:
        try:
            self._url = make_url(url)
        except ArgumentError:
            raise ConfigError(
                "DbApiSink cannot read the URL of its database. Write it as SQLAlchemy does: "
                '"mysql+pymysql://user@host/database". (It is not shown, because it may contain a password.)'
            ) from None
        if any("@" in (part or "") for part in (self._url.host, self._url.database)) and self._url.password is not None:
            raise ConfigError(
                "DbApiSink has a URL with an @ in the name of its host or database, so a password may have been cut "
                "there. Percent-encode each @ / ? # in it: %40 %2F %3F %23. (The URL is not shown.)"
            )
        self._backend = self._url.get_backend_name()
        self._connect_args = connect_args
        self.traits = _TRAITS.get(self._backend, DatabaseTraits())
        if self._backend == "sqlite" and self._url.database in (None, "", ":memory:"):
            raise ConfigError("DbApiSink needs a file for SQLite: a database in memory ends with its process")

    @cached_property
    def engine(self) -> Engine:
        args = {**dict(self.traits.connect_args), **self._connect_args}
        try:
            engine = create_engine(self._url, poolclass=NullPool, connect_args=args)
        except (NoSuchModuleError, ImportError) as error:
            raise ConfigError(
                f"the driver of {self._url.drivername!r} is not installed ({error}): install it, or name another one "
                "in the URL"
            ) from None
        event.listen(engine, "connect", self._prepare)
        return engine

    def _prepare(self, connection: Any, record: object) -> None:
        cursor = connection.cursor()
        for statement in self.traits.session:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    @property
    def is_mysql(self) -> bool:
        return self._backend in ("mysql", "mariadb")

    @property
    def name(self) -> str:
        """Return the name of the database: the same in every process and for every login. It is stored: no secrets."""
        url = self._url
        if self._backend == "sqlite":
            return f"sqlite:{Path(str(url.database)).resolve()}"
        host = url.host or url.query.get("host") or url.query.get("unix_socket") or "localhost"
        backend = "mysql" if self._backend == "mariadb" else self._backend
        return f"{backend}:{host}:{url.port or self.traits.port or ''}/{url.database or ''}"

    def is_retryable(self, error: DBAPIError) -> bool:
        """Return whether an error is temporary: server unavailable or busy, lock timeout.

        All other errors need manual intervention and stop the job.
        """
        if error.connection_invalidated:
            return True
        if not self.traits.passing:
            return isinstance(error, OperationalError | InterfaceError | InternalError)
        return self._has_code(error, self.traits.passing)

    def find_row_error(self, error: Exception, target: TargetTable) -> ValueError | None:
        """Return the error of a row; None if its values are not the cause. ``error`` is one of ``ROW_ERRORS``."""
        of_values = (DataError, IntegrityError, ProgrammingError, NotSupportedError)
        by_class = isinstance(error, of_values) or not isinstance(error, DBAPIError)
        if by_class or self._has_code(error, self.traits.of_row):
            return ValueError(f"{target}: {format_error(error, whole=True)}")
        return None

    def _has_code(self, error: Exception, codes: Sequence[str]) -> bool:
        code = _code(self._backend, getattr(error, "orig", None))
        if self._backend != "postgresql":
            return code in codes
        return any(code.startswith(each) if each else not code for each in codes)

    def escape(self, text: str) -> str:
        """Return SQL text with each % doubled, if the driver would read it as a parameter."""
        return text.replace("%", "%%") if self.engine.dialect.paramstyle in ("format", "pyformat") else text

    def upsert(self, table: Table, columns: Sequence[str], rows: Select[Any], key: Sequence[str]) -> Insert:
        """Return the statement that inserts rows. If the key of a row exists, that row takes its other values."""
        others = [name for name in columns if name not in key]
        if self.is_mysql:
            of_mysql = mysql.insert(table).from_select(columns, rows)
            return of_mysql.on_duplicate_key_update({name: of_mysql.inserted[name] for name in others or key})
        insert = sqlite.insert if self._backend == "sqlite" else postgresql.insert
        statement = insert(table).from_select(columns, rows)
        keys = [table.c[name] for name in key]
        if not others:
            return statement.on_conflict_do_nothing(index_elements=keys)
        values = {name: statement.excluded[name] for name in others}
        return statement.on_conflict_do_update(index_elements=keys, set_=values)

    def find_engine_without_transactions(self, connection: Connection, target: TargetTable) -> str | None:
        """Return the engine of a table of MySQL that ignores rollbacks, such as MyISAM; None if the table has none."""
        if not self.is_mysql:
            return None
        schema, _, name = target.table.rpartition(".")
        found: str | None = connection.execute(
            _ENGINE_WITHOUT_TRANSACTIONS, {"schema": schema or None, "name": name}
        ).scalar()
        return found

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Yield a new connection, which is closed afterwards."""
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def mapped(self, kind: type[KafkaEosError], what: str) -> Iterator[None]:
        """Map errors: ``kind`` for a temporary error, ConfigError for one that needs manual intervention."""
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            if isinstance(error, OSError) or (isinstance(error, DBAPIError) and self.is_retryable(error)):
                raise kind(f"could not {what}: {format_error(error)}") from error
            raise ConfigError(
                f"{self.name} refuses to {what}: {format_error(error)}. Nothing is lost: repair the cause and "
                "restart. The job continues from its last epoch."
            ) from error


def _code(backend: str, error: BaseException | None) -> str:
    """Return the database's own code of an error, as its driver gives it; empty if there is none."""
    if backend == "sqlite":
        return str(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    first = error.args[0] if error is not None and error.args else ""
    if backend == "postgresql":
        fields = first if isinstance(first, dict) else {}  # pg8000 has the fields of the server's message
        return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or fields.get("C", ""))
    return str(getattr(error, "errno", None) or first)


def format_error(error: Exception, *, whole: bool = False) -> str:
    """Return the driver's message as one line, without the statement that SQLAlchemy adds.

    Not ``whole``, the message of a row at fault, which quotes its values, is left out.
    """
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    if isinstance(error, DataError | IntegrityError) and not (whole or shows_all_messages()):
        return type(cause).__name__
    first = cause.args[0] if cause.args else None
    text = first["M"] if isinstance(first, dict) and "M" in first else cause  # pg8000 has no text but the server's
    return f"{type(cause).__name__}: {' '.join(str(text).split())}"
