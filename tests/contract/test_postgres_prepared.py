"""What a PostgresSink that prepares transactions does beyond the contract: locks, names, answers that are lost.

On a real PostgreSQL. Whole jobs that are killed: ``tests/chaos/test_tables.py``.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from kafka_eos.abc.committer import CommitOutcome, CommitStatus, Committable
from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.connectors.postgres import connection as client
from kafka_eos.connectors.postgres.sink import direct_insert as inserting
from kafka_eos.connectors.postgres.sink import prepared_transactions as prepared
from kafka_eos.connectors.postgres.sink.staging_catalog import PostgresStagingCatalog
from kafka_eos.core.errors import (
    CommittableLost,
    ConfigError,
    EnvironmentFailed,
    Fenced,
    RestartFromCheckpoint,
    Retryable,
)
from kafka_eos.devtools.postgres import PostgresServer
from tests.contract.test_postgres_sink import (
    A,
    Account,
    B,
    Kit,
    closing_writer,
    commit,
    committer_of,
    crashing,
    cut_at,
    epoch,
    job,
    permit,
    probe,
    rows,
)
from tests.waiting import eventually


@pytest.fixture
def kit(preparing_database: Callable[[], str]) -> Iterator[Kit]:
    kit = Kit(preparing_database())
    kit.ask("CREATE TABLE accounts (name text NOT NULL, total integer CHECK (total >= 0), closed boolean)")
    yield kit
    end_all(kit)  # a database with one cannot be dropped


def in_doubt(kit: Kit) -> list[str]:
    return [gid for (gid,) in kit.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")]


def end_all(kit: Kit) -> None:
    for gid in in_doubt(kit):
        with psycopg.connect(kit.conninfo, autocommit=True) as connection:
            connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def by_hand(kit: Kit, how: str, committable: Committable) -> None:
    with psycopg.connect(kit.conninfo, autocommit=True) as connection:
        connection.execute(f"{how} PREPARED 'kafka_eos_{committable.payload['id']}'".encode())


def names(kit: Kit) -> list[str]:
    return [name for (name,) in kit.ask("SELECT name FROM accounts ORDER BY name")]


# ---------------------------------------------------------------- the choice


def test_where_server_and_table_allow_it_transactions_are_prepared_and_the_price_is_said(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), Account("a", 1))
    notice = " ".join(kit.sink().check(job()))

    assert committable.payload["strategy"] == "prepare"
    assert in_doubt(kit) == [f"kafka_eos_{committable.payload['id']}"]
    assert "holds back vacuum" in notice and 'strategy="stage"' in notice


@pytest.mark.parametrize(
    ("change", "tie"),
    [
        ("CREATE UNIQUE INDEX ON accounts (name)", "a unique index or key"),
        ("ALTER TABLE accounts ADD EXCLUDE (name WITH =)", "a unique index or key"),
        (
            "CREATE TABLE owners (name text PRIMARY KEY);ALTER TABLE accounts ADD FOREIGN KEY (name) REFERENCES owners",
            "a foreign key or a trigger",
        ),
        ("CREATE RULE r AS ON INSERT TO accounts DO ALSO SELECT 1", "a rule"),
    ],
)
def test_a_table_whose_rows_may_wait_for_each_other_has_a_staging_table(kit: Kit, change: str, tie: str) -> None:
    kit.ask(change)

    assert f"are staged in tables, so each is written twice: its table has {tie}" in " ".join(kit.sink().check(job()))
    assert kit.prepared(kit.sink(), Account("a", 1)).payload["strategy"] == "stage"
    with pytest.raises(ConfigError, match=f"its table has {tie}.*Or omit strategy"):
        kit.sink(strategy="prepare").check(job())


def test_a_partition_with_a_unique_index_counts(kit: Kit) -> None:
    kit.ask("CREATE TABLE parts (name text, total int, closed bool) PARTITION BY LIST (closed)")
    kit.ask("CREATE TABLE part PARTITION OF parts DEFAULT")
    assert kit.prepared(kit.sink("parts"), Account("a", 1)).payload["strategy"] == "prepare"

    end_all(kit)
    kit.ask("CREATE UNIQUE INDEX ON part (name)")

    assert kit.prepared(kit.sink("parts"), Account("a", 1)).payload["strategy"] == "stage"


def test_a_sink_with_a_key_is_told_why_it_cannot_have_it(kit: Kit) -> None:
    kit.ask("ALTER TABLE accounts ADD PRIMARY KEY (name)")

    assert "are staged in tables, so each is written twice: with key=…" in " ".join(kit.upsert().check(job()))
    with pytest.raises(ConfigError, match="would wait for these locks forever"):
        kit.sink(key="name", strategy="prepare").check(job())


def test_a_server_that_lets_none_be_prepared_says_what_to_set(database: Callable[[], str]) -> None:
    kit = Kit(database())
    sink = kit.sink(create=True, strategy="prepare")

    with pytest.raises(ConfigError, match="max_prepared_transactions = 0, its default: set it"):
        sink.check(job())
    said = kit.sink(create=True).check(job())
    assert "twice: the server has max_prepared_transactions = 0, its default: set it, and restart" in " ".join(said)
    assert 'written twice: strategy="stage" says so' in " ".join(kit.sink(strategy="stage").check(job()))
    with pytest.raises(ConfigError, match='strategy=\'both\': use "stage" or "prepare"'):
        kit.sink(strategy="both")


# ---------------------------------------------------------------- rows


@pytest.mark.limits(rows_per_insert=3)
def test_a_refused_row_takes_none_of_the_epochs_other_rows_with_it(kit: Kit) -> None:
    good = [Account(f"{n}", n) for n in range(10)]
    bad = [Account("negative", -1), Account("big", 2**40), Account("nul\0", 1), Account("\ud800", 1)]
    sink = kit.sink()
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer:
        for n, account in enumerate(good):
            writer.write(rows(account, bad[n % 4]))
        (committable,) = writer.seal(epoch(1))()
    commit(sink, committable)

    assert len(kit.refused) == 10
    assert {said.partition(":")[0] for _, said in kit.refused} > {"public.accounts, column 'total'"}
    assert names(kit) == [account.name for account in good]


def test_what_no_row_is_to_blame_for_stops_the_job_before_anything_is_decided(kit: Kit) -> None:
    """The server sets the column of the partition key by its default, so no row is checked before."""
    kit.ask("CREATE TABLE parts (name text, total int, closed bool, at int DEFAULT 7) PARTITION BY LIST (at)")
    kit.ask("CREATE TABLE part PARTITION OF parts FOR VALUES IN (6)")
    sink = kit.sink("parts")
    sink.check(job())
    with (
        closing_writer(kit.writer(sink)) as writer,
        pytest.raises(ConfigError, match="no partition of relation .* Nothing is lost"),
    ):
        writer.write(rows(Account("a", 1), Account("b", 1, closed=True)))
    assert not kit.refused


def test_a_row_without_a_partition_is_refused_until_there_is_one(kit: Kit) -> None:
    kit.ask("CREATE TABLE parts (name text, total int, closed bool) PARTITION BY LIST (total)")
    kit.ask("CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1)")
    sink = kit.sink("parts")
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("a", 1), Account("b", 2)))
        commit(sink, *writer.seal(epoch(1))())
        kit.ask("CREATE TABLE part_2 PARTITION OF parts FOR VALUES IN (2)")
        writer.write(rows(Account("c", 2), Account("d", 3)))
        commit(sink, *writer.seal(epoch(2))(), 2)

    assert [index for index, _ in kit.refused] == [1, 1]
    assert kit.ask("SELECT name FROM parts ORDER BY name") == [("a",), ("c",)]


class Picture(msgspec.Struct):
    name: str
    data: bytes


@pytest.mark.limits(rows_per_insert=4, insert_bytes=64)
def test_rows_that_a_rollback_would_need_again_are_few_and_small(kit: Kit) -> None:
    """They are kept in memory until the next savepoint."""
    kit.ask("CREATE TABLE pictures (name text, data bytea)")
    sink = kit.sink("pictures", Picture)
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer:

        def kept_after(*sizes: tuple[int, int]) -> int:
            writer.write(rows(*(Picture("x" * name, b"y" * data) for name, data in sizes)))
            return len(writer._held._kept)

        assert [kept_after((1, 1)) for _ in range(5)] == [1, 2, 3, 0, 1]
        assert kept_after((30, 32)) == 0
        assert [kept_after((31, 32)), kept_after((1, 0))] == [1, 0]
        assert kept_after((32, 0), (32, 0)) == kept_after((0, 32), (0, 32)) == 0
        (committable,) = writer.seal(epoch(1))()
    commit(sink, committable)
    assert kit.ask("SELECT count(*) FROM pictures") == [(12,)]


def test_an_epoch_of_which_all_rows_are_refused_leaves_nothing_open(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer, committer_of(sink) as committer:
        writer.write(rows(Account("negative", -1)))
        assert committer.list_staged(job())
        assert writer.seal(epoch(1))() == ()
        assert not committer.list_staged(job())
        writer.write(rows(Account("a", 1)))
        (committable,) = writer.seal(epoch(2))()
    assert commit(sink, committable, 2) is CommitOutcome.COMMITTED
    assert names(kit) == ["a"]


def test_one_connection_of_a_writer_serves_epoch_after_epoch(kit: Kit) -> None:
    """Also while none of them is committed: its transaction is no longer the connection's once it is prepared."""
    sink = kit.sink()
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer:
        for number in range(1, 4):
            writer.write(rows(Account("a", number)))
            assert writer.seal(epoch(number))()
        ours = "datname = current_database() AND application_name LIKE 'kafka_eos writer%'"
        assert kit.ask(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}") == [(1,)]


