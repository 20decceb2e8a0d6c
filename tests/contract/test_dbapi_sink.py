"""What a DbApiSink does beyond the contract of every sink, on SQLite files and on a real PostgreSQL.

That it keeps the contract, as the page for those who write sinks shows it: ``tests/test_docs.py``. Whole jobs that are
killed: ``tests/chaos/test_dbapi.py``.
"""

from __future__ import annotations

import datetime
import math
import os
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, create_engine, event

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.abc.services import Services
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.core.errors import Bug, CommittableLost, ConfigError, CorruptCheckpoint, Fenced, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.testing import SINK_CHECKS, SinkUnderTest, check_sink
from kafka_eos.testing.list_source import ListOrigin
from tests.contract.databases import postgres_url
from tests.marks import campaign

A, B = JobIdentity("a" * 12), JobIdentity("b" * 12)
TABLE = 'CREATE TABLE rows ({n}, id BIGINT NOT NULL, "te%xt?" TEXT NOT NULL, at INTEGER DEFAULT 7{key})'
ORDERED = "n INTEGER PRIMARY KEY"
UPSERTS = {"key": ["id"]}


def _sqlite(tmp_path: Path, **options: Json) -> Callable[[], SinkUnderTest]:
    def fresh() -> SinkUnderTest:
        path = tmp_path / f"{uuid.uuid4().hex}.db"

        def ask(statement: str) -> list[Any]:
            with sqlite3.connect(path) as connection:
                return [{"id": number, "text": text} for number, text in connection.execute(statement)]

        def take_away() -> None:
            ask("DELETE FROM rows")

        ask(TABLE.format(n=ORDERED, key=", UNIQUE (id)" if options.get("key") else ""))
        return SinkUnderTest(
            "databases:sqlite_sink",
            {"path": str(path), **options},
            lambda: ask('SELECT id, "te%xt?" FROM rows ORDER BY n'),
            remove_visible=take_away,
        )

    return fresh


def _postgres(database: Callable[[], str], **options: Json) -> Callable[[], SinkUnderTest]:
    def fresh() -> SinkUnderTest:
        conninfo = database()

        def ask(statement: str) -> list[Any]:
            with psycopg.connect(conninfo) as connection:
                found = connection.execute(statement.encode())
                return [{"id": number, "text": text} for number, text in (found if found.description else ())]

        def take_away() -> None:
            ask("DELETE FROM rows")

        ask(TABLE.format(n="n bigint GENERATED ALWAYS AS IDENTITY", key=", UNIQUE (id)" if options.get("key") else ""))
        return SinkUnderTest(
            "databases:postgres_sink",
            {"server": conninfo, **options},
            lambda: ask('SELECT id, "te%xt?" FROM rows ORDER BY n'),
            remove_visible=take_away,
        )

    return fresh


@pytest.mark.parametrize("options", [UPSERTS, {}], ids=["upserts", "inserts"])
@pytest.mark.parametrize("check", [*map(campaign, SINK_CHECKS)])
def test_sqlite(check: str, options: dict[str, Json], tmp_path: Path) -> None:
    check_sink(_sqlite(tmp_path, **options), check)


@pytest.mark.parametrize("options", [{}, campaign(UPSERTS)], ids=str)
@pytest.mark.parametrize(
    "check",
    [
        "happy-path",
        "abort-leftovers",
        "zombie",
        *(campaign(name) for name in SINK_CHECKS if name not in ("happy-path", "abort-leftovers", "zombie")),
    ],
)
def test_another_database(check: str, options: dict[str, Json], database: Callable[[], str]) -> None:
    """PostgreSQL: another style of parameters, transactions that an error ends, locks of rows."""
    check_sink(_postgres(database, **options), check)


# ---------------------------------------------------------------- beyond the contract


COLUMNS = {"account": "TEXT NOT NULL", "total": "INTEGER NOT NULL CHECK (total >= 0)"}


