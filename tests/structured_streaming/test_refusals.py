"""What could break exactly-once is refused before the query starts, with what to change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from kafka_eos.core.errors import ConfigError
from kafka_eos.structured_streaming import exactly_once_kafka


@pytest.fixture
def start(bootstrap: str, tmp_path: Path) -> Callable[..., None]:
    def refused(df: Any, **options: Any) -> None:
        given = {"topic": "t", "bootstrap_servers": bootstrap, "checkpoint": tmp_path / "checkpoint"} | options
        exactly_once_kafka(df, **given)

    return refused


@pytest.fixture
def rows(spark: Any) -> Any:
    return spark.readStream.format("rate").load().selectExpr("string(value) AS value")


@pytest.fixture
def speculation(spark: Any) -> Iterator[None]:
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.speculation", "TRUE")
    yield
    conf.remove("spark.speculation")


@pytest.fixture
def other_python(spark: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The interpreter that this environment was made from: it has none of its packages."""
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    return bare


def test_speculation(start: Any, rows: Any, speculation: None) -> None:
    with pytest.raises(ConfigError, match=r"Set spark\.speculation=false"):
        start(rows)


def test_spark_connect(start: Any) -> None:
    """Its sessions and DataFrames raise for whatever needs a JVM in this process."""
    connect = SimpleNamespace()

    with pytest.raises(ConfigError, match="this is a Spark Connect session"):
        start(SimpleNamespace(isStreaming=True, sparkSession=connect))


def test_another_version_of_spark(start: Any, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.1")

    with pytest.raises(ConfigError, match="pip install 'pyspark=="):
        start(rows)


def test_a_python_of_the_tasks_without_this_package(start: Any, rows: Any, other_python: str) -> None:
    """As where a script is started as .venv/bin/python, and PYSPARK_PYTHON is not set."""
    wanted = f"tasks run '{other_python}' .* this program '{sys.executable}'.* set PYSPARK_PYTHON={sys.executable}"

    with pytest.raises(ConfigError, match=wanted) as refused:
        start(rows)

    assert "\n" not in str(refused.value)


@pytest.fixture(params=["enabled", "enableFullRetryOnMismatch"])
def unnoticed(request: Any, spark: Any) -> Iterator[str]:
    name = f"spark.sql.shuffle.orderIndependentChecksum.{request.param}"
    spark.conf.set(name, "false")
    yield name
    spark.conf.unset(name)


def test_attempts_that_differ_unnoticed(start: Any, rows: Any, unnoticed: str) -> None:
    with pytest.raises(ConfigError, match=f"Set {unnoticed}=true"):
        start(rows)


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_a_trigger_without_micro_batches(start: Any, rows: Any, trigger: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="only micro-batches"):
        start(rows, trigger=trigger)


def test_no_checkpoint(start: Any, rows: Any) -> None:
    with pytest.raises(ConfigError, match="checkpoint=… is required"):
        start(rows, checkpoint="")


def test_a_batch_dataframe(start: Any, spark: Any) -> None:
    with pytest.raises(ConfigError, match=r"spark\.readStream"):
        start(spark.range(3).selectExpr("string(id) AS value"))


def test_a_timeout_that_the_broker_refuses(start: Any, rows: Any, topic: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="more than the broker allows|accepts at most"):
        start(rows, topic=topic(), transaction_timeout=30 * 24 * 3600)


@pytest.mark.usefixtures("instant_topic_search")
def test_a_topic_that_does_not_exist(start: Any, rows: Any) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        start(rows, topic="no-such-topic-here")


def test_settings_that_the_guarantee_depends_on(start: Any, rows: Any) -> None:
    with pytest.raises(ConfigError, match="needs acks=all"):
        start(rows, config={"acks": "1"})


def test_columns(start: Any, rows: Any) -> None:
    """All cases are in tests/unit/structured_streaming/test_column_choice.py."""
    with pytest.raises(ConfigError, match="'headers' is map"):
        start(rows.selectExpr("value", "map('a', 'b') AS headers"))


def test_a_query_that_spark_refuses_leaves_nothing_held(start: Any, rows: Any, topic: Callable[..., str]) -> None:
    from pyspark.errors import AnalysisException

    target = topic()
    for _ in range(2):  # the second would find the lock taken
        with pytest.raises(AnalysisException):
            start(rows, topic=target, output_mode="complete")
