"""What a PostgresSink does beyond the contract of every sink: rows that are refused, tables that change, lost answers.

On a real PostgreSQL. Whole jobs that are killed: ``tests/chaos/test_tables.py``.
"""

from __future__ import annotations

import datetime
import enum
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psycopg
import pydantic
import pytest
from msgspec.structs import replace

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.abc.services import Services
from kafka_eos.connectors.postgres import PostgresCommitter, PostgresSink
from kafka_eos.connectors.postgres.connection import ConnectionPool, PostgresDatabase, WriterConnection
from kafka_eos.connectors.postgres.sink import prepared_transactions
from kafka_eos.coordination.epochs import EpochCommitter
from kafka_eos.core.error_messages import show_error_messages
from kafka_eos.core.errors import CommittableLost, ConfigError, Fenced, PoisonRecord, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.devtools.postgres import PostgresServer
from kafka_eos.protocol.commit import CommitAuthorized, authorize
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing.list_source import ListOrigin
from tests.marks import campaign
from tests.waiting import eventually

A, B = JobIdentity("a" * 12), JobIdentity("b" * 12)


class Account(msgspec.Struct):
    name: str
    total: int
    closed: bool = False


@dataclass
class Kit:
    """A database, and what tests do with a sink in it."""

    conninfo: str
    refused: list[tuple[int, str]] = field(default_factory=list)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def sink(self, table: str = "accounts", value: Any = Account, **options: Any) -> PostgresSink[Any]:
        return PostgresSink(self.conninfo, table, value=value, **options)

    def upsert(self) -> PostgresSink[Any]:
        return self.sink(key="name", delete=lambda account: account.closed, columns=("name", "total"))

    def writer(self, sink: PostgresSink[Any], ctx: JobContext | None = None, first: int = 1) -> Any:
        def reject(batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
            self.refused.append((batch.origin_rows[index], str(error)))

        services = Services(reject_row=reject)
        return sink.writer(TaskContext(ctx or job(), 0, 1, "out", services, Epoch(first)))

    def prepared(self, sink: PostgresSink[Any], *values: Any, ctx: JobContext | None = None) -> Committable:
        sink.check(ctx or job())
        with closing_writer(self.writer(sink, ctx)) as writer:
            writer.write(rows(*values))
            (committable,) = writer.seal(epoch(1))()
            return committable


def job(term: int = 1, identity: JobIdentity | None = A) -> JobContext:
    return JobContext("orders", Term(term), {}, identity)


def epoch(number: int, term: int = 1) -> EpochId:
    return EpochId(Epoch(number), Term(term))


def permit(number: int = 1, term: int = 1) -> CommitPermit:
    return CommitPermit(epoch(number, term))


def rows(*values: Any) -> Batch[Any]:
    return Batch(list(values), range(len(values)), ListOrigin("in", "list", 0, 0, list(values)))


@contextmanager
def closing_writer(writer: Any) -> Iterator[Any]:
    try:
        yield writer
    finally:
        writer.discard()


@contextmanager
def committer_of(sink: PostgresSink[Any], ctx: JobContext | None = None) -> Iterator[PostgresCommitter]:
    with closing(sink.committer(ctx or job())) as committer:
        yield committer


def commit(sink: PostgresSink[Any], committable: Committable, number: int = 1) -> CommitOutcome:
    with committer_of(sink) as committer:
        return committer.commit(permit(number), committable)


def probe(sink: PostgresSink[Any], committable: Committable) -> CommitStatus:
    with committer_of(sink) as committer:
        return committer.probe(committable).status


@pytest.fixture
def kit(database: Callable[[], str]) -> Kit:
    kit = Kit(database())
    kit.ask("CREATE TABLE accounts (name text PRIMARY KEY, total integer NOT NULL CHECK (total >= 0), closed boolean)")
    return kit


# ---------------------------------------------------------------- rows


def test_of_a_keys_rows_in_an_epoch_the_last_one_counts(kit: Kit) -> None:
    changes = [
        Account("a", 1), Account("b", 1), Account("a", 2), Account("b", 0, closed=True), Account("c", 0, closed=True),
        Account("c", 7), Account("a", 3), Account("d", 4), Account("e", 5),
    ]  # fmt: skip
    kit.ask("INSERT INTO accounts VALUES ('b', 100), ('e', 100), ('stays', 9)")

    commit(kit.upsert(), kit.prepared(kit.upsert(), *changes))

    found = kit.ask("SELECT name, total FROM accounts ORDER BY name")
    assert found == [("a", 3), ("c", 7), ("d", 4), ("e", 5), ("stays", 9)]


@pytest.mark.parametrize("sink", [Kit.sink, Kit.upsert], ids=["insert", "upsert"])
def test_a_row_that_the_table_would_refuse_is_refused_when_it_is_staged_and_its_neighbours_are_not(
    kit: Kit, sink: Callable[[Kit], PostgresSink[Any]]
) -> None:
    bad = [Account("big", 2**40), Account("nul\0", 1), Account("null", None), Account("negative", -1), "no account"]  # type: ignore[arg-type]
    mixed = [Account("first", 1), *bad, Account("last", 2)]

    committable = kit.prepared(sink(kit), *mixed)
    commit(sink(kit), committable)

    assert sorted(index for index, _ in kit.refused) == [1, 2, 3, 4, 5]
    reasons = " | ".join(reason for _, reason in kit.refused)
    assert all(word in reasons for word in ("out of range", "NUL", "total is NOT NULL", "check constraint", "expected"))
    assert "public.accounts, column 'total': value" in reasons, "whoever reads it knows what to look at"
    assert committable.records == 2
    assert kit.ask("SELECT name, total FROM accounts ORDER BY total") == [("first", 1), ("last", 2)]


def test_a_writers_asynchronous_commits_end_with_their_transactions(kit: Kit) -> None:
    """Behind a pooler, another client may get the session next, with its settings."""
    link = WriterConnection(PostgresDatabase(kit.conninfo).connect("test"))
    level = "SHOW synchronous_commit"

    with link.asynchronous() as connection:
        assert connection.execute(level).fetchone() == ("off",)
    with link.durable() as connection:
        assert connection.execute(level).fetchone() == ("on",)
    with link.acquire() as connection:
        assert connection.execute(level).fetchone() == ("on",)
    link.close()


def test_a_session_of_another_client_is_refused_at_the_start_and_by_durable_transactions(kit: Kit) -> None:
    """A pooler with pool_mode=transaction gives a connection sessions that other connections have used."""
    database = PostgresDatabase(kit.conninfo)
    with database.connect("test") as connection:
        database.ensure_sessions(connection)
        connection.execute("DISCARD ALL")

        with pytest.raises(ConfigError, match="pool_mode=session"):
            database.ensure_sessions(connection)
        with pytest.raises(ConfigError, match="pool_mode=session"), WriterConnection(connection).durable():
            pass
        with pytest.raises(ConfigError, match="pool_mode=session"):
            prepared_transactions.begin(connection, uuid.uuid4())


PARTED = "CREATE TABLE parts (name text, total int NOT NULL, closed bool, PRIMARY KEY (name, total)) PARTITION BY "


@pytest.mark.parametrize(
    "tables",
    [
        (PARTED + "RANGE (total)", "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10)"),
        (
            PARTED + "RANGE (total)",
            "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10) PARTITION BY LIST (name)",
            "CREATE TABLE leaf PARTITION OF part DEFAULT",
        ),
        ("CREATE TABLE parts (name text, total int, closed bool) PARTITION BY LIST (abs(total))",
         "CREATE TABLE part PARTITION OF parts FOR VALUES IN (4, 7)"),
    ],
    ids=["range", "two levels", "expression"],
)  # fmt: skip
def test_a_row_without_a_partition_is_refused_when_it_is_staged(kit: Kit, tables: tuple[str, ...]) -> None:
    for table in tables:
        kit.ask(table)
    sink = kit.sink("parts", key=("name", "total") if "KEY" in tables[0] else ())

    commit(sink, kit.prepared(sink, Account("a", 4), Account("b", 10), Account("c", -1), Account("d", 7)))

    assert sorted(index for index, _ in kit.refused) == [1, 2]
    assert all("a partition of the table takes the row" in reason for _, reason in kit.refused)
    assert kit.ask("SELECT name FROM parts ORDER BY name") == [("a",), ("d",)]


def test_a_table_whose_partitions_take_each_row_needs_no_check_of_them(kit: Kit) -> None:
    kit.ask("CREATE TABLE parts (name text, total int, closed bool) PARTITION BY RANGE (total)")
    kit.ask("CREATE TABLE rest PARTITION OF parts DEFAULT")

    commit(kit.sink("parts"), kit.prepared(kit.sink("parts"), Account("a", 4)))

    assert kit.ask("SELECT name FROM parts") == [("a",)]


def test_an_epoch_stages_rows_for_a_partition_that_was_added_before_it(kit: Kit) -> None:
    kit.ask("CREATE TABLE parts (name text, total int, closed bool) PARTITION BY LIST (total)")
    sink = kit.sink("parts")
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("a", 1)))
        writer.seal(epoch(1))()
        kit.ask("CREATE TABLE part PARTITION OF parts FOR VALUES IN (1)")
        writer.write(rows(Account("b", 1)))
        (committable,) = writer.seal(epoch(2))()
    commit(sink, committable, 2)

    assert len(kit.refused) == 1
    assert kit.ask("SELECT name FROM parts") == [("b",)]


