"""The user's connection and security settings, for this package's own connections.

Users configure librdkafka. Rule: a setting that cannot be applied here is refused by name, so that the two never
connect in different ways.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final

from msgspec import Struct

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.oauth_tokens import TokenRefused
from kafka_eos.connectors.kafka.rpc.certificates import ends_of
from kafka_eos.connectors.kafka.rpc.sasl import SCRAM, Login, LoginFailed, kerberos, oauthbearer, plain, scram
from kafka_eos.core.errors import ConfigError, Retryable

_CARRIED: Final = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.config",
        "sasl.kerberos.service.name",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        # These configure how librdkafka runs kinit; here the existing ticket is used.
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
    }
)
_INSTEAD: Final = {
    "ssl": "give PEM files with ssl.ca.location, ssl.certificate.location and ssl.key.location",
    "sasl": "use sasl.username and sasl.password, Kerberos, or tokens: sasl.oauthbearer.token.from_file, "
    "sasl.oauthbearer.method=oidc, or a function as oauth_cb",
}
_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED."""
_UNKNOWN: Final = frozenset({2, 18, 19, 20, 21})
"""X509_V_ERR_… of a certificate that no trusted authority has signed, or that is self-signed."""
_PROTOCOLS: Final = {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}


class Sasl(Struct, frozen=True):
    """A SASL mechanism. ``login`` begins a login at a host."""

    mechanism: str
    login: Callable[[str], Login]


class Security(Struct, frozen=True):
    """The settings of a connection; ``tls`` and ``sasl`` are None if they are not used."""

    client_id: str
    tls: ssl.SSLContext | None
    sasl: Sasl | None
    certificate: str | None = None
    """The file with the client's own certificate."""
    authority: str | None = None
    """The file with the authorities to trust, if not those of the system."""


def security(cluster: Cluster) -> Security:
    """Return the connection settings of librdkafka's configuration, with the present secrets, for one connection.

    Raises ConfigError for a setting that cannot be applied, Retryable if a secret cannot be read.
    """
    config = cluster.current()
    for key in sorted(config.keys() - _CARRIED):
        if instead := _INSTEAD.get(key.partition(".")[0]):
            like = get_close_matches(key, _CARRIED, 1, 0.9)
            meant = f" Did you mean {like[0]!r}?" if like else ""
            raise ConfigError(
                f"config[{key!r}] cannot be applied to the client that ends transactions: {instead}.{meant}"
            )
    protocol = str(config.get("security.protocol", "plaintext")).upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"config['security.protocol'] is {protocol!r}; use one of {', '.join(sorted(_PROTOCOLS))}.")
    return Security(
        str(config.get("client.id", "kafka-eos")),
        _tls(config) if protocol.endswith("SSL") else None,
        _sasl(config) if protocol.startswith("SASL") else None,
        config.get("ssl.certificate.location"),
        config.get("ssl.ca.location"),
    )


def tls_advice(error: ssl.SSLError, used: Security) -> str:
    """Return advice for a TLS error, if the rejected certificate is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return ". The broker's certificate has expired, or this machine's clock is wrong: renew it on the broker"
        if error.verify_code in _UNKNOWN:
            trusted = "this machine" if used.authority is None else used.authority
            return (
                f". The broker's certificate is not signed by a CA in {trusted}: set ssl.ca.location "
                "to the CA that signed it"
            )
        return ""
    if "alert" not in str(error).lower():
        return ""
    if used.certificate is None:
        return ". The broker requires a client certificate: set ssl.certificate.location and ssl.key.location"
    ends = ends_of(used.certificate)
    if ends < datetime.now(UTC):
        return f". The client's certificate {used.certificate} expired at {ends:%Y-%m-%d %H:%M} UTC: renew it"
    return (
        f". The broker does not accept the client's certificate {used.certificate}: check "
        "that it trusts the CA that signed it"
    )


def _tls(config: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = str(config.get("ssl.endpoint.identification.algorithm", "https")).lower() == "https"
    if str(config.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _load(context, config)
    except OSError as error:  # an error of the file or its content
        files = {
            name: config[name] for name in sorted(config) if name.startswith("ssl.") and name.endswith(".location")
        }
        raise ConfigError(f"the TLS files cannot be used: {error}; {files}") from error
    return context


def _load(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    if authority := config.get("ssl.ca.location"):
        context.load_verify_locations(authority)
    else:
        context.load_default_certs()
    if certificate := config.get("ssl.certificate.location"):
        password = str(config.get("ssl.key.password", ""))  # never None: OpenSSL would prompt on the terminal
        context.load_cert_chain(certificate, config.get("ssl.key.location"), password)
    if revoked := config.get("ssl.crl.location"):
        context.load_verify_locations(revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _sasl(config: Mapping[str, Any]) -> Sasl:
    mechanism = str(config.get("sasl.mechanisms", config.get("sasl.mechanism", "GSSAPI"))).upper()
    return Sasl(mechanism, _login(mechanism, config))


def _login(mechanism: str, config: Mapping[str, Any]) -> Callable[[str], Login]:
    """Return a function that begins a login, one per connection."""
    if mechanism == "GSSAPI":
        service = str(config.get("sasl.kerberos.service.name", "kafka"))
        return lambda host: kerberos(service, host)
    if mechanism == "OAUTHBEARER":
        if "oauth_cb" not in config:
            raise ConfigError(f"sasl.mechanisms=OAUTHBEARER: {_INSTEAD['sasl']}.")
        return lambda host: oauthbearer(*_token(config))
    if mechanism not in {"PLAIN", *SCRAM}:
        raise ConfigError(f"config['sasl.mechanisms'] is {mechanism!r}: {_INSTEAD['sasl']}.")
    _expect(mechanism, config, "sasl.username", "sasl.password")
    user, password = str(config["sasl.username"]), str(config["sasl.password"])
    if mechanism == "PLAIN":
        return lambda host: plain(user, password)
    return lambda host: scram(SCRAM[mechanism], user, password)


def _expect(mechanism: str, config: Mapping[str, Any], *names: str) -> None:
    if missing := [name for name in names if name not in config]:
        raise ConfigError(f"sasl.mechanisms={mechanism} needs config[{missing[0]!r}].")


def _token(config: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """Return a token and its extensions from ``oauth_cb``, which librdkafka also uses. Raise LoginFailed
    without one."""
    try:
        answer = config["oauth_cb"](str(config.get("sasl.oauthbearer.config", "")))
    except TokenRefused as error:
        raise LoginFailed(str(error)) from error
    except Retryable:
        raise
    except Exception as error:
        raise Retryable(f"oauth_cb failed: {error!r}") from error
    if not isinstance(answer, tuple | list) or not answer or not isinstance(answer[0], str):
        raise ConfigError("oauth_cb must return (token, expiry, …)")
    return answer[0], answer[3] if len(answer) > 3 else {}
