"""The security settings of Java's client, with which the audit reads Kafka: those of librdkafka, translated, or a file.

Rule: a setting without a translation is refused by name. Secrets in files are read now, except a token: Java reads its
file again for each client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafka_eos._util.secrets import FROM_FILE, read_secret_files
from kafka_eos.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OAUTH: Final = "sasl.oauthbearer."
_TOKEN_FILE: Final = f"{_OAUTH}token{FROM_FILE}"
_OF_PROVIDER: Final = {f"{_OAUTH}client.id": "clientId", f"{_OAUTH}client.secret": "clientSecret"}
"""The settings of a token provider, with their names in Java's login module."""
_FOLLOWED: Final = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        f"{_OAUTH}method",
        f"{_OAUTH}token.endpoint.url",
        f"{_OAUTH}scope",
        f"{_OAUTH}extensions",
        *_OF_PROVIDER,
    }
)
_SECRETS: Final = re.compile(r' (?:password|clientSecret)="((?:[^"\\]|\\.)*)"')
_LOGIN_MODULES: Final = "org.apache.kafka.common.security"
_SECURITY: Final = ("security.", "ssl.", "sasl.", "config.providers", "client.dns.lookup")
"""The beginnings of names of settings that decide how a client connects; all others are tuning."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The address of a cluster, and the security settings of its clients.

    ``config``          settings of librdkafka
    ``command_config``  a file with settings of Java's client, as Kafka's own tools read it; replaces ``config``
    """

    bootstrap: str
    config: Mapping[str, Any] = field(repr=False)
    command_config: Path | None = None

    def java(self, spark: SparkSession) -> dict[str, str]:
        """Return the settings of Java's client."""
        if self.command_config is None:
            return java_config(self.bootstrap, self.config)
        jvm: Any = spark._jvm
        loaded = jvm.org.apache.kafka.common.utils.Utils.loadProps(str(self.command_config))
        settings = {str(name): str(loaded.getProperty(name)) for name in loaded.stringPropertyNames()}
        given = {name: value for name, value in settings.items() if name.startswith(_SECURITY)}
        return {"bootstrap.servers": self.bootstrap, **given}


def java_config(bootstrap: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Convert the security settings of a librdkafka configuration for Java's client, without tuning.

    Raise ConfigError for a security setting that the audit does not support, or a secret that cannot be read.
    """
    token_file = config.get(_TOKEN_FILE)
    config = _read({name: value for name, value in config.items() if name != _TOKEN_FILE})
    _expect_followed(config)
    java = {"bootstrap.servers": bootstrap}
    java |= {name: str(config[name]) for name in ("security.protocol", "client.id") if name in config}
    mechanism = config.get("sasl.mechanism", config.get("sasl.mechanisms"))
    if mechanism is not None:
        java |= {"sasl.mechanism": str(mechanism), **_login(str(mechanism), config, token_file)}
    return java | _tls(config)


def _expect_followed(config: Mapping[str, Any]) -> None:
    if "oauth_cb" in config or f"{_OAUTH}token" in config:
        raise ConfigError(
            "the audit cannot take tokens from a function or from a setting: in KAFKA_EOS_KAFKA_CONFIG, name "
            f"a file with a token ({_TOKEN_FILE}), or a provider ({_OAUTH}method=oidc)"
        )
    if unknown := [name for name in config if name.startswith(("ssl.", "sasl.")) and name not in _FOLLOWED]:
        raise ConfigError(
            f"the audit cannot follow config[{unknown[0]!r}]; it supports PEM files, PLAIN, SCRAM and tokens: "
            f"{sorted(_FOLLOWED)}"
        )


def _read(config: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return read_secret_files(config)
    except ValueError as error:
        raise ConfigError(f"a secret for Kafka: {error}") from None


# ---------------------------------------------------------------- logins


def _login(mechanism: str, config: Mapping[str, Any], token_file: object) -> dict[str, str]:
    if mechanism.upper() == "OAUTHBEARER":
        return _tokens(config, token_file)
    if mechanism == "PLAIN":
        module = "plain.PlainLoginModule"
    elif mechanism.startswith("SCRAM-"):
        module = "scram.ScramLoginModule"
    else:
        raise ConfigError(
            f"the audit cannot log in with sasl.mechanism {mechanism}; it supports PLAIN, SCRAM-* and OAUTHBEARER"
        )
    named = {part: config.get(f"sasl.{part}", "") for part in ("username", "password")}
    return {"sasl.jaas.config": _jaas(module, named)}


def _tokens(config: Mapping[str, Any], token_file: object) -> dict[str, str]:
    handler = f"{_LOGIN_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
    options, url = ({}, f"file://{token_file}") if token_file else _provider(config)
    return {
        "sasl.login.callback.handler.class": handler,
        "sasl.oauthbearer.token.endpoint.url": url,
        # RFC 6749, 2.3.1: as the job itself asks.
        "sasl.oauthbearer.header.urlencode": "true",
        "sasl.jaas.config": _jaas("oauthbearer.OAuthBearerLoginModule", options),
    }


def _provider(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the options of the login module, and the address of the token provider."""
    url = f"{_OAUTH}token.endpoint.url"
    for name in (url, *_OF_PROVIDER):
        if not config.get(name):
            raise ConfigError(
                f"sasl.mechanism=OAUTHBEARER needs {_TOKEN_FILE}, or with {_OAUTH}method=oidc config[{name!r}]"
            )
    options = {java: config[name] for name, java in _OF_PROVIDER.items()}
    if scope := config.get(f"{_OAUTH}scope"):
        options["scope"] = scope
    if authority := config.get("https.ca.location"):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    for pair in filter(None, str(config.get(f"{_OAUTH}extensions", "")).split(",")):
        name, _, value = pair.partition("=")
        options[f"extension_{name.strip()}"] = value.strip()
    return options, str(config[url])


def _jaas(module: str, options: Mapping[str, Any]) -> str:
    option_text = "".join(f" {name}={_quoted(str(value))}" for name, value in options.items())
    return f"{_LOGIN_MODULES}.{module} required{option_text};"


def secrets_of(java: Mapping[str, str]) -> list[str]:
    """Return the secrets in a client's settings, which must not be shown."""
    found = _SECRETS.findall(java.get("sasl.jaas.config", ""))
    passwords = (value for name, value in java.items() if name.endswith(".password"))
    return list(filter(None, (*(re.sub(r"\\(.)", r"\1", each) for each in found), *passwords)))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# ---------------------------------------------------------------- TLS


def _tls(config: Mapping[str, Any]) -> dict[str, str]:
    java: dict[str, str] = {}
    if "ssl.ca.location" in config:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(config["ssl.ca.location"])}
    if "ssl.certificate.location" in config:
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": Path(config["ssl.certificate.location"]).read_text(),
            "ssl.keystore.key": Path(config["ssl.key.location"]).read_text(),
        }
    if "ssl.key.password" in config:
        java["ssl.key.password"] = str(config["ssl.key.password"])
    if config.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    return java
