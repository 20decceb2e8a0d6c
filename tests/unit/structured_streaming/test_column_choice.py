"""The columns of a query that become a Kafka record, by the schema of the query alone."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as T

from kafka_eos.core.errors import ConfigError
from kafka_eos.structured_streaming.columns import choose_columns

HEADERS = T.ArrayType(T.StructType().add("key", T.StringType()).add("value", T.BinaryType()))
ALL = {
    "key": T.BinaryType(), "value": T.StringType(), "topic": T.StringType(), "partition": T.IntegerType(),
    "headers": HEADERS, "timestamp": T.TimestampType(),
}  # fmt: skip


def schema(**columns: T.DataType) -> T.StructType:
    made = T.StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


def test_all_columns_of_kafka_are_chosen_and_no_others() -> None:
    assert choose_columns(schema(**ALL, more=T.LongType()), None) == [*ALL]
    assert choose_columns(schema(value=T.BinaryType()), "out") == ["value"]


def test_the_topic_of_the_sink_takes_the_place_of_the_column_whatever_that_is() -> None:
    assert choose_columns(schema(**ALL), "out") == [name for name in ALL if name != "topic"]
    assert choose_columns(schema(**{**ALL, "topic": T.IntegerType()}), "out")[:3] == ["key", "value", "partition"]


@pytest.mark.parametrize("columns", [{}, {name: kind for name, kind in ALL.items() if name != "value"}])
def test_a_query_without_values_is_refused_with_its_columns(columns: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"no column 'value' \(it has: {', '.join(columns)}\)"):
        choose_columns(schema(**columns), "out")


def test_a_query_without_any_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="no topic: pass topic="):
        choose_columns(schema(value=T.StringType()), None)


@pytest.mark.parametrize("name", ALL)
def test_a_column_of_another_type_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"the column '{name}' is bigint but must be "):
        choose_columns(schema(**{**ALL, name: T.LongType()}), None)
