"""One broker with a listener for each way to come in, and with access rights: all tests of security share it.

    OPEN       neither TLS nor a login: for the test's own clients, who may do everything
    SASL       a login without TLS
    TLS        without a login
    BOTH       TLS and a login
    MUTUAL     TLS that asks the client for a certificate
    EXPIRED    TLS with a certificate of the broker that ended yesterday

Rule: whoever has no rights of its own may do nothing (StandardAuthorizer), but for ``app``, ``renewed``, the client of
the certificates, and who comes in without a name: they may do everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.broker.settings import free_ports
from tests.certificates import Authority, Pair
from tests.oidc import jwks
from tests.waiting import PATIENCE

PASSWORD = "canary=8d21,c4"
LIMITED = "limited"
"""A user without any right at first; its password is ``PASSWORD`` too."""
RENEWED = "renewed"
"""A user whose password for SCRAM a test changes."""
SESSION_MS = 3_000
_MODULES = "org.apache.kafka.common.security"
_PROTOCOLS = {
    "OPEN": "PLAINTEXT",
    "SASL": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "BOTH": "SASL_SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
}
_LOGINS = {
    "plain": f'{_MODULES}.plain.PlainLoginModule required user_app="{PASSWORD}" user_{LIMITED}="{PASSWORD}";',
    "scram-sha-256": f"{_MODULES}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_MODULES}.scram.ScramLoginModule required;",
    "oauthbearer": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;",
}


@dataclass(frozen=True)
class Secured:
    """Addresses by listener, and what clients need: the authority to trust, certificates that hold and that ended."""

    broker: Broker
    addresses: Mapping[str, str]
    authority: Path
    client: Pair
    over: Pair

    @property
    def open(self) -> str:
        return self.addresses["OPEN"]

    def config(self, listener: str, **more: Any) -> dict[str, Any]:
        """librdkafka's settings of a client of that listener; ``more`` with ``_`` for dots, or with dots."""
        protocol = _PROTOCOLS[listener]
        trusted = {"ssl.ca.location": str(self.authority)} if protocol.endswith("SSL") else {}
        named = {n if "." in n else n.replace("_", "."): value for n, value in more.items()}
        return {"security.protocol": protocol, **trusted, **named}

    def password(self, user: str, password: str, *mechanisms: ScramMechanism) -> None:
        """From now on this is the user's password for SCRAM."""
        admin = AdminClient({"bootstrap.servers": self.open})
        for mechanism in mechanisms or (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            wanted = UserScramCredentialUpsertion(user, info, password=password.encode())
            admin.alter_user_scram_credentials([wanted])[user].result(PATIENCE)


@contextmanager
def secured(directory: Path, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[Secured]:
    """``more``: settings of the broker besides."""
    authority = Authority(directory)
    server, expired = authority.sign("broker"), authority.sign("broker", timedelta(days=-1))
    controller, *free = free_ports(1 + len(_PROTOCOLS))
    ports = dict(zip(_PROTOCOLS, free, strict=True))
    keys = directory / "jwks.json"
    keys.write_text(jwks())
    overrides = {**_overrides(ports, controller, authority, server, expired), **_verified(keys.as_uri()), **more}
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"
    with Broker(directory / "kafka", ports["OPEN"], overrides, controller_port=controller,
                jvm_options=[allowed]) as broker:  # fmt: skip
        found = Secured(
            broker,
            {name: f"127.0.0.1:{port}" for name, port in ports.items()},
            authority.certificate,
            authority.sign("client"),
            authority.sign("client", timedelta(days=-1)),
        )
        found.password("app", PASSWORD)
        yield found


def _verified(keys: str) -> dict[str, str]:
    """Tokens must be signed by the key that stands at this address."""
    settings = {
        "sasl.server.callback.handler.class": f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
    }
    return {
        f"listener.name.{listener}.oauthbearer.{name}": value
        for listener in ("sasl", "both")
        for name, value in settings.items()
    }


def _overrides(
    ports: Mapping[str, int], controller: int, authority: Authority, server: Pair, expired: Pair
) -> dict[str, str]:
    offered = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    return {
        "listeners": f"{offered},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": offered,
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in _PROTOCOLS.items()) + ",CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "OPEN",
        "sasl.enabled.mechanisms": ",".join(name.upper() for name in _LOGINS),
        "connections.max.reauth.ms": str(SESSION_MS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.expired.ssl.keystore.type": "PEM",
        "listener.name.expired.ssl.keystore.location": str(expired.both),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:app;User:{RENEWED};User:CN=client",
        **{
            f"listener.name.{name}.{mechanism}.sasl.jaas.config": login
            for name in ("sasl", "both")
            for mechanism, login in _LOGINS.items()
        },
    }
