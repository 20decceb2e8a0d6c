"""Prepared transactions: make one, see whether it is there, end it.

One name ends once: of two who try, one does it and the other finds nothing. What became of it then is in the books, as
it has written its own row there; see ``ledger``.

Rule: nothing here tells what "not found" means.
"""

from __future__ import annotations

import uuid

import psycopg
from psycopg import sql

from kafka_eos.connectors._staged_tables.stage_names import transaction
from kafka_eos.connectors.postgres.connection import Connection
from kafka_eos.core.errors import RestartFromCheckpoint, Retryable

_END_WRITER = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = %s AND usename = current_user AND pid <> pg_backend_pid()
"""


def begin(connection: Connection, of: uuid.UUID) -> None:
    """Begin a transaction on a connection of its own. Whoever has to end it finds the connection by its name."""
    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    connection.execute("SELECT set_config('application_name', %s, true)", (transaction(of),))


def prepare(connection: Connection, of: uuid.UUID) -> None:
    """The transaction of the connection survives it, durably, from here on."""
    said = connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(transaction(of)))).statusmessage
    if said != "PREPARE TRANSACTION":  # of one that has failed before the server makes a ROLLBACK, without an error
        raise RestartFromCheckpoint(f"could not prepare transaction {transaction(of)}: the server answers {said}")


def is_there(connection: Connection, of: uuid.UUID) -> bool:
    """Whether it is prepared, and not ended."""
    return transaction(of) in there(connection)


def there(connection: Connection, *, everywhere: bool = False) -> set[str]:
    """Names of all that are prepared in this database, or in all of the server."""
    query = "SELECT gid FROM pg_prepared_xacts WHERE %s OR database = current_database()"
    return {name for (name,) in connection.execute(query, (everywhere,))}


def commit(connection: Connection, of: uuid.UUID) -> bool:
    """Whether it was there. Raises Retryable while somebody else is ending it."""
    return _end(connection, "COMMIT PREPARED {}", of)


def roll_back(connection: Connection, of: uuid.UUID) -> bool:
    """The same; also ends the connection that is writing it still, which may belong to a process that is frozen."""
    connection.execute(_END_WRITER, (transaction(of),))
    return is_there(connection, of) and _end(connection, "ROLLBACK PREPARED {}", of)


def _end(connection: Connection, how: str, of: uuid.UUID) -> bool:
    try:
        connection.execute(sql.SQL(how).format(sql.Literal(transaction(of))))
    except psycopg.errors.UndefinedObject:
        return False
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise Retryable(f"somebody else is ending transaction {transaction(of)}") from error
    return True
