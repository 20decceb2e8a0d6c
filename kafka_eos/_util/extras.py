"""What is installed besides the engine: the extras of this package.

Rule: who needs an extra says so before it begins, and names the one command that installs it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from kafka_eos.core.errors import ConfigError

_SPARK: Final = ("pyspark", "pyarrow", "pandas")
MODULES: Final = {
    "spark": _SPARK,
    "audit": (*_SPARK, "numpy", "jinja2"),
    "postgres": ("psycopg",),
    "registry": ("httpx2", "authlib", "attrs", "cachetools", "jsonschema_rs"),
    "protobuf": ("google.protobuf",),
    "parquet": ("pyarrow",),
    "s3": ("boto3", "botocore"),
    "delta": ("deltalake", "pyarrow"),
    "iceberg": ("pyiceberg", "sqlalchemy", "pyarrow"),
    "http": ("httpx2",),
    "ui": ("starlette", "uvicorn"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}


def expect_extra(extra: str, what: str) -> None:
    """ConfigError if something of ``extra`` that ``what`` needs is not installed."""
    if missing := _missing(extra):
        raise ConfigError(f"{what} needs {', '.join(missing)}: pip install 'kafka-eos[{extra}]'")


def has_extra(extra: str) -> bool:
    """Whether all of it is installed, for what is left out otherwise."""
    return not _missing(extra)


def _missing(extra: str) -> list[str]:
    return [name for name in MODULES[extra] if not _installed(name)]


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # something keeps it from being imported
        return False
