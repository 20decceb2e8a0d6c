"""Connections to one database, and what the server's errors mean.

Rule: an error of psycopg is mapped here, once, to what the caller must do. What is known to pass by itself is what the
caller names; everything else is a ConfigError, as a person must repair it: a decided commit that is repeated for ever
would hide that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, RLock
from typing import Any, Final, TypeAlias

from kafka_eos._util.extras import expect_extra
from kafka_eos.core.errors import ConfigError, KafkaEosError, LoginRefused

expect_extra("postgres", "PostgresSink")

import psycopg  # noqa: E402 - what is missing is said before
from psycopg import conninfo  # noqa: E402

from kafka_eos.connectors._staged_tables.stage_names import Target  # noqa: E402

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

LOCK_TIMEOUT: Final = "5s"
"""How long a commit or an abort waits for a lock before it looks who holds it."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "client_encoding": "utf8",
}
_PASSES: Final = ("08", "25006", "28", "40", "53", "55P03", "57", "58", "XX000")
"""What may pass by itself: the server is away, read-only, full, busy, ends, or does not know its users yet;
transactions and locks are in conflict; or it has met a fault of its own, which no setting of a user has made. A custom
code of a trigger is none of these."""
_NOT_LET_IN: Final = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|is not permitted to log in"
    r"|(role|database) \".*\" does not exist"
)
WHO_COMES_IN: Final = "the password is in PGPASSWORD or ~/.pgpass, and the server's pg_hba.conf says who may come in"
_ROW: Final = ("22", "23", "44", "54")
"""Classes of errors that a row's values may cause."""
_PLACE: Final = re.compile(r"COPY stage_\w+, \D+\d+, \S+ (.+?)\s?(?:: .*)?$")
"""Where an error of a COPY was: the server says it in its own language, in this order."""
ROW_ERRORS: Final = (psycopg.Error, ValueError, OverflowError)
"""What a row's values may raise when they are staged; psycopg passes on what Python says of a lone surrogate."""
_HOW: Final = (
    "Write 'host=db dbname=shop user=app', a value with spaces in quotes, or postgresql://app@db:5432/shop, where @ is "
    "%40, : is %3A, / is %2F and % is %25. Leave a password out of both: libpq finds it in PGPASSWORD or ~/.pgpass. "
    "(It is not shown here, as a password may be in it.)"
)
_NO_TIMEOUTS: Final = (
    "statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout",
)  # fmt: skip
"""Nothing may end a writer between a batch and a barrier, or a commit that is long. Not every server has each."""


class Database:
    """How to get to one database. ``conninfo`` as libpq reads it; what it leaves out comes from libpq's environment."""

    def __init__(self, given: str, who: str = "PostgresSink") -> None:
        try:
            self._given = conninfo.conninfo_to_dict(given)
        except psycopg.ProgrammingError:
            raise ConfigError(f"{who} cannot read its connection string. {_HOW}") from None
        # A password in an address may hold an @ or / as it is: then a part of it is taken for what is shown.
        if not re.fullmatch(r"[\d,]*", str(self._given.get("port", ""))):
            raise ConfigError(f"{who} has a connection string whose port is no number. {_HOW}")
        if "://" in given and any("@" in str(self._given.get(part, "")) for part in ("host", "dbname")):
            raise ConfigError(f"{who} has a connection string with an @ in the name of a host or database. {_HOW}")

    def shown(self) -> dict[str, str]:
        """For people: no secret."""
        shown = ("host", "hostaddr", "port", "dbname", "user", "service")
        return {name: str(value) for name, value in self._given.items() if name in shown}

    @property
    def name(self) -> str:
        """The same for every way to write down the same servers and database; no user, no password, no option."""
        said = {**_from_environment(), **{name: str(value) for name, value in self._given.items()}}
        hosts = (said.get("host") or said.get("hostaddr") or "local").split(",")
        ports = (said.get("port") or "5432").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        servers = ",".join(sorted(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False)))
        if (service := said.get("service")) and "host" not in self._given:
            servers = f"service={service}"
        return f"{servers}/{said.get('dbname') or said.get('user') or ''}"

    def connect(self, application: str) -> Connection:
        """A connection that commits each statement by itself. Raises psycopg's errors, see ``mapped``."""
        connection: Connection = psycopg.connect(
            **{**_DEFAULTS, **self._given, "application_name": application}, autocommit=True
        )
        with connection.cursor() as cursor:
            # What is written, and read, must not depend on how a role or a database is set up.
            cursor.execute("SELECT set_config('timezone', 'UTC', false), set_config('datestyle', 'ISO', false),"
                           " set_config('extra_float_digits', '3', false),"
                           " set_config('synchronous_commit', replace(current_setting('synchronous_commit'),"
                           " 'off', 'on'), false)")  # fmt: skip
            cursor.execute(
                "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = ANY (%s)", ([*_NO_TIMEOUTS],)
            )
        return connection

    def let_in(self, application: str, what: str) -> Connection:
        """As ``connect``. LoginRefused if the server refuses its user, password or database: waiting would hide it.

        libpq gives no SQLSTATE for that, only the server's words: those of one that speaks another language are not
        known.
        """
        try:
            return self.connect(application)
        except psycopg.OperationalError as error:
            if error.sqlstate is None and _NOT_LET_IN.search(str(error)):
                raise LoginRefused(
                    f"PostgreSQL does not let this job in, to {what}: {_line(error)}. The source's conninfo says user "
                    f"and database; {WHO_COMES_IN}"
                ) from error
            raise


