"""A field with an alias comes back from every carrier with columns, which may have its name or its alias."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field

from kafka_eos.codecs import AvroCodec
from kafka_eos.connectors.files import FileSink, FileSource
from kafka_eos.core.errors import UserError
from tests.contract.carriers import Carrier, by_codec, by_file, by_postgres, read_all


class Line(BaseModel):
    amount: int = Field(alias="lineAmount")


class Model(BaseModel):
    id: int = Field(alias="orderId")
    lines: list[Line] = Field(alias="orderLines")


class Struct(msgspec.Struct, rename="camel"):
    id: int
    line_counts: list[int]


VALUES: dict[Any, Any] = {Model: Model(orderId=1, orderLines=[Line(lineAmount=2)]), Struct: Struct(1, [2])}
CARRIERS: dict[str, Carrier] = {
    "Avro": by_codec(AvroCodec),
    **{form: by_file(form) for form in ("jsonl", "csv", "avro", "parquet")},
}


@pytest.mark.parametrize("tp", VALUES)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_field_with_an_alias_comes_back(carrier: str, tp: Any) -> None:
    assert CARRIERS[carrier](tp, [VALUES[tp]]) == ([VALUES[tp]], set())


@pytest.mark.parametrize("tp", VALUES)
def test_so_it_does_from_postgres(tp: Any, database: Callable[[], str]) -> None:
    columns = {"id": "bigint", {Model: "lines", Struct: "line_counts"}[tp]: "jsonb"}

    assert by_postgres(database(), columns)(tp, [VALUES[tp]]) == ([VALUES[tp]], set())


@pytest.mark.parametrize(
    ("header", "tp"), [("orderId,orderLines", Model), ("id,lines", Model), ("id,lineCounts", Struct)]
)
def test_columns_of_others_may_have_either_name(header: str, tp: Any, tmp_path: Path) -> None:
    cell = json.dumps([{"lineAmount": 2}] if tp is Model else [2]).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'{header}\n1,"{cell}"\n')

    assert read_all(FileSource[Any](tmp_path, value=tp, format="csv")) == [VALUES[tp]]


class Swapped(BaseModel):
    first: int = Field(alias="second")
    second: int = Field(alias="first")


class SwappedStruct(msgspec.Struct, rename={"first": "second", "second": "first"}):
    first: int
    second: int


@pytest.mark.parametrize("tp", [Swapped, SwappedStruct])
def test_a_type_whose_columns_could_be_read_in_two_ways_is_refused(tp: Any, tmp_path: Path) -> None:
    for build in (
        lambda: AvroCodec(tp),
        lambda: FileSource(tmp_path, value=tp, format="csv"),
        *(lambda form=form: FileSink(tmp_path, value=tp, format=form) for form in ("csv", "parquet", "avro")),
    ):
        with pytest.raises(UserError, match="the name of one field and the alias of another"):
            build()