@dataclass
class Kit:
    """An SQLite file with a table, and what tests do with a sink of it."""

    path: Path
    refused: list[tuple[int, str]] = field(default_factory=list)

    def ask(self, statement: str) -> list[Any]:
        with sqlite3.connect(self.path) as connection:
            return connection.execute(statement).fetchall()

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def sink(self, table: str = "totals", **options: Any) -> DbApiSink[Any]:
        return DbApiSink(self.url, table, options.pop("columns", COLUMNS), **options)

    @contextmanager
    def writer(self, sink: DbApiSink[Any], ctx: JobContext | None = None, first: int = 1) -> Iterator[Any]:
        def reject(batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
            self.refused.append((batch.origin_rows[index], str(error)))

        services = Services(reject_row=reject)
        writer = sink.writer(TaskContext(ctx or job(), 0, 1, "out", services, Epoch(first)))
        try:
            yield writer
        finally:
            writer.discard()

    def prepared(self, sink: DbApiSink[Any], *values: Any) -> Committable:
        sink.check(job())
        with self.writer(sink) as writer:
            writer.write(batch(*values))
            (committable,) = writer.seal(epoch(1))()
            found: Committable = committable
            return found


def job(term: int = 1, identity: JobIdentity | None = A) -> JobContext:
    return JobContext("orders", Term(term), {}, identity)


def epoch(number: int, term: int = 1) -> EpochId:
    return EpochId(Epoch(number), Term(term))


def permit(number: int = 1, term: int = 1) -> CommitPermit:
    return CommitPermit(epoch(number, term))


def batch(*values: Any) -> Batch[Any]:
    return Batch(list(values), range(len(values)), ListOrigin("in", "list", 0, 0, list(values)))


def row(account: str, total: Any) -> dict[str, Any]:
    return {"account": account, "total": total}


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    kit = Kit(tmp_path / "totals.db")
    kit.ask("CREATE TABLE totals (account TEXT NOT NULL, total INTEGER NOT NULL, at INTEGER DEFAULT 7)")
    kit.ask("CREATE TABLE balances (account TEXT PRIMARY KEY, total INTEGER NOT NULL, at INTEGER DEFAULT 7)")
    return kit


def test_rows_that_the_table_would_refuse_are_refused_when_they_are_staged_and_their_neighbours_are_kept(
    kit: Kit,
) -> None:
    sink = kit.sink()
    bad = [row("b", None), row("c", -1), row("d", 2**70), row("e", {}), row("\ud800", 1), {"account": "f"}]

    committable = kit.prepared(sink, row("a", 1), *bad, row("g", 2))
    sink.committer(job()).commit(permit(), committable)

    assert kit.ask("SELECT account, total FROM totals") == [("a", 1), ("g", 2)]
    assert [index for index, _ in sorted(kit.refused)] == [1, 2, 3, 4, 5, 6]
    assert any("CHECK constraint failed" in error for _, error in kit.refused)
    assert committable.records == 2


class Vector:
    """A cell that its driver adapts to another value, and that compares its elements, as arrays do."""

    def __conform__(self, protocol: object) -> int:
        return 7

    def __ne__(self, other: object) -> Any:
        raise ValueError("the truth value of an array is ambiguous")


def test_a_cell_that_the_driver_or_the_column_changes_is_refused_when_it_is_staged(kit: Kit) -> None:
    sink = kit.sink(columns={**COLUMNS, "account": "TEXT NOT NULL"})
    bad = [Vector(), math.nan, Decimal("NaN"), "1", 1.0, True]

    sink.committer(job()).commit(permit(), kit.prepared(sink, row("a", 1), *(row("b", cell) for cell in bad)))

    assert kit.ask("SELECT account, total FROM totals") == [("a", 1)]
    assert sorted(index for index, _ in kit.refused) == [1, 2, 3, 4, 5, 6]
    assert any(text.startswith("totals, column 'total' of type INTEGER(): '1' would come") for _, text in kit.refused)


def test_a_row_that_cannot_be_read_back_is_refused_and_not_its_neighbours(kit: Kit) -> None:
    kit.ask("CREATE TABLE days (day DATE)")
    sink = kit.sink("days", columns={"day": "DATE"})
    days = [datetime.date(2026, 6, 1), "no date", datetime.date(1, 1, 1)]

    sink.committer(job()).commit(permit(), kit.prepared(sink, *({"day": day} for day in days)))

    assert kit.ask("SELECT day FROM days") == [("2026-06-01",), ("0001-01-01",)]
    assert [index for index, _ in kit.refused] == [1]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"name": "VARCHAR(50)", "total": "INTEGER"}, "'name' is VARCHAR(length=20), but is declared as VARCH"),
        ({"NAME": "VARCHAR(20)", "total": "INTEGER"}, "'total' is INTEGER() NOT NULL, but is declared as INT"),
    ],
    ids=str,
)
def test_columns_that_are_declared_unlike_the_table_are_refused_at_the_start(
    kit: Kit, columns: dict[str, str], said: str
) -> None:
    """A longer text or a null would be staged, and refused in the commit."""
    kit.ask("CREATE TABLE narrow (name VARCHAR(20), total INTEGER NOT NULL)")

    with pytest.raises(ConfigError, match=re.escape(f"does not describe narrow: the column {said}")):
        kit.sink("narrow", columns=columns).check(job())


