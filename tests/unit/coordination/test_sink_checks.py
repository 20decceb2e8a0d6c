"""What is checked of all sinks.

Two names of one table would make the commit of one count for the other. Who gets no answer is told where to look.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.sink import Sink
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.idempotent import IdempotentSink, Receiver, Row
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.sinks import SinkCoordinator
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import Term
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource
from tests.contract.lakes import RestLake

CONTEXT = JobContext("orders", Term(1), {})
NOBODY = "127.0.0.1:1"
"""Where nobody listens."""


class Order(msgspec.Struct):
    id: int
    text: str


def check(home: Path, *sinks: Sink[Any]) -> list[str]:
    pipeline: Any = Pipeline("orders")
    orders = pipeline.source(ListSource([Order(1, "a")]), name="orders")
    for number, sink in enumerate(sinks):
        orders.sink(sink, name=f"sink-{number}")
    diary = History(LocalStorage(home / "job"), print)
    outputs = SinkCoordinator(pipeline.plan(), CONTEXT, diary, Retrier(threading.Event(), print))
    return outputs.check(CONTEXT)


def test_one_delta_table_under_two_names_is_refused_and_a_copy_of_it_is_not(tmp_path: Path) -> None:
    table, link, copy = (tmp_path / name for name in ("table", "link", "copy"))
    DeltaSink(table, value=Order, create=True).check(CONTEXT)
    link.symlink_to(table)
    shutil.copytree(table, copy)

    check(tmp_path, DeltaSink(table), DeltaSink(copy), DeltaSink(f"{tmp_path}/copy/../table"))
    with pytest.raises(ConfigError, match="'sink-0' and 'sink-1' write to the same table under two names, .*/link: "):
        check(tmp_path, DeltaSink(table), DeltaSink(link))


def test_one_iceberg_table_under_two_names_is_refused(tmp_path: Path) -> None:
    lake = RestLake(tmp_path)
    with lake.server.serving():
        properties = lake.server.properties
        named = {**properties, "uri": properties["uri"] + "/"}
        sink, same, other = (IcebergSink("shop.rows", properties=each) for each in (properties, properties, named))

        check(tmp_path, sink, same)
        with pytest.raises(ConfigError, match=r"same table under two names, iceberg:.*Use the same name in both"):
            check(tmp_path, sink, other)


class Silent(Receiver):
    """Nor does this."""

    name = "the ledger of accounts"

    def check_reachable(self) -> None:
        raise ConnectionRefusedError("nobody listens")

    def send(self, rows: Sequence[Row]) -> None:
        raise AssertionError("nothing is to be sent")


CATALOG = {"type": "rest", "uri": f"http://{NOBODY}"}
UNANSWERED: dict[str, tuple[Callable[[Path], Sink[Any]], str]] = {
    "postgres": (
        lambda _: PostgresSink("host=127.0.0.1 port=1 dbname=shop", "rows", value=Order),
        "PostgreSQL .*conninfo .*PGPASSWORD",
    ),
    "dbapi": (
        lambda _: DbApiSink("postgresql+psycopg://shop@127.0.0.1:1/shop", "rows", {"id": "BIGINT"}),
        "the database .*url has its address",
    ),
    "iceberg": (
        lambda _: IcebergSink("shop.rows", properties=CATALOG),
        "catalog 'default' .*PYICEBERG_CATALOG__DEFAULT",
    ),
    "http": (lambda home: HttpSink(f"http://{NOBODY}/rows", outbox=home / "outbox"), f"http://{NOBODY} runs and"),
    "idempotent": (lambda home: IdempotentSink(Silent(), outbox=home / "outbox"), "the ledger of accounts runs and"),
}


@pytest.mark.parametrize("kind", UNANSWERED)
def test_who_gets_no_answer_is_told_where_to_look(kind: str, tmp_path: Path) -> None:
    make, advice = UNANSWERED[kind]

    with pytest.raises(Retryable, match=f"^sink 'sink-0': .*Check that {advice}") as raised:
        check(tmp_path, make(tmp_path))

    assert "bootstrap_servers" not in str(raised.value), "advice on another system"


def test_kafka_is_looked_for_where_the_sink_says_or_else_the_setting() -> None:
    settings = {"bootstrap_servers": "here:9092", "bootstrap_servers_origin": "the file app.toml"}
    context = JobContext("orders", Term(1), settings)

    assert "has bootstrap_servers='there:9092'" in KafkaSink("out", bootstrap_servers="there:9092").advice(context)
    assert "bootstrap_servers is here:9092, from the file app.toml" in KafkaSink("out").advice(context)


def test_an_outbox_that_cannot_be_written_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "outbox").write_text("in its way")

    with pytest.raises(ConfigError, match="the outbox cannot store rows for http.*this is a file") as raised:
        check(tmp_path, HttpSink(f"http://{NOBODY}/rows", outbox=tmp_path / "outbox"))

    assert "FileSink" not in str(raised.value)