# ---------------------------------------------------------------- epochs that go together


@pytest.fixture
def two_epochs(kit: Kit) -> list[Committable]:
    """Of one writer, and of one manifest: the first epoch was given up."""
    kit.sink().check(job())
    with closing_writer(kit.writer(kit.sink())) as writer:
        writer.write(rows(Account("a", 1)))
        older = writer.seal(epoch(1))()
        writer.write(rows(Account("b", 2)))
        return [*older, *writer.seal(epoch(2))()]


def test_a_given_up_epoch_keeps_the_next_one_from_nothing(kit: Kit, two_epochs: list[Committable]) -> None:
    older, newer = two_epochs

    assert [commit(kit.sink(), each, 2) for each in (newer, older)] == [CommitOutcome.COMMITTED] * 2
    assert names(kit) == ["a", "b"]


def test_traces_of_one_manifest_stay_until_a_later_permit(kit: Kit, two_epochs: list[Committable]) -> None:
    """Neither knew when it was prepared for which epoch it would be permitted."""
    for each in two_epochs:
        commit(kit.sink(), each, 2)

    assert [probe(kit.sink(), each) for each in two_epochs] == [CommitStatus.COMMITTED] * 2
    third = kit.prepared(kit.sink(), Account("c", 3))
    commit(kit.sink(), third, 3)
    assert kit.ask("SELECT count(*) FROM kafka_eos.ledger") == [(1,)]


