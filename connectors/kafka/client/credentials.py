"""The present credentials of a client: secrets from their files, and tokens from their provider.

Rule: credentials are read for each client and each connection, and never kept. A changed password or a renewed
certificate needs no restart of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka_eos._util.secrets import FROM_FILE, read_secret_files
from kafka_eos.connectors.kafka.client.oauth_tokens import OF_ENDPOINT, TOKEN, endpoint, from_endpoint, from_text
from kafka_eos.core.errors import Retryable

_OIDC: Final = "sasl.oauthbearer.method"
_RENEWED: Final = ("sasl.oauthbearer.", "oauth_cb")


def resolve_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the librdkafka settings with secrets read from files, and a callback for tokens.

    Raises Retryable, which shows no secret, if a file cannot be read; ConfigError if the settings cannot give tokens.
    """
    without = {name: value for name, value in config.items() if name.removesuffix(FROM_FILE) != TOKEN}
    given = {name: value for name, value in config.items() if name.removesuffix(FROM_FILE) == TOKEN}
    found = _read(without)
    if given:
        return {**found, "oauth_cb": lambda _: from_text(_read(given)[TOKEN], given.get(TOKEN + FROM_FILE))}
    if str(found.get(_OIDC, "default")).lower() != "oidc":
        return found
    asked = endpoint(found)
    rest = {name: value for name, value in found.items() if name not in OF_ENDPOINT and name != _OIDC}
    return {**rest, "oauth_cb": lambda _: from_endpoint(asked)}


def is_renewable(config: Mapping[str, Any]) -> bool:
    """Return whether a login that is rejected now may succeed later without a change of settings."""
    if str(config.get("security.protocol", "plaintext")).upper().endswith("SSL"):
        return True  # certificates are renewed, on both sides
    return any(name.endswith(FROM_FILE) or name.startswith(_RENEWED) for name in config)


def texts(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the settings that may be secrets, to compare a client's settings with later ones."""
    return {name: value for name, value in config.items() if isinstance(value, str)}


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return read_secret_files(config)
    except ValueError as error:
        raise Retryable(f"a secret for Kafka: {error}") from None
