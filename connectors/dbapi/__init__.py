"""Tables of any database that SQLAlchemy supports: ``DbApiSink``.

Rule: only ``database`` knows how databases differ and maps their errors; only ``staging_catalog`` knows the sink's own
tables.
"""

from __future__ import annotations

from kafka_eos._util.extras import ensure_extra

ensure_extra("dbapi", "DbApiSink")  # before any module imports sqlalchemy

from kafka_eos.connectors.dbapi.committer import DbApiCommitter  # noqa: E402
from kafka_eos.connectors.dbapi.sink import DbApiSink  # noqa: E402

__all__ = ["DbApiCommitter", "DbApiSink"]
