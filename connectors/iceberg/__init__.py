"""Iceberg tables: ``IcebergSink``, which adds or replaces rows, each exactly once.

Rule: only ``catalogs``, ``iceberg_table``, ``durable_file_io`` and ``partitions`` call the library; parts shared with
other formats are in ``_lake``.
"""

from __future__ import annotations

from kafka_eos.connectors.iceberg.sink import IcebergSink

__all__ = ["IcebergSink"]
