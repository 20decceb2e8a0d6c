"""Tables of a PostgreSQL database: ``PostgresSink`` writes them, ``PostgresSource`` reads one as it was.

Rule: ``client`` is the only module that opens a connection or maps the server's errors, ``statements`` the only one
that composes SQL that changes a user's table, ``ledger`` the only one that knows the tables of the sink's own books.
"""

from __future__ import annotations

from kafka_eos.connectors.postgres.sink.committer import PostgresCommitter
from kafka_eos.connectors.postgres.sink.postgres_sink import PostgresSink
from kafka_eos.connectors.postgres.source.postgres_source import PostgresSource

__all__ = ["PostgresCommitter", "PostgresSink", "PostgresSource"]
