"""The ports on which the driver and the workers in Spark's tasks listen: as Spark counts its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kafka_eos.core.errors import ConfigError
from kafka_eos.spark.worker_jobs import DRIVER_PORT, find_ports


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({}, range(1)),
        ({"spark.port.maxRetries": "3"}, range(1)),
        ({DRIVER_PORT: "0"}, range(1)),
        ({DRIVER_PORT: "40000"}, range(40000, 40017)),
        ({DRIVER_PORT: "40000", "spark.port.maxRetries": "0"}, range(40000, 40001)),
        ({DRIVER_PORT: "65535"}, range(65535, 65536)),
    ],
)
def test_ports_begin_with_the_given_one_and_end_after_sparks_retries(settings: Mapping[str, str], ports: range) -> None:
    assert find_ports(settings.get, DRIVER_PORT) == ports


@pytest.mark.parametrize("given", ["65536", "-1", "40000-40010"])
def test_what_is_no_port_is_refused_by_name(given: str) -> None:
    with pytest.raises(ConfigError, match=f"{DRIVER_PORT}={given}"):
        find_ports({DRIVER_PORT: given}.get, DRIVER_PORT)
