"""A DataFrame becomes the input of a pipeline, and its output a DataFrame: the program of the page, in one session."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.savepoints import Snapshot
from kafka_eos.spark import StateDataSource
from tests.test_docs import ROOT, blocks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_the_program_of_the_page_reads_what_spark_wrote_and_spark_reads_what_it_wrote(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (shown,) = (block for block in blocks(ROOT / "docs/spark.md", "python") if "lifetime_totals.py" in block)
    app = tmp_path / "lifetime_totals.py"
    app.write_text(shown.replace("/shared", str(tmp_path)))
    orders = [(f"u{n % 7}", n, "paid" if n % 3 else "open") for n in range(1000)]
    frame = spark.createDataFrame(orders, "user string, amount int, status string").repartition(5)
    frame.where("status = 'paid'").select("user", "amount").write.parquet(str(tmp_path / "orders"))
    monkeypatch.chdir(tmp_path)

    runpy.run_path(str(app), run_name="__main__")

    wanted = Counter[str]()
    for user, amount, status in orders:
        wanted[user] += amount if status == "paid" else 0
    found = spark.read.parquet(str(tmp_path / "totals"))
    assert found.count() == sum(status == "paid" for *_, status in orders)
    assert {row[0]: row[1] for row in found.groupBy("user").max("total").collect()} == wanted
    assert "max(total)" in capfd.readouterr().out
    snapshot = Snapshot.open(tmp_path / ".kafka-eos" / "lifetime-totals")
    spark.dataSource.register(StateDataSource)
    for options in ({}, {"epoch": snapshot.epoch}):
        state = spark.read.format("kafka_eos").options(operator="total", **options).load(str(snapshot.path))
        assert state.rdd.getNumPartitions() == len(snapshot.handles_of("total")) > 1
        assert {row.key: row.total for row in state.selectExpr("key", "value.accumulator AS total").collect()} == wanted