def test_a_row_whose_computed_column_cannot_be_is_refused_when_it_is_staged(kit: Kit) -> None:
    kit.ask(
        "CREATE TABLE sums (name text PRIMARY KEY, total int, big int GENERATED ALWAYS AS (total * 1000) STORED"
        " CHECK (big <> 7000), none int NOT NULL GENERATED ALWAYS AS (nullif(total, 3)) STORED)"
    )
    options: dict[str, Any] = {"key": "name", "delete": lambda account: account.closed, "columns": ("name", "total")}
    sink = kit.sink("sums", **options)
    values = [Account("a", 1), Account("b", 2**30), Account("c", 7), Account("d", 3), Account("e", 0, closed=True)]

    commit(sink, kit.prepared(sink, *values))

    assert sorted(index for index, _ in kit.refused) == [1, 2, 3]
    assert kit.ask("SELECT name, big FROM sums") == [("a", 1000)]


def test_a_row_that_is_refused_stops_the_job_at_its_record_where_nothing_else_is_said(kit: Kit) -> None:
    kit.sink().check(job())
    with (
        closing_writer(kit.sink().writer(TaskContext(job(), 0, 1, "out"))) as writer,
        pytest.raises(PoisonRecord, match="list/0/1.*out of range"),
    ):
        writer.write(rows(Account("a", 1), Account("big", 2**40)))


class Color(enum.Enum):
    RED = "red"


class Everything(msgspec.Struct):
    number: int
    ratio: float
    flag: bool
    text: str
    data: bytes
    money: Decimal
    at: datetime.datetime
    day: datetime.date
    span: datetime.timedelta
    id: uuid.UUID
    color: Color
    tags: list[str]
    account: Account
    maybe: int | None = None


def test_a_table_is_made_of_a_model_and_gives_back_what_was_written(kit: Kit) -> None:
    at = datetime.datetime(2024, 2, 29, 12, 30, 1, 500, tzinfo=datetime.UTC)
    value = Everything(
        -(2**62), 0.1, True, "a\tb\n\\N ✓ \"'; DROP TABLE x", b"\0\xff", Decimal("1.10"), at, at.date(),
        datetime.timedelta(days=1, seconds=5), uuid.UUID(int=7), Color.RED, ["x"], Account("a", 1),
    )  # fmt: skip
    sink = kit.sink('od"d; name', Everything, key="number", create=True)

    commit(sink, kit.prepared(sink, value))

    (found,) = kit.ask('SELECT * FROM "od""d; name"')
    plain = msgspec.structs.astuple(value)
    assert found == (*plain[:10], "red", ["x"], {"name": "a", "total": 1, "closed": False}, None)
    wanted = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'od\"d; name' AND is_nullable = 'YES'"
    assert kit.ask(wanted) == [(1,)]


# ---------------------------------------------------------------- what the audit asks


