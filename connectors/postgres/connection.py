"""Connections to one database, and the classification of the server's errors.

Rule: an error of psycopg is mapped here, once, to what the caller must do. Known temporary errors become the kind that
the caller names. All others are ConfigErrors, which need manual intervention: retrying a decided commit forever would
hide them. Neither these messages nor psycopg's own log lines quote a row, see ``_line``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, RLock
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import conninfo

from kafka_eos.abc.dataset import Dataset
from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.core.error_messages import shows_all_messages
from kafka_eos.core.errors import ConfigError, KafkaEosError, LoginRefused

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_CLIENT: Final = "kafka_eos.client"
"""The setting that marks a session as the one of a connection."""
LOCK_TIMEOUT: Final = "5s"
"""The time that a commit or an abort waits for a lock before it checks which connection has it."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "client_encoding": "utf8",
}
_PASSES: Final = ("08", "25006", "28", "40", "53", "55P03", "57", "58", "XX000")
"""Temporary errors: the server is down, read-only, full, busy, stopping, or does not know its users yet;
transactions and locks are in conflict; or it has an internal error, which no setting of a user has caused. A custom
code of a trigger is not one of these."""
_NOT_LET_IN: Final = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|is not permitted to log in"
    r"|(role|database) \".*\" does not exist"
)
LOGIN_HINT: Final = "the password is in PGPASSWORD or ~/.pgpass, and the server's pg_hba.conf determines who may log in"
_ROW: Final = ("22", "23", "44", "54")
"""Classes of errors that a row's values may cause."""
_PLACE: Final = re.compile(r"COPY stage_\w+, \D+\d+, \S+ (.+?)\s?(?:: .*)?$")
"""The location of an error of a COPY: the server's language varies, but not this order."""
ROW_ERRORS: Final = (psycopg.Error, ValueError, OverflowError)
"""Errors that a row's values may cause when they are staged, including Python's error for a lone surrogate."""
_HOW: Final = (
    "Write 'host=db dbname=shop user=app', a value with spaces in quotes, or postgresql://app@db:5432/shop, where @ is "
    "%40, : is %3A, / is %2F and % is %25. Leave a password out of both: libpq finds it in PGPASSWORD or ~/.pgpass. "
    "(It is not shown, because it may contain a password.)"
)
_NO_TIMEOUTS: Final = (
    "statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout",
)  # fmt: skip
"""Timeouts to disable: none may end an idle writer or a long commit. Not every server has each."""


class PostgresDatabase:
    """The connection settings of one PostgreSQL database.

    ``conninfo`` has libpq's format; libpq's environment provides missing settings.
    """

    def __init__(self, given: str, who: str = "PostgresSink") -> None:
        try:
            self._given = conninfo.conninfo_to_dict(given)
        except psycopg.ProgrammingError:
            raise ConfigError(f"{who}: the connection string is not valid. {_HOW}") from None
        # A password in an address may contain an unquoted @ or /: then a part of it is parsed as a visible setting.
        if not re.fullmatch(r"[\d,]*", str(self._given.get("port", ""))):
            raise ConfigError(f"{who}: the port in the connection string is not a number. {_HOW}")
        if "://" in given and any("@" in str(self._given.get(part, "")) for part in ("host", "dbname")):
            raise ConfigError(f"{who}: the connection string has an @ in the name of a host or database. {_HOW}")

    def shown(self) -> dict[str, str]:
        """Return the settings for messages, without secrets."""
        shown = ("host", "hostaddr", "port", "dbname", "user", "service")
        return {name: str(value) for name, value in self._given.items() if name in shown}

    @property
    def name(self) -> str:
        """Return a name that is the same for every spelling of the same servers and database, without user
        or options."""
        return "/".join(self._place())

    def _place(self) -> tuple[str, str]:
        """Return the servers and the database."""
        settings = {**_from_environment(), **{name: str(value) for name, value in self._given.items()}}
        hosts = (settings.get("host") or settings.get("hostaddr") or "local").split(",")
        ports = (settings.get("port") or "5432").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        servers = ",".join(sorted(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False)))
        if (service := settings.get("service")) and "host" not in self._given:
            servers = f"service={service}"
        return servers, settings.get("dbname") or settings.get("user") or ""

    def name_dataset(self, table: str) -> Dataset:
        """Return a table as data catalogs name it."""
        servers, database = self._place()
        return Dataset(f"postgres://{servers}", f"{database}.{table}" if "." in table else f"{database}.public.{table}")

    def connect(self, application: str) -> Connection:
        """Return a connection with autocommit. Raise psycopg's errors, see ``map_errors``."""
        connection: Connection = psycopg.connect(
            **{**_DEFAULTS, **self._given, "application_name": application}, autocommit=True
        )
        with connection.cursor() as cursor:
            # Values written and read must not depend on the settings of a role or a database.
            cursor.execute("SELECT set_config('timezone', 'UTC', false), set_config('datestyle', 'ISO', false),"
                           " set_config('extra_float_digits', '3', false),"
                           " set_config('synchronous_commit', replace(current_setting('synchronous_commit'),"
                           " 'off', 'on'), false), set_config(%s, %s, false)",
                           (_CLIENT, _name_client(connection)))  # fmt: skip
            cursor.execute(
                "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = ANY (%s)", ([*_NO_TIMEOUTS],)
            )
        return connection

    def ensure_sessions(self, connection: Connection) -> None:
        """Raise ConfigError if a pooler gives each transaction another session."""
        with self.connect("kafka_eos check"):  # such a pooler gives it the session that served the other one
            ensure_own_session(connection)

    def connect_or_explain(self, application: str, what: str) -> Connection:
        """Return a connection. Raise LoginRefused if the server rejects user, password or database.

        A start and a reader do not retry a refused login, because retries would hide a wrong password. libpq gives no
        SQLSTATE for it, only the server's message. Messages in other languages than English are not recognized.
        """
        try:
            return self.connect(application)
        except psycopg.OperationalError as error:
            if error.sqlstate is None and _NOT_LET_IN.search(str(error)):
                raise LoginRefused(
                    f"cannot {what}: PostgreSQL refused the login: {_line(error)}. The conninfo sets user and "
                    f"database; {LOGIN_HINT}"
                ) from error
            raise


