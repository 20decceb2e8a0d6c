"""Every way to connect that is offered, on a real broker: both clients of ours come in by the same settings."""

from __future__ import annotations

import time
import uuid
from contextlib import closing, nullcontext
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_eos.abc.services import Services
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc import retrying_request as asking
from kafka_eos.core.errors import ConfigError, LoginRefused
from tests.broker.kafka_kit import job, read, send, task
from tests.certificates import Pair
from tests.chaos.harness import create_topic
from tests.oidc import provider, signed
from tests.secured import PASSWORD, RENEWED, SESSION_MS, Secured
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.xdist_group("secured")


@pytest.fixture(autouse=True)
def _refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only after the two seconds for which a broker that starts may refuse."""
    monkeypatch.setattr(asking, "_REFUSED_SECONDS", 0.0)


def _token(config: str) -> tuple[str, float]:
    return signed("app"), time.time() + 3600


def _user(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {"sasl.mechanism": mechanism, "sasl.username": "app", "sasl.password": password}


LOGINS = [
    pytest.param(_user("PLAIN"), id="plain"),
    pytest.param(_user("SCRAM-SHA-256"), id="scram-sha-256"),
    pytest.param(_user("SCRAM-SHA-512"), id="scram-sha-512"),
    pytest.param({"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": _token}, id="oauthbearer"),
]


def _cluster(secured: Secured, listener: str, **config: Any) -> Cluster:
    return Cluster(secured.addresses[listener], {**secured.config(listener), **config})


def _with(pair: Pair) -> dict[str, Any]:
    return {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}


def _commits(cluster: Cluster) -> None:
    """A transaction of librdkafka's is ended by us."""
    name = f"secured-{uuid.uuid4().hex[:8]}"
    producer = Producer(cluster.build_client_config({"transactional.id": name}, {}))
    producer.init_transactions(PATIENCE)
    with KafkaRequests(cluster) as rpc:
        seen = rpc.describe(name)
        assert seen is not None
        assert seen.state == "Empty"
        assert rpc.fence(name, 60_000) == "NONE"


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
def test_every_login(secured: Secured, listener: str, login: dict[str, Any]) -> None:
    _commits(_cluster(secured, listener, **login))


