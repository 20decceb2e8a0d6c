"""Every query on every engine puts out what Spark SQL makes of the same input, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.nexmark.queries import QUERIES
from tests.marks import campaign
from tests.nexmark.conftest import INPUT, Nexmark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize("engine", [campaign("embedded-1"), "embedded-3", campaign("spark")])
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_puts_out_what_sql_makes_of_its_input(nexmark: Nexmark, spark: Any, query: str, engine: str) -> None:
    nexmark.finish(engine, spark)

    found = nexmark.rows(engine, query)

    assert nexmark.expected.difference(query, INPUT.closed, found) is None
