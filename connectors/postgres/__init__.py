"""Tables of a PostgreSQL database: ``PostgresSink`` writes them, ``PostgresSource`` reads a snapshot of one.

Rule: only ``connection`` opens connections and maps the server's errors, only ``sink.statements`` composes SQL that
changes a user's table, and only ``sink.staging_catalog`` knows the sink's own tables.
"""

from __future__ import annotations

from kafka_eos.connectors.postgres.sink.committer import PostgresCommitter
from kafka_eos.connectors.postgres.sink.postgres_sink import PostgresSink
from kafka_eos.connectors.postgres.source.postgres_source import PostgresSource

__all__ = ["PostgresCommitter", "PostgresSink", "PostgresSource"]