def test_the_audit_is_told_what_the_table_holds_of_values_and_of_which_none(kit: Kit) -> None:
    kit.ask("CREATE TABLE odd (name varchar(3) PRIMARY KEY, price numeric(6, 2), at timestamp(0), kept text)")
    kit.ask("ALTER TABLE odd ALTER kept SET DEFAULT 'of the table'")
    sink = kit.sink("odd", None, columns=("name", "price", "at"), key="name", delete=lambda row: row.get("gone", False))
    at = datetime.datetime(2026, 1, 31, 12, 0, 1)
    values = [
        {"name": "a", "price": Decimal("1.5"), "at": at},
        {"name": "much too long", "price": Decimal(1)},
        {"name": "b", "price": Decimal("0.3")},
        {"name": "a", "gone": True},
        {"name": "c", "price": Decimal(10) ** 9},
    ]
    refused: list[int] = []

    kept, told = sink.audit_rows(
        rows(*values), "out", lambda batch, index, *_: refused.append(batch.origin_rows[index])
    )

    assert (refused, list(kept.origin_rows)) == ([1, 4], [0, 2, 3])
    said = b'{"name":"a","price":1.50,"at":"2026-01-31T12:00:01"}'
    assert [(key, value) for key, value, _, _ in told] == [
        (b'{"name":"a"}', said),
        (b'{"name":"b"}', b'{"name":"b","price":0.30,"at":null}'),
        (b'{"name":"a"}', None),
    ]
    assert kit.ask("SELECT FROM odd") == []

    for number, value in enumerate((values[2], values[0]), 1):
        commit(sink, kit.prepared(sink, value), number)
    assert sorted(sink.audit_table_rows()) == [(key, value) for key, value, _, _ in told[:2]]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("", None),
        ("ALTER TABLE accounts ALTER name TYPE numeric USING 1", "values of name.* may be equal and look different"),
        ("CREATE COLLATION vague (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
         "ALTER TABLE accounts ALTER name TYPE text COLLATE vague", "values of name"),
        ('ALTER TABLE accounts ALTER name TYPE text COLLATE "C"', None),
        ("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
         "CREATE TRIGGER t BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION f()", "has a BEFORE trigger"),
        ("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
         "CREATE TRIGGER t AFTER INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION f()", None),
    ],
)  # fmt: skip
def test_a_table_says_why_its_rows_cannot_be_compared(kit: Kit, statement: str, said: str | None) -> None:
    if statement:
        kit.ask(statement)
    reason = kit.upsert().audit_obstacle()
    assert reason is None if said is None else re.search(said, str(reason))


def test_the_audit_needs_the_right_to_read_and_to_see_all_rows(kit: Kit) -> None:
    role = f"reader_{uuid.uuid4().hex[:8]}"
    kit.ask(f"CREATE ROLE {role} LOGIN; GRANT INSERT ON accounts TO {role}")
    try:
        sink = PostgresSink(kit.conninfo.replace("user=postgres", f"user={role}"), "accounts", value=Account)
        assert "GRANT SELECT ON public.accounts" in str(sink.audit_obstacle())
        kit.ask(f"GRANT SELECT ON accounts TO {role}; ALTER TABLE accounts ENABLE ROW LEVEL SECURITY")
        assert "row security" in str(sink.audit_obstacle())
        kit.ask("ALTER TABLE accounts DISABLE ROW LEVEL SECURITY")
        assert sink.audit_obstacle() is None
    finally:
        kit.ask(f"DROP OWNED BY {role}; DROP ROLE {role}")


# ---------------------------------------------------------------- what is refused at the start


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("CREATE TABLE t (name text)", {}, "no column total, closed"),
        ("CREATE TABLE t (name text, total int, closed bool, more int NOT NULL)", {}, "more must not be null"),
        ("CREATE TABLE t (name text, total int, closed bool)", {"key": "name"}, "no primary key or unique index"),
        (
            "CREATE TABLE t (name text, total int, closed bool); CREATE UNIQUE INDEX ON t (name) WHERE closed",
            {"key": "name"},
            "neither partial",
        ),
        ("CREATE UNLOGGED TABLE t (name text, total int, closed bool)", {}, "unlogged"),
        (
            "CREATE TABLE t (name text, total int, closed bool) PARTITION BY LIST (total);"
            "CREATE TABLE sub PARTITION OF t FOR VALUES IN (1) PARTITION BY LIST (total);"
            "CREATE UNLOGGED TABLE leaf PARTITION OF sub DEFAULT",
            {},
            "its partition leaf is unlogged",
        ),
        (
            "CREATE TABLE t (name text, total int, closed bool) PARTITION BY LIST (total);"
            "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
            "CREATE FOREIGN TABLE far PARTITION OF t DEFAULT SERVER s",
            {},
            "its partition far is a foreign table",
        ),
        (
            "CREATE DOMAIN d AS int NOT NULL; CREATE TABLE t (name text PRIMARY KEY, total d, closed bool)",
            {"key": "name", "delete": bool},
            "the domain of total is NOT NULL",
        ),
        ("CREATE VIEW t AS SELECT 'a' AS name, 1 AS total, true AS closed", {}, "it is a view"),
        (
            "CREATE TABLE t (name text, total int GENERATED ALWAYS AS (1) STORED, closed bool)",
            {},
            "the server itself computes total",
        ),
        ("CREATE TABLE other ()", {}, "table t does not exist"),
    ],
)
def test_a_sink_that_the_table_cannot_serve_is_refused(
    kit: Kit, table: str, options: dict[str, Any], said: str
) -> None:
    kit.ask(table)

    with pytest.raises(ConfigError, match=said):
        kit.sink("t", **options).check(job())


FITS = {
    "number": "smallint", "ratio": "real", "flag": "boolean", "text": "text char(3) jsonb",
    "data": "bytea", "money": "numeric", "at": "timestamp", "day": "date", "span": "interval", "id": "uuid",
    "color": "varchar(9)", "tags": "jsonb text[] int[]", "account": "json jsonb", "maybe": "int",
}  # fmt: skip
MISFITS = {
    "number": "uuid inet int[] boolean date text numeric numeric(5,0) real", "ratio": "int uuid boolean text numeric",
    "flag": "int numeric date text",
    "text": "int uuid date inet", "data": "int uuid text", "money": "uuid money int text real",
    "at": "int uuid boolean date time text", "day": "int uuid timestamptz text", "span": "int boolean time text",
    "id": "int bigint date text", "color": "int", "tags": "int uuid text", "account": "text int text[]",
    "maybe": "uuid",
}  # fmt: skip
"""Types of columns for fields of ``Everything``: some that take a value of it, and some that take none."""


@pytest.mark.parametrize("column", Everything.__struct_fields__)
def test_a_column_that_takes_no_value_of_its_field_is_refused_and_one_that_may_is_not(kit: Kit, column: str) -> None:
    def sink(tp: str) -> PostgresSink[Any]:
        kit.ask(f"DROP TABLE IF EXISTS t; CREATE TABLE t ({column} {tp})")
        return kit.sink("t", Everything, columns=(column,))

    for tp in FITS[column].split():
        sink(tp).check(job())
    for tp in MISFITS.get(column, "").split():
        said = f"its column {column} has type .* and cannot return the field's type .*: (declare|change)"
        with pytest.raises(ConfigError, match=said):
            sink(tp).check(job())