def _from_environment() -> dict[str, str]:
    """What libpq takes from the environment, by the names of a connection string."""
    names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "service": "PGSERVICE"}
    return {name: os.environ[variable] for name, variable in names.items() if os.environ.get(variable)}


class Link:
    """The connection of one writer, which two threads use: each has it alone for one transaction or statement.

    Its commits wait for no disk; a transaction that is durable makes all before it durable too.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._alone = connection, RLock()
        (self._level,) = _row(connection.execute("SHOW synchronous_commit"))
        connection.execute("SET synchronous_commit = off")

    @contextmanager
    def alone(self) -> Iterator[Connection]:
        with self._alone:
            yield self._connection

    @contextmanager
    def durable(self) -> Iterator[Connection]:
        """A transaction that is on disk, and where the server wants it else, when it has ended."""
        with self._alone, self._connection.transaction():
            self._connection.execute("SELECT set_config('synchronous_commit', %s, true)", (self._level,))
            yield self._connection

    def close(self) -> None:
        """Without waiting for a thread that uses it: what that one does then fails."""
        self._connection.close()


class Connections:
    """Connections of a committer, opened as they are needed and kept for the next call. May be used from threads."""

    def __init__(self, database: Database, application: str) -> None:
        self._database, self._application = database, application
        self._idle: list[Connection] = []
        self._lock = Lock()

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """A connection for one call. One on which the call failed is not used again."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._database.connect(self._application)
            connection.execute("SELECT set_config('lock_timeout', %s, false)", (LOCK_TIMEOUT,))
        try:
            yield connection
        except BaseException:
            connection.close()
            self.close()  # what broke this one may have broken all
            raise
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


@contextmanager
def mapped(kind: type[KafkaEosError], what: str) -> Iterator[None]:
    """``kind`` for what may pass: the server is away, full, busy …; ConfigError for what a person must repair."""
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
            f"PostgreSQL refuses to {what}: {_line(error)} (SQLSTATE {state}). Nothing is lost: repair it and start "
            "again, the job goes on from its last epoch."
        ) from error


def _row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None
    return row


def of_a_row(error: Exception, target: Target) -> ValueError | None:
    """What is wrong with a row, if a row's values are to blame. ``error`` is one of ``ROW_ERRORS``."""
    if not isinstance(error, psycopg.Error):
        return ValueError(f"{target}: {error}")
    # Without a state the client itself could not write a value down.
    by_client = error.sqlstate is None and isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
    if by_client or (error.sqlstate or "").startswith(_ROW):
        column = _column(error, target)
        return ValueError(f"{target}{f', column {column!r}' if column else ''}: {_line(error)}")
    return None


def _column(error: psycopg.Error, target: Target) -> str | None:
    """Which column an error of a COPY is about, if it says so: in a field of its own, or with the place."""
    found = _PLACE.match((error.diag.context or "").partition("\n")[0])
    name = error.diag.column_name or (found and found[1])
    return name if name in target.columns else None


def _line(error: psycopg.Error) -> str:
    """The server's message and details in one line; without the user's SQL."""
    diag = error.diag
    parts = [diag.message_primary, diag.message_detail] if diag.message_primary else [str(error)]
    return " ".join(" ".join(part.split()) for part in parts if part) or type(error).__name__
