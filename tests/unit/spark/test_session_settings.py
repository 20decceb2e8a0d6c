"""The settings of a Spark session that the package opens itself."""

from __future__ import annotations

import re

import pytest

from kafka_eos._util.secrets import is_secret_name
from kafka_eos.audit.cluster import spark_session
from kafka_eos.plan.worker_memory import WorkerMemory
from kafka_eos.spark import session


@pytest.mark.parametrize(
    "settings",
    [session._defaults("local[2]"), session._defaults("spark://host:7077"), spark_session._options(2, (), ())],
)
def test_a_session_of_our_own_serves_no_pages_and_shows_no_secrets(settings: dict[str, str]) -> None:
    names = ("kafka.sasl.jaas.config", "sasl.password", "basic.auth.user.info", "fs.azure.account.key", "s3.secretKey")

    assert settings["spark.ui.enabled"] == "false"
    assert all(re.search(settings["spark.redaction.regex"], name) for name in names), names
    assert all(map(is_secret_name, names))


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"memoryOverhead": "1434m"}, None),
        ({"memoryOverhead": "1433"}, "is 1433 MiB, and the 1 workers of an executor may take 1050 MiB"),
        ({"memoryOverhead": "2484m", "cores": "2"}, None),
        ({"memoryOverhead": "2g", "cores": "2"}, "is 2048 MiB, and the 2 workers of an executor may take 2100 MiB"),
        ({"memory": "20g"}, None),
        ({"memory": "4g"}, "is 409 MiB"),
        ({"memory": "4g", "memoryOverheadFactor": "0.4"}, None),
        ({}, "is 384 MiB"),
    ],
)
def test_a_container_that_is_too_small_for_its_workers_is_named(settings: dict[str, str], missing: str | None) -> None:
    """A worker takes 900 MiB of buffers and 150 MiB for its process; the JVM takes 384 MiB."""
    given = {f"spark.executor.{name}": value for name, value in settings.items()}
    worker = WorkerMemory(300 << 20, 100 << 20, 500 << 20)
    found = session.find_memory_shortage(given.get, "yarn", worker)

    assert found == "" if missing is None else missing in found, found
    assert session.find_memory_shortage(given.get, "spark://host:7077", worker) == ""
