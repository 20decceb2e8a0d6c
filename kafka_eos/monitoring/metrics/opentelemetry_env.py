"""The standard variables ``OTEL_*`` as far as they are read here; the SDK reads the others by itself.

Rule: what this exporter cannot do, and what the SDK would find out only when it sends, is refused before the job
starts.
"""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.http.hosts import host_in_url

_LOCAL: Final = "http://localhost:4318"


def is_enabled(signal: str) -> bool:
    """Return whether a signal is to be exported; ConfigError for an unsupported exporter.

    ``signal``: METRICS or TRACES. ConfigError if it is to be sent in another way.
    """
    if _of("OTEL_SDK_DISABLED").lower() == "true":
        return False
    kind = _of(f"OTEL_{signal}_EXPORTER") or "otlp"
    if kind not in ("otlp", "none"):
        raise ConfigError(f"OTEL_{signal}_EXPORTER={kind}: kafka-eos exports only OTLP: set it to otlp or none")
    name, protocol = _first(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    if kind == "otlp" and protocol not in ("", "http/protobuf"):
        raise ConfigError(
            f"{name}={protocol}: kafka-eos supports only http/protobuf, which collectors accept on port 4318"
        )
    return kind == "otlp"


def read_endpoint(signal: str) -> str:
    """Return scheme, host and port of the endpoint of a signal. ConfigError if the address is none."""
    name, address = _first(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    try:
        parts = urlsplit(address or _LOCAL)
        port = parts.port
    except ValueError:
        raise ConfigError(_no_address(name)) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(_no_address(name))
    return f"{parts.scheme}://{host_in_url(parts.hostname)}" + ("" if port is None else f":{port}")


def has_credential_provider(signal: str) -> bool:
    """Return whether the SDK loads a session with credentials for a signal."""
    prefix, name = "OTEL_PYTHON_EXPORTER_OTLP_HTTP", "CREDENTIAL_PROVIDER"
    return bool(_first(f"{prefix}_{signal}_{name}", f"{prefix}_{name}")[1])


def interval() -> float:
    """Return the seconds between two exports of metrics."""
    text = _of("OTEL_METRIC_EXPORT_INTERVAL") or "60000"
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"OTEL_METRIC_EXPORT_INTERVAL={text}: give milliseconds, such as 10000")
    return int(text) / 1000


def _no_address(name: str) -> str:
    """Return the error text for a variable, without its value, which may contain a password."""
    return f"{name} is not a valid address: use http://HOST:4318"


def _first(*names: str) -> tuple[str, str]:
    """Return the first of these variables that is set, with its value; if none is, the last one, empty."""
    return next(((name, value) for name in names if (value := _of(name))), (names[-1], ""))


def _of(name: str) -> str:
    return os.environ.get(name, "").strip()
