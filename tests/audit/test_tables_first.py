"""In which order rows come to a look into a table, and of which keys nothing tells it."""

from __future__ import annotations

from typing import Any

from kafka_eos.audit.tables.expected_outputs import tables_first

COLUMNS = "grp string, stage string, source string, s_topic string, s_partition int, lane int"
ROWS = [
    ("ann", "looked-up", "rates", "rates", 0, 0),
    ("ann", "looked-up", "rates", "rates", 0, 0),
    ("ann", "looked-up", "orders", "orders", 1, 0),
    ("bob", "looked-up", "rates", "rates", 0, 0),
    ("bob", "looked-up", "rates", "rates", 1, 0),
    ("bob", "looked-up", "orders", "orders", 0, 0),
    ("bob", "another", "rates", "rates", 1, 0),
    ("eve", "looked-up", "orders", "orders", 0, 0),
    ("eve", "looked-up", "orders", "orders", 1, 0),
]


def test_a_table_comes_first_and_a_key_in_two_of_its_partitions_is_not_known(spark: Any) -> None:
    told = tables_first(spark.createDataFrame(ROWS, COLUMNS), {"rates"}).collect()

    assert {(row["source"], row["turn"]) for row in told} == {("rates", 0), ("orders", 1)}
    assert {(row["grp"], row["stage"]) for row in told if row["loose"]} == {("bob", "looked-up")}
    assert sum(row["loose"] for row in told) == 3
