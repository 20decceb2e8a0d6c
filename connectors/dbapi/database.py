"""A database as PEP 249 describes it, and what differs between databases: ``Database``, which a user completes.

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
"""Where a parameter goes, in the statements of this package. No identifier can hold it."""
_STYLES: Final[Mapping[str, Callable[[int], str]]] = {
    "qmark": lambda n: "?",
    "numeric": lambda n: f":{n}",
    "named": lambda n: f":p{n}",
    "format": lambda n: "%s",
    "pyformat": lambda n: f"%(p{n})s",
}


class Cursor(Protocol):
    """What is used of a cursor of PEP 249."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, operation: Any, parameters: Any = ..., /) -> Any: ...

    def executemany(self, operation: Any, parameters: Any, /) -> Any: ...

    def fetchall(self) -> Any: ...

    def fetchmany(self, size: int = ..., /) -> Any: ...

    def close(self) -> Any: ...


class Connection(Protocol):
    """What is used of a connection of PEP 249."""

    def cursor(self) -> Cursor: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class Driver(Protocol):
    """What is used of a module of PEP 249, such as ``sqlite3``."""

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


class Session:
    """One transaction."""

    def __init__(self, cursor: Cursor, paramstyle: str) -> None:
        self._cursor, self._style = cursor, paramstyle

    def run(self, statement: str, *values: Any) -> int:
        """How many rows it changed."""
        self._execute(statement, values)
        return self._cursor.rowcount

    def rows(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        self._execute(statement, values)
        found: list[Sequence[Any]] = self._cursor.fetchall()
        return found

    def each(self, statement: str) -> Iterator[Sequence[Any]]:
        """Its rows, some at a time."""
        self._execute(statement, ())
        while found := self._cursor.fetchmany(LIMITS.rows_per_fetch):
            yield from found

    def run_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """The statement once with each row's values."""
        self._cursor.executemany(_text(statement, self._style), [_values(row, self._style) for row in rows])

    def _execute(self, statement: str, values: Sequence[Any]) -> None:
        if values:
            self._cursor.execute(_text(statement, self._style), _values(values, self._style))
        else:
            self._cursor.execute(statement)


def _text(statement: str, style: str) -> str:
    """With the placeholders of the driver's style."""
    first, *others = statement.replace("%", "%%" if style in ("format", "pyformat") else "%").split(P)
    return first + "".join(_STYLES[style](n) + text for n, text in enumerate(others, 1))


def _values(values: Sequence[Any], style: str) -> Any:
    if style in ("named", "pyformat"):
        return {f"p{n}": value for n, value in enumerate(values, 1)}
    return tuple(values)


class Database(ABC):
    """How to get to a database, and how it is spoken to. Complete ``driver``, ``connect`` and ``name``.

    All else has what most databases understand: replace what yours says in another way. What is asked of every one: a
    transaction is durable when ``commit`` has returned, and it takes the rows that it changes for itself until then.
    """

    driver: Driver
    """The module of PEP 249 whose connections these are."""
    text: str = "VARCHAR(200)"
    """A type for names, of which primary keys can be made."""
    number: str = "BIGINT"
    """A type for whole numbers of 64 bits."""

    @abstractmethod
    def connect(self) -> Connection:
        """A new connection, which does not commit by itself. One thread uses it at a time, and not always the same.

        Give it a limit of some seconds for locks, so that who waits for one is heard of.
        """

    @property
    @abstractmethod
    def name(self) -> str:
        """Which database it is: the same from every process, whoever logs in and however. It is stored: no secret."""

    def passes(self, error: Exception) -> bool:
        """Whether an error of the driver may pass by itself: the server is away, full, busy, a lock is not had.

        All others need a person and stop the job. The trap: some drivers raise OperationalError for a table that is not
        there, too; then say more here, or the job waits for it until somebody reads its notices.
        """
        return isinstance(error, (self.driver.OperationalError, self.driver.InterfaceError, self.driver.InternalError))

    @property
    def row_errors(self) -> tuple[type[Exception], ...]:
        """What staging a row may raise: errors of the driver, and what Python says of a value that does not fit."""
        return (self.driver.Error, ValueError, TypeError, OverflowError)

    def refuses_row(self, error: Exception) -> bool:
        """Whether an error that one row alone raised, when it was staged, is about its values."""
        driver = self.driver
        of_values = (driver.DataError, driver.IntegrityError, driver.ProgrammingError, driver.NotSupportedError)
        return isinstance(error, (*of_values, ValueError, TypeError, OverflowError))

    def quoted(self, identifier: str) -> str:
        return '"' + identifier.replace('"', '""') + '"'

    def table(self, name: str) -> str:
        """A table as the user names it: "table" or "schema.table"."""
        return ".".join(map(self.quoted, name.split(".")))

    def create_table(self, table: str, columns: Sequence[str], *, temporary: bool = False) -> str:
        """A statement; ``table`` is quoted, ``columns`` are definitions. A temporary one goes with its connection."""
        return f"CREATE {'TEMPORARY ' if temporary else ''}TABLE {table} ({', '.join(columns)})"

    def drop_table(self, table: str) -> str:
        """A statement for a table that may be gone already."""
        return f"DROP TABLE IF EXISTS {table}"

    # ------------------------------------------------------------ what the package does with it

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection for what is done within."""
        connection = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[Session]:
        """One transaction: what is done within is durable behind it, or none of it is done."""
        try:
            cursor = connection.cursor()
            yield Session(cursor, self.driver.paramstyle)
            cursor.close()
            connection.commit()
        except BaseException:
            with suppress(self.driver.Error):  # of a connection that is broken; what broke it is raised
                connection.rollback()
            raise

    @contextmanager
    def once(self) -> Iterator[Session]:
        """One transaction on a connection of its own."""
        with self.connected() as connection, self.transaction(connection) as session:
            yield session

    @contextmanager
    def mapped(self, kind: type[KafkaEosError], what: str) -> Iterator[None]:
        """``kind`` for what may pass, ConfigError for what a person must repair."""
        try:
            yield
        except (self.driver.Error, OSError) as error:
            if isinstance(error, OSError) or self.passes(error):
                raise kind(f"could not {what}: {said(error)}") from error
            raise ConfigError(
                f"{self.name} refuses to {what}: {said(error)}. Nothing is lost: repair it and start again, the job "
                "goes on from its last epoch."
            ) from error


def said(error: Exception) -> str:
    """The driver's words in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
