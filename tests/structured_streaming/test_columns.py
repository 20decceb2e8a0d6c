"""What makes two rows the same for a replay: all that is written, and which of it is null."""

from __future__ import annotations

from typing import Any

from kafka_eos.structured_streaming.columns import project_columns


def test_rows_that_differ_have_other_hashes(spark: Any) -> None:
    rows = [("a", "x"), ("b", "x"), ("a", "y"), (None, "a"), ("a", None), ("a", "x")]

    found = [
        row.digest for row in project_columns(spark.createDataFrame(rows, "key string, value string"), "out").collect()
    ]

    assert found[0] == found[-1]
    assert len(set(found)) == len(rows) - 1