class Measured(msgspec.Struct):
    number: int
    ratio: float
    exact: Decimal
    local: pydantic.NaiveDatetime
    instant: Annotated[datetime.datetime, msgspec.Meta(tz=True)]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("number numeric(9,0)", "returns a Decimal, .* type int: declare .* a Decimal, or change the column to bigint"),
        ("ratio numeric", "returns a Decimal, .* type float: declare .* a Decimal, or .* to double precision"),
        ("exact real", "returns a float, .* type Decimal: declare .* a float, or change the column to numeric"),
        ("local timestamptz", "returns a datetime with a zone, .*: declare .* to timestamp without time zone"),
        ("instant timestamp", "returns a datetime without a zone, .*: declare .* to timestamp with time zone"),
    ],
)
def test_a_column_that_returns_another_class_is_refused_with_the_one_that_fits(
    kit: Kit, column: str, says: str
) -> None:
    kit.ask(f"CREATE TABLE t ({column})")

    with pytest.raises(ConfigError, match=says):
        kit.sink("t", Measured, columns=(column.split()[0],)).check(job())


@dataclass
class PartlyKnown:
    name: str
    first: Any
    total: int
    last: Any


def test_a_table_is_not_created_if_the_type_of_a_column_is_unknown(kit: Kit) -> None:
    with pytest.raises(ConfigError, match="the types of the columns first, last are unknown"):
        kit.sink("made", PartlyKnown, create=True).check(job())
    assert kit.ask("SELECT to_regclass('made')") == [(None,)]


def test_after_a_failed_call_a_committer_uses_none_of_its_connections_again(kit: Kit) -> None:
    """What broke one may have broken all, as a restart of the server does."""
    pool = ConnectionPool(PostgresDatabase(kit.conninfo), "kafka_eos test")
    with pool.one() as one, pool.one() as two, pool.one() as three:
        pass
    with pool.one() as again:
        assert again in (one, two, three)

    with pytest.raises(ZeroDivisionError), pool.one() as failing:
        _ = 1 / 0

    assert failing in (one, two, three)
    assert [each.closed for each in (one, two, three)] == [True] * 3
    with pool.one() as fresh, pool.one() as other:
        assert fresh.execute("SELECT 1").fetchone() == (1,)
    pool.close()
    assert fresh.closed and other.closed


def test_a_table_is_created_with_the_zones_that_its_fields_declare(kit: Kit) -> None:
    sink = kit.sink("t", Measured, create=True)
    now = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    good = Measured(1, 0.5, Decimal("1.5"), now.replace(tzinfo=None), now)
    bad = [
        replace(good, exact=1),
        replace(good, local=now),
        replace(good, instant=now.replace(tzinfo=None)),
    ]
    commit(sink, kit.prepared(sink, good, *bad))

    assert [index for index, _ in kit.refused] == [1, 2, 3]
    assert kit.ask("SELECT * FROM t") == [msgspec.structs.astuple(good)]


def test_a_domain_takes_what_the_type_below_it_returns(kit: Kit) -> None:
    kit.ask("CREATE DOMAIN price AS numeric(10,2); CREATE DOMAIN fair AS price CHECK (VALUE > 0)")
    kit.ask("CREATE TABLE t (name fair)")

    prices = [Decimal("1.50"), Decimal("1.505"), "1"]

    kit.prepared(kit.sink("t", None, columns=("name",)), *({"name": price} for price in prices))

    assert [index for index, _ in kit.refused] == [1, 2]


def test_a_type_with_rules_of_its_own_is_left_to_the_rows(kit: Kit) -> None:
    kit.ask("CREATE TYPE odd AS ENUM ('3'); CREATE DOMAIN large AS int CHECK (VALUE > 99999999)")
    kit.ask("CREATE TABLE t (number odd, maybe large)")

    kit.sink("t", Everything, columns=("number", "maybe")).check(job())


def test_a_user_needs_no_more_than_its_table_and_a_schema(kit: Kit) -> None:
    user = f"u{uuid.uuid4().hex[:8]}"
    kit.ask(f"CREATE ROLE {user} LOGIN")
    try:
        theirs = Kit(kit.conninfo.replace("user=postgres", f"user={user}"))
        with pytest.raises(ConfigError, match="permission denied"):
            theirs.upsert().check(job())
        kit.ask(f"CREATE SCHEMA kafka_eos AUTHORIZATION {user}; GRANT INSERT ON accounts TO {user}")
        with pytest.raises(ConfigError, match="GRANT SELECT, INSERT, UPDATE, DELETE"):
            theirs.upsert().check(job())
        kit.ask(f"GRANT SELECT, UPDATE, DELETE ON accounts TO {user}")

        commit(theirs.upsert(), theirs.prepared(theirs.upsert(), Account("a", 1)))

        assert kit.ask("SELECT name FROM accounts") == [("a",)]
    finally:
        kit.ask(f"DROP OWNED BY {user} CASCADE; DROP ROLE {user}")


def test_a_login_that_is_refused_between_decision_and_commit_is_asked_again_until_it_is_let_in(kit: Kit) -> None:
    """As with a password that was changed on the server, and not yet where libpq finds it. Connections are cut too."""
    user = f"u{uuid.uuid4().hex[:8]}"
    kit.ask(f"CREATE ROLE {user} LOGIN; CREATE SCHEMA kafka_eos AUTHORIZATION {user}; GRANT ALL ON accounts TO {user}")
    try:
        theirs = Kit(kit.conninfo.replace("user=postgres", f"user={user}"))
        committable = theirs.prepared(theirs.upsert(), Account("a", 1))
        with committer_of(theirs.upsert()) as committer:
            assert committer.probe(committable).status is CommitStatus.PREPARED
            kit.ask(f"ALTER ROLE {user} NOLOGIN")
            kit.ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'")
            for ask in (committer.probe, partial(committer.commit, permit())):
                with pytest.raises(Retryable, match="could not"):
                    ask(committable)
            with pytest.raises(Retryable, match="could not"):
                committer.commit(permit(), committable)
            kit.ask(f"ALTER ROLE {user} LOGIN")

            assert committer.probe(committable).status is CommitStatus.PREPARED
            assert committer.commit(permit(), committable) is CommitOutcome.COMMITTED
        assert kit.ask("SELECT name FROM accounts") == [("a",)]
    finally:
        kit.ask(f"DROP OWNED BY {user} CASCADE; DROP ROLE {user}")


