"""A database with a PEP 249 driver, and the differences between databases: ``Database``, which a user completes.

Rule: an error of the driver is mapped here, once, to what the caller must do. Values are parameters, never part of a
statement; identifiers are quoted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from kafka_eos.core.errors import ConfigError, KafkaEosError
from kafka_eos.core.limits import LIMITS

P: Final = "\0"
"""The placeholder for a parameter in the statements of this package. No identifier can contain it."""
_STYLES: Final[Mapping[str, Callable[[int], str]]] = {
    "qmark": lambda n: "?",
    "numeric": lambda n: f":{n}",
    "named": lambda n: f":p{n}",
    "format": lambda n: "%s",
    "pyformat": lambda n: f"%(p{n})s",
}


class Cursor(Protocol):
    """The part of a PEP 249 cursor that is used."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, operation: Any, parameters: Any = ..., /) -> Any: ...

    def executemany(self, operation: Any, parameters: Any, /) -> Any: ...

    def fetchall(self) -> Any: ...

    def fetchmany(self, size: int = ..., /) -> Any: ...

    def close(self) -> Any: ...


class Connection(Protocol):
    """The part of a PEP 249 connection that is used."""

    def cursor(self) -> Cursor: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class Driver(Protocol):
    """The part of a PEP 249 module, such as ``sqlite3``, that is used."""

    @property
    def paramstyle(self) -> str: ...

    @property
    def Error(self) -> type[Exception]: ...  # noqa: N802 - the names are those of PEP 249

    @property
    def InterfaceError(self) -> type[Exception]: ...  # noqa: N802

    @property
    def OperationalError(self) -> type[Exception]: ...  # noqa: N802

    @property
    def InternalError(self) -> type[Exception]: ...  # noqa: N802

    @property
    def IntegrityError(self) -> type[Exception]: ...  # noqa: N802

    @property
    def DataError(self) -> type[Exception]: ...  # noqa: N802

    @property
    def ProgrammingError(self) -> type[Exception]: ...  # noqa: N802

    @property
    def NotSupportedError(self) -> type[Exception]: ...  # noqa: N802


class DbTransaction:
    """One open transaction, with the driver's parameter style."""

    def __init__(self, cursor: Cursor, paramstyle: str) -> None:
        self._cursor, self._style = cursor, paramstyle

    def run(self, statement: str, *values: Any) -> int:
        """Run a statement; return the number of changed rows."""
        self._execute(statement, values)
        return self._cursor.rowcount

    def rows(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        self._execute(statement, values)
        found: list[Sequence[Any]] = self._cursor.fetchall()
        return found

    def each(self, statement: str) -> Iterator[Sequence[Any]]:
        """Run a query; yield its rows, fetched in batches."""
        self._execute(statement, ())
        while found := self._cursor.fetchmany(LIMITS.rows_per_fetch):
            yield from found

    def run_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run the statement once per row, with the row's values."""
        self._cursor.executemany(_text(statement, self._style), [_values(row, self._style) for row in rows])

    def _execute(self, statement: str, values: Sequence[Any]) -> None:
        if values:
            self._cursor.execute(_text(statement, self._style), _values(values, self._style))
        else:
            self._cursor.execute(statement)


def _text(statement: str, style: str) -> str:
    """Return the statement with the placeholders of the driver's style."""
    first, *others = statement.replace("%", "%%" if style in ("format", "pyformat") else "%").split(P)
    return first + "".join(_STYLES[style](n) + text for n, text in enumerate(others, 1))


def _values(values: Sequence[Any], style: str) -> Any:
    if style in ("named", "pyformat"):
        return {f"p{n}": value for n, value in enumerate(values, 1)}
    return tuple(values)


class Database(ABC):
    """A description of a database. Complete ``driver``, ``connect`` and ``name``.

    All other members have defaults that most databases support: override those that yours handles differently. Every
    database must satisfy two requirements: a transaction is durable when ``commit`` has returned, and it locks the rows
    that it changes until then.
    """

    driver: Driver
    """The PEP 249 module of the connections."""
    text: str = "VARCHAR(200)"
    """A type for names that can be used in primary keys."""
    number: str = "BIGINT"
    """A type for whole numbers of 64 bits."""

    @abstractmethod
    def connect(self) -> Connection:
        """Return a new connection without autocommit. Only one thread uses it at a time, but not always the same one.

        Set a lock timeout of some seconds, so that a blocked statement is reported.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the database: the same in every process, for every login. It is stored: no secrets."""

    def is_retryable(self, error: Exception) -> bool:
        """Return whether an error is temporary: server unavailable or busy, lock timeout.

        All other errors need manual intervention and stop the job. Note: some drivers raise OperationalError also for a
        table that does not exist. Then exclude that error here; otherwise the job waits for it until its notices are
        read.
        """
        return isinstance(error, (self.driver.OperationalError, self.driver.InterfaceError, self.driver.InternalError))

    @property
    def row_errors(self) -> tuple[type[Exception], ...]:
        """Return the errors that staging a row may raise: those of the driver, and Python's for values that do
        not fit."""
        return (self.driver.Error, ValueError, TypeError, OverflowError)

    def is_row_error(self, error: Exception) -> bool:
        """Return whether an error is about the row's values."""
        driver = self.driver
        of_values = (driver.DataError, driver.IntegrityError, driver.ProgrammingError, driver.NotSupportedError)
        return isinstance(error, (*of_values, ValueError, TypeError, OverflowError))

    def quoted(self, identifier: str) -> str:
        return '"' + identifier.replace('"', '""') + '"'

    def table(self, name: str) -> str:
        """Return the quoted name of a table that the user names "table" or "schema.table"."""
        return ".".join(map(self.quoted, name.split(".")))

    def create_table(self, table: str, columns: Sequence[str], *, temporary: bool = False) -> str:
        """Return a statement. ``table`` is quoted, ``columns`` are definitions. A temporary table ends with its
        connection."""
        return f"CREATE {'TEMPORARY ' if temporary else ''}TABLE {table} ({', '.join(columns)})"

    def drop_table(self, table: str) -> str:
        """Return a statement for a table that may not exist."""
        return f"DROP TABLE IF EXISTS {table}"

    # ------------------------------------------------------------ used by the package

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Yield a connection, which is closed afterwards."""
        connection = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[DbTransaction]:
        """Run one transaction: everything done in the context is durable after it, or nothing is done."""
        try:
            cursor = connection.cursor()
            yield DbTransaction(cursor, self.driver.paramstyle)
            cursor.close()
            connection.commit()
        except BaseException:
            with suppress(self.driver.Error):  # the connection is broken; the original error is raised
                connection.rollback()
            raise

    @contextmanager
    def open_transaction(self) -> Iterator[DbTransaction]:
        """Open a connection and run one transaction on it."""
        with self.connected() as connection, self.transaction(connection) as session:
            yield session

    @contextmanager
    def mapped(self, kind: type[KafkaEosError], what: str) -> Iterator[None]:
        """Map errors: ``kind`` for a temporary error, ConfigError for one that needs manual intervention."""
        try:
            yield
        except (self.driver.Error, OSError) as error:
            if isinstance(error, OSError) or self.is_retryable(error):
                raise kind(f"could not {what}: {format_error(error)}") from error
            raise ConfigError(
                f"{self.name} refuses to {what}: {format_error(error)}. Nothing is lost: repair it "
                "and start again, the job "
                "goes on from its last epoch."
            ) from error


def format_error(error: Exception) -> str:
    """Return the driver's message as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
