"""The optional extras of this package, and whether they are installed.

Rule: code that needs an extra checks it before it begins, and names the command that installs it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from kafka_eos.core.errors import ConfigError

_SPARK: Final = ("pyspark", "pyarrow", "pandas")
MODULES: Final = {
    "spark": (*_SPARK, "cryptography"),
    "audit": (*_SPARK, "numpy", "jinja2"),
    "postgres": ("psycopg",),
    "registry": ("httpx2", "authlib", "attrs", "cachetools", "jsonschema_rs"),
    "protobuf": ("google.protobuf",),
    "parquet": ("pyarrow",),
    "s3": ("boto3", "botocore"),
    "delta": ("deltalake", "pyarrow"),
    "iceberg": ("pyiceberg", "sqlalchemy", "pyarrow"),
    "dbapi": ("sqlalchemy",),
    "http": ("httpx2",),
    "openlineage": ("openlineage.client",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}


def ensure_extra(extra: str, what: str) -> None:
    """Raise ConfigError if something of the extra is not installed."""
    if missing := _missing(extra):
        raise ConfigError(f"{what} needs {', '.join(missing)}: pip install 'kafka-eos[{extra}]'")


def _missing(extra: str) -> list[str]:
    return [name for name in MODULES[extra] if not _installed(name)]


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # something prevents the import
        return False
