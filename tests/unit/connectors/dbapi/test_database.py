"""The differences between databases: the meaning of errors, the upsert statement, and the name."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Boolean, Connection, Dialect, Float, create_engine, text
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.exc import DatabaseError, DataError, DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.schema import CreateTable

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.dbapi import staging_catalog, statements, table_keys
from kafka_eos.connectors.dbapi.database import Database, format_error
from kafka_eos.connectors.dbapi.mysql_cells import find_change
from kafka_eos.connectors.dbapi.stored_cells import _describe_type, _type_of_readers
from kafka_eos.core.errors import ConfigError

MARIADB, POSTGRES = "mariadb+pymysql://app:secret@db/shop", "postgresql+psycopg://db:5432/shop"
PG8000 = "postgresql+pg8000://db/shop"


class DriverError(Exception):
    def __init__(self, *args: object, sqlstate: str | None = None) -> None:
        super().__init__(*args)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("url", "kind", "error", "meaning"),
    [
        (MARIADB, OperationalError, DriverError(4025, "CONSTRAINT failed", sqlstate="23000"), "row"),
        (MARIADB, OperationalError, DriverError(3819, "Check constraint is violated"), "row"),
        (MARIADB, DataError, DriverError(1264, "Out of range"), "row"),
        (MARIADB, OperationalError, DriverError(1205, "Lock wait timeout exceeded"), "outage"),
        (MARIADB, OperationalError, DriverError(2003, "Can't connect to server"), "outage"),
        (MARIADB, OperationalError, DriverError(1142, "INSERT command denied"), "person"),
        (POSTGRES, OperationalError, DriverError("connection refused"), "outage"),
        (POSTGRES, OperationalError, DriverError("deadlock detected", sqlstate="40P01"), "outage"),
        (POSTGRES, OperationalError, DriverError("no partition", sqlstate="23514"), "row"),
        (POSTGRES, OperationalError, DriverError("permission denied", sqlstate="42501"), "person"),
        (PG8000, DatabaseError, DriverError({"S": "ERROR", "C": "40P01", "M": "deadlock detected"}), "outage"),
        (PG8000, DatabaseError, DriverError({"S": "ERROR", "C": "23514", "M": "no partition"}), "row"),
        (PG8000, DatabaseError, DriverError({"S": "ERROR", "C": "42501", "M": "permission denied"}), "person"),
        (PG8000, InterfaceError, DriverError("network error"), "outage"),
        ("oracle+oracledb://db/shop", InterfaceError, DriverError("it is away"), "outage"),
        ("oracle+oracledb://db/shop", ProgrammingError, DriverError("a word too much"), "row"),
    ],
)
def test_an_error_is_an_outage_a_rows_fault_or_one_for_a_person(
    url: str, kind: type[DBAPIError], error: Exception, meaning: str
) -> None:
    database, wrapped = Database(url, {}), kind("INSERT", {}, error)

    of_row = database.find_row_error(wrapped, TargetTable("", "rows", ("id",), ()))
    found = "outage" if database.is_retryable(wrapped) else "person" if of_row is None else "row"

    assert found == meaning


def test_the_message_of_pg8000_is_that_of_the_server() -> None:
    error = DriverError({"S": "ERROR", "C": "42501", "M": "permission denied\nfor table orders", "R": "aclcheck"})

    assert format_error(DatabaseError("INSERT", {}, error)) == "DriverError: permission denied for table orders"


@pytest.mark.parametrize(
    ("url", "key", "clause"),
    [
        (MARIADB, ("id",), "ON DUPLICATE KEY UPDATE `Text` = VALUES(`Text`)"),
        (MARIADB, ("id", "Text"), "ON DUPLICATE KEY UPDATE `id` = VALUES(`id`), `Text` = VALUES(`Text`)"),
        (POSTGRES, ("id",), 'ON CONFLICT ("id") DO UPDATE SET "Text" = excluded."Text"'),
        (POSTGRES, ("id", "Text"), 'ON CONFLICT ("id", "Text") DO NOTHING'),
    ],
)
def test_an_upsert_updates_the_row_that_is_there_and_deletes_nothing(
    url: str, key: tuple[str, ...], clause: str
) -> None:
    statement = statements.apply(Database(url, {}), "stage", TargetTable("", "rows", ("id", "Text"), key))
    dialect: Dialect = mysql.dialect() if url == MARIADB else postgresql.dialect()  # type: ignore[no-untyped-call]

    text = str(statement.compile(dialect=dialect))

    assert text.startswith("INSERT INTO") and "DELETE" not in text
    assert text.endswith(clause)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (MARIADB, "mysql:db:3306/shop"),
        ("mysql+mysqldb://other@db:3306/shop", "mysql:db:3306/shop"),
        (POSTGRES, "postgresql:db:5432/shop"),
        ("postgresql+psycopg:///shop?host=/run/pg", "postgresql:/run/pg:5432/shop"),
        ("mysql+pymysql://app@/shop?unix_socket=/run/my.sock", "mysql:/run/my.sock:3306/shop"),
        ("mysql+pymysql://app@/shop", "mysql:localhost:3306/shop"),
        ("sqlite:////data/../data/shop.db", "sqlite:/data/shop.db"),
        ("postgresql+psycopg://app@db/sh@op", "postgresql:db:5432/sh@op"),
    ],
)
def test_a_databases_name_is_the_same_for_every_login_and_driver(url: str, name: str) -> None:
    assert Database(url, {}).name == name


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("my password is secret", "cannot read the URL"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("nosuch://db", "driver of 'nosuch' is not installed"),
        ("mysql+pymysql://app:my@secret@db/shop", "a password may have been cut"),
        ("mysql+pymysql://app:a@db/my@secret", "a password may have been cut"),
    ],
)
def test_a_url_that_names_no_lasting_database_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        Database(url, {}).engine.connect()

    assert "secret" not in str(raised.value)


class _Table:
    """What SQLAlchemy reads of a MySQL table: its primary key, unique keys with their lengths, and columns."""

    def __init__(self, primary: str, unique: dict[str, dict[str, int]], **columns: Any) -> None:
        self._primary, self._unique, self._columns = primary, unique, columns

    def get_pk_constraint(self, *_: object) -> dict[str, Any]:
        return {"constrained_columns": [self._primary]}

    def get_unique_constraints(self, *_: object) -> list[dict[str, Any]]:
        return [{"column_names": [name]} for name in self._unique]

    def get_indexes(self, *_: object) -> list[dict[str, Any]]:
        return [
            {"column_names": [name], "unique": True, "dialect_options": {"mysql_length": lengths} if lengths else {}}
            for name, lengths in self._unique.items()
        ]

    def get_columns(self, *_: object) -> list[dict[str, Any]]:
        return [
            {"name": name, "type": tp, **({"autoincrement": True} if name == "n" else {})}
            for name, tp in self._columns.items()
        ]


NAMES: dict[str, Any] = {"n": mysql.BIGINT(), "name": mysql.VARCHAR(50), "total": mysql.BIGINT()}


@pytest.mark.parametrize(
    ("table", "columns", "problem"),
    [
        (_Table("n", {"name": {}}, **NAMES), ("name", "total"), None),
        (_Table("n", {"name": {}}, **NAMES), ("n", "name", "total"), r"\(n\) is unique too"),
        (_Table("n", {"name": {"name": 10}}, **NAMES), ("name", "total"), "only the first characters of \\(name\\)"),
        (_Table("name", {"total": {"total": 4}}, **NAMES), ("name", "total"), "characters of \\(total\\) are unique"),
        (_Table("name", {}, name=mysql.TEXT()), ("name", "total"), "only the first characters of \\(name\\)"),
    ],
)
def test_a_row_of_mysql_replaces_only_the_one_of_its_key(
    table: _Table, columns: tuple[str, ...], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ON DUPLICATE KEY UPDATE also replaces a row that equals it in any other unique key."""
    connection: Any = SimpleNamespace(dialect=mysql.dialect())
    monkeypatch.setattr(table_keys, "inspect", lambda _: table)

    found = table_keys.find_key_problem(Database(MARIADB, {}), connection, TargetTable("", "t", columns, ("name",)))

    assert found is None if problem is None else re.search(problem, str(found))


