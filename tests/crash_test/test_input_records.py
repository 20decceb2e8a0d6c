"""Rows that a crash test makes from the types of a pipeline."""

from __future__ import annotations

import datetime
import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field

from kafka_eos.api import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.crash_test.input_records import generate, read_files, topics_of_sources
from kafka_eos.plan import Plan


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    name: str
    weight: float


class Order(BaseModel):
    id: int = Field(ge=10, le=12)
    user: str
    color: Color
    kind: Literal["a", "b"]
    at: datetime.datetime
    day: datetime.date
    parts: list[Part]
    note: str | None = None


class Click(msgspec.Struct):
    user: str
    at: datetime.datetime


@dataclass(frozen=True)
class Point:
    x: int
    y: float


def plan_of(tp: Any, **options: Any) -> Plan:
    pipeline = Pipeline("generated")
    stream = pipeline.source(KafkaSource("in", value=tp, **options), name="rows")
    stream.map(lambda row: b"x").sink(KafkaSink("out", value=bytes), name="out")
    return pipeline.plan()


@pytest.mark.parametrize("tp", [Order, Click, Point, int, str])
def test_rows_are_made_of_what_a_source_declares(tp: Any) -> None:
    rows = generate(plan_of(tp), {"rows": "in"}, 50, seed=3)

    assert len(rows.records) == 50
    assert [record.timestamp for _, record in rows.records] == sorted({record.timestamp for _, record in rows.records})
    assert rows.records == generate(plan_of(tp), {"rows": "in"}, 50, seed=3).records
    assert tp is str or rows.records != generate(plan_of(tp), {"rows": "in"}, 50, seed=4).records


def test_limits_and_choices_of_a_model_are_kept() -> None:
    rows = [json.loads(record.value or b"") for _, record in generate(plan_of(Order), {"rows": "in"}, 90, 1).records]

    assert {row["id"] for row in rows} == {10, 11, 12}
    assert {row["color"] for row in rows} == {"red", "blue"}
    assert 5 < len({row["user"] for row in rows}) < 90, "keys occur again"


def test_records_are_keyed_as_the_pipeline_keys_their_rows() -> None:
    pipeline = Pipeline("keyed")
    keyed = pipeline.source(KafkaSource("in", value=Click), name="rows").key_by("user")
    keyed.fold(name="n", init=int, step=lambda n, row: n + 1, emit=lambda key, n: n).sink(
        KafkaSink("out", value=int), name="out"
    )
    rows = generate(pipeline.plan(), {"rows": "in"}, 30, seed=1)

    assert [record.key for _, record in rows.records] == [
        json.loads(record.value or b"")["user"].encode() for _, record in rows.records
    ]


def test_a_source_without_a_type_needs_given_rows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--input FILE"):
        generate(plan_of(bytes), {"rows": "in"}, 5, seed=1)

    (tmp_path / "rows.jsonl").write_text('{"user": "ann"}\n\n{"user": "bob"}\n')
    rows = read_files(plan_of(bytes), {"rows": "in"}, [str(tmp_path / "rows.jsonl")])
    assert [record.value for _, record in rows.records] == [b'{"user": "ann"}', b'{"user": "bob"}']


def test_a_file_of_an_unknown_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SOURCE is one of \['rows'\]"):
        read_files(plan_of(bytes), {"rows": "in"}, ["other=rows.jsonl"])


def test_a_source_with_an_address_in_its_code_is_refused() -> None:
    with pytest.raises(ConfigError, match="would read the real cluster"):
        topics_of_sources(plan_of(int, bootstrap_servers="kafka.example.com:9092"), "127.0.0.1:1")
