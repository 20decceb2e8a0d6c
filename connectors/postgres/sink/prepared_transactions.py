"""Prepared transactions: create one, check whether it exists, end it.

A name can be ended once: of two concurrent attempts, one succeeds and the other finds nothing. The outcome is then in
the ledger, because the transaction itself contains its marker; see ``staging_catalog``.
Rule: this module does not interpret "not found".
"""

from __future__ import annotations

import uuid

import psycopg
from psycopg import sql

from kafka_eos.connectors._staged_tables.stage_names import build_transaction_name
from kafka_eos.connectors.postgres.connection import Connection, ensure_own_session
from kafka_eos.core.errors import RestartFromCheckpoint, Retryable

_END_WRITER = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = %s AND usename = current_user AND pid <> pg_backend_pid()
"""


def begin(connection: Connection, of: uuid.UUID) -> None:
    """Begin a transaction on a connection of its own. A process that has to end it finds the connection by its name."""
    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    ensure_own_session(connection)
    connection.execute("SELECT set_config('application_name', %s, true)", (build_transaction_name(of),))


def prepare(connection: Connection, of: uuid.UUID) -> None:
    """Prepare the transaction: from here on it is durable, and survives its connection."""
    status = connection.execute(
        sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(build_transaction_name(of)))
    ).statusmessage
    if status != "PREPARE TRANSACTION":  # the server turns a failed transaction into a ROLLBACK, without an error
        raise RestartFromCheckpoint(
            f"could not prepare transaction {build_transaction_name(of)}: the server responded {status}"
        )


def is_there(connection: Connection, of: uuid.UUID) -> bool:
    """Return whether the transaction is prepared, and not ended."""
    return build_transaction_name(of) in list_prepared(connection)


def list_prepared(connection: Connection, *, everywhere: bool = False) -> set[str]:
    """List the names of prepared transactions in this database, or on the whole server."""
    query = "SELECT gid FROM pg_prepared_xacts WHERE %s OR database = current_database()"
    return {name for (name,) in connection.execute(query, (everywhere,))}


def commit(connection: Connection, of: uuid.UUID) -> bool:
    """Commit a prepared transaction; return whether it existed. Raise Retryable while another process ends it."""
    return _end(connection, "COMMIT PREPARED {}", of)


def roll_back(connection: Connection, of: uuid.UUID) -> bool:
    """Roll back a prepared transaction; return whether it existed.

    This also terminates a connection that still writes it, which may belong to a frozen process.
    """
    connection.execute(_END_WRITER, (build_transaction_name(of),))
    return is_there(connection, of) and _end(connection, "ROLLBACK PREPARED {}", of)


def _end(connection: Connection, how: str, of: uuid.UUID) -> bool:
    try:
        connection.execute(sql.SQL(how).format(sql.Literal(build_transaction_name(of))))
    except psycopg.errors.UndefinedObject:
        return False
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise Retryable(f"another process is ending transaction {build_transaction_name(of)}") from error
    return True