@pytest.fixture
def information_schema() -> Iterator[Connection]:
    """What MySQL shows of its tables and engines: the same two views, in SQLite."""
    with create_engine("sqlite://").connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.create_function("DATABASE", 0, lambda: "shop")
        for statement in (
            "ATTACH ':memory:' AS information_schema",
            "CREATE TABLE information_schema.engines (engine, transactions)",
            "INSERT INTO information_schema.engines VALUES ('InnoDB', 'YES'), ('MyISAM', 'NO'), ('Gone', NULL)",
            "CREATE TABLE information_schema.tables (table_schema, table_name, table_type, engine)",
            "INSERT INTO information_schema.tables VALUES ('shop', 'safe', 'BASE TABLE', 'InnoDB'),"
            " ('shop', 'old', 'BASE TABLE', 'MyISAM'), ('archive', 'safe', 'BASE TABLE', 'MyISAM'),"
            " ('shop', 'gone', 'BASE TABLE', 'Gone'), ('shop', 'shown', 'VIEW', NULL)",
        ):
            connection.execute(text(statement))
        yield connection


@pytest.mark.parametrize(
    ("table", "engine"),
    [
        ("safe", None),
        ("old", "MyISAM"),
        ("archive.safe", "MyISAM"),
        ("shop.safe", None),
        ("gone", "Gone"),
        ("shown", None),
    ],
)
def test_a_mysql_table_whose_engine_ignores_rollbacks_is_found(
    information_schema: Connection, table: str, engine: str | None
) -> None:
    """Such a table keeps the rows of a commit that failed, and the repeated commit writes them again."""
    target = TargetTable("", table, ("id",), ())

    assert Database(MARIADB, {}).find_engine_without_transactions(information_schema, target) == engine
    assert Database(POSTGRES, {}).find_engine_without_transactions(information_schema, target) is None


