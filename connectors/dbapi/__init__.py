"""Tables of any database that has a PEP 249 driver: ``DbApiSink``, and ``Database``, which describes yours.

Rule: only ``database`` calls a driver and maps its errors; only ``staging_catalog`` knows the sink's own tables.
"""

from __future__ import annotations

from kafka_eos.connectors.dbapi.committer import DbApiCommitter
from kafka_eos.connectors.dbapi.database import Connection, Cursor, Database, Driver
from kafka_eos.connectors.dbapi.sink import DbApiSink

__all__ = ["Connection", "Cursor", "Database", "DbApiCommitter", "DbApiSink", "Driver"]
