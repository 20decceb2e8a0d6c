"""Iceberg tables: ``IcebergSink``, which adds or replaces rows, each exactly once.

Rule: ``catalogs``, ``table``, ``durable`` and ``partitions`` are the only modules that call the library, and what it
shares with other formats is in ``lake``.
"""

from __future__ import annotations

from kafka_eos.connectors.iceberg.sink import IcebergSink

__all__ = ["IcebergSink"]
