"""Every query on every engine puts out what Spark SQL makes of the same input, row by row."""

from __future__ import annotations

import pytest

from benchmarks.nexmark.queries import QUERIES
from tests.nexmark.conftest import ENGINES, INPUT, Nexmark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_puts_out_what_sql_makes_of_its_input(nexmark: Nexmark, query: str, engine: str) -> None:
    found = nexmark.rows(engine, query)

    assert nexmark.expected.difference(query, INPUT.closed, found) is None
