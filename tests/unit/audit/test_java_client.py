"""Java's client, with which the audit reads, logs in as the job does, or says what it cannot follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit.cluster.java_client_config import java_config, secrets_of
from kafka_eos.core.errors import ConfigError

HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PROVIDER: dict[str, Any] = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
    "sasl.oauthbearer.client.id": "orders",
    "sasl.oauthbearer.client.secret": 'with "quotes" and \\',
}


def test_tokens_of_a_provider_are_asked_for_by_java_itself() -> None:
    more = {
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, pool=p",
        "https.ca.location": "/etc/ca.pem",
    }

    java = java_config("broker:9092", {**PROVIDER, **more})

    assert java == {
        "bootstrap.servers": "broker:9092",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": HANDLER,
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.oauthbearer.header.urlencode": "true",
        "sasl.jaas.config": f'{MODULE} required clientId="orders" clientSecret="with \\"quotes\\" and \\\\" '
        'scope="kafka" ssl.truststore.type="PEM" ssl.truststore.location="/etc/ca.pem" '
        'extension_logicalCluster="lkc-1" extension_pool="p";',
    }


@pytest.mark.parametrize(
    ("config", "secret"),
    [
        (PROVIDER, [PROVIDER["sasl.oauthbearer.client.secret"]]),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": 'x"\\y'}, ['x"\\y']),
        ({"security.protocol": "ssl"}, []),
    ],
)
def test_what_nobody_may_see_is_known(config: dict[str, Any], secret: list[str]) -> None:
    assert secrets_of(java_config("b", config)) == secret


def test_a_token_of_a_file_stays_there(tmp_path: Path) -> None:
    """Each client of Java's reads it anew; and no setting of Spark's shows it."""
    java = java_config("b", {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.from_file": f"{tmp_path}/token"})

    assert java["sasl.oauthbearer.token.endpoint.url"] == f"file://{tmp_path}/token"
    assert java["sasl.jaas.config"] == f"{MODULE} required;"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sasl.mechanism": "OAUTHBEARER"}, r"needs sasl\.oauthbearer\.token\.from_file"),
        ({**PROVIDER, "sasl.oauthbearer.client.secret": ""}, r"config\['sasl\.oauthbearer\.client\.secret'\]"),
        ({"sasl.mechanism": "OAUTHBEARER", "oauth_cb": print}, r"function .* \(sasl\.oauthbearer\.token\.from_file\)"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "x"}, "or from a setting"),
        ({"sasl.mechanism": "GSSAPI"}, "cannot log in with sasl.mechanism GSSAPI"),
        ({"ssl.keystore.location": "/etc/store.p12"}, r"cannot follow config\['ssl\.keystore\.location'\]"),
        ({"sasl.mechanism": "PLAIN", "sasl.password.from_file": "/nowhere"}, "/nowhere cannot be read"),
    ],
)
def test_what_it_cannot_follow_is_said(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        java_config("b", config)
