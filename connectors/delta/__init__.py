"""Delta Lake tables: ``DeltaSink``, which appends rows, each exactly once.

Rule: ``log`` is the only module that calls the library, and what it shares with other formats is in ``lake``.
"""

from __future__ import annotations

from kafka_eos.connectors.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