@pytest.mark.parametrize("by", ["the sink", "a person"])
def test_a_table_that_was_there_and_is_gone_is_not_made_again(kit: Kit, by: str) -> None:
    sink = kit.sink("made", create=True)
    if by == "a person":
        kit.ask("CREATE TABLE made AS SELECT * FROM accounts")
    sink.check(job())
    sink.check(job())
    kit.ask("DROP TABLE made")

    with pytest.raises(ConfigError, match=r"DELETE FROM kafka_eos\.made"):
        sink.check(job())


def test_an_empty_database_is_written_to_only_by_a_job_that_has_written_to_none(kit: Kit) -> None:
    """A database that was restored from nothing looks like a new one."""
    sink, given = kit.sink("made", create=True), kit.sink()
    later = replace(job(), written_scopes=frozenset({sink.scope(job())}))

    with pytest.raises(ConfigError, match="neither table made nor schema kafka_eos exists in .* has written there"):
        sink.check(later)
    given.check(later)
    kit.ask("DROP SCHEMA kafka_eos CASCADE")
    sink.check(job())
    sink.check(later)
    kit.ask("DROP SCHEMA kafka_eos CASCADE")
    sink.check(later)


def test_rules_that_only_a_commit_can_check_are_said(kit: Kit) -> None:
    assert any("only a commit can check" in notice for notice in kit.sink().check(job()))


def test_a_server_that_is_away_is_asked_again() -> None:
    sink: PostgresSink[Any] = PostgresSink("host=127.0.0.1 port=1 dbname=x", "t", columns=("a",))

    with pytest.raises(Retryable, match="could not look at t"):
        sink.check(job())


# ---------------------------------------------------------------- between the stage and the commit


def test_rows_that_break_a_rule_of_several_rows_are_kept_until_the_table_is_repaired(kit: Kit) -> None:
    kit.ask("INSERT INTO accounts VALUES ('a', 100)")
    committable = kit.prepared(kit.sink(), Account("a", 1), Account("b", 2))

    with pytest.raises(ConfigError, match=r"duplicate key .*Key \(name\)=\(a\) already exists.* Nothing is lost"):
        commit(kit.sink(), committable)
    assert kit.ask("SELECT name FROM accounts") == [("a",)]
    assert probe(kit.sink(), committable) is CommitStatus.PREPARED
    kit.ask("DELETE FROM accounts")

    assert commit(kit.sink(), committable) is CommitOutcome.COMMITTED
    assert kit.ask("SELECT name FROM accounts ORDER BY name") == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("spoil", "repair"),
    [
        ("ALTER TABLE accounts RENAME TO moved", "ALTER TABLE moved RENAME TO accounts"),
        ("ALTER TABLE accounts RENAME COLUMN total TO t", "ALTER TABLE accounts RENAME COLUMN t TO total"),
        ("ALTER TABLE accounts ALTER total TYPE date USING now()", "ALTER TABLE accounts ALTER total TYPE int USING 0"),
    ],
)
def test_a_table_that_was_changed_meanwhile_takes_the_rows_when_it_is_repaired(
    kit: Kit, spoil: str, repair: str
) -> None:
    kit.ask("ALTER TABLE accounts DROP CONSTRAINT accounts_total_check")
    committable = kit.prepared(kit.upsert(), Account("a", 1))
    kit.ask(spoil)

    with pytest.raises(ConfigError, match="PostgreSQL refuses to commit .* Nothing is lost"):
        commit(kit.upsert(), committable)
    kit.ask(repair)

    assert commit(kit.upsert(), committable) is CommitOutcome.COMMITTED
    assert kit.ask("SELECT name, total FROM accounts") == [("a", 1)]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One of this test's own, whose users have said that commits need not wait for the disk."""
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="kafka-eos-postgres-"))).start()
    Kit(server.conninfo).ask("ALTER DATABASE postgres SET synchronous_commit = off")
    yield server
    server.remove()


@contextmanager
def crashing(server: PostgresServer) -> Iterator[None]:
    """The server crashes at the end, and loses all that no durable transaction of this block has flushed."""
    asked = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
    (walwriter,) = eventually(lambda: Kit(server.conninfo).ask(asked), "the log has its writer")[0]
    os.kill(walwriter, signal.SIGSTOP)
    yield
    os.kill(walwriter, signal.SIGKILL)
    server.stop(signal.SIGQUIT)


def test_what_is_prepared_and_what_is_committed_survive_a_crash_of_the_server(server: PostgresServer) -> None:
    kit = Kit(server.conninfo)
    kit.ask("CREATE TABLE accounts (name text, total integer, closed boolean)")
    sink = kit.sink()
    sink.check(job())
    with committer_of(sink) as committer, closing_writer(kit.writer(sink, first=2)) as writer:
        with crashing(server):
            committable = kit.prepared(sink, Account("a", 1))
            committer.probe(committable)  # it keeps its connection
            writer.write(rows(Account("b", 2)))
        with pytest.raises(Retryable):
            committer.commit(permit(), committable)
        with pytest.raises(RestartFromCheckpoint):
            writer.write(rows(Account("b", 3)))
        server.start()

        with crashing(server):
            assert committer.commit(permit(), committable) is CommitOutcome.COMMITTED
        server.start()

        assert _until_answered(lambda: committer.commit(permit(), committable)) is CommitOutcome.ALREADY
        committer.abort_leftovers(job(2))
        assert not committer.list_staged(job(2))
    assert kit.ask("SELECT name FROM accounts") == [("a",)]


# ---------------------------------------------------------------- answers that are lost