def test_a_commit_that_died_before_the_books_is_completed_by_the_next_and_its_trace_does_not_go_too_early(
    kit: Kit, two_epochs: list[Committable]
) -> None:
    older, newer = two_epochs
    by_hand(kit, "COMMIT", older)  # as by a process that was killed right then

    assert commit(kit.sink(), newer, 2) is CommitOutcome.COMMITTED
    assert probe(kit.sink(), older) is CommitStatus.COMMITTED
    assert commit(kit.sink(), older, 2) is CommitOutcome.ALREADY
    commit(kit.sink(), kit.prepared(kit.sink(), Account("c", 3)), 3)

    assert kit.ask("SELECT count(*) FROM kafka_eos.ledger") == [(1,)]
    assert names(kit) == ["a", "b", "c"]


# ---------------------------------------------------------------- answers that are lost, and what was done by hand


def test_a_commit_whose_answer_was_lost_is_found_in_the_ledger(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), Account("a", 1))
    with cut_at(kit.conninfo, b"COMMIT PREPARED") as way, committer_of(Kit(way).sink()) as committer:
        with pytest.raises(Retryable, match="could not commit"):
            committer.commit(permit(), committable)
        eventually(lambda: names(kit), "the server carries out what it was told")

        assert committer.commit(permit(), committable) is CommitOutcome.ALREADY
    assert names(kit) == ["a"]


