"""A source or sink takes the name of its topic or table, unless another one is given."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos import Pipeline, PlanError
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.connectors.postgres import PostgresSink, PostgresSource
from kafka_eos.testing import ListSource


class Sale(msgspec.Struct):
    user: str


CATALOG = {"type": "sql", "uri": "sqlite://"}


def names(pipeline: Pipeline) -> list[str]:
    return [node.name for node in pipeline.plan().nodes]


def test_a_topic_names_its_source_its_sink_and_its_dead_letters() -> None:
    pipeline = Pipeline("p")
    pipeline.source(KafkaSource("shop.sales"), on_error=dead_letter("refused")).sink(KafkaSink("copies"))

    assert names(pipeline) == ["shop-sales", "shop-sales-dead-letters", "copies"]


def test_a_table_of_a_topic_has_its_name() -> None:
    pipeline = Pipeline("p")
    customers = pipeline.table(KafkaSource.records("customers", key=str, value=Sale))
    sales = pipeline.source(KafkaSource("sales", value=Sale))
    sales.key_by("user").join(customers, lambda sale, _: sale, name="known").sink(KafkaSink("out", value=Sale))

    assert {"customers", "sales", "out"} <= set(names(pipeline))


def test_a_topic_and_a_table_of_one_name_stand_in_one_plan() -> None:
    pipeline = Pipeline("p")
    orders = pipeline.source(KafkaSource("orders", value=Sale))
    orders.sink(KafkaSink("copies"))
    orders.sink(PostgresSink("dbname=x", "orders"))

    assert names(pipeline) == ["orders", "copies", "orders-table"]


def test_a_given_name_comes_first() -> None:
    pipeline = Pipeline("p")
    pipeline.source(KafkaSource("sales"), name="in").sink(KafkaSink("copies"), name="out")

    assert names(pipeline) == ["in", "out"]


@pytest.mark.parametrize(
    ("sink", "name"),
    [
        (lambda at: PostgresSink("dbname=x", "shop.sales"), "sales-table"),
        (lambda at: DeltaSink(at / "lake" / "sales.delta"), "sales-delta-table"),
        (lambda at: IcebergSink("shop.sales", properties=CATALOG), "sales-table"),
    ],
)
def test_a_sink_has_the_name_of_its_table(sink: Callable[[Path], Any], name: str, tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.source(PostgresSource("dbname=x", "shop.orders", value=Sale)).sink(sink(tmp_path))

    assert names(pipeline) == ["orders", name]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda p: p.source(KafkaSource(["a", "b"])), "has no single topic or table, so it needs a name: name="),
        (lambda p: p.source(KafkaSource(re.compile("a.*"))), "has no single topic or table"),
        (lambda p: p.source(ListSource([])), "has no single topic or table"),
        (lambda p: p.source(KafkaSource("a")).sink(FileSink("f")), "sink "),
        (lambda p: p.source(KafkaSource("a")).sink(KafkaSink("a", value=bytes)), "rename one of them, name="),
    ],
)
def test_without_a_name_of_its_own_one_is_asked_for(
    use: Callable[[Pipeline], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline("p")

    def planned() -> None:
        use(pipeline)
        pipeline.plan()

    with pytest.raises(PlanError, match=re.escape(said)) as refused:
        planned()

    assert f"{__file__}:" in str(refused.value)