@contextmanager
def cut_at(conninfo: str, word: bytes) -> Iterator[str]:
    """A way to the server on which the answer to the first message with ``word`` is lost, though it is carried out."""
    port = int(conninfo.split("port=")[1].split()[0])
    listener = socket.create_server(("127.0.0.1", 0))
    cut = threading.Event()

    def pump(source: socket.socket, sink: socket.socket, outward: bool, over: threading.Event) -> None:
        try:
            while data := source.recv(65536):
                if outward and word in data and not cut.is_set():
                    cut.set()
                    over.set()  # before the server can answer
                if over.is_set() and not outward:
                    return
                sink.sendall(data)
        except OSError:
            pass  # one of both has gone
        finally:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", port))
            over = threading.Event()
            for ends in ((client, server, True), (server, client, False)):
                threading.Thread(target=pump, args=(*ends, over), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with closing(listener):
        yield conninfo.replace(f"port={port}", f"port={listener.getsockname()[1]}")
        assert cut.is_set(), "no answer was lost, so nothing is proved"


def test_a_commit_whose_answer_was_lost_is_found_in_the_ledger(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), Account("a", 1))
    with cut_at(kit.conninfo, b"COMMIT") as way, committer_of(Kit(way).sink()) as committer:
        with pytest.raises(Retryable, match="could not commit"):
            committer.commit(permit(), committable)
        eventually(lambda: kit.ask("SELECT * FROM accounts"), "the server carries out what it was told")

        assert committer.commit(permit(), committable) is CommitOutcome.ALREADY
    assert kit.ask("SELECT name FROM accounts") == [("a",)]


def test_without_a_trace_nobody_can_tell_until_a_person_says_so(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), Account("a", 1))
    commit(kit.sink(), committable)
    kit.ask("TRUNCATE kafka_eos.ledger")

    with committer_of(kit.sink()) as committer:
        seen = committer.probe(committable)
        assert seen.status is CommitStatus.UNKNOWN
        with pytest.raises(CommittableLost):
            committer.commit(permit(), committable)
        kit.ask("INSERT INTO" + seen.detail.partition("INSERT INTO")[2].partition(";")[0])

        assert committer.commit(permit(), committable) is CommitOutcome.ALREADY


def test_the_ledger_keeps_what_may_still_be_asked_for_and_no_more(kit: Kit) -> None:
    sink = kit.upsert()
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer:
        for number in range(1, 6):
            writer.write(rows(Account("a", number)))
            (committable,) = writer.seal(epoch(number))()
            commit(sink, committable, number)

    assert kit.ask("SELECT epoch FROM kafka_eos.ledger") == [(5,)]
    assert kit.ask("SELECT total FROM accounts") == [(5,)]
    assert kit.ask(r"SELECT relname FROM pg_class WHERE relname LIKE 'stage\_%' AND relkind = 'r'") == []


# ---------------------------------------------------------------- incarnations, terms and processes that stand still


def test_each_incarnation_undoes_its_own(kit: Kit) -> None:
    mine, theirs = (
        kit.prepared(kit.sink(), Account(str(incarnation), 1), ctx=job(1, incarnation)) for incarnation in (A, B)
    )

    with committer_of(kit.sink()) as committer:
        (name,) = committer.abort_leftovers(job(9, A))
        assert name == f"kafka_eos.stage_{mine.payload['id']}"
        assert (committer.probe(mine).status, committer.probe(theirs).status) == (
            CommitStatus.LOST,
            CommitStatus.PREPARED,
        )
        (left,) = committer.list_staged(job(9, A))
        assert (left.identity, left.term, left.detail) == (B, Term(1), "1 rows, prepared, for public.accounts")


def test_an_incarnation_whose_registration_was_taken_away_prepares_nothing_more(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    with committer_of(sink) as committer, closing_writer(kit.writer(sink)) as writer:
        committer.register(job())
        writer.write(rows(Account("a", 1)))
        assert [incarnation.state for incarnation in committer.list_incarnations(job())] == [IncarnationState.OPEN]

        assert len(committer.retire(job(1, B), A)) == 1

        with pytest.raises(Fenced):
            writer.seal(epoch(1))()
        with pytest.raises(Fenced):
            writer.write(rows(Account("b", 1)))
        with pytest.raises(Fenced, match="took over"):
            committer.register(job(2))
        assert [incarnation.state for incarnation in committer.list_incarnations(job())] == [IncarnationState.OVER]


def test_a_writer_whose_rows_were_dropped_prepares_nothing(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    with committer_of(sink) as committer, closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("a", 1)))
        assert committer.abort_leftovers(job(2))

        with pytest.raises(Fenced, match="a newer term"):
            writer.seal(epoch(1))()