def test_a_row_of_cells_that_are_too_few_is_refused_and_not_shifted(kit: Kit) -> None:
    class Short(DbApiSink[Any]):
        def row(self, value: Any) -> Any:
            return [value["account"]] if value["total"] is None else [value["account"], value["total"]]

    kit.prepared(Short(kit.url, "totals", COLUMNS), row("a", 1), row("b", None))

    assert kit.refused == [(1, "totals has 2 columns, but row() returned 1 cells")]


def test_of_a_keys_rows_the_last_one_updates_the_row_that_is_there(kit: Kit) -> None:
    kit.ask("INSERT INTO balances VALUES ('a', 1, 1), ('z', 26, 1)")
    sink = kit.sink("balances", key="account")

    sink.committer(job()).commit(permit(), kit.prepared(sink, row("a", 2), row("b", 3), row("a", 4)))

    assert sorted(kit.ask("SELECT * FROM balances")) == [("a", 4, 1), ("b", 3, 7), ("z", 26, 1)]


def test_an_upsert_of_a_parent_row_takes_no_row_of_another_table_away(kit: Kit) -> None:
    kit.ask("INSERT INTO balances VALUES ('a', 1, 1)")
    kit.ask("CREATE TABLE orders (account TEXT REFERENCES balances (account) ON DELETE CASCADE)")
    kit.ask("CREATE TABLE bills (account TEXT REFERENCES balances (account))")
    kit.ask("INSERT INTO orders VALUES ('a')")
    kit.ask("INSERT INTO bills VALUES ('a')")
    sink = kit.sink("balances", key="account", connect_args={"factory": Referring})

    sink.committer(job()).commit(permit(), kit.prepared(sink, row("a", 2)))

    assert kit.ask("SELECT account, total FROM balances") == [("a", 2)]
    assert kit.ask("SELECT * FROM orders") == kit.ask("SELECT * FROM bills") == [("a",)]