def test_tokens_come_from_a_file_or_a_provider_for_both_clients(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{signed('app')}\n")
    _commits(
        _cluster(secured, "SASL", **{"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.from_file": str(file)})
    )

    with provider(app=PASSWORD) as issuer:
        login = issuer.config("app", **{"sasl.oauthbearer.client.secret": PASSWORD})
        _commits(_cluster(secured, "BOTH", **login))
        assert len(issuer.asked) == 1


def test_a_provider_that_gives_no_token_is_said(secured: Secured) -> None:
    with provider(app=PASSWORD) as issuer:
        cluster = _cluster(secured, "SASL", **issuer.config("app", **{"sasl.oauthbearer.client.secret": "wrong"}))
        with (
            pytest.raises(ConfigError, match="no token from .* for the client 'app': 401"),
            KafkaRequests(cluster) as rpc,
        ):
            rpc.describe("any")


def test_a_new_connection_comes_in_with_the_password_of_now(secured: Secured, tmp_path: Path) -> None:
    """One that is refused is made again, with what the file has by then."""
    file = tmp_path / "password"
    user = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": RENEWED, "sasl.password.from_file": str(file)}
    file.write_text("one")
    secured.password(RENEWED, "one")
    with KafkaRequests(_cluster(secured, "SASL", **user)) as rpc:
        assert rpc.describe("any") is None
        secured.password(RENEWED, "two")
        ends = time.monotonic() + SESSION_MS / 1000 + 0.5
        writes = Timer(SESSION_MS / 1000 + 1.0, file.write_text, ["two"])
        writes.start()
        while time.monotonic() < ends or writes.is_alive():
            assert rpc.describe("any") is None
            time.sleep(0.05)


def test_a_reader_goes_on_with_the_password_of_now_and_says_that_it_has_none(secured: Secured, tmp_path: Path) -> None:
    """The client itself would ask for ever, and return nothing."""
    name, file = f"renewed-{uuid.uuid4().hex[:8]}", tmp_path / "password"
    create_topic(secured.open, name, 1)
    file.write_text("one")
    secured.password(RENEWED, "one")
    user = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": RENEWED, "sasl.password.from_file": str(file)}
    ctx = job(secured.addresses["SASL"])
    source = KafkaSource(name, config=secured.config("SASL", **user))
    send(secured.open, name, b"1", b"2")
    with closing(source.reader(task(ctx, "in", Services()), source.discover(ctx, None))) as reader:
        assert read(reader, 2) == [b"1", b"2"]
        file.write_text("two")
        secured.password(RENEWED, "two")
        first = reader._client  # type: ignore[attr-defined]
        eventually(lambda: reader.poll(1, 0.1) or reader._client is not first, "its session ends")  # type: ignore[attr-defined]
        send(secured.open, name, b"3")
        assert read(reader, 1) == [b"3"]

        secured.password(RENEWED, "three")
        with pytest.raises(LoginRefused, match=f"read {name}: .*uthentication"):
            eventually(lambda: reader.poll(1, 0.1), "it is refused")


def test_who_cannot_come_in_may_be_let_in_later(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wrong")
    user = {"sasl.mechanism": "PLAIN", "sasl.username": "app", "sasl.password.from_file": str(tmp_path / "password")}

    with pytest.raises(LoginRefused), KafkaRequests(_cluster(secured, "SASL", **user)) as rpc:
        rpc.describe("any")


def test_a_certificate_that_was_replaced_is_shown_at_the_next_connection(secured: Secured, tmp_path: Path) -> None:
    shown = Pair(*(tmp_path / name for name in ("certificate", "key", "both")))
    cluster = _cluster(secured, "MUTUAL", **_with(shown))
    for pair, refused in ((secured.over, True), (secured.client, False)):
        shown.certificate.write_bytes(pair.certificate.read_bytes())
        shown.key.write_bytes(pair.key.read_bytes())
        with (
            pytest.raises(LoginRefused, match="expired at") if refused else nullcontext(),
            KafkaRequests(cluster) as rpc,
        ):
            rpc.describe("any")
    _commits(cluster)


def test_tls_without_a_login(secured: Secured) -> None:
    _commits(_cluster(secured, "TLS"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_said(secured: Secured, mechanism: str) -> None:
    cluster = _cluster(secured, "SASL", **_user(mechanism, "wrong"))

    with (
        pytest.raises(ConfigError, match=r"refuses the connection: .*uthentication"),
        KafkaRequests(cluster) as rpc,
    ):
        rpc.describe("any")


def test_a_token_that_is_not_one_is_said(secured: Secured) -> None:
    login = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda config: ("nonsense", time.time() + 60)}
    cluster = _cluster(secured, "SASL", **login)

    with pytest.raises(ConfigError, match="refuses the connection"), KafkaRequests(cluster) as rpc:
        rpc.describe("any")


def test_a_certificate_that_nobody_trusts_is_said(secured: Secured) -> None:
    cluster = Cluster(secured.addresses["TLS"], {"security.protocol": "ssl"})

    with (
        pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED.*set ssl.ca.location to the CA that signed it"),
        KafkaRequests(cluster) as rpc,
    ):
        rpc.describe("any")


def test_a_certificate_for_another_name_is_said(secured: Secured) -> None:
    cluster = _cluster(secured, "TLS")
    elsewhere = Cluster(cluster.bootstrap.replace("127.0.0.1", "localhost"), cluster.config)

    with pytest.raises(ConfigError, match="Hostname mismatch"), KafkaRequests(elsewhere) as rpc:
        rpc.describe("any")


@pytest.mark.parametrize(
    "loose", [{"ssl.endpoint.identification.algorithm": "none"}, {"enable.ssl.certificate.verification": False}]
)
def test_checks_of_a_certificate_can_be_switched_off(secured: Secured, loose: dict[str, Any]) -> None:
    """``localhost``: the broker's own name for itself is 127.0.0.1, so only a first request goes there."""
    cluster = _cluster(secured, "TLS", **loose)
    elsewhere = Cluster(cluster.bootstrap.replace("127.0.0.1", "localhost"), cluster.config)

    with KafkaRequests(elsewhere) as rpc:
        assert rpc.transaction_version() >= 0


def test_a_listener_without_tls_is_no_listener_with_it(secured: Secured) -> None:
    cluster = Cluster(secured.open, {"security.protocol": "ssl", "ssl.ca.location": str(secured.authority)})

    with pytest.raises(ConfigError, match="is this a listener without TLS"), KafkaRequests(cluster) as rpc:
        rpc.describe("any")


def test_a_session_ends_and_nobody_notices(secured: Secured) -> None:
    """The broker ends a login after three seconds, and the connection with the next request on it."""
    cluster = _cluster(secured, "SASL", **_user("SCRAM-SHA-256"))
    ends = time.monotonic() + SESSION_MS / 1000 + 0.5
    with KafkaRequests(cluster) as rpc:
        while time.monotonic() < ends:
            assert rpc.describe("any") is None
            time.sleep(0.05)


def test_both_sides_show_certificates(secured: Secured) -> None:
    _commits(_cluster(secured, "MUTUAL", **_with(secured.client)))


@pytest.mark.parametrize(
    ("listener", "more", "said"),
    [
        pytest.param("EXPIRED", {}, "The broker's certificate has expired", id="the-broker-s-is-over"),
        pytest.param("MUTUAL", {}, "set ssl.certificate.location and ssl.key.location", id="the-client-has-none"),
    ],
)
def test_what_is_wrong_with_certificates_is_said(
    secured: Secured, listener: str, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said), KafkaRequests(_cluster(secured, listener, **more)) as rpc:
        rpc.describe("any")


def test_a_client_s_certificate_that_is_over_is_named(secured: Secured) -> None:
    cluster = _cluster(secured, "MUTUAL", **_with(secured.over))
    over = rf"{secured.over.certificate} expired at \d{{4}}-\d\d-\d\d \d\d:\d\d UTC: renew it"

    with pytest.raises(ConfigError, match=over), KafkaRequests(cluster) as rpc:
        rpc.describe("any")


@pytest.mark.parametrize(
    ("listener", "protocol", "said"),
    [
        ("SASL", "plaintext", "A listener that requires a login does so: set security.protocol"),
        ("TLS", "plaintext", "it responds with TLS: set security.protocol=SSL"),
        ("OPEN", "sasl_plaintext", "this listener requires no login: use security.protocol=PLAINTEXT"),
        ("TLS", "sasl_ssl", "this listener requires no login: use security.protocol=SSL"),
    ],
)
def test_the_wrong_way_to_connect_is_said(secured: Secured, listener: str, protocol: str, said: str) -> None:
    config = {"security.protocol": protocol, "ssl.ca.location": str(secured.authority), **_user("PLAIN")}

    with (
        pytest.raises(ConfigError, match=said),
        KafkaRequests(Cluster(secured.addresses[listener], config)) as rpc,
    ):
        rpc.describe("any")
