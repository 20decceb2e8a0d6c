"""Every way to connect that is offered, on a real broker: both clients of ours come in by the same settings."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.settings import Cluster
from kafka_eos.devbroker import Broker
from kafka_eos.devbroker.settings import free_ports
from kafka_eos.errors import ConfigError
from tests.certificates import certificate
from tests.waiting import PATIENCE

PASSWORD = "canary=8d21,c4"
MODULES = "org.apache.kafka.common.security"
SESSION_MS = 3_000


@dataclass(frozen=True)
class Listeners:
    """Addresses by security protocol, and the certificate that their clients trust."""

    addresses: Mapping[str, str]
    authority: Path


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    directory = tmp_path_factory.mktemp("secured")
    store, authority = certificate(directory, "changeit")
    port, controller, sasl, tls, both = free_ports(5)
    ports = {"PLAINTEXT": port, "SASL_PLAINTEXT": sasl, "SSL": tls, "SASL_SSL": both}
    offered = ",".join(f"{name}://127.0.0.1:{at}" for name, at in ports.items())
    logins = {
        "plain": f'{MODULES}.plain.PlainLoginModule required user_app="{PASSWORD}";',
        "scram-sha-256": f"{MODULES}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{MODULES}.scram.ScramLoginModule required;",
        "oauthbearer": f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="x";',
    }
    overrides = {
        "listeners": f"{offered},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": offered,
        "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in ports) + ",CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(name.upper() for name in logins),
        "connections.max.reauth.ms": str(SESSION_MS),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "changeit",
        **{
            f"listener.name.{name}.{mechanism}.sasl.jaas.config": login
            for name in ("sasl_plaintext", "sasl_ssl")
            for mechanism, login in logins.items()
        },
    }
    with Broker(directory / "kafka", port, overrides, controller_port=controller) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(kind, 4096)
            made = admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("app", info, password=PASSWORD.encode())]
            )
            made["app"].result(PATIENCE)
        yield Listeners({name: f"127.0.0.1:{at}" for name, at in ports.items()}, authority)


def _token(config: str) -> tuple[str, float]:
    """A token that is not signed, as a broker takes it that was told of no authority."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": "app", "iat": now, "exp": now + 3600})
    return ".".join(_part(part) for part in parts) + ".", now + 3600


def _part(of: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(of).encode()).rstrip(b"=").decode()


def _user(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {"sasl.mechanism": mechanism, "sasl.username": "app", "sasl.password": password}


LOGINS = [
    pytest.param(_user("PLAIN"), id="plain"),
    pytest.param(_user("SCRAM-SHA-256"), id="scram-sha-256"),
    pytest.param(_user("SCRAM-SHA-512"), id="scram-sha-512"),
    pytest.param({"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": _token}, id="oauthbearer"),
]


def _cluster(listeners: Listeners, protocol: str, **config: Any) -> Cluster:
    trusted = {"ssl.ca.location": str(listeners.authority)} if protocol.endswith("SSL") else {}
    return Cluster(listeners.addresses[protocol], {"security.protocol": protocol, **trusted, **config})


def _commits(cluster: Cluster) -> None:
    """A transaction of librdkafka's is ended by us."""
    name = f"secured-{uuid.uuid4().hex[:8]}"
    producer = Producer(cluster.client({"transactional.id": name}, {}))
    producer.init_transactions(PATIENCE)
    with KafkaRequests(cluster) as rpc:
        seen = rpc.describe(name)
        assert seen is not None
        assert seen.state == "Empty"
        assert rpc.fence(name, 60_000) == "NONE"


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_every_login(listeners: Listeners, protocol: str, login: dict[str, Any]) -> None:
    _commits(_cluster(listeners, protocol, **login))


def test_tls_without_a_login(listeners: Listeners) -> None:
    _commits(_cluster(listeners, "SSL"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_said(listeners: Listeners, mechanism: str) -> None:
    cluster = _cluster(listeners, "SASL_PLAINTEXT", **_user(mechanism, "wrong"))

    with pytest.raises(ConfigError, match=r"refuses the connection: .*uthentication"), KafkaRequests(cluster) as rpc:
        rpc.describe("any")


def test_a_token_that_is_not_one_is_said(listeners: Listeners) -> None:
    login = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda config: ("nonsense", time.time() + 60)}
    cluster = _cluster(listeners, "SASL_PLAINTEXT", **login)

    with pytest.raises(ConfigError, match="refuses the connection"), KafkaRequests(cluster) as rpc:
        rpc.describe("any")


def test_a_certificate_that_nobody_trusts_is_said(listeners: Listeners) -> None:
    cluster = Cluster(listeners.addresses["SSL"], {"security.protocol": "ssl"})

    with pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED"), KafkaRequests(cluster) as rpc:
        rpc.describe("any")


def test_a_certificate_for_another_name_is_said(listeners: Listeners) -> None:
    cluster = _cluster(listeners, "SSL")
    elsewhere = Cluster(cluster.bootstrap.replace("127.0.0.1", "localhost"), cluster.config)

    with pytest.raises(ConfigError, match="Hostname mismatch"), KafkaRequests(elsewhere) as rpc:
        rpc.describe("any")


@pytest.mark.parametrize(
    "loose", [{"ssl.endpoint.identification.algorithm": "none"}, {"enable.ssl.certificate.verification": False}]
)
def test_checks_of_a_certificate_can_be_switched_off(listeners: Listeners, loose: dict[str, Any]) -> None:
    """``localhost``: the broker's own name for itself is 127.0.0.1, so only a first request goes there."""
    cluster = _cluster(listeners, "SSL", **loose)
    elsewhere = Cluster(cluster.bootstrap.replace("127.0.0.1", "localhost"), cluster.config)

    with KafkaRequests(elsewhere) as rpc:
        assert rpc.transaction_version() >= 0


def test_a_listener_without_tls_is_no_listener_with_it(listeners: Listeners) -> None:
    cluster = Cluster(
        listeners.addresses["PLAINTEXT"], {"security.protocol": "ssl", "ssl.ca.location": str(listeners.authority)}
    )

    with pytest.raises(ConfigError, match="is this a listener without TLS"), KafkaRequests(cluster) as rpc:
        rpc.describe("any")


def test_a_session_ends_and_nobody_notices(listeners: Listeners) -> None:
    """The broker ends a login after three seconds, and the connection with the next request on it."""
    cluster = _cluster(listeners, "SASL_PLAINTEXT", **_user("SCRAM-SHA-256"))
    ends = time.monotonic() + SESSION_MS / 1000 + 0.5
    with KafkaRequests(cluster) as rpc:
        while time.monotonic() < ends:
            assert rpc.describe("any") is None
            time.sleep(0.05)
