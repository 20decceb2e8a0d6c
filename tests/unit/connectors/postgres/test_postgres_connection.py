"""What a connection string names, and what errors of the client mean, without a server."""

from __future__ import annotations

import psycopg
import pytest

from kafka_eos.abc.dataset import Dataset
from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.postgres.connection import PostgresDatabase, find_row_error, map_errors
from kafka_eos.core.errors import ConfigError, Retryable

TARGET = TargetTable("public", "t", ("a",), ())


@pytest.fixture(autouse=True)
def no_settings_of_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "PORT", "DATABASE", "USER", "SERVICE"):
        monkeypatch.delenv(f"PG{name}", raising=False)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("", "local:5432/"),
        ("user=app", "local:5432/app"),
        ("user=app dbname=shop", "local:5432/shop"),
        ("host=db dbname=shop", "db:5432/shop"),
        ("host=db port=6000 dbname=shop user=app password=x application_name=y", "db:6000/shop"),
        ("postgresql://app@db:6000/shop?connect_timeout=3", "db:6000/shop"),
        ("hostaddr=10.0.0.1 dbname=shop", "10.0.0.1:5432/shop"),
        ("host=db hostaddr=10.0.0.1 dbname=shop", "db:5432/shop"),
        ("host=b,a dbname=shop", "a:5432,b:5432/shop"),
        ("host=b,a port=6000 dbname=shop", "a:6000,b:6000/shop"),
        ("host=b,a port=1,2 dbname=shop", "a:2,b:1/shop"),
        ("service=main dbname=shop", "service=main/shop"),
        ("service=main host=db dbname=shop", "db:5432/shop"),
    ],
)
def test_a_database_has_one_name_however_it_is_spelt(given: str, name: str) -> None:
    """Committables are found by it again."""
    assert PostgresDatabase(given).name == name


@pytest.mark.parametrize(
    ("given", "environment", "name"),
    [
        ("", {"PGHOST": "h", "PGPORT": "1", "PGDATABASE": "d", "PGUSER": "u"}, "h:1/d"),
        ("", {"PGUSER": "u"}, "local:5432/u"),
        ("", {"PGHOST": "", "PGPORT": "", "PGDATABASE": "", "PGUSER": ""}, "local:5432/"),
        ("dbname=d", {"PGHOST": "h", "PGSERVICE": "main"}, "service=main/d"),
        ("host=db port=2 dbname=d", {"PGHOST": "h", "PGPORT": "1", "PGDATABASE": "e", "PGSERVICE": "main"}, "db:2/d"),
    ],
)
def test_what_a_connection_string_leaves_out_is_taken_from_the_environment(
    given: str, environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)

    assert PostgresDatabase(given).name == name


@pytest.mark.parametrize(
    ("given", "table", "dataset"),
    [
        ("host=db dbname=shop", "orders", Dataset("postgres://db:5432", "shop.public.orders")),
        ("host=db dbname=shop", "sales.orders", Dataset("postgres://db:5432", "shop.sales.orders")),
        ("host=/run/pg dbname=shop", "orders", Dataset("postgres:///run/pg:5432", "shop.public.orders")),
    ],
)
def test_a_table_has_the_name_of_data_catalogs(given: str, table: str, dataset: Dataset) -> None:
    assert PostgresDatabase(given).name_dataset(table) == dataset


def test_a_secret_is_not_shown() -> None:
    place = {"host": "db", "hostaddr": "10.0.0.1", "port": "1", "dbname": "shop", "user": "app", "service": "main"}
    secret = {"password": "x", "sslpassword": "y", "options": "z"}
    given = " ".join(f"{name}={value}" for name, value in (secret | place).items())

    assert PostgresDatabase(given).shown() == place
    assert PostgresDatabase("user=app").shown() == {"user": "app"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("host", "is not valid"),
        ("postgresql://app:pass/word@db/shop", "the port in the connection string is not a number"),
        ("postgresql://app:pass@word@db/shop", "has an @ in the name of a host or database"),
        ("postgresql://db/sh@p", "has an @ in the name of a host or database"),
    ],
)
def test_a_connection_string_that_may_show_a_part_of_a_password_is_refused(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"Source: the connection string.*{said}|Source: {said}") as refused:
        PostgresDatabase(given, "Source")
    assert "word" not in str(refused.value).partition("Write ")[0]


def test_an_at_sign_is_part_of_a_name_where_no_password_can_be() -> None:
    assert PostgresDatabase("host=db dbname=sh@p").name == "db:5432/sh@p"


# ---------------------------------------------------------------- errors


def of_state(state: str, text: str = "what the server says") -> psycopg.Error:
    return psycopg.errors.lookup(state)(text)


@pytest.mark.parametrize(
    "error",
    [
        *map(of_state, ("08006", "25006", "28P01", "40001", "40P01", "53300", "55P03", "57P01", "58030", "XX000")),
        psycopg.OperationalError("the connection is gone"),
        psycopg.InterfaceError("the connection is closed"),
    ],
    ids=lambda error: error.sqlstate or type(error).__name__,
)
def test_what_passes_is_tried_again(error: psycopg.Error) -> None:
    said = "could not commit: (the connection is|what the server says)"
    with pytest.raises(Retryable, match=said) as failed, map_errors(Retryable, "commit"):
        raise error
    assert failed.value.__cause__ is error
    assert ("an error inside the server" in str(failed.value)) == (error.sqlstate == "XX000")


@pytest.mark.parametrize("state", ["42P01", "42501", "0A000", "XX001", "55000"])
def test_what_does_not_pass_by_itself_stops_the_job(state: str) -> None:
    said = rf"refuses to commit: what the server says \(SQLSTATE {state}\)"
    with pytest.raises(ConfigError, match=said), map_errors(Retryable, "commit"):
        raise of_state(state)


@pytest.mark.parametrize(
    "error", [psycopg.DataError("bad value"), psycopg.ProgrammingError("bad call"), ValueError("bad")], ids=repr
)
def test_what_is_no_error_of_the_server_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as failed, map_errors(Retryable, "commit"):
        raise error
    assert failed.value is error


@pytest.mark.parametrize("state", ["22001", "23505", "44000", "54000"])
def test_an_error_of_a_row_quotes_its_values_for_the_row_alone(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_eos.core.error_messages._shows_all", False)
    error = of_state(state, "value 'secret'\n  is wrong")

    assert str(find_row_error(error, TARGET)) == "public.t: value 'secret' is wrong"
    with pytest.raises(ConfigError, match=type(error).__name__) as failed, map_errors(Retryable, "commit"):
        raise error
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such text"), "public.t: no such text"),
        (OverflowError("too large"), "public.t: too large"),
        (psycopg.DataError("cannot dump"), "public.t: cannot dump"),
        (psycopg.ProgrammingError("cannot adapt"), "public.t: cannot adapt"),
        (psycopg.DataError(""), "public.t: DataError"),
        (psycopg.OperationalError("gone"), None),
        (psycopg.InternalError("gone"), None),
        (of_state("40001"), None),
        (of_state("42P01"), None),
    ],
    ids=repr,
)
def test_a_row_is_at_fault_only_for_errors_of_its_values(error: Exception, said: str | None) -> None:
    found = find_row_error(error, TARGET)

    assert (None if found is None else str(found)) == said
