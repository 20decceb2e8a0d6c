"""The state of a savepoint as a DataFrame, in parallel; what is refused. ``test_dataframes`` reads that of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos.savepoints import SavepointBuilder, Snapshot
from kafka_eos.spark import StateDataSource
from tests.limits import set_limits
from tests.test_docs import ROOT, blocks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
ACCOUNTS = 300


class Total(msgspec.Struct):
    total: int
    last: int


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """The state of a fold, in several parts."""
    with SavepointBuilder.new("orders") as builder, set_limits(savepoint_part_bytes=4000):
        builder.bootstrap_fold("total", [(f"a{n}", Total(n * n, n)) for n in range(ACCOUNTS)], accumulator=Total)
        builder.write(tmp_path / "savepoint")
    return tmp_path / "savepoint"


def test_the_state_of_a_savepoint_is_a_dataframe_as_the_page_shows(
    spark: Any, savepoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (shown,) = (block for block in blocks(ROOT / "docs/savepoints.md", "python") if "StateDataSource" in block)
    page: dict[str, Any] = {}

    exec(shown.replace("/checkpoints/orders", str(savepoint)), page)

    totals = page["totals"]
    assert totals.rdd.getNumPartitions() == len(Snapshot.open(savepoint).handles_of("total")) > 1
    found = totals.select("key", "value.accumulator.*").orderBy("last").collect()
    assert [(row.key, row.total, row.last) for row in found] == [(f"a{n}", n * n, n) for n in range(ACCOUNTS)]
    assert "updates" in capfd.readouterr().out
    wider = "key STRING, value STRUCT<updates: INT, accumulator: STRUCT<total: DECIMAL(20, 0), currency: STRING>>"
    declared = _read(spark, operator="total").schema(wider).load(str(savepoint)).select("value.accumulator.*")
    assert declared.where("currency IS NULL").agg({"total": "max"}).head()[0] == (ACCOUNTS - 1) ** 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "operator"),
        ({"operator": "totl"}, "it contains that of: total"),
        ({"operator": "total", "state": "sum"}, "it has no state 'sum', but: accumulator"),
        ({"operator": "total", "epoch": "newest"}, "must be a number, not 'newest'"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(
    spark: Any, savepoint: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        _read(spark, **options).load(str(savepoint))


def _read(spark: Any, **options: object) -> Any:
    spark.dataSource.register(StateDataSource)
    return spark.read.format("kafka_eos").options(**options)
