"""The settings of a Spark session that the package opens itself."""

from __future__ import annotations

import re

import pytest

from kafka_eos._util.secrets import is_secret_name
from kafka_eos.audit.cluster import spark_session
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
