"""PostgresSource keeps the contract of a source on a real server, and notices when its snapshot is gone."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import shlex
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import conninfo, sql
from pydantic import BaseModel

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.connectors.postgres import PostgresSink, PostgresSource
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, InputLost, LoginRefused, PoisonRecord, Retryable
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RawRecord, Record
from kafka_eos.testing import ListSource, MemorySink, SourceUnderTest, check_source
from tests.examples import seeds
from tests.waiting import eventually

CTX = JobContext("job", Term(1), {})
Database = Callable[[], str]


class Order(msgspec.Struct, frozen=True):
    id: int
    text: str


ORDERS = [Order(n, f"row {n} ✓") for n in range(1, 8)]


def do(where: str, *statements: str) -> None:
    with psycopg.connect(where, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def filled(where: str, key: str = "PRIMARY KEY") -> str:
    rows = ", ".join(f"({order.id}, '{order.text}')" for order in ORDERS)
    do(where, f"CREATE TABLE orders (id bigint {key}, text text)", f"INSERT INTO orders VALUES {rows}")
    return where


def source_of(database: str, **options: Any) -> PostgresSource[Order]:
    return PostgresSource(database, "orders", value=Order, **options)


def opened(source: PostgresSource[Any], positions: Positions | None = None, services: Services | None = None) -> Any:
    found = source.discover(CTX, None) if positions is None else positions
    return source.reader(TaskContext(CTX, 0, 1, "rows", services or Services()), found)


def read(reader: Any, most: int = 3) -> list[Any]:
    found: list[Any] = []
    while (batch := reader.poll(most, 0)) is not None:
        found += batch.values
    return found


@pytest.mark.parametrize("splits", [1, 3])
def test_a_table_keeps_the_contract(splits: int, database: Database) -> None:
    def fresh(*, grows: bool = False) -> SourceUnderTest:
        where = filled(database())

        def grow() -> list[Order]:
            do(where, "INSERT INTO orders VALUES (0, 'before'), (99, 'behind')")
            return [Order(0, "before"), Order(99, "behind")]

        def spoil() -> list[Order]:
            do(where, "INSERT INTO orders VALUES (-2, NULL), (8, NULL), (9, 'good'), (10, NULL)")
            return [Order(9, "good")]

        return SourceUnderTest(
            lambda: source_of(where, splits=splits),
            ORDERS,
            append=grow if grows else None,
            spoil=spoil,
            expire=lambda: do(where, "DELETE FROM orders WHERE id IN (2, 6)"),
        )

    check_source(fresh, seeds=seeds(1))
    check_source(lambda: fresh(grows=True), "bounded")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE orders SET text = 'other' WHERE id = 6",
        "DELETE FROM orders WHERE id = 7",
        "TRUNCATE orders",
        "ALTER TABLE orders ALTER COLUMN id TYPE integer",
    ],
)
def test_a_row_that_is_changed_before_it_was_read_is_lost_input_and_not_read_as_it_is_now(
    change: str, database: Database
) -> None:
    source = source_of(filled(where := database()))
    reader = opened(source)
    assert reader.poll(3, 0).values == ORDERS[:3]
    do(where, "UPDATE orders SET text = 'changed' WHERE id <= 3", change)

    with pytest.raises(InputLost, match="has lost rows of its snapshot: of 7 rows up to key"):
        read(opened(source, source.discover(CTX, reader.positions())))


def parted(where: str) -> str:
    """A table of two partitions, and one beside it with rows that are as old, once no transaction is open."""
    do(
        where,
        "CREATE TABLE orders (id bigint PRIMARY KEY, text text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF orders FOR VALUES FROM (20) TO (30)",
        "CREATE TABLE middle (id bigint PRIMARY KEY, text text)",
        "INSERT INTO middle VALUES (10, 'attached'), (11, 'attached')",
        "INSERT INTO orders VALUES (1, ''), (2, ''), (20, ''), (21, ''), (22, ''), (23, '')",
    )
    with psycopg.connect(where, autocommit=True) as connection:  # a test beside may be in one
        ended = "SELECT pg_snapshot_xmin(now) = pg_snapshot_xmax(now) FROM pg_current_snapshot() AS now"
        eventually(lambda: connection.execute(ended).fetchone() == (True,), "no transaction of the server is open")
    return where


ATTACH = "ALTER TABLE orders ATTACH PARTITION middle FOR VALUES FROM (10) TO (20)"


@pytest.mark.parametrize("most", [1, 3, 100])
def test_old_rows_of_a_partition_that_is_attached_later_are_not_of_the_snapshot(most: int, database: Database) -> None:
    """Whoever wrote them did so before the first start, so nothing in them says that they came later."""
    source = source_of(where := parted(database()))
    reader = opened(source)
    assert [row.id for row in reader.poll(1, 0).values] == [1]
    do(where, ATTACH)

    assert [row.id for row in read(opened(source, source.discover(CTX, reader.positions())), most)] == [
        2,
        20,
        21,
        22,
        23,
    ]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_a_partition_that_is_detached_is_missed_though_one_with_as_many_rows_is_attached(
    most: int, database: Database
) -> None:
    source = source_of(where := parted(database()))
    reader = opened(source)
    do(where, "ALTER TABLE orders DETACH PARTITION low", ATTACH)

    with pytest.raises(InputLost, match="were changed, deleted or detached"):
        read(reader, most)


def test_a_partition_that_is_back_in_its_place_is_read(database: Database) -> None:
    source = source_of(where := parted(database()))
    reader = opened(source)
    back = "ALTER TABLE orders ATTACH PARTITION low FOR VALUES FROM (0) TO (10)"
    do(where, "ALTER TABLE orders DETACH PARTITION low", back)

    assert [row.id for row in read(reader)] == [1, 2, 20, 21, 22, 23]


def test_a_table_with_children_that_inherit_is_refused(database: Database) -> None:
    """A key is unique in each of them alone: two rows with one key could not be told apart."""
    do(where := filled(database()), "CREATE TABLE child () INHERITS (orders)", "INSERT INTO child VALUES (1, 'twice')")

    with pytest.raises(ConfigError, match="orders has children by INHERITS, child: a key is unique"):
        source_of(where).discover(CTX, None)


def test_a_condition_that_is_true_of_more_rows_later_does_not_push_others_out(database: Database) -> None:
    do(where := filled(database()), "CREATE TABLE days (n bigint)", "INSERT INTO days VALUES (3)")
    source = source_of(where, where="id > 7 - (SELECT max(n) FROM days)")
    reader = opened(source)
    do(where, "INSERT INTO days VALUES (5)")

    with pytest.raises(InputLost, match="where= matches other rows than at first"):
        read(reader)


def test_numbers_are_read_as_they_are_however_the_database_is_set_up(database: Database) -> None:
    """Two keys that are told alike would be one, and the same rows be read again."""
    do(
        where := database(),
        "CREATE TABLE orders (id double precision PRIMARY KEY, text text)",
        "INSERT INTO orders SELECT 0.1::float8 + 0.2::float8 * n, n::text FROM generate_series(1, 7) AS n",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET extra_float_digits = 0', current_database()); END $$",
    )

    rows = read(opened(PostgresSource(where, "orders")), 2)

    assert {row["text"]: row["id"] for row in rows} == {str(n): 0.1 + 0.2 * n for n in range(1, 8)}
    assert len(rows) == 7


def test_rows_that_come_later_do_not_count_wherever_they_are(database: Database) -> None:
    """Also those of a transaction that was open at the first start, and had written before, in a savepoint too.

    What others had committed by then counts.
    """
    source = source_of(filled(where := database()))
    with psycopg.connect(where) as open_:
        open_.execute("INSERT INTO orders VALUES (50, 'open')")
        with open_.transaction():
            open_.execute("INSERT INTO orders VALUES (5000, 'open, in a savepoint')")
        do(where, "INSERT INTO orders VALUES (40, 'committed')", "UPDATE orders SET text = 'new' WHERE id = 7")
        known = source.discover(CTX, None)
    do(where, "INSERT INTO orders VALUES (-1, 'later'), (9000, 'later')", "VACUUM FREEZE orders")

    assert read(opened(source, known)) == [*ORDERS[:6], Order(7, "new"), Order(40, "committed")]
    assert {row.id for row in read(opened(source))} == {-1, 9000, 40, 50, 5000, *range(1, 8)}, (
        "a job that begins now has them"
    )


def test_with_very_many_transactions_since_the_oldest_that_is_open_the_start_waits(database: Database) -> None:
    source = source_of(filled(where := database()))
    with psycopg.connect(where) as open_:
        open_.execute("INSERT INTO orders VALUES (50, 'open')")
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for n in range(1001):
                connection.execute("INSERT INTO orders VALUES (%s, '')", (1000 + n,))
        with pytest.raises(Retryable, match="the start of a transaction that is still open"):
            source.discover(CTX, None)

    def begun() -> Positions | None:
        """None while a transaction of another test on this server is open."""
        try:
            return source.discover(CTX, None)
        except Retryable:
            return None

    found = eventually(begun, "the snapshot is taken")
    assert len(read(opened(source, found), 1000)) == 7 + 1 + 1001


def test_a_table_that_was_made_again_is_another_one(database: Database) -> None:
    source = source_of(filled(where := database()))
    known = source.discover(CTX, None)
    do(where, "DROP TABLE orders")
    filled(where)

    with pytest.raises(InputLost, match="was dropped and created again"):
        source.discover(CTX, known)
    read(reader := opened(source))
    do(where, "DROP TABLE orders")
    assert source.discover(CTX, reader.positions()) == reader.positions(), "when all of it was read it may go"


def test_keys_of_several_columns_and_a_condition(database: Database) -> None:
    where = database()
    do(
        where,
        'CREATE TABLE "Odd%Name" (day date, "who is" text COLLATE "C", n numeric, PRIMARY KEY (day, "who is"))',
        """INSERT INTO "Odd%Name" SELECT date '2026-01-01' + i % 3, 'x''' || i, i FROM generate_series(1, 30) i""",
    )
    source = PostgresSource(where, "Odd%Name", where="n % 2 = 0 AND \"who is\" LIKE 'x%'", splits=4)
    rows = read(opened(source), most=2)

    assert sorted(row["n"] for row in rows) == [decimal.Decimal(n) for n in range(2, 31, 2)]
    assert len(source.discover(CTX, None)) == 4


@dataclasses.dataclass
class Data:
    id: uuid.UUID
    at: datetime.datetime
    price: decimal.Decimal
    raw: bytes
    tags: list[str]
    inner: dict[str, int]
    nothing: int | None


class Model(BaseModel):
    id: uuid.UUID
    at: datetime.datetime
    price: decimal.Decimal
    raw: bytes
    tags: list[str]
    inner: dict[str, int]
    nothing: int | None


@pytest.mark.parametrize("model", [Data, Model])
def test_values_have_the_types_of_python(model: Any, database: Database) -> None:
    where, parts = database(), {
        "id": uuid.UUID(int=7), "at": datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC), "nothing": None,
        "price": decimal.Decimal("10.50"), "raw": b"\x00\xff", "tags": ["x", ""], "inner": {"a": 1},
    }  # fmt: skip
    do(
        where,
        'CREATE TABLE t (id uuid PRIMARY KEY, at timestamptz, price numeric, raw bytea, tags text[], "inner" jsonb,'
        " nothing int)",
        f"INSERT INTO t VALUES ('{parts['id']}', '2026-01-31 13:00+01', 10.50, '\\x00ff',"
        " '{x,\"\"}', '{\"a\": 1}')",
    )

    assert read(opened(PostgresSource(where, "t", value=model))) == [model(**parts)]


def test_a_row_that_fits_no_value_is_named_and_the_others_are_read(database: Database) -> None:
    where = database()
    do(
        where,
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz)",
        "INSERT INTO t VALUES (1, now()), (2, NULL), (3, 'infinity'), (4, now())",
    )

    class Row(msgspec.Struct):
        id: int
        at: datetime.datetime

    source = PostgresSource(where, "t", value=Row)
    with pytest.raises(PoisonRecord, match="t/0/1"):
        read(opened(source))
    refused: list[tuple[int, bytes | None]] = []

    def refuse(operator: str, raw: RawRecord, error: Exception) -> None:
        refused.append((raw.offset, raw.value))

    reader = opened(source, services=Services(refuse))
    assert [row.id for _ in range(3) for row in read(reader, 10)] == [1, 4]
    assert refused == [(1, b'{"id": 2, "at": null}'), (2, b'{"id": "3", "at": "infinity"}')]


def test_a_value_that_python_would_change_is_rejected_and_the_others_are_read(database: Database) -> None:
    """The months of an interval, and digits of a number in JSON that a float does not have."""
    where = database()
    do(
        where,
        "CREATE TABLE t (id int PRIMARY KEY, took interval, doc jsonb)",
        "INSERT INTO t VALUES (1, '2 days 03:00', '[1.50, 9007199254740993]'), (2, '1 year 1 mon', NULL),"
        " (3, '-1 mon', NULL), (4, NULL, '{\"a\": 0.12345678901234567891}'), (5, NULL, '{}')",
    )
    refused: list[int] = []
    source: PostgresSource[Any] = PostgresSource(where, "t")
    reader = opened(source, services=Services(lambda operator, raw, error: refused.append(raw.offset)))

    found = [row for _ in range(5) for row in read(reader, 10)]

    assert [(row["id"], row["took"], row["doc"]) for row in found] == [
        (1, datetime.timedelta(days=2, hours=3), [1.5, 2**53 + 1]),
        (5, None, {}),
    ]
    assert refused == [1, 2, 3]


class Document(msgspec.Struct):
    id: int
    doc: int


@pytest.mark.parametrize(
    "doc",
    ["[" * 3000 + "]" * 3000, "9" * 5000, "1e99999999999999999999", r'"\ud800"'],
    ids=["deep", "digits", "exponent", "surrogate"],
)
def test_json_that_exceeds_the_limits_of_python_is_rejected_and_the_others_are_read(
    doc: str, database: Database
) -> None:
    where = database()
    do(where, "CREATE TABLE t (id int PRIMARY KEY, doc json)", f"INSERT INTO t VALUES (1, '1'), (2, '{doc}'), (3, '3')")
    refused: list[RawRecord] = []
    services = Services(lambda operator, raw, error: refused.append(raw))
    reader = opened(PostgresSource(where, "t", value=Document), services=services)

    assert [row.id for _ in range(3) for row in read(reader, 10)] == [1, 3]
    ((value, offset),) = [(raw.value or b"", raw.offset) for raw in refused]
    assert offset == 1
    assert doc in value.decode()


def test_rows_at_the_edge_of_the_stack_are_rejected_too(database: Database) -> None:
    """What was read at one depth of the stack may be too deep for the dead letter at another."""
    where, depths = database(), range(850, 1000)
    rows = ", ".join(f"({depth}, '{'[' * depth}{']' * depth}')" for depth in depths)
    do(where, "CREATE TABLE t (id int PRIMARY KEY, doc json)", f"INSERT INTO t VALUES {rows}")
    refused: list[int] = []
    services = Services(lambda operator, raw, error: refused.append(raw.offset))
    reader = opened(PostgresSource(where, "t", value=Document), services=services)

    while len(refused) < len(depths):
        assert reader.poll(10, 0) is None
    assert refused == [*range(len(depths))]


def test_an_empty_table_is_read_at_once(database: Database) -> None:
    do(where := database(), "CREATE TABLE orders (id bigint PRIMARY KEY, text text)")
    source = source_of(where, splits=2)
    known = source.discover(CTX, None)
    assert source.bounds(known) == known == opened(source, known).positions()
    assert set(source.list_excluded_splits(known)) == known.keys()


@pytest.mark.parametrize(
    ("table", "options", "why"),
    [
        ("CREATE TABLE orders (id bigint, text text)", {}, "has no primary key"),
        ("CREATE TABLE orders (id bigint, text text)", {"key": "id"}, "may have two rows with the same id"),
        ("CREATE TABLE orders (id bigint UNIQUE, text text)", {"key": "id"}, "may have two rows with the same id"),
        ("CREATE TABLE orders (id bigint PRIMARY KEY)", {}, "has no column text; its columns are id"),
        ("CREATE VIEW orders AS SELECT 1 AS id, '' AS text", {"key": "id"}, "PostgresSource reads tables, not views"),
        ("SELECT 1", {}, "table orders does not exist"),
    ],
)
def test_what_cannot_be_read_exactly_is_refused_at_the_start(
    table: str, options: dict[str, Any], why: str, database: Database
) -> None:
    do(where := database(), table)
    with pytest.raises(ConfigError, match=why):
        source_of(where, **options).discover(CTX, None)


@pytest.fixture
def locked(database: Database) -> Iterator[str]:
    """The conninfo of a database, without its password, of a user who needs one."""
    where, user = filled(database()), f"locked_{uuid.uuid4().hex[:8]}"
    rules = [f"{kind} all {user} {host} scram-sha-256" for kind, host in (("local", ""), ("host", "all"))]
    do(where, f"CREATE USER {user} PASSWORD 'right'", f"GRANT SELECT ON orders TO {user}")
    _change_who_is_let_in(where, lambda lines: [*rules, *lines])
    mine = conninfo.make_conninfo(where, user=user)
    eventually(lambda: not _lets_in(conninfo.make_conninfo(mine, password="wrong")), "the server asks for passwords")
    yield mine
    _change_who_is_let_in(where, lambda lines: [line for line in lines if line not in rules])
    do(where, f"DROP OWNED BY {user}", f"DROP USER {user}")


def _lets_in(where: str) -> bool:
    try:
        psycopg.connect(where).close()
    except psycopg.OperationalError:
        return False
    return True


def _change_who_is_let_in(where: str, change: Callable[[list[str]], list[str]]) -> None:
    """Tests of other processes change the same file of the same server, so one changes it at a time."""
    with psycopg.connect(conninfo.make_conninfo(where, dbname="postgres"), autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(hashtext('pg_hba.conf'))")
        ((hba,),) = connection.execute("SHOW hba_file").fetchall()
        ((before,),) = connection.execute("SELECT pg_read_file(%s)", (hba,)).fetchall()
        rules = "".join(f"{line}\n" for line in change(before.splitlines()))
        line = sql.SQL("COPY (SELECT {}) TO PROGRAM {}")
        written = "base64 -d > " + shlex.quote(hba)
        connection.execute(line.format(base64.b64encode(rules.encode()).decode(), written))
        connection.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"password": "wrong"}, 'password authentication failed for user "locked_'),
        ({"password": "right", "dbname": "nowhere"}, 'database "nowhere" does not exist'),
        ({"password": "", "passfile": "/dev/null"}, "no password supplied"),
    ],
    ids=["wrong password", "no such database", "no password"],
)
def test_a_start_that_is_not_let_in_ends_and_says_why(locked: str, given: dict[str, str], why: str) -> None:
    assert read(opened(source_of(conninfo.make_conninfo(locked, password="right")))) == ORDERS

    with pytest.raises(
        LoginRefused, match=rf"cannot look at orders: PostgreSQL refused the login: .*{why}.*PGPASSWORD"
    ):
        source_of(conninfo.make_conninfo(locked, **given)).discover(CTX, None)
    with pytest.raises(LoginRefused, match=rf"cannot look at t in .*refused the login: .*{why}.*PGPASSWORD"):
        PostgresSink(conninfo.make_conninfo(locked, **given), "t", columns=("a",)).check(CTX)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: PostgresSource("host=", "a.b.c"), "is not a table name"),
        (lambda: PostgresSource("nonsense", "t"), "PostgresSource: the connection string is not valid"),
        (lambda: PostgresSource("host=x", "a\nb"), "cannot be printed"),
        (lambda: PostgresSource("host=x", "t", splits=0), "splits must be at least 1"),
    ],
)
def test_what_makes_no_source_is_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_positions_of_something_else_are_refused(database: Database) -> None:
    source = source_of(filled(where := database()))
    with pytest.raises(CorruptCheckpoint, match="not a position in a snapshot"):
        source.discover(CTX, {SplitId("orders/0"): {"offset": 1}})
    known = source.discover(CTX, None)
    with pytest.raises(ConfigError, match="give a source with another table, key or condition a new name"):
        source_of(where, where="id > 3").discover(CTX, known)


def test_a_snapshot_can_be_a_table_of_a_join(database: Database) -> None:
    where = filled(database())
    source = PostgresSource.records(where, "orders", value=Order, key_of=lambda order: order.id, key_type=int)

    assert read(opened(source))[0] == Record(1, ORDERS[0])
    pipeline = Pipeline("job")
    stream = pipeline.source(ListSource([1, 2]), name="ids")
    table = pipeline.table(source, name="orders")
    stream.key_by(int).join(table, lambda one, order: order.text, name="named").sink(MemorySink(), name="out")
    assert pipeline.plan().prerequisites == {"ids": {"orders"}}


def test_it_says_what_it_is() -> None:
    where = "postgresql://ada:hush@db:5433/shop"
    source = PostgresSource(where, ("sales", "orders"), value=Order, key=["id", "at"], where="id > 0", splits=3)
    server = source._database.shown()

    assert "hush" not in str(server)
    assert source.describe() == {
        "connector": "postgres", "table": "sales.orders", **server, "key": ["id", "at"], "where": "id > 0", "splits": 3
    }  # fmt: skip
    assert PostgresSource(where, "orders").describe() == {
        "connector": "postgres",
        "table": "orders",
        **server,
        "splits": 1,
    }
