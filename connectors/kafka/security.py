"""The user's connection and security settings, in the names of the client that ends transactions.

Users configure librdkafka; the raw client is kafka-python's.
Rule: what cannot be carried over is refused by name, so that the two never connect in different ways.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from kafka_eos.connectors.kafka.settings import Cluster
from kafka_eos.errors import Bug, ConfigError

_PLAIN: Final = {
    "client.id": "client_id",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}
_CARRIED: Final = frozenset(
    {
        *_PLAIN,
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.config",
        "ssl.endpoint.identification.algorithm",
        # These say how librdkafka runs kinit; the raw client takes the ticket that is there.
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
    }
)
_INSTEAD: Final = {
    "ssl": "give PEM files with ssl.ca.location, ssl.certificate.location and ssl.key.location",
    "sasl": "use sasl.username and sasl.password, Kerberos, or a function for tokens as oauth_cb",
}


def connection(cluster: Cluster, request_ms: int) -> dict[str, Any]:
    """kafka-python's names for librdkafka's connection and security settings. ConfigError for one it has not."""
    config = cluster.config
    for key in sorted(config.keys() - _CARRIED):
        if instead := _INSTEAD.get(key.partition(".")[0]):
            raise ConfigError(
                f"config[{key!r}] cannot be carried over to the client that ends transactions: {instead}."
            )
    found: dict[str, Any] = {ours: config[key] for key, ours in _PLAIN.items() if key in config}
    found.update(
        bootstrap_servers=cluster.bootstrap.split(","),
        security_protocol=str(config.get("security.protocol", "plaintext")).upper(),
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=500,
        request_timeout_ms=request_ms,
        socket_connection_setup_timeout_ms=request_ms,
        socket_connection_setup_timeout_max_ms=request_ms,
        receive_message_max_bytes=100_000_000,
    )
    mechanism = config.get("sasl.mechanisms", config.get("sasl.mechanism"))
    if mechanism is not None:
        found["sasl_mechanism"] = str(mechanism).upper()
    if "oauth_cb" in config:
        found["sasl_oauth_token_provider"] = _Tokens(config["oauth_cb"], str(config.get("sasl.oauthbearer.config", "")))
    algorithm = str(config.get("ssl.endpoint.identification.algorithm", "https")).lower()
    found["ssl_check_hostname"] = algorithm == "https"
    if str(config.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        found["ssl_context"] = _unverified(config)
    return found


def _unverified(config: Mapping[str, Any]) -> ssl.SSLContext:
    """The user switched verification off by name; keep the client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if "ssl.certificate.location" in config:
        context.load_cert_chain(
            config["ssl.certificate.location"], config.get("ssl.key.location"), config.get("ssl.key.password")
        )
    return context


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Asks the user's ``oauth_cb``, the one librdkafka uses, for a token at each (re)connection."""

    def __init__(self, callback: Callable[[str], Sequence[Any]], config: str) -> None:
        super().__init__()
        self._callback, self._config = callback, config
        self._extensions: Mapping[str, str] = {}

    def token(self) -> str:
        answer = self._callback(self._config)
        if not answer or not isinstance(answer[0], str):
            raise Bug("oauth_cb must return (token, expiry, …)")
        self._extensions = answer[3] if len(answer) > 3 else {}
        return answer[0]

    def extensions(self) -> Mapping[str, str]:
        return self._extensions
