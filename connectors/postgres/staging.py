"""Which rows a staging table does not take.

Rule: whose fault it is decides the server, row by row; nothing is staged while it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from kafka_eos.connectors.postgres import statements
from kafka_eos.connectors.postgres.client import ROW_ERRORS, Connection, of_a_row
from kafka_eos.connectors.postgres.names import Target


def refused(
    connection: Connection, stage: sql.Identifier, target: Target, rows: Sequence[Any], error: Exception
) -> dict[int, Exception]:
    """What is wrong with each row, by its index. ``error``: what all of them raised; raised again if no row is why."""
    errors: dict[int, Exception] = {}
    if of_a_row(error, target) is None:
        raise error
    with connection.transaction(force_rollback=True):
        for index, row in enumerate(rows):
            try:
                with connection.transaction():
                    statements.copy_into(connection, stage, target.columns, [row])
            except ROW_ERRORS as alone:
                wrong = of_a_row(alone, target)
                if wrong is None:
                    raise
                errors[index] = wrong
    if not errors:
        raise error
    return errors