def test_the_sinks_own_tables_have_transactions_whatever_the_servers_default_engine() -> None:
    dialects: list[Dialect] = [mysql.dialect(), MariaDBDialect()]  # type: ignore[no-untyped-call]
    stage = statements.make_stage_table(Database("sqlite:///x", {}), "stage", {"id": "INTEGER"})

    for dialect in dialects:
        for table in (stage, *staging_catalog._TABLES.sorted_tables):
            assert "ENGINE=InnoDB" in str(CreateTable(table).compile(dialect=dialect))


NOON = datetime.datetime(2026, 6, 1, 12)


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ([1], "no counterpart of a list"),
        ({"a": 1}, "no counterpart of a dict"),
        (uuid.UUID(int=0), "no counterpart of a UUID"),
        (NOON.replace(tzinfo=datetime.UTC), "would lose its offset"),
        (NOON.time().replace(tzinfo=datetime.UTC), "would lose its offset"),
    ],
)
def test_a_cell_that_drivers_of_mysql_would_change_rejects_its_row(cell: object, said: str) -> None:
    """``[1]`` would be stored as 1, and a UUID as what ``str()`` makes of it."""
    assert said in (find_change(cell) or "")


@pytest.mark.parametrize("cell", [None, "a", 1, True, 1.5, b"x", bytearray(b"x"), NOON, NOON.date(), NOON.time()])
def test_other_cells_are_left_to_the_driver(cell: object) -> None:
    assert find_change(cell) is None


def test_a_column_of_mysql_is_read_as_readers_of_its_table_do() -> None:
    wide, small = mysql.TINYINT(display_width=4), mysql.SMALLINT(display_width=1)

    assert isinstance(_type_of_readers(mysql.TINYINT(display_width=1)), Boolean)
    assert [_type_of_readers(tp) for tp in (wide, small)] == [wide, small]
    assert type(_type_of_readers(mysql.DOUBLE(asdecimal=True))) is Float


def test_texts_of_mysql_differ_by_their_character_set_and_not_by_their_collation() -> None:
    latin = _describe_type(mysql.VARCHAR(20, charset="latin1"), None)

    assert _describe_type(mysql.VARCHAR(20, charset="latin1", collation="latin1_bin"), "utf8mb4") == latin
    assert _describe_type(mysql.VARCHAR(20), "latin1") == latin
    assert _describe_type(mysql.VARCHAR(20), "utf8mb4") != latin