def test_a_transaction_whose_preparation_was_not_answered_is_rolled_back_by_the_next_term(kit: Kit) -> None:
    kit.sink().check(job())
    with cut_at(kit.conninfo, b"PREPARE TRANSACTION") as way, closing_writer(kit.writer(Kit(way).sink())) as writer:
        writer.write(rows(Account("a", 1)))
        with pytest.raises(RestartFromCheckpoint):
            writer.seal(epoch(1))()
    eventually(lambda: in_doubt(kit), "the server carries out what it was told")
    with committer_of(kit.sink()) as committer:
        assert len(committer.abort_leftovers(job(2))) == 1
        assert not committer.list_staged(job(2))
    assert (in_doubt(kit), names(kit)) == ([], [])


def test_what_was_rolled_back_by_hand_or_by_one_who_died_then_is_lost(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), Account("a", 1))
    by_hand(kit, "ROLLBACK", committable)

    for _ in range(2):  # before and after somebody has cleaned up
        assert probe(kit.sink(), committable) is CommitStatus.LOST
        with pytest.raises(CommittableLost):
            commit(kit.sink(), committable)
        with committer_of(kit.sink()) as committer:
            committer.abort_leftovers(job(2))
    assert names(kit) == []


def test_without_a_trace_nobody_can_tell_until_a_person_says_so(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), Account("a", 1))
    commit(kit.sink(), committable)
    kit.ask("TRUNCATE kafka_eos.ledger")

    with committer_of(kit.sink()) as committer:
        seen = committer.probe(committable)
        assert seen.status is CommitStatus.UNKNOWN
        kit.ask("INSERT INTO" + seen.detail.partition("INSERT INTO")[2].partition(";")[0])
        assert committer.commit(permit(), committable) is CommitOutcome.ALREADY


def test_two_processes_that_commit_at_once_commit_once(kit: Kit) -> None:
    committable = kit.prepared(kit.sink(), *(Account(str(n), n) for n in range(500)))
    outcomes: list[CommitOutcome] = []

    def until_answered() -> None:
        while True:
            try:
                outcomes.append(commit(kit.sink(), committable))
                return
            except Retryable:
                pass

    threads = [threading.Thread(target=until_answered) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcome.value for outcome in outcomes) == ["already"] * 3 + ["committed"]
    assert len(names(kit)) == 500


# ---------------------------------------------------------------- terms, incarnations, and processes that stand still


def locks(kit: Kit) -> list[Any]:
    return kit.ask("SELECT pid FROM pg_locks WHERE relation = 'accounts'::regclass AND mode = 'RowExclusiveLock'")


@pytest.mark.parametrize("when", ["open", "about to prepare"])
def test_the_transaction_of_a_writer_that_stands_still_is_ended_with_its_locks(kit: Kit, when: str) -> None:
    sink = kit.sink()
    sink.check(job())
    with committer_of(sink) as committer, closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("a", 1)))
        if when == "about to prepare":  # it has taken its row already
            writer._held._ledger.write_marker_ahead(writer._held._connection, writer._held.stage)
        assert locks(kit)
        assert [each.detail for each in committer.list_staged(job())] == ["being written, for public.accounts"]

        (name,) = committer.abort_leftovers(job(2))

        assert name.startswith("transaction kafka_eos_")
        assert not locks(kit)
        with pytest.raises((Fenced, RestartFromCheckpoint)):
            writer.seal(epoch(1))()
    assert names(kit) == []


