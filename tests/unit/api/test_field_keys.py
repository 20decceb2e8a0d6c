"""Keys and aggregates may name a field, which the plan checks against the type of the stream."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest
from pydantic import BaseModel

from kafka_eos import Pipeline, PlanError, Stream, agg, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.testing import run_local


class Model(BaseModel):
    user: str
    amount: float = 1.0
    region: int = 7

    @property
    def upper(self) -> str:
        return self.user.upper()


class Struct(msgspec.Struct):
    user: str


@dataclass
class Data:
    user: str


class Typed(TypedDict):
    user: str


class Pair(NamedTuple):
    user: str


def of(pipeline: Pipeline, tp: Any = Model) -> Stream[Any]:
    return pipeline.source(KafkaSource("in", value=tp), name="in")


@pytest.mark.parametrize("value", [Model(user="ann"), Struct("ann"), Data("ann"), {"user": "ann"}, Pair("ann")])
@pytest.mark.parametrize("known", [True, False])
def test_a_stream_is_keyed_by_a_field(value: Any, known: bool) -> None:
    pipeline = Pipeline("p")
    stream = of(pipeline, Typed if isinstance(value, dict) else type(value))
    stream = stream if known else stream.map(lambda value: value)
    stream.key_by("user").aggregate(agg.count(), name="counts").sink(KafkaSink("out", key="key"), name="out")

    records = run_local(pipeline, {"in": [value, value]}).written["out"]

    assert [(record.key, record.value) for record in records] == [
        (b"ann", b'{"key":"ann","count":1}'),
        (b"ann", b'{"key":"ann","count":2}'),
    ]


def test_a_property_is_a_field() -> None:
    pipeline = Pipeline("p")
    of(pipeline).sink(KafkaSink("out", key="upper"), name="out")

    assert run_local(pipeline, {"in": [Model(user="ann")]}).written["out"][0].key == b"ANN"


def test_a_record_without_the_field_is_rejected() -> None:
    pipeline = Pipeline("p")
    sink: KafkaSink[Any] = KafkaSink("out", value=int)
    of(pipeline).map(lambda value: 7).key_by("user").distinct(ttl=None, name="once").sink(sink, name="out")

    with pytest.raises(PoisonRecord, match="'int' object has no attribute 'user'"):
        run_local(pipeline, {"in": [Model(user="ann")]})


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda s: s.key_by("usr"), "Model has no field 'usr'; it has user, amount, region"),
        (lambda s: s.key_by("amount"), "key_by('amount'): the field is of type float, and keys are str, int, bytes"),
        (lambda s: s.key_by(""), "'' is not a field name; pass a name, or a function of the value"),
        (lambda s: s.key_by("user").aggregate(agg.sum("amont")), "Model has no field 'amont'"),
        (lambda s: s.key_by("user").aggregate(agg.sum("user")), "agg.sum takes int, float or Decimal, not str"),
        (lambda s: s.key_by("user").aggregate(agg.mean("user")), "agg.mean takes int, float or Decimal, not"),
        (lambda s: s.key_by("user").aggregate(agg.top(2, "amont")), "Model has no field 'amont'"),
        (lambda s: s.key_by("user").window(tumbling(seconds=9)).top_n(2, by="amont"), "Model has no field 'amont'"),
        (lambda s: s.key_by("user").aggregate(agg.approx_distinct("usr")), "Model has no field 'usr'"),
        (lambda s: s.sink(KafkaSink("out", key="usr"), name="out"), "Model has no field 'usr'"),
        (lambda s: s.sink(KafkaSink("out", value=Model, key="usr"), name="out"), "Model has no field 'usr'"),
        (lambda s: s.sink(KafkaSink("out", key="region"), name="out"), "key_codec=int, or a function as key="),
        (lambda s: s.sink(KafkaSink("out", key="user", key_codec=int), name="out"), "keys of type int, and 'user' is"),
    ],
)
def test_a_field_that_is_no_key_is_refused_with_the_line(use: Callable[[Stream[Any]], object], said: str) -> None:
    pipeline = Pipeline("p")

    def planned() -> None:
        use(of(pipeline))
        pipeline.plan()

    with pytest.raises(PlanError, match=re.escape(said)) as refused:
        planned()

    assert f"{__file__}:" in str(refused.value)


@pytest.mark.parametrize("known", [True, False])
def test_aggregates_read_fields_by_name(known: bool) -> None:
    pipeline = Pipeline("p")
    stream = of(pipeline) if known else of(pipeline).map(lambda value: value)
    stream.key_by("user").aggregate(
        agg.sum("amount"),
        agg.mean("amount"),
        agg.max("region"),
        agg.approx_distinct("region"),
        agg.approx_quantiles("amount", 0),
        dearest=agg.max_by("amount", "region"),
        best=agg.top(2, "amount", "region"),
        lowest=agg.first("region", by="amount"),
        all=agg.collect("amount", by="region"),
        name="rows",
    ).sink(KafkaSink("out", key="key"), name="out")
    values = [Model(user="ann", amount=2.0, region=1), Model(user="ann", amount=5.0, region=2)]

    row = msgspec.json.decode(run_local(pipeline, {"in": values}).written["out"][-1].value or b"")

    assert row.pop("quantiles")[0] == pytest.approx(2.0, rel=0.01)
    assert row == {
        "key": "ann", "sum": 7.0, "mean": 3.5, "max": 2, "distinct": 2, "dearest": 2, "best": [2, 1], "lowest": 1,
        "all": [2.0, 5.0],
    }  # fmt: skip


def test_a_result_of_a_field_has_its_type() -> None:
    assert agg.max("amount").for_type(Model).returns == float | None
    assert agg.collect("user").for_type(Model).returns == list[str]
    assert agg.max("amount", state=int).for_type(Model).returns == int | None
