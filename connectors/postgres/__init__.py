"""Tables of a PostgreSQL database: ``PostgresSink`` writes them, ``PostgresSource`` reads a snapshot of one.

Rule: only ``connection`` opens connections and maps the server's errors, only ``sink.statements`` composes SQL that
changes a user's table, and only ``sink.staging_catalog`` knows the sink's own tables.
"""

from __future__ import annotations

from kafka_eos._util.extras import ensure_extra

ensure_extra("postgres", "PostgresSink")  # before any module imports psycopg

from kafka_eos.connectors.postgres.sink.committer import PostgresCommitter  # noqa: E402
from kafka_eos.connectors.postgres.sink.postgres_sink import PostgresSink  # noqa: E402
from kafka_eos.connectors.postgres.source.postgres_source import PostgresSource  # noqa: E402

__all__ = ["PostgresCommitter", "PostgresSink", "PostgresSource"]
