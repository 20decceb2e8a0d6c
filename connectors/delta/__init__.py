"""Delta Lake tables: ``DeltaSink``, which appends or upserts rows, each exactly once.

Rule: only ``delta_log`` calls the library; parts shared with other formats are in ``_lake``.
"""

from __future__ import annotations

from kafka_eos.connectors.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
