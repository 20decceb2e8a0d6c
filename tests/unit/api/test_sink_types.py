"""A sink encodes values by the type of its stream, or the plan is refused with the user's line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kafka_eos import Pipeline, PlanError, Stream
from kafka_eos.codecs.type_inspection import can_be
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, Record
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.plan import SinkNode
from kafka_eos.testing import run_local

OUTBOX = "outbox"


class Sale(BaseModel):
    user: str
    amount: int


class Refund(BaseModel):
    user: str


def refunds(sale: Sale) -> Refund:
    return Refund(user=sale.user)


def unknown(sale):  # type: ignore[no-untyped-def]
    return sale


def whole(sale: Sale) -> Record[str, Sale]:
    return Record(sale.user, sale)


def sales(pipeline: Pipeline) -> Stream[Sale]:
    return pipeline.source(KafkaSource("sales", value=Sale), name="sales")


def written(pipeline: Pipeline) -> list[tuple[bytes | None, bytes | None]]:
    records = run_local(pipeline, {"sales": [Sale(user="ann", amount=3)]}).written["out"]
    return [(record.key, record.value) for record in records]


@pytest.mark.parametrize(
    ("stream", "sink", "expected"),
    [
        (lambda s: s, lambda: KafkaSink("out"), (None, b'{"user":"ann","amount":3}')),
        (lambda s: s.map(refunds), lambda: KafkaSink("out"), (None, b'{"user":"ann"}')),
        (lambda s: s.map(unknown), lambda: KafkaSink("out", value=Sale), (None, b'{"user":"ann","amount":3}')),
        (lambda s: s.map(whole), lambda: KafkaSink.records("out"), (b"ann", b'{"user":"ann","amount":3}')),
        (lambda s: s.map(whole), lambda: KafkaSink.records("out", key=Any), (b'"ann"', b'{"user":"ann","amount":3}')),
    ],
)
def test_a_kafka_sink_encodes_by_the_type_of_the_stream(
    stream: Callable[[Stream[Any]], Stream[Any]],
    sink: Callable[[], KafkaSink[Any]],
    expected: tuple[bytes | None, bytes],
) -> None:
    pipeline = Pipeline("p")
    stream(sales(pipeline)).sink(sink(), name="out")

    assert written(pipeline) == [expected]


def test_a_stream_of_bytes_is_written_unchanged() -> None:
    pipeline = Pipeline("p")
    pipeline.source(KafkaSource("sales"), name="sales").sink(KafkaSink("out"), name="out")

    records = run_local(pipeline, {"sales": [b"\x00"]}).written["out"]

    assert [record.value for record in records] == [b"\x00"]


def test_explain_shows_the_type_that_is_written() -> None:
    pipeline = Pipeline("p")
    sales(pipeline).sink(KafkaSink("out"), name="out")

    assert "out, value: json of Sale" in pipeline.explain()


@pytest.mark.parametrize("value", [None, Sale])
def test_a_plan_is_the_same_each_time(value: Any) -> None:
    pipeline = Pipeline("p")
    sales(pipeline).sink(KafkaSink("out", value=value), name="out")

    assert pipeline.explain() == pipeline.explain()


def test_columns_of_files_and_tables_follow_from_the_stream(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    stream = sales(pipeline)
    stream.sink(FileSink(tmp_path / "files", format="csv"), name="out")
    stream.sink(PostgresSink("dbname=shop", "sales", key="user"), name="table")
    stream.sink(DeltaSink(tmp_path / "lake", create=True, partition_by=["user"]), name="lake")

    plan = pipeline.plan()

    table = next(node for node in plan.nodes if node.name == "table")
    assert isinstance(table, SinkNode)
    assert table.sink.describe()["key"] == ["user"]
    assert written(pipeline) == [(None, b'["ann", "3"]')]


@pytest.mark.parametrize(
    ("stream", "sink", "said"),
    [
        (lambda s: s.map(unknown), lambda: KafkaSink("out"), "the stream is unknown. Give the sink value="),
        (lambda s: s.map(unknown), lambda: KafkaSink.records("out", value=Sale), "does not declare that of the key"),
        (lambda s: s, lambda: KafkaSink("out", value=Refund), "the stream has values of type Sale"),
        (lambda s: s, lambda: KafkaSink.records("out"), "Use KafkaSink('out')"),
        (lambda s: s.map(whole), lambda: KafkaSink("out"), "Use KafkaSink.records('out')"),
        (lambda s: s.map(whole), lambda: KafkaSink.records("out", value=Refund), "writes values of type Refund"),
        (lambda s: s.map(whole), lambda: KafkaSink.records("out", key=int), "writes keys of type int"),
        (lambda s: s, lambda: FileSink("f", value=Refund), "the stream has values of type Sale"),
        (lambda s: s.map(unknown), lambda: FileSink("f", format="csv"), "CSV needs its columns"),
        (lambda s: s.map(unknown), lambda: PostgresSink("dbname=x", "t"), "the columns are unknown"),
        (lambda s: s, lambda: PostgresSink("dbname=x", "t", value=Refund), "writes values of type Refund"),
        (lambda s: s, lambda: PostgresSink("dbname=x", "t", key="amont"), "key: amont is not a column"),
        (lambda s: s.map(unknown), lambda: DeltaSink("d", create=True), "create=True needs the columns"),
        (lambda s: s, lambda: DeltaSink("d", create=True, partition_by=["day"]), "Sale has no field day"),
        (lambda s: s, lambda: HttpSink("http://x", outbox=OUTBOX, value=Refund), "writes values of type Refund"),
    ],
)  # fmt: skip
def test_a_sink_that_does_not_suit_its_stream_is_refused_with_the_line(
    stream: Callable[[Stream[Any]], Stream[Any]],
    sink: Callable[[], Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline("p")
    stream(sales(pipeline)).sink(sink(), name="out")  # the user's line

    with pytest.raises(PlanError, match=re.escape(said)) as refused:
        pipeline.plan()

    assert "sink 'out'" in str(refused.value)
    assert "# the user's line" in str(refused.value)


@pytest.mark.parametrize(
    ("tp", "expected", "fits"),
    [
        (Sale, Sale, True),
        (Sale, BaseModel, True),
        (BaseModel, Sale, True),
        (Sale | None, Sale, True),
        (Sale | None, Refund, False),
        (int, float, True),
        (float, int, False),
        (list[int], list[str], True),
        (list[int], dict, False),
        (object, Sale, True),
    ],
)
def test_types_are_compared_by_their_classes(tp: Any, expected: Any, fits: bool) -> None:
    assert can_be(tp, expected) is fits
