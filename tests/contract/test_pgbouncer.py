"""PostgresSink behind a real PgBouncer: a pool of sessions works, and a pool of transactions is refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import psycopg
import pytest

from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.connectors.postgres.connection import PostgresDatabase, WriterConnection
from kafka_eos.core.errors import ConfigError
from tests.contract.carriers import JOB, by_postgres
from tests.contract.pgbouncer import find_pgbouncer, pooling

pytestmark = pytest.mark.skipif(
    find_pgbouncer() is None, reason="pgbouncer is not installed (Debian's package pgbouncer)"
)


class Row(msgspec.Struct):
    id: int
    text: str


def test_rows_go_through_a_pool_of_sessions(database: Callable[[], str]) -> None:
    rows = [Row(1, "a"), Row(2, "b")]
    with pooling(database(), "session") as through:
        assert by_postgres(through, {"id": "bigint", "text": "text"})(Row, rows) == (rows, set())


def test_a_pool_of_transactions_is_refused_at_the_start(database: Callable[[], str]) -> None:
    server = database()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE TABLE rows (id bigint PRIMARY KEY, text text)")
    with pooling(server, "transaction") as through, pytest.raises(ConfigError, match="pool_mode=session"):
        PostgresSink(through, "rows", value=Row, key="id").check(JOB)


def test_no_other_client_of_a_pool_gets_an_asynchronous_commit(database: Callable[[], str]) -> None:
    with (
        pooling(database(), "transaction") as through,
        PostgresDatabase(through).connect("test") as ours,
        psycopg.connect(through, autocommit=True) as other,
    ):
        with WriterConnection(ours).asynchronous() as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
        assert other.execute("SHOW synchronous_commit").fetchone() == ("on",)