def test_a_writer_of_an_older_term_begins_nothing_once_a_newer_one_is_there(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    with committer_of(sink) as committer, closing_writer(kit.writer(sink)) as writer:
        committer.register(job(2))

        with pytest.raises(Fenced, match="term 2"):
            writer.write(rows(Account("a", 1)))
        with pytest.raises(Fenced, match="term 2"):
            committer.register(job(1))
        assert not committer.list_staged(job(2))


STANDS_STILL = """
import os, signal, sys
import psycopg
connection = psycopg.connect(sys.argv[1], application_name=sys.argv[2])
connection.execute("SELECT * FROM kafka_eos.staged FOR UPDATE")
print("holds", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("role", ["writer aaaaaaaaaaaa", campaign("committer")])
def test_a_process_that_stands_still_in_a_transaction_keeps_nobody_from_ending_it(kit: Kit, role: str) -> None:
    """SIGSTOP leaves its locks. Whoever waits for them ends its connection after a few seconds."""
    committable = kit.prepared(kit.sink(), Account("a", 1))
    command = [sys.executable, "-c", STANDS_STILL, kit.conninfo, f"kafka_eos {role} orders"]
    zombie = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert zombie.stdout is not None and zombie.stdout.readline() == "holds\n"
        with committer_of(kit.sink()) as committer:
            assert _until_answered(lambda: committer.commit(permit(), committable)) is CommitOutcome.COMMITTED
    finally:
        zombie.kill()
        zombie.wait()
    assert kit.ask("SELECT name FROM accounts") == [("a",)]


def _until_answered(call: Callable[[], Any]) -> Any:
    """As the coordinator repeats it."""
    while True:
        try:
            return call()
        except Retryable:
            time.sleep(0.05)


def test_two_processes_that_commit_at_once_commit_once(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), *(Account(str(n), n) for n in range(2000)))
    outcomes: list[CommitOutcome] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(_until_answered(lambda: commit(kit.sink(), committable))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcome.value for outcome in outcomes) == ["already"] * 3 + ["committed"]
    assert kit.ask("SELECT count(*) FROM accounts") == [(2000,)]


# ---------------------------------------------------------------- the order of a writer's epochs


@pytest.fixture
def two_epochs(kit: Kit) -> list[Committable]:
    """Of one writer, and of one manifest: the first epoch was given up. Key ``k`` is 1 in it, then 2."""
    kit.upsert().check(job())
    with closing_writer(kit.writer(kit.upsert())) as writer:
        writer.write(rows(Account("a", 1), Account("k", 1)))
        older = writer.seal(epoch(1))()
        writer.write(rows(Account("k", 2)))
        return [*older, *writer.seal(epoch(2))()]


def test_whichever_epoch_of_a_writer_is_committed_first_the_newer_value_stays(
    kit: Kit, two_epochs: list[Committable]
) -> None:
    older, newer = two_epochs

    assert commit(kit.upsert(), newer, 2) is CommitOutcome.COMMITTED
    assert kit.ask("SELECT name, total FROM accounts ORDER BY name") == [("a", 1), ("k", 2)]
    assert commit(kit.upsert(), older, 2) is CommitOutcome.ALREADY

    assert kit.ask("SELECT name, total FROM accounts ORDER BY name") == [("a", 1), ("k", 2)]


def test_a_given_up_epoch_is_committed_before_the_next_one_of_its_writer(
    kit: Kit, two_epochs: list[Committable]
) -> None:
    other = kit.prepared(kit.upsert(), Account("other", 1))  # of another subtask, which goes first and alone
    committables = [other, *two_epochs]
    kit.ask("INSERT INTO accounts VALUES ('a', 0)")
    with committer_of(kit.upsert()) as committer, psycopg.connect(kit.conninfo) as holder:
        finisher = EpochCommitter(
            MemoryStorage(), {other.scope: committer}, Retrier(threading.Event(), lambda said: None)
        )
        decision = authorize(epoch(2), finisher.probe(committables), margin=10)
        assert isinstance(decision, CommitAuthorized)
        holder.execute("SELECT FROM accounts FOR UPDATE")  # only what is older has this row
        done = threading.Thread(target=lambda: finisher.commit(committables, decision))
        done.start()
        waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        newer = f"SELECT id FROM kafka_eos.ledger WHERE id = '{two_epochs[1].payload['id']}'"
        eventually(lambda: len(kit.ask(waits)) == 2 or kit.ask(newer), "the newer one waits too, or has overtaken")
        holder.rollback()
        done.join()

    assert kit.ask("SELECT name, total FROM accounts ORDER BY name") == [("a", 1), ("k", 2), ("other", 1)]


def test_if_a_stage_is_lost_its_predecessor_is_not_committed_with_it(kit: Kit, two_epochs: list[Committable]) -> None:
    older, newer = two_epochs
    kit.ask(f"DELETE FROM kafka_eos.staged WHERE id = '{newer.payload['id']}'")

    with pytest.raises(CommittableLost):
        commit(kit.upsert(), newer, 2)

    assert probe(kit.upsert(), older) is CommitStatus.PREPARED
    assert kit.ask("SELECT name FROM accounts") == []


def test_what_is_committed_is_not_named_again(kit: Kit) -> None:
    kit.upsert().check(job())
    with closing_writer(kit.writer(kit.upsert())) as writer:
        after = []
        for number in (1, 2, 3):
            writer.write(rows(Account("a", number)))
            (committable,) = writer.seal(epoch(number))()
            after.append(len(committable.payload["after"]))
            if number == 2:
                writer.notify_committed(epoch(1))
    assert after == [0, 1, 1]


def test_a_commit_that_lands_while_it_is_probed_is_not_lost(kit: Kit) -> None:
    """One look is one state, however long it takes: here the server waits in the middle of it."""
    kit.ask(
        "CREATE SCHEMA slow; CREATE FUNCTION slow.pg_is_in_recovery() RETURNS boolean LANGUAGE sql VOLATILE"
        " AS 'SELECT pg_catalog.pg_is_in_recovery() FROM pg_advisory_xact_lock(7)'"
    )
    committable = kit.prepared(kit.upsert(), Account("a", 1))
    slow = Kit(f"{kit.conninfo} options='-csearch_path=slow,pg_catalog,public'")
    seen: list[CommitStatus] = []
    with psycopg.connect(kit.conninfo) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(7)")
        probing = threading.Thread(target=lambda: seen.append(probe(slow.upsert(), committable)))
        probing.start()
        waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
        eventually(lambda: kit.ask(waits), "the probe has begun")
        assert commit(kit.upsert(), committable) is CommitOutcome.COMMITTED
        holder.rollback()
        probing.join()

    assert seen == [CommitStatus.PREPARED]
    assert probe(kit.upsert(), committable) is CommitStatus.COMMITTED


# ---------------------------------------------------------------- what the server says


TRIGGER = """
    CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {} RETURN NEW; END$$;
    CREATE TRIGGER t BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION f()
"""


@pytest.mark.parametrize(
    ("spoil", "repair", "state"),
    [
        (TRIGGER.format("NEW.name = 'x';"), "DROP TRIGGER t ON accounts", "21000"),
        (TRIGGER.format("RAISE EXCEPTION 'no' USING ERRCODE = 'SH001';"), "DROP TRIGGER t ON accounts", "SH001"),
        (
            "ALTER TABLE accounts REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE accounts",
            "DROP PUBLICATION p",
            "55000",
        ),
    ],
    ids=["two rows of a key", "custom code", "publication"],
)
def test_what_does_not_pass_by_itself_is_said_and_not_repeated_for_ever(
    kit: Kit, spoil: str, repair: str, state: str
) -> None:
    kit.ask("INSERT INTO accounts VALUES ('b', 0)")
    committable = kit.prepared(kit.upsert(), Account("a", 1), Account("b", 2))
    kit.ask(spoil)

    with pytest.raises(ConfigError, match=rf"SQLSTATE {state}\).* Nothing is lost"):
        commit(kit.upsert(), committable)
    kit.ask(repair)

    assert commit(kit.upsert(), committable) is CommitOutcome.COMMITTED
    assert kit.ask("SELECT name, total FROM accounts ORDER BY name") == [("a", 1), ("b", 2)]


def test_an_error_inside_the_server_is_asked_again_and_blames_nobody(kit: Kit) -> None:
    kit.ask("INSERT INTO accounts VALUES ('b', 0)")
    committable = kit.prepared(kit.upsert(), Account("a", 1))
    kit.ask(TRIGGER.format("RAISE EXCEPTION 'cache lookup failed' USING ERRCODE = 'XX000';"))

    with pytest.raises(Retryable, match="cache lookup failed .SQLSTATE XX000: an error inside the server"):
        commit(kit.upsert(), committable)
    kit.ask("DROP TRIGGER t ON accounts")

    assert commit(kit.upsert(), committable) is CommitOutcome.COMMITTED


@pytest.mark.parametrize("type_name", ["text", "bytea", "numeric"])
def test_a_key_for_which_an_index_has_no_room_is_refused_when_it_is_staged(kit: Kit, type_name: str) -> None:
    kit.ask(f"CREATE TABLE t (name {type_name} PRIMARY KEY, total integer)")
    short, squeezable, long = {
        "text": ("a", "a" * 9000, random.Random(1).randbytes(3000).hex()),
        "bytea": (b"a", b"a" * 9000, random.Random(1).randbytes(3000)),
        "numeric": (Decimal(1), Decimal(10) ** 9000, Decimal(random.Random(1).getrandbits(40_000))),
    }[type_name]
    sink: PostgresSink[Any] = PostgresSink(kit.conninfo, "t", columns=("name", "total"), key="name")

    committable = kit.prepared(sink, *({"name": name, "total": 1} for name in (short, long, squeezable)))
    commit(sink, committable)

    assert [(index, "index row" in said) for index, said in kit.refused] == [(1, True)]
    assert kit.ask("SELECT count(*) FROM t") == [(2,)]


LONG = "long" + random.Random(1).randbytes(9000).hex()


@pytest.mark.parametrize(
    ("index", "bad", "why"),
    [
        ("(note)", LONG, "index row"),
        ("(lower(note)) WHERE total < 5", LONG, "index row"),
        ("USING brin (note)", LONG, "index row"),
        ("((note::integer)) WHERE note <> 'good'", "bad", "invalid input syntax"),
    ],
)
def test_a_value_that_any_index_rejects_is_refused_when_it_is_staged(kit: Kit, index: str, bad: str, why: str) -> None:
    """Otherwise the commit would fail, for ever."""
    kit.ask('CREATE TABLE "t USING t" (name text PRIMARY KEY, note text, total integer)')
    kit.ask(f'CREATE INDEX "i ON i" ON "t USING t" {index}')
    sink: PostgresSink[Any] = PostgresSink(kit.conninfo, "t USING t", columns=("name", "note", "total"), key="name")

    values = ({"name": name, "note": note, "total": 1} for name, note in (("a", "good"), ("b", bad), ("c", None)))
    commit(sink, kit.prepared(sink, *values))

    assert [(row, why in said) for row, said in kit.refused] == [(1, True)]
    assert kit.ask('SELECT count(*) FROM "t USING t"') == [(2,)]


def test_a_text_that_is_no_utf8_is_the_fault_of_its_row(kit: Kit) -> None:
    commit(kit.sink(), kit.prepared(kit.sink(), Account("a", 1), Account("\ud800x", 2), Account("c", 3)))

    assert [index for index, _ in kit.refused] == [1] and "surrogate" in kit.refused[0][1]
    assert kit.ask("SELECT name FROM accounts ORDER BY name") == [("a",), ("c",)]


@pytest.mark.parametrize("shown", [False, True])
def test_a_warning_of_the_client_does_not_quote_a_row(kit: Kit, shown: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The client fails at a row while the server has already refused one before it: the client logs its message."""
    show_error_messages(shown)
    sink = kit.sink()
    sink.check(job())
    card = 4929_0000_1111_2222
    with closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("a", card), *[Account("x" * 10_000, 1)] * 100, Account("\ud800", 1)))

    assert [index for index, _ in kit.refused] == [0, 101]
    assert "error ignored terminating" in caplog.text
    assert (str(card) in caplog.text) is shown