def fetch_row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the row of a query that always has one."""
    row = cursor.fetchone()
    assert row is not None
    return row


def _name_client(connection: Connection) -> str:
    """Return a number that the server, or a pooler, gives to no other connection."""
    return str(connection.info.backend_pid)


def ensure_own_session(connection: Connection) -> None:
    """Raise ConfigError if the server's session does not have the settings of this connection.

    A pooler that gives each transaction another session loses them: then the commit may not be durable, and locks may
    be waited for without a limit.
    """
    row = connection.execute("SELECT current_setting(%s, true)", (_CLIENT,)).fetchone()
    if row != (_name_client(connection),):
        raise ConfigError(
            "a pooler between the sink and PostgreSQL gives each transaction another session, which loses the "
            "connection's settings. Point conninfo at the server, or at a pool with pool_mode=session"
        )


def _from_environment() -> dict[str, str]:
    """Return the settings that libpq takes from the environment, by their names in a connection string."""
    names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "service": "PGSERVICE"}
    return {name: os.environ[variable] for name, variable in names.items() if os.environ.get(variable)}


class WriterConnection:
    """A writer's connection, shared by two threads, one transaction or statement at a time.

    A durable transaction makes all earlier asynchronous ones durable too.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._alone = connection, RLock()

    @contextmanager
    def acquire(self) -> Iterator[Connection]:
        with self._alone:
            yield self._connection

    @contextmanager
    def asynchronous(self) -> Iterator[Connection]:
        """Run a transaction whose commit does not wait for the disk."""
        with self._alone, self._connection.transaction():
            self._connection.execute("SET LOCAL synchronous_commit = off")
            yield self._connection

    @contextmanager
    def durable(self) -> Iterator[Connection]:
        """Run a transaction that is durable, with the server's own synchronous_commit level, when it has ended."""
        with self._alone, self._connection.transaction():
            ensure_own_session(self._connection)
            yield self._connection

    def close(self) -> None:
        """Close without waiting for a working thread, whose calls then fail."""
        self._connection.close()


class ConnectionPool:
    """A committer's connections, opened on demand and reused. Thread-safe."""

    def __init__(self, database: PostgresDatabase, application: str) -> None:
        self._database, self._application = database, application
        self._idle: list[Connection] = []
        self._lock = Lock()

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """Yield a connection for one call. It is not reused if the call fails."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._database.connect(self._application)
            connection.execute("SELECT set_config('lock_timeout', %s, false)", (LOCK_TIMEOUT,))
        try:
            yield connection
        except BaseException:
            connection.close()
            self.close()  # the cause may have broken the other connections too
            raise
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


@contextmanager
def map_errors(kind: type[KafkaEosError], what: str) -> Iterator[None]:
    """Map psycopg errors: ``kind`` if a retry may help, otherwise ConfigError."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate
        if state is None and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise
        if state is None or state.startswith(_PASSES):
            own = " (SQLSTATE XX000: an error inside the server; its log says more)" if state == "XX000" else ""
            raise kind(f"could not {what}: {_line(error)}{own}") from error
        raise ConfigError(
            f"PostgreSQL refuses to {what}: {_line(error)} (SQLSTATE {state}). Nothing is lost: repair the cause and "
            "restart. The job continues from its last epoch."
        ) from error


def find_row_error(error: Exception, target: TargetTable) -> ValueError | None:
    """Return the error of a row; None if its values are not the cause. ``error`` is one of ``ROW_ERRORS``."""
    if not isinstance(error, psycopg.Error):
        return ValueError(f"{target}: {error}")
    # Without a SQLSTATE the client itself could not encode a value.
    by_client = error.sqlstate is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
    if by_client or (error.sqlstate or "").startswith(_ROW):
        column = _column(error, target)
        return ValueError(f"{target}{f', column {column!r}' if column else ''}: {_line(error, whole=True)}")
    return None


def _column(error: psycopg.Error, target: TargetTable) -> str | None:
    """Return the column of a COPY error, from its own field or from the error's context; None if unknown."""
    found = _PLACE.match((error.diag.context or "").partition("\n")[0])
    name = error.diag.column_name or (found and found[1])
    return name if name in target.columns else None


def _line(error: psycopg.Error, *, whole: bool = False) -> str:
    """Return the server's message and details as one line, without the user's SQL.

    Those of a row at fault quote its values: not ``whole``, they have only the names of the class and the constraint.
    """
    diag = error.diag
    if not whole and (error.sqlstate or "").startswith(_ROW) and not shows_all_messages():
        return " ".join(filter(None, [type(error).__name__, diag.column_name, diag.constraint_name]))
    parts = [diag.message_primary, diag.message_detail] if diag.message_primary else [str(error)]
    return " ".join(" ".join(part.split()) for part in parts if part) or type(error).__name__


def _hide_rows(entry: logging.LogRecord) -> bool:
    """Shorten the server's messages in a log line of psycopg, such as those that follow another error of a COPY."""
    if isinstance(entry.args, tuple):
        entry.args = tuple(_line(each) if isinstance(each, psycopg.Error) else each for each in entry.args)
    return True


logging.getLogger("psycopg").addFilter(_hide_rows)
