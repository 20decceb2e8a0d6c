"""A table that is a snapshot of PostgreSQL's: rows of a topic are joined with it, whatever is killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from kafka_eos.audit import Conclusion
from tests.audit.job import Job
from tests.chaos.harness import read

pytestmark = pytest.mark.timeout(300)

APP = """
import msgspec
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.postgres import PostgresSource

class Customer(msgspec.Struct):
    id: int
    name: str

def named(order, customer):
    return order + " " + ("unknown" if customer is None else customer.name)

pipeline = Pipeline("{name}")
customers = pipeline.table(
    PostgresSource.records(
        "{database}", "customers", value=Customer, key_of=lambda customer: str(customer.id), key_type=str, splits=2
    ),
    name="customers",
)
(
    pipeline.source(KafkaSource("{input}", value=str), name="orders")
    .key_by(lambda order: order.partition(" ")[0])
    .left_join(customers, named, name="named")
    .sink(KafkaSink("{output}", value=str), name="out")
)
"""
CUSTOMERS = {n: f"name-{n}" for n in range(100)}


@pytest.fixture
def job(new_job: Callable[..., Job], topic: Callable[..., str], database: Callable[[], str]) -> Job:
    """Killed in the middle of the table, and when it is whole. The database changes when it has been read."""
    names = {"input": topic(partitions=2), "output": topic(), "database": database()}
    with psycopg.connect(names["database"], autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL)")
        connection.cursor().executemany("INSERT INTO customers VALUES (%s, %s)", CUSTOMERS.items())
    job = new_job(APP, **names)
    job.feed(names["input"], [(n % 2, None, f"{n % 120} {n}".encode()) for n in range(240)])

    job.run(failpoints="source.capture.after=kill@1;bootstrap.done=kill@1;commit.before=kill@2")
    with psycopg.connect(names["database"], autocommit=True) as connection:
        connection.execute("INSERT INTO customers VALUES (110, 'came later')")
    job.feed(names["input"], [(0, None, b"110 again"), (1, None, b"5 again")])
    job.run(workers=3)
    return job


@pytest.mark.campaign
def test_each_row_is_joined_once_with_the_table_as_it_was(job: Job) -> None:
    found = sorted(message.value().decode() for message in read(job.bootstrap, job.topics["output"]))

    rows = [*((n % 120, str(n)) for n in range(240)), (110, "again"), (5, "again")]
    assert found == sorted(f"{key} {what} {CUSTOMERS.get(key, 'unknown')}" for key, what in rows)


@pytest.mark.campaign
def test_the_audit_says_that_nobody_can_read_the_table_as_it_was(job: Job, spark: Any) -> None:
    verdict = job.audit(spark)

    assert verdict.conclusion is Conclusion.INCONCLUSIVE, verdict.headline
    assert "lost not checked: source customers cannot be read again by the audit" in verdict.headline
    assert verdict.findings == ()