class Referring(sqlite3.Connection):
    """A connection that checks foreign keys."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("PRAGMA foreign_keys = ON")


def test_the_table_decides_which_keys_are_equal(kit: Kit) -> None:
    """A staging table may compare text differently from the table, because its columns are declared by the user."""
    sink = kit.sink("balances", key="account", columns={**COLUMNS, "account": "TEXT NOT NULL COLLATE NOCASE"})

    sink.committer(job()).commit(permit(), kit.prepared(sink, row("a", 1), row("A", 2), row("a", 3)))

    assert sorted(kit.ask("SELECT account, total FROM balances")) == [("A", 2), ("a", 3)]


def test_a_row_whose_columns_are_all_of_the_key_stays_as_it_is(kit: Kit) -> None:
    kit.ask("CREATE TABLE accounts (account TEXT PRIMARY KEY)")
    sink = kit.sink("accounts", columns={"account": "TEXT"}, key="account")

    sink.committer(job()).commit(permit(), kit.prepared(sink, {"account": "a"}, {"account": "a"}))

    assert kit.ask("SELECT * FROM accounts") == [("a",)]


def test_a_row_with_null_in_its_key_is_refused(kit: Kit) -> None:
    sink = kit.sink("balances", key="account", columns={"account": "TEXT", "total": "INTEGER NOT NULL"})

    sink.committer(job()).commit(permit(), kit.prepared(sink, row("a", 1), {"account": None, "total": 2}))

    assert kit.refused == [(1, "balances, column 'account': it is part of the key, and must not be null")]
    assert kit.ask("SELECT account, total FROM balances") == [("a", 1)]


def test_the_commit_of_a_later_stage_takes_along_what_the_same_writer_has_staged_before(kit: Kit) -> None:
    """Epochs 2 and 3 are given up late, and their output goes with epoch 4. Their older rows must not come last.

    The notice of epoch 1 comes when both are prepared, and changes nothing for them.
    """
    sink = kit.sink("balances", key="account")
    sink.check(job())
    committer = sink.committer(job())
    found = list[Committable]()
    with kit.writer(sink) as writer:
        for number, names in enumerate(("z", "abc", "ab", "a"), 1):
            writer.write(batch(*(row(name, number) for name in names)))
            found += writer.seal(epoch(number))()
            if number == 3:
                assert committer.commit(permit(1), found[0]) is CommitOutcome.COMMITTED
                writer.notify_committed(epoch(1))

    assert committer.commit(permit(4), found[3]) is CommitOutcome.COMMITTED
    assert stages(kit) == []
    assert [committer.commit(permit(4), each) for each in (found[2], found[1])] == [CommitOutcome.ALREADY] * 2
    assert sorted(kit.ask("SELECT account, total FROM balances")) == [("a", 4), ("b", 3), ("c", 2), ("z", 1)]


def test_if_a_stage_is_lost_its_older_sibling_is_not_committed_with_it(kit: Kit) -> None:
    sink = kit.sink("balances", key="account")
    sink.check(job())
    committer, found = sink.committer(job()), list[Committable]()
    with kit.writer(sink) as writer:
        for number in (1, 2):
            writer.write(batch(row("a", number)))
            found += writer.seal(epoch(number))()
    kit.ask(f"DELETE FROM kafka_eos_stages WHERE id = '{found[1].payload['id']}'")

    with pytest.raises(CommittableLost):
        committer.commit(permit(2), found[1])

    assert committer.probe(found[0]).status is CommitStatus.PREPARED
    assert kit.ask("SELECT * FROM balances") == []


def test_of_stages_that_have_ended_each_is_remembered_until_it_is_dropped(kit: Kit) -> None:
    """A process dies after it has dropped one of two: the next one finds the other."""
    sink = kit.sink()
    sink.check(job())
    committer = sink.committer(job())
    with kit.writer(sink) as one, kit.writer(sink) as other:
        for writer in (one, other):
            writer.write(batch(row("a", 1)))
    first, second = (uuid.UUID(of) for (of,) in kit.ask("SELECT id FROM kafka_eos_stages"))

    with committer._session("test", None) as connection:
        assert committer._catalog.abort(connection, first) and committer._catalog.abort(connection, second)
        committer._catalog.drop(connection, first)
        assert committer._catalog.list_undropped(connection, "orders") == [second]
    committer.abort_leftovers(job(2))
    assert stages(kit) == []


def test_a_permit_for_an_earlier_epoch_and_a_payload_from_elsewhere_commit_nothing(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    with kit.writer(sink, first=5) as writer:
        writer.write(batch(row("a", 1)))
        (committable,) = writer.seal(epoch(5))()
    with pytest.raises(Bug):
        sink.committer(job()).commit(permit(4), committable)
    with pytest.raises(CorruptCheckpoint):
        sink.committer(job()).commit(permit(5), Committable("dbapi:x", {"id": "totals"}, 1))

    assert kit.ask("SELECT * FROM totals") == []


class Unheard(sqlite3.Connection):
    """A connection whose answer to the first commit that moves rows is lost."""

    lost = True

    def commit(self) -> None:
        counted = "SELECT count(*) FROM sqlite_master WHERE name = 'kafka_eos_stages'"
        made = self.execute(counted).fetchone()[0]
        moved = made and self.execute("SELECT count(*) FROM kafka_eos_stages WHERE state = 'committed'").fetchone()[0]
        super().commit()
        if moved and type(self).lost:
            type(self).lost = False
            error = sqlite3.OperationalError("the connection is gone")
            error.sqlite_errorcode = 10
            raise error


def test_when_the_answer_to_a_commit_is_lost_the_books_have_it(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), row("a", 1))
    committer = kit.sink(connect_args={"factory": Unheard}).committer(job())

    with pytest.raises(Retryable, match="the connection is gone"):
        committer.commit(permit(), committable)

    assert Unheard.lost is False
    assert committer.commit(permit(), committable) is CommitOutcome.ALREADY
    assert kit.ask("SELECT account, total FROM totals") == [("a", 1)]
    assert stages(kit) == []


def stages(kit: Kit) -> list[Any]:
    return kit.ask("SELECT name FROM sqlite_master WHERE name LIKE 'kafka_eos_stage\\_%' ESCAPE '\\'")


def test_a_lock_is_waited_for_and_a_table_that_is_gone_needs_a_person(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), row("a", 1))
    committer = kit.sink(connect_args={"timeout": 0}).committer(job())
    holding = sqlite3.connect(kit.path, isolation_level=None)
    holding.execute("BEGIN IMMEDIATE")
    with pytest.raises(Retryable, match="database is locked"):
        committer.commit(permit(), committable)
    holding.execute("ALTER TABLE totals RENAME TO elsewhere")
    holding.execute("COMMIT")
    with pytest.raises(ConfigError, match=r"no such table: totals\. Nothing is lost"):
        committer.commit(permit(), committable)
    holding.execute("ALTER TABLE elsewhere RENAME TO totals")
    holding.close()

    assert committer.commit(permit(), committable) is CommitOutcome.COMMITTED
    assert kit.ask("SELECT account, total FROM totals") == [("a", 1)]


def test_a_staging_table_that_somebody_dropped_is_no_rows_fault(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    with kit.writer(sink) as writer:
        writer.write(batch(row("a", 1)))
        kit.ask(f'DROP TABLE "{stages(kit)[0][0]}"')
        with pytest.raises(ConfigError, match="no such table"):
            writer.write(batch(row("b", 2), row("c", None)))

    assert kit.refused == []


def test_a_writer_whose_time_is_over_begins_and_prepares_nothing(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    committer = sink.committer(job())
    committer.register(job(1))
    with kit.writer(sink) as early, kit.writer(sink) as late:
        early.write(batch(row("a", 1)))
        prepare = early.seal(epoch(1))
        committer.register(job(2))
        with pytest.raises(Fenced, match="term 2 of job 'orders' writes here; this is term 1"):
            late.write(batch(row("b", 2)))
        with pytest.raises(Fenced):
            prepare()
    with pytest.raises(Fenced, match="this is term 1"):
        committer.register(job(1))


def test_an_incarnation_is_listed_with_its_newest_committed_epoch(kit: Kit) -> None:
    sink = kit.sink()
    committable = kit.prepared(sink, row("a", 1))
    committer = sink.committer(job())
    assert [incarnation.committed for incarnation in committer.list_incarnations(job())] == [None]

    committer.commit(CommitPermit(epoch(1)), committable)

    assert [incarnation.committed for incarnation in committer.list_incarnations(job())] == [epoch(1).epoch]


def test_an_incarnation_that_was_taken_over_stops_and_its_output_ends(kit: Kit) -> None:
    sink = kit.sink()
    committable = kit.prepared(sink, row("a", 1))
    committer = sink.committer(job())
    assert [(incarnation.identity, incarnation.state) for incarnation in committer.list_incarnations(job())] == [
        (A, IncarnationState.OPEN)
    ]

    assert len(committer.retire(job(identity=B), A)) == 1

    assert [(incarnation.identity, incarnation.state) for incarnation in committer.list_incarnations(job())] == [
        (A, IncarnationState.OVER)
    ]
    assert committer.probe(committable).status is CommitStatus.LOST
    with pytest.raises(Fenced):
        committer.register(job(2))
    with pytest.raises(CommittableLost):
        committer.commit(permit(), committable)
    with kit.writer(sink) as writer, pytest.raises(Fenced, match="was removed"):
        writer.write(batch(row("b", 1)))
    assert kit.ask("SELECT * FROM totals") == stages(kit) == []


def test_traces_go_when_a_later_commit_proves_that_nobody_asks_for_them(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    committer = sink.committer(job())
    with kit.writer(sink) as writer:
        for number in range(1, 6):
            writer.write(batch(row("a", number)))
            (committable,) = writer.seal(epoch(number))()
            committer.commit(permit(number), committable)

    assert kit.ask("SELECT epoch, state FROM kafka_eos_stages") == [(5, "committed")]
    assert stages(kit) == []


def test_without_a_row_in_the_books_nobody_can_tell_and_the_answer_says_what_to_do(kit: Kit) -> None:
    sink = kit.sink()
    committable = kit.prepared(sink, row("a", 1))
    kit.ask("DELETE FROM kafka_eos_stages")

    probe = sink.committer(job()).probe(committable)

    assert probe.status is CommitStatus.UNKNOWN
    assert "Most likely an older copy of the database was restored" in probe.detail


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"table": "Total"}, r"sqlite:.* has no table Total with columns account, total .*no such table"),
        ({"columns": {"account": "TEXT", "amount": "TEXT"}}, r"no such column: totals\.amount"),
        ({"columns": {"account": "TEXT NOT"}}, "refuses to look at totals"),
        ({"columns": {}}, "columns must not be empty"),
        ({"columns": {"kafka_eos_n": "TEXT"}}, "the column name kafka_eos_n is reserved"),
        ({"key": "user"}, r"key: user is not a column of the sink \(they are account, total\)"),
        ({"key": ("account", "account")}, "a column is named twice"),
        ({"key": "account"}, r"no primary key or unique index has exactly the columns \(account\)"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused_at_the_start(kit: Kit, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        kit.sink(**options).check(job())


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ((), "insert rows into totals: .*is of type integer but expression is of type text"),
        (("account",), "replace rows of totals by key: .*types text and integer cannot be matched"),
    ],
)
def test_a_commit_that_the_database_would_refuse_is_refused_at_the_start(
    database: Callable[[], str], key: tuple[str, ...], said: str
) -> None:
    """Here for its types. Otherwise the first commit would find it, after the decision."""
    conninfo = database()
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE totals (account integer PRIMARY KEY, total integer)")
    columns = {"account": "text", "total": "integer"}
    sink: DbApiSink[Any] = DbApiSink(postgres_url(conninfo), "totals", columns, key=key)

    with pytest.raises(ConfigError, match=f"cannot {said}"):
        sink.check(job())


def test_a_deferrable_constraint_is_refused_as_a_key(database: Callable[[], str]) -> None:
    """ON CONFLICT refuses it with the first row that it inserts."""
    conninfo = database()
    with psycopg.connect(conninfo) as connection:
        connection.execute('CREATE TABLE "to""tals" (account text UNIQUE DEFERRABLE, total integer)')
    columns = {"account": "text", "total": "integer"}
    sink: DbApiSink[Any] = DbApiSink(postgres_url(conninfo), 'to"tals', columns, key="account")

    with pytest.raises(ConfigError, match=r"the constraint of \(account\) is deferrable"):
        sink.check(job())


def test_two_spellings_of_a_key_are_one_where_the_table_says_so(kit: Kit, database: Callable[[], str]) -> None:
    """ON CONFLICT refuses to update a row twice."""
    conninfo = database()
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        connection.execute("CREATE TABLE balances (account text COLLATE ci PRIMARY KEY, total integer)")
    sink: DbApiSink[Any] = DbApiSink(postgres_url(conninfo), "balances", COLUMNS, key="account")

    sink.committer(job()).commit(permit(), kit.prepared(sink, row("bob", 3), row("eve", 1), row("BOB", 4)))

    with psycopg.connect(conninfo) as connection:
        assert connection.execute("SELECT * FROM balances ORDER BY total").fetchall() == [("eve", 1), ("BOB", 4)]


def test_a_writer_that_cannot_be_opened_leaves_no_connection_open(kit: Kit) -> None:
    sink, opened, closed = kit.sink("nowhere"), list[Any](), list[Any]()
    event.listen(sink._database.engine, "connect", lambda connection, _: opened.append(connection))
    event.listen(sink._database.engine, "close", lambda connection, _: closed.append(connection))

    with pytest.raises(ConfigError, match="nowhere") as raised, kit.writer(sink):
        pass
    assert (len(opened), len(closed)) == (1, 1), raised


def test_connections_that_commit_by_themselves_are_refused(kit: Kit) -> None:
    with pytest.raises(ConfigError, match="commit each statement by itself"):
        kit.sink(connect_args={"isolation_level": None}).check(job())
    assert kit.ask("SELECT * FROM kafka_eos_incarnations") == []


def test_the_audit_tells_rows_as_the_database_holds_them(kit: Kit) -> None:
    """Also a row that the table refuses, and one that it would change."""
    sink = kit.sink("balances", key="account")
    values = [row("a", 1), row("7", 2), row("b", -1), row("c", "3")]
    sink.committer(job()).commit(permit(), kit.prepared(sink, *values[:2]))

    kept, told = sink.audit_rows(
        batch(*values), "out", lambda found, index, operator, error: kit.refused.append((index, str(error)))
    )

    assert [(key, value) for key, value, _, _ in told] == list(sink.audit_table_rows())
    assert kept.values == values[:2] and [index for index, _ in kit.refused] == [2, 2]
    assert sink.audit_table(job()) == (f"balances in sqlite:{kit.path}", True)


def of_sqlite(kit: Kit, database: Callable[[], str]) -> str | URL:
    kit.ask("CREATE TABLE spelt (account VARCHAR(50) COLLATE NOCASE PRIMARY KEY, total INTEGER)")
    return kit.url


def of_postgres(kit: Kit, database: Callable[[], str]) -> str | URL:
    conninfo = database()
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        connection.execute("CREATE TABLE spelt (account varchar(50) COLLATE ci PRIMARY KEY, total integer)")
    return postgres_url(conninfo)


def of_mariadb(kit: Kit, database: Callable[[], str]) -> str | URL:
    if (server := os.environ.get("MARIADB_URL")) is None:
        pytest.skip("MARIADB_URL does not name a server, such as mariadb+pymysql://root@localhost/test")
    engine = create_engine(server)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS spelt")
        connection.exec_driver_sql(
            "CREATE TABLE spelt (account VARCHAR(50) CHARACTER SET latin1 COLLATE latin1_general_ci PRIMARY KEY,"
            " total INTEGER)"
        )
    engine.dispose()
    return server


@pytest.mark.parametrize("address", [of_sqlite, of_postgres, campaign(of_mariadb, named="of_mariadb")])
def test_the_audit_compares_keys_as_the_table_does(
    address: Callable[[Kit, Callable[[], str]], str | URL], kit: Kit, database: Callable[[], str]
) -> None:
    """The table keeps the spelling of the first row of a key, and the values of the last."""
    url = address(kit, database)
    latin = " CHARACTER SET latin1" if address is of_mariadb else ""
    columns = {"account": f"VARCHAR(50){latin}", "total": "INTEGER"}
    sink: DbApiSink[Any] = DbApiSink(url, "spelt", columns, key="account")
    values = [row("bob", 3), row("eve", 1), row("BOB", 4)]
    sink.committer(job()).commit(permit(), kit.prepared(sink, *values[:2]))
    with kit.writer(sink, first=2) as writer:
        writer.write(batch(values[2]))
        sink.committer(job()).commit(permit(2), writer.seal(epoch(2))()[0])

    _, told = sink.audit_rows(batch(*values), "out", lambda *_: None)

    assert sorted({key: value for key, value, _, _ in told}.items()) == sorted(sink.audit_table_rows())


def test_it_says_what_it_is(kit: Kit) -> None:
    commit = "staging table, one transaction, recorded in kafka_eos_stages"
    shown: dict[str, Any] = {
        "connector": "dbapi",
        "database": f"sqlite:{kit.path}",
        "table": "totals",
        "commit": commit,
    }

    assert kit.sink().describe() == {**shown, "mode": "insert", "key": []}
    assert kit.sink(key="account").describe() == {**shown, "mode": "upsert", "key": ["account"]}