def test_one_that_is_prepared_while_it_is_looked_for_is_ended_by_the_next_look(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LOCK_TIMEOUT", "200ms")
    committable = kit.prepared(kit.sink(), Account("a", 1))
    with committer_of(kit.sink()) as committer:
        with monkeypatch.context() as too_early:
            too_early.setattr(prepared, "roll_back", lambda *_: False)
            with pytest.raises(Retryable, match="could not drop"):
                committer.abort_leftovers(job(2))
        assert committer.probe(committable).status is CommitStatus.PREPARED

        assert committer.abort_leftovers(job(2))
    assert probe(kit.sink(), committable) is CommitStatus.LOST
    assert in_doubt(kit) == []


def test_an_incarnation_whose_registration_was_taken_away_prepares_nothing_more(kit: Kit) -> None:
    sink = kit.sink()
    sink.check(job())
    with committer_of(sink) as committer, closing_writer(kit.writer(sink)) as writer:
        committer.register(job())
        committable = kit.prepared(sink, Account("a", 1))
        writer.write(rows(Account("b", 1)))

        assert len(committer.retire(job(1, B), A)) == 2

        with pytest.raises((Fenced, RestartFromCheckpoint)):
            writer.seal(epoch(1))()
        assert committer.probe(committable).status is CommitStatus.LOST
        assert [incarnation.state for incarnation in committer.list_incarnations(job())] == [IncarnationState.OVER]
    assert in_doubt(kit) == []


def test_a_writer_that_ends_leaves_none_of_its_connections_open(kit: Kit) -> None:
    """It has two while an epoch is prepared and the next one is written."""
    of_jobs = "application_name LIKE 'kafka_eos%' AND datname = current_database()"
    connections = f"SELECT pid FROM pg_stat_activity WHERE {of_jobs}"
    sink = kit.sink()
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("a", 1)))
        prepare = writer.seal(epoch(1))
        writer.write(rows(Account("b", 1)))
        assert len(kit.ask(connections)) == 2
        prepare()

    eventually(lambda: kit.ask(connections) == [], "all connections are closed")


def test_a_writer_whose_entry_another_process_has_deleted_prepares_nothing(kit: Kit) -> None:
    """Whoever ends a transaction deletes its entry first, while the writer's connection still works."""
    sink = kit.sink()
    sink.check(job())
    with closing_writer(kit.writer(sink)) as writer:
        writer.write(rows(Account("a", 1)))
        kit.ask("DELETE FROM kafka_eos.staged")

        with pytest.raises(Fenced, match="a newer term"):
            writer.seal(epoch(1))()
    assert in_doubt(kit) == []


def test_recovery_is_not_kept_waiting_by_what_is_prepared(kit: Kit) -> None:
    """It raises the term and takes marks while transactions of older terms are prepared still."""
    committable = kit.prepared(kit.sink(), Account("a", 1))
    with committer_of(kit.sink()) as committer:
        committer.register(job(2))
        assert committer.commit(permit(), committable) is CommitOutcome.COMMITTED


