"""Whose Spark session an audit runs in: nobody's is taken over, and what one lacks is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit import Conclusion
from kafka_eos.audit.cluster.spark_session import session
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from tests.audit.conftest import Totals
from tests.audit.test_inconclusive_endings import command
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)
BARE = """
from pyspark.sql import SparkSession
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(audit_topics(TopicAuditOptions("host:1", outputs=("t",), id="$.x"), spark=spark).headline)
"""


def test_a_live_session_of_the_program_is_neither_used_nor_ended(spark: Any) -> None:
    verdict = audit_topics(TopicAuditOptions("host:1", outputs=("t",), id="$.x"))

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert "live Spark session" in verdict.headline and "spark=" in verdict.headline
    assert 3 == spark.range(3).count()


def test_under_spark_submit_the_session_of_the_program_is_used_and_left_open(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    with session(None, lambda _: None, master=None) as found:
        assert spark.sparkContext is found.sparkContext

    assert 3 == spark.range(3).count()


@pytest.mark.campaign
def test_the_audit_sets_nothing_in_the_session_that_it_is_given(totals: Totals, spark: Any) -> None:
    totals.finish()
    before = spark.conf.getAll

    verdict = totals.job.audit(spark)

    assert Conclusion.PASS is verdict.conclusion
    assert (before, spark) == (spark.conf.getAll, spark.getActiveSession())


def test_a_given_session_is_as_fast_as_one_of_the_audits_own(spark: Any) -> None:
    with session(spark, lambda _: None, master=None) as found:
        assert "false" == found.conf.get("spark.sql.adaptive.enabled")
        assert "kafka" not in found.conf.get("spark.sql.sources.useV1SourceList")


@pytest.mark.campaign
def test_a_session_without_the_connector_is_told_which_jars_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE], env={**os.environ}, capture_output=True, text=True, timeout=PATIENCE
    )

    assert "has no Kafka connector" in done.stdout and "kafka-eos jars" in done.stdout, done.stdout + done.stderr


@pytest.mark.campaign
def test_the_python_that_the_user_chose_is_the_workers(totals: Totals, tmp_path: Path) -> None:
    totals.finish()

    done = command(totals.job, tmp_path / "report", PYSPARK_PYTHON="/nowhere/python")

    assert done.returncode == 2, done.stdout
    assert "cannot start Python: set PYSPARK_PYTHON to a Python that exists" in done.stdout, done.stdout