@pytest.mark.parametrize("cut", [False, True], ids=["one epoch", "two epochs"])
def test_what_a_table_holds_does_not_depend_on_where_epochs_are_cut(kit: Kit, cut: bool) -> None:
    kit.ask("ALTER TABLE accounts ADD made integer DEFAULT 7; INSERT INTO accounts VALUES ('k', 1, false, 99)")
    sink = kit.upsert()
    sink.check(job())
    committables: list[Committable] = []
    with closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("k", 1, closed=True)))
        if cut:
            committables += writer.seal(epoch(1))()
        writer.write(rows(Account("k", 5)))
        committables += writer.seal(epoch(2))()
    for committable in committables:
        commit(sink, committable, 2)

    assert kit.ask("SELECT name, total, made FROM accounts") == [("k", 5, 7)]


def test_a_writer_that_waits_for_a_barrier_is_not_idle_to_the_server(kit: Kit) -> None:
    impatient = Kit(f"{kit.conninfo} options='-cidle_session_timeout=100ms -cstatement_timeout=100ms'")
    sink = impatient.upsert()
    sink.check(job())
    with closing_writer(impatient.writer(sink)) as writer:
        writer.write(rows(Account("a", 1)))
        with psycopg.connect(f"{kit.conninfo} options='-cidle_session_timeout=150ms'", autocommit=True) as other:
            eventually(lambda: _is_ended(other), "the server ends who is idle for longer than the writer may be")
        assert len(writer.seal(epoch(1))()) == 1


def _is_ended(connection: psycopg.Connection[Any]) -> bool:
    time.sleep(0.3)
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def test_a_zone_is_refused_by_a_column_that_would_drop_it(kit: Kit) -> None:
    kit.ask("CREATE TABLE t (at timestamp)")
    east = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    sink: PostgresSink[Any] = PostgresSink(kit.conninfo, "t", columns=("at",))
    times = east, east.astimezone(datetime.UTC), east.replace(tzinfo=None)

    commit(sink, kit.prepared(sink, *({"at": at} for at in times)))

    assert [index for index, _ in kit.refused] == [0, 1]
    assert kit.ask("SELECT at FROM t") == [(datetime.datetime(2024, 1, 1, 12),)]


def test_two_spellings_of_a_key_are_one_where_the_target_says_so(kit: Kit) -> None:
    kit.ask(
        "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "ALTER TABLE accounts ALTER name TYPE text COLLATE ci"
    )
    changes = [Account("bob", 3), Account("BOB", 4), Account("eve", 1), Account("EVE", 1, closed=True)]

    commit(kit.upsert(), kit.prepared(kit.upsert(), *changes))

    assert kit.ask("SELECT name, total FROM accounts") == [("BOB", 4)]


def test_a_zombie_with_an_open_stage_is_fenced(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    with committer_of(sink) as committer, closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("a", 1)))
        committer.abort_leftovers(job(2))

        with pytest.raises(Fenced, match="a newer term"):
            writer.write(rows(Account("b", 1)))