def test_who_changes_the_table_ends_an_attempt_and_stops_no_job(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """One subtask's epoch is open, an ALTER TABLE waits for it, and another subtask of that epoch for the ALTER."""
    monkeypatch.setattr(inserting, "LOCK_TIMEOUT", "200ms")
    sink = kit.sink()
    sink.check(job())
    with (
        committer_of(sink) as committer,
        closing_writer(kit.writer(sink)) as one,
        closing_writer(kit.writer(sink)) as other,
    ):
        one.write(rows(Account("a", 1)))
        altering = threading.Thread(target=lambda: kit.ask("ALTER TABLE accounts ADD more integer"))
        altering.start()
        waits = "SELECT pid FROM pg_locks WHERE NOT granted"
        eventually(lambda: kit.ask(waits), "the ALTER TABLE waits")
        with pytest.raises(EnvironmentFailed, match="lock timeout"):
            other.write(rows(Account("b", 1)))
        committer.abort_leftovers(job(2))
        altering.join()
        with closing_writer(kit.writer(sink, job(2))) as writer:
            writer.write(rows(Account("a", 1), Account("b", 1)))
            (committable,) = writer.seal(epoch(1, 2))()
    with committer_of(sink) as committer:
        assert committer.commit(permit(1, 2), committable) is CommitOutcome.COMMITTED
    assert names(kit) == ["a", "b"]


def test_each_stage_is_listed_with_its_state_the_oldest_first(kit: Kit) -> None:
    sinks = kit.sink(strategy="stage"), kit.sink(strategy="prepare")
    with ExitStack() as stack:
        for sink in sinks:
            kit.prepared(sink, Account("a", 1), Account("b", 2))
            stack.enter_context(closing_writer(kit.writer(sink))).write(rows(Account("c", 3)))
        found = stack.enter_context(committer_of(sinks[0])).list_staged(job())

    assert [(each.name.rpartition("_")[0], each.detail.removesuffix(", for public.accounts")) for each in found] == [
        ("kafka_eos.stage", "2 rows, prepared"),
        ("kafka_eos.stage", "being written"),
        ("transaction kafka_eos", "prepared, holds its locks"),
        ("transaction kafka_eos", "being written"),
    ]


# ---------------------------------------------------------------- a change of strategy


@pytest.mark.parametrize(("before", "after"), [("prepare", "stage"), ("stage", "prepare")])
def test_what_one_strategy_has_prepared_the_other_one_ends(kit: Kit, before: Any, after: Any) -> None:
    kept, orphan = (kit.prepared(kit.sink(strategy=before), Account(name, 1)) for name in ("kept", "orphan"))
    sink = kit.sink(strategy=after)
    with committer_of(sink) as committer:
        assert len(committer.list_staged(job(2))) == 2
        assert committer.commit(permit(), kept) is CommitOutcome.COMMITTED
        assert len(committer.abort_leftovers(job(2))) == 1
        assert committer.probe(orphan).status is CommitStatus.LOST
    assert (in_doubt(kit), names(kit)) == ([], ["kept"])


# ---------------------------------------------------------------- the server


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One of this test's own, that lets one transaction be prepared."""
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="kafka-eos-postgres-")), prepared=1).start()
    Kit(server.conninfo).ask("ALTER DATABASE postgres SET synchronous_commit = off")
    yield server
    server.remove()


def free(kit: Kit, name: str) -> tuple[int, int]:
    with psycopg.connect(kit.conninfo) as connection:
        return PostgresStagingCatalog("kafka_eos").free_transactions(connection, name)


def test_what_is_prepared_survives_a_crash_of_the_server_which_may_have_no_room_for_another(
    server: PostgresServer,
) -> None:
    kit = Kit(server.conninfo)
    kit.ask("CREATE TABLE accounts (name text, total integer, closed boolean)")
    with psycopg.connect(kit.conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE other")
    other = Kit(f"{server.conninfo} dbname=other")
    other.sink(create=True).check(job())
    sink = kit.sink(strategy="prepare")
    with committer_of(sink) as committer:
        with crashing(server):
            committable = kit.prepared(sink, Account("a", 1))
        server.start()
        assert [free(kit, name) for name in ("orders", "payments")] == [(1, 1), (1, 0)], "its own would be ended"
        assert free(other, "orders") == (1, 0), "those of other databases count"
        with pytest.raises(EnvironmentFailed, match="maximum number of prepared transactions"):
            kit.prepared(sink, Account("b", 1))
        with crashing(server):
            assert committer.commit(permit(), committable) is CommitOutcome.COMMITTED
        server.start()

        committer.close()
        assert committer.commit(permit(), committable) is CommitOutcome.ALREADY
        committer.abort_leftovers(job(2))
        assert not committer.list_staged(job(2))
    assert (in_doubt(kit), names(kit)) == ([], ["a"])
