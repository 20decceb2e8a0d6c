"""What a client logs in with, as it is now: secrets from their files, tokens from whoever gives them.

Rule: it is looked up anew for each client and each connection, and nothing of it is kept. A password that was changed,
or a certificate that was renewed, needs no restart of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka_eos._util.secrets import FROM_FILE, filled
from kafka_eos.connectors.kafka.client.oauth_tokens import OF_ENDPOINT, TOKEN, endpoint, from_endpoint, from_text
from kafka_eos.core.errors import Retryable

_OIDC: Final = "sasl.oauthbearer.method"
_RENEWED: Final = ("sasl.oauthbearer.", "oauth_cb")


def current(config: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's settings with which a client may be made now; how tokens are had becomes ``oauth_cb``.

    Retryable, which shows no secret, if a file cannot be read; ConfigError if tokens cannot be had like that.
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


def may_change(config: Mapping[str, Any]) -> bool:
    """Whether a login that is refused now may be accepted later without a change of the job's settings."""
    if str(config.get("security.protocol", "plaintext")).upper().endswith("SSL"):
        return True  # certificates are renewed, on both sides
    return any(name.endswith(FROM_FILE) or name.startswith(_RENEWED) for name in config)


def texts(config: Mapping[str, Any]) -> Mapping[str, str]:
    """What may be a secret, to compare a client's settings with those of a later moment."""
    return {name: value for name, value in config.items() if isinstance(value, str)}


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return filled(config)
    except ValueError as error:
        raise Retryable(f"a secret for Kafka: {error}") from None
