"""Tables of any database that has a driver of PEP 249: ``DbApiSink``, and ``Database``, which says what yours is like.

Rule: ``database`` is the only module that speaks to a driver or maps its errors, ``books`` the only one that knows the
sink's own tables.
"""

from __future__ import annotations

from kafka_eos.connectors.dbapi.committer import DbApiCommitter
from kafka_eos.connectors.dbapi.database import Connection, Cursor, Database, Driver
from kafka_eos.connectors.dbapi.sink import DbApiSink

__all__ = ["Connection", "Cursor", "Database", "DbApiCommitter", "DbApiSink", "Driver"]
